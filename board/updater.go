package board

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Timing and limits of the updater.
const (
	passInterval       = time.Second
	minPassGap         = 250 * time.Millisecond // between two passes, if something wakes the updater
	minRowInterval     = 900 * time.Millisecond // between two writes of one row
	maxWritesPerSecond = 200                    // of all boards together; after a quiet second as many more at once
	valuesPerCall      = 200                    // rows per call of Source.Values
	forgetAfter        = time.Minute            // the row was removed rows; by then the watch has reported the removal
	ensureInterval     = 5 * time.Second
	retryDelay         = time.Second
	failureGrace       = 10 * time.Second // before a failure is logged
	maxConflicts       = 3                // consecutive passes whose only errors are conflicts, before all boards are read again
)

// Row is the key of a row and hashes of its content.
type Row struct {
	Key      string
	Stable   uint64 // changes are written at once
	Volatile uint64 // changes are written once per Board.Interval
}

// Version is the state of the ledger that values reflect.
type Version struct {
	Epoch uint64
	Index uint64
	At    time.Time
}

// Source provides the content of the boards.
type Source interface {
	// Rows returns all rows of a board; ok is false while they are unknown. Boards are
	// requested in the order passed to New.
	Rows(ctx context.Context, board string) (rows []Row, ok bool)
	// Values returns the values of some rows. Each marshals to a JSON object with at
	// least one field, or is nil if the row no longer exists.
	Values(board string, keys []string) (values []any, version Version)
}

// Entry is a stored row.
type Entry struct {
	Key      string // "" marks the end of the initial rows
	Value    []byte
	Revision uint64 // increases with every write to the board
	Deleted  bool   // the row was removed
}

// ErrConflict means that a write was refused because the row has another revision.
var ErrConflict = errors.New("row was written by another client")

// errCreated makes Run start over, because boards were missing and have been
// created.
var errCreated = errors.New("boards were missing and have been created")

// Store stores the boards.
type Store interface {
	// Ensure creates missing boards and reports whether there were any.
	Ensure(ctx context.Context) (created bool, err error)
	// Watch calls fn with each row of a board, then with an empty entry, then with
	// every write, until ctx ends or an error occurs.
	Watch(ctx context.Context, board string, fn func(Entry)) error
	// Put writes a row if its revision is expected, or in any case if expected is 0. done
	// is called once, with [ErrConflict] for another revision, and does not block.
	Put(board, key string, value []byte, expected uint64, done func(rev uint64, err error))
	// Remove removes a row under the same condition.
	Remove(board, key string, expected uint64, done func(rev uint64, err error))
}

// Board is the name of a board and how to maintain it.
type Board struct {
	Name     string
	Interval time.Duration // minimum time between writes of a row's volatile part; 0: every pass
	// SkipWatch makes the updater write all rows at the beginning, whatever is stored,
	// without waiting for the watch. It is meant for boards with few rows.
	SkipWatch bool
}

// Updater keeps boards up to date.
type Updater struct {
	boards []Board
	source Source
	store  Store
	log    *slog.Logger

	mu      crash.Mutex
	failing map[string]*failure // by task, or by the name of a board that cannot be watched
}

// failure is an ongoing failure.
type failure struct {
	since  time.Time
	logged bool // it was logged
}

// New returns an updater. Boards that come first are written first.
func New(boards []Board, source Source, store Store, log *slog.Logger) *Updater {
	return &Updater{boards: boards, source: source, store: store, log: log, failing: map[string]*failure{}}
}

// Run maintains the boards until ctx ends, and starts over after failures.
func (u *Updater) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := u.runOnce(ctx); err != nil && ctx.Err() == nil {
			u.reportFailure(taskWriting, err)
			_ = backoff.Sleep(ctx, retryDelay)
		}
	}
}

// Tasks that may fail, besides watching a board.
const (
	taskWriting  = "write"
	taskCreating = "create"
)

// reportFailure records that a task has failed, and logs that once if it has done so for
// failureGrace without a success; an election takes less.
func (u *Updater) reportFailure(task string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch f := u.failing[task]; {
	case f == nil:
		u.failing[task] = &failure{since: time.Now()}
	case !f.logged && time.Since(f.since) > failureGrace:
		f.logged = true
		u.log.Warn("boards out of date", "task", task, "err", err)
	}
}

// reportSuccess ends a failure, and logs that if the failure was logged.
func (u *Updater) reportSuccess(task string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.failing[task]; f != nil && f.logged {
		u.log.Info("boards up to date again", "task", task)
	}
	delete(u.failing, task)
}

// runOnce watches and writes the boards until ctx ends, or with an error until its view
// of the boards turns out to be wrong or a board was missing.
func (u *Updater) runOnce(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	states := make([]*boardState, len(u.boards))
	group, ctx := errgroup.WithContext(ctx)
	for i, b := range u.boards {
		bs := newBoardState(b, u.log, wake)
		states[i] = bs
		group.Go(func() error { u.watch(ctx, bs); return nil })
	}
	group.Go(func() error { return u.ensure(ctx) })
	group.Go(func() error { return u.runPasses(ctx, states, wake) })
	return group.Wait()
}

// watch passes the entries of a board to its state, and watches again after an
// error.
func (u *Updater) watch(ctx context.Context, bs *boardState) {
	for ctx.Err() == nil {
		receive := func(e Entry) {
			bs.receive(e)
			if e.Key == "" { // the initial rows are complete
				u.reportSuccess(bs.board.Name)
			}
		}
		if err := u.store.Watch(ctx, bs.board.Name, receive); err != nil && ctx.Err() == nil {
			u.reportFailure(bs.board.Name, err)
			_ = backoff.Sleep(ctx, retryDelay)
		}
	}
}

// ensure checks every ensureInterval whether the boards exist, and creates those that do
// not. It then returns errCreated, so that the caller fills the new board and watches it:
// the watch of the old one may not have reported its loss. It returns nil when ctx ends.
func (u *Updater) ensure(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := ensureInterval
		created, err := u.store.Ensure(ctx)
		switch {
		case ctx.Err() != nil: // stopping is not a failure
		case err != nil:
			u.reportFailure(taskCreating, err)
			wait = retryDelay
		default:
			u.reportSuccess(taskCreating)
		}
		if created {
			return errCreated
		}
		_ = backoff.Sleep(ctx, wait)
	}
	return nil
}

// runPasses makes a pass each second, and sooner after a wake-up. Their writes are limited
// by an allowance that grows by maxWritesPerSecond each second. It returns an error that
// wraps [ErrConflict] after maxConflicts passes in a row.
func (u *Updater) runPasses(ctx context.Context, states []*boardState, wake <-chan struct{}) error {
	tick := time.NewTicker(passInterval)
	defer tick.Stop()
	conflicts, lastPass, allowance := 0, time.Time{}, 0.0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-wake:
		}
		_ = backoff.Sleep(ctx, time.Until(lastPass.Add(minPassGap)))
		allowance = min(maxWritesPerSecond, allowance+time.Since(lastPass).Seconds()*maxWritesPerSecond)
		lastPass = time.Now()
		wrote, err := u.pass(ctx, states, int(allowance))
		allowance -= float64(wrote)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			conflicts = 0
			u.reportSuccess(taskWriting)
		case !errors.Is(err, ErrConflict):
			u.reportFailure(taskWriting, err) // the next pass writes the rows again
		default:
			if conflicts++; conflicts == maxConflicts {
				return err // the view of the boards is wrong: read them again
			}
		}
	}
}

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
	err = batch.await(ctx)
	if writeErr != nil {
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
