package board

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// pass writes the most urgent rows, at most limit, and waits for the results. Its
// error is [ErrConflict] if nothing else went wrong.
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

// writeRows starts the first of the writes, within the batch's limit.
func (u *Updater) writeRows(bs *boardState, writes []pendingWrite, batch *writeBatch) error {
	for len(writes) > 0 && batch.count < batch.limit {
		some := writes[:min(len(writes), valuesPerCall)]
		writes = writes[len(some):]
		keys := make([]string, len(some))
		for i := range some {
			keys[i] = some[i].Key
		}
		values, version := u.source.Values(bs.board.Name, keys)
		for i := range some {
			if batch.count == batch.limit {
				return nil
			}
			if err := u.writeRow(bs, &some[i], values[i], version, batch); err != nil {
				return fmt.Errorf("row %s of %s: %w", some[i].Key, bs.board.Name, err)
			}
		}
	}
	return nil
}

// writeRow starts one write, unless the stored value is correct already.
func (u *Updater) writeRow(bs *boardState, w *pendingWrite, rowValue any, version Version, batch *writeBatch) error {
	if w.remove {
		u.store.Remove(bs.board.Name, w.Key, bs.begin(w, []byte{}), batch.onDone(bs, w))
		return nil
	}
	if rowValue == nil { // it no longer exists; the next pass removes it
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
	u.store.Put(bs.board.Name, w.Key, value, bs.begin(w, value), batch.onDone(bs, w))
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
	count   int
}

type writeResult struct {
	board *boardState
	write *pendingWrite
	rev   uint64
	err   error
}

// onDone returns the callback for the result of a write.
func (wb *writeBatch) onDone(bs *boardState, w *pendingWrite) func(uint64, error) {
	wb.count++
	return func(rev uint64, err error) { wb.results <- writeResult{bs, w, rev, err} }
}

// await waits for the results of all writes, or until ctx ends.
func (wb *writeBatch) await(ctx context.Context) error {
	var failed error
	for range wb.count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-wb.results:
			r.board.end(r.write, r.rev, r.err, time.Now())
			if r.err != nil && (failed == nil || errors.Is(failed, ErrConflict)) {
				failed = fmt.Errorf("row %s of %s: %w", r.write.Key, r.board.board.Name, r.err)
			}
		}
	}
	return failed
}
