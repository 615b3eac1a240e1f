package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
)

const (
	batchRows  = 500      // that are read and sent at once
	batchBytes = 16 << 20 // after which no further row of a batch is read

	sendTimeout   = 10 * time.Second // for the answers to a batch
	deleteTimeout = 10 * time.Second // for the database, once a batch was answered
)

// DB is the application's database, usually an [*sql.DB].
type DB interface {
	Tx
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Enqueuer sends jobs to the cluster. A [*client.Client] is one.
type Enqueuer interface {
	EnqueueMany(ctx context.Context, specs []client.Spec) []client.Enqueued
}

// Forwarder sends the jobs in an outbox to the cluster, oldest first in batches. The jobs of
// a batch are sent together, so they may start in another order; only a job that has the
// unique, rate limit or debounce key of an earlier one is not sent before the earlier one is
// answered.
//
// Several forwarders of one outbox are harmless. They may send the same rows, so more than
// two only add load. The fields must not be changed after the first call.
type Forwarder struct {
	DB     DB
	Client Enqueuer
	// Interval is how often the outbox is read if Notify is not called; 0 means a second.
	Interval time.Duration
	// Log receives the log messages; nil means slog.Default().
	Log *slog.Logger

	once sync.Once
	wake chan struct{} // has a value if Notify was called
}

func (f *Forwarder) init() {
	f.once.Do(func() { f.wake = make(chan struct{}, 1) })
}

// Notify makes Run read the outbox at once. Call it after a commit; it does not block. A
// call is forgotten if the program ends, and the interval finds the row.
func (f *Forwarder) Notify() {
	f.init()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run sends jobs until ctx ends, and then returns nil. It logs errors of the database and
// tries again, and leaves jobs in the outbox while the cluster is unavailable.
func (f *Forwarder) Run(ctx context.Context) error {
	f.init()
	interval := cmp.Or(max(f.Interval, 0), time.Second)
	log := cmp.Or(f.Log, slog.Default())
	p := pass{held: make(map[string]bool)}
	for ctx.Err() == nil {
		b, err := f.forward(ctx, log, &p)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.Error("outbox not forwarded, retrying", "err", err, "retry_after", interval)
		case b.left > 0:
			log.Warn("jobs remain in the outbox, retrying", "count", b.left, "err", b.reason, "retry_after", interval)
		}
		if err != nil || b.left > 0 || b.shared {
			f.sleep(ctx, interval, nil)
		} else if p.after == 0 {
			f.sleep(ctx, interval, f.wake)
		}
	}
	return nil
}

// sleep waits for a time, or until ctx ends or wake has a value.
func (f *Forwarder) sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// pass is one pass through the outbox, which goes on to the next batch whatever became of
// the one before, so that rows that cannot be sent do not keep others waiting.
type pass struct {
	after int64           // the last row of the batch before; 0: the pass begins
	held  map[string]bool // unique, rate limit and debounce keys of jobs that were not answered
}

// batch is what has become of one batch.
type batch struct {
	left   int   // rows that were neither accepted nor refused
	reason error // why one of them was not
	shared bool  // another forwarder has sent most of the rows, too
}

// row is a row of the outbox and its job.
type row struct {
	id  int64
	job client.Spec
	err error // why the row has no valid job
}

// forward sends the next batch of a pass. After an error, the batch is repeated.
func (f *Forwarder) forward(ctx context.Context, log *slog.Logger, p *pass) (b batch, err error) {
	rows, more, err := f.read(ctx, p.after)
	if err != nil {
		return b, fmt.Errorf("read the outbox: %w", err)
	}
	var accepted []int64
	refused := make(map[int64]error)
	answers := f.send(ctx, rows, p.held)
	// What was answered is written, even if ctx has ended meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	for i, r := range rows {
		switch err := answers[i]; {
		case err == nil:
			accepted = append(accepted, r.id)
		case isRefusal(err):
			refused[r.id] = err
			log.Error("job of the outbox refused", "row", r.id, "queue", r.job.Queue, "key", r.job.Key, "function", r.job.Function, "err", err)
		default:
			b.left, b.reason = b.left+1, err
		}
	}
	for id, reason := range refused {
		if _, err := f.DB.ExecContext(ctx, refuseRow, reason.Error(), id); err != nil {
			return b, fmt.Errorf("store why row %d was refused: %w", id, err)
		}
	}
	deleted, err := f.remove(ctx, accepted)
	if err != nil {
		return b, fmt.Errorf("delete %d accepted jobs: %w", len(accepted), err)
	}
	b.shared = 2*deleted < int64(len(accepted)) // then this one pauses, lest both send every row
	if p.after = 0; more {
		p.after = rows[len(rows)-1].id
	} else {
		clear(p.held)
	}
	return b, nil
}

// read returns a batch of rows that are to be sent, and whether there may be more.
func (f *Forwarder) read(ctx context.Context, after int64) (read []row, more bool, err error) {
	rows, err := f.DB.QueryContext(ctx, selectRows, after, batchRows)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for size := 0; size < batchBytes && rows.Next(); {
		var r row
		var text string
		if err := rows.Scan(&r.id, &text); err != nil {
			return nil, false, err
		}
		if r.err = json.Unmarshal([]byte(text), &r.job); r.err == nil && r.job.Key == "" {
			r.err = fmt.Errorf("%w: it has no key (id)", client.ErrInvalidJob)
		}
		read, size = append(read, r), size+len(text)
		more = len(read) == batchRows || size >= batchBytes
	}
	return read, more, rows.Err()
}

// errHeld is why a job was not sent.
var errHeld = errors.New("an earlier job with the same unique, rate limit or debounce key is not answered yet")

// send sends the jobs of rows and returns the errors, in order. It sends no job that has a
// key in held, and adds the keys of those that are not answered.
func (f *Forwarder) send(ctx context.Context, rows []row, held map[string]bool) []error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	errs := make([]error, len(rows))
	for next := 0; next < len(rows); {
		var specs []client.Spec
		var places []int // of specs in rows
		sent := make(map[string]bool)
		for ; next < len(rows); next++ {
			r := &rows[next]
			keys := guardsOf(&r.job)
			if hasAny(sent, keys) {
				break // the earlier one has to be answered
			}
			switch {
			case r.err != nil:
				errs[next] = r.err
			case hasAny(held, keys):
				errs[next] = errHeld
				addAll(held, keys)
			default:
				addAll(sent, keys)
				specs, places = append(specs, r.job), append(places, next)
			}
		}
		for i, answer := range f.Client.EnqueueMany(ctx, specs) {
			errs[places[i]] = answer.Err
			if answer.Err != nil && !isRefusal(answer.Err) {
				addAll(held, guardsOf(&specs[i]))
			}
		}
	}
	return errs
}

func hasAny(set map[string]bool, keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return set[key] })
}

func addAll(set map[string]bool, keys []string) {
	for _, key := range keys {
		set[key] = true
	}
}

// guardsOf returns the unique, rate limit and debounce keys of a job.
func guardsOf(s *client.Spec) (keys []string) {
	for kind, key := range [...]string{s.UniqueKey, s.RateLimitKey, s.DebounceKey} {
		if key != "" {
			keys = append(keys, fmt.Sprint(kind, key))
		}
	}
	return keys
}

// refusals are the kinds of errors that repeating a request does not change.
var refusals = [...]error{
	client.ErrInvalidJob, client.ErrInvalid, client.ErrNotFound, client.ErrConflict, client.ErrGone, client.ErrTooLarge, client.ErrRateLimited,
}

// isRefusal reports whether err means that the cluster has refused a job for good.
func isRefusal(err error) bool {
	for _, kind := range refusals {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// remove deletes rows and returns how many of them were there.
func (f *Forwarder) remove(ctx context.Context, ids []int64) (deleted int64, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	// Few different lengths, so that databases and drivers keep few statements.
	n := 1
	for n < len(ids) {
		n *= 8
	}
	args := make([]any, n)
	var list strings.Builder
	for i := range args {
		args[i] = ids[min(i, len(ids)-1)]
		fmt.Fprintf(&list, ",$%d", i+1)
	}
	result, err := f.DB.ExecContext(ctx, `DELETE FROM yard_outbox WHERE id IN (`+list.String()[1:]+`)`, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
