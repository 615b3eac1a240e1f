package board

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// pass writes the most urgent rows of the boards, at most limit, and waits for the
// results. It returns the number of writes. The error wraps [ErrConflict] only if
// conflicts were all that went wrong.
func (u *Updater) pass(ctx context.Context, boards []*boardState, limit int) (wrote int, err error) {
	batch := &writeBatch{limit: limit, results: make(chan writeResult, limit)}
	var writeErr error
	for _, bs := range boards {
		rows, ok := u.source.Rows(ctx, bs.board.Name)
		if !ok {
			continue
		}
		if err := u.writeRows(bs, bs.pendingWrites(rows, time.Now()), batch); err != nil {
			writeErr = err
		}
	}
	if err = batch.await(ctx); writeErr != nil {
		err = writeErr
	}
	return batch.count, err
}

// writeRows starts the writes in their order until the batch has reached its limit. It
// gets the values of valuesPerCall rows at once from the source.
func (u *Updater) writeRows(bs *boardState, writes []pendingWrite, batch *writeBatch) error {
	for chunk := range slices.Chunk(writes, valuesPerCall) {
		if batch.count == batch.limit {
			return nil
		}
		keys := make([]string, len(chunk))
		for i := range chunk {
			keys[i] = chunk[i].Key
		}
		values, version := u.source.Values(bs.board.Name, keys)
		for i := range chunk {
			if batch.count == batch.limit {
				return nil
			}
			if err := u.writeRow(bs, &chunk[i], values[i], version, batch); err != nil {
				return fmt.Errorf("row %s of %s: %w", chunk[i].Key, bs.board.Name, err)
			}
		}
	}
	return nil
}

// writeRow starts one write, unless the stored value is correct already. rowValue is the
// row's present value, nil if the row no longer exists.
func (u *Updater) writeRow(bs *boardState, w *pendingWrite, rowValue any, version Version, batch *writeBatch) error {
	if w.remove {
		u.store.Remove(bs.board.Name, w.Key, bs.beginWrite(w, []byte{}), batch.add(bs, w))
		return nil
	}
	if rowValue == nil { // the next pass removes it
		return nil
	}
	text, err := json.Marshal(rowValue)
	if err != nil {
		return err
	}
	if w.compare && bs.confirm(w, text) {
		return nil
	}
	value := withVersion(text, version)
	u.store.Put(bs.board.Name, w.Key, value, bs.beginWrite(w, value), batch.add(bs, w))
	return nil
}

// versionKey is the beginning of what withVersion adds to a row.
const versionKey = `,"epoch":`

// withVersion appends the version's fields to the JSON object row.
func withVersion(row []byte, v Version) []byte {
	value := append([]byte(nil), row[:len(row)-1]...)
	return fmt.Appendf(value, versionKey+`%d,"index":%d,"at":%q}`, v.Epoch, v.Index, v.At.UTC().Format(time.RFC3339Nano))
}

// withoutVersion removes the version's fields from a stored row.
func withoutVersion(value []byte) []byte {
	cut := bytes.LastIndex(value, []byte(versionKey))
	if cut < 0 {
		return value
	}
	return append(append([]byte(nil), value[:cut]...), '}')
}

// writeBatch holds the writes of a pass that are in flight.
type writeBatch struct {
	limit   int              // maximum number of writes
	results chan writeResult // buffered for limit results
	count   int              // writes added
}

type writeResult struct {
	board *boardState
	write *pendingWrite
	rev   uint64
	err   error
}

// add adds a write to the batch and returns the callback for its result.
func (wb *writeBatch) add(bs *boardState, w *pendingWrite) func(uint64, error) {
	wb.count++
	return func(rev uint64, err error) { wb.results <- writeResult{bs, w, rev, err} }
}

// await waits for the results of all writes, or until ctx ends. It returns the first
// error of a write, but a conflict only if there is no other error.
func (wb *writeBatch) await(ctx context.Context) error {
	var failed error
	for range wb.count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-wb.results:
			r.board.endWrite(r.write, r.rev, r.err, time.Now())
			if r.err != nil && (failed == nil || errors.Is(failed, ErrConflict)) {
				failed = fmt.Errorf("row %s of %s: %w", r.write.Key, r.board.board.Name, r.err)
			}
		}
	}
	return failed
}
