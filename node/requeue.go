package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// What becomes of a letter. A letter that is retried, enqueued or stale leaves
// the stream, but only when that is certain.
const (
	letterRetried  = "retried"  // its job waits again, under its own id
	letterEnqueued = "enqueued" // a new job was made of it
	letterStale    = "stale"    // nothing to do: its job has gone on since
	letterRemoved  = "removed"
	letterFailed   = "failed" // and is still there
)

// letterItem says what became of one letter, or in a dry run would.
type letterItem struct {
	Number uint64 `json:"letter"`
	ID     string `json:"id"`     // the job that failed
	Result string `json:"result"` // see above
	Job    string `json:"job,omitempty"`
	Queue  string `json:"queue,omitempty"` // where Job is
	Note   string `json:"note,omitempty"`
	Error  string `json:"error,omitempty"` // what went wrong and what to do
}

// lettersChanged answers a change, letter by letter.
type lettersChanged struct {
	DryRun bool         `json:"dry_run"`
	Items  []letterItem `json:"items"`
	walked
	Stopped string `json:"stopped,omitempty"` // why the rest was not begun, if that was not the time
}

// Bounds of one answer to a change.
const (
	changesAtOnce  = 16
	maxChanged     = 100
	maxChangedSize = 8 << 20 // bytes of letters, which all are in memory at once
)

func (d *dlq) remove(ctx context.Context, q *letterQuestion) (any, error) {
	return d.change(ctx, q, func(context.Context, *letter) (letterItem, error) {
		return letterItem{Result: letterRemoved}, nil
	})
}

func (d *dlq) requeue(ctx context.Context, q *letterQuestion) (any, error) {
	if q.To != "" {
		if err := job.ValidQueue(q.To); err != nil {
			return nil, err
		}
		_, there, err := d.commander.queue(ctx, q.To)
		if err == nil && !there {
			err = fmt.Errorf("queue %q: %w", q.To, job.ErrQueueNotFound)
		}
		if err != nil {
			return nil, err
		}
	}
	// What an earlier requeue has had accepted, here or elsewhere, must be
	// known before anything is requeued again.
	if err := d.viewer.catchUp(ctx); err != nil {
		return nil, err
	}
	m := &requeuing{dlq: d, q: q}
	return d.change(ctx, q, m.letter)
}

// change gathers letters and does the same to each, some at a time. What the
// time of one answer does not allow to begin is left to the next question.
func (d *dlq) change(ctx context.Context, q *letterQuestion, do func(context.Context, *letter) (letterItem, error)) (any, error) {
	if err := q.meansSome(); err != nil {
		return nil, err
	}
	var letters []letter
	size := 0
	w, err := d.walk(ctx, q, func(l letter) bool {
		letters = append(letters, l)
		size += l.size() + 2*len(l.record)
		return len(letters) < min(q.Limit, maxChanged) && size < maxChangedSize
	})
	if err != nil {
		return nil, err
	}
	items, begun := make([]letterItem, len(letters)), 0
	group, going := errgroup.WithContext(ctx)
	group.SetLimit(changesAtOnce)
	for ; begun < len(letters) && going.Err() == nil; begun++ {
		if begun >= changesAtOnce && time.Now().After(q.over) {
			break
		}
		l, item := &letters[begun], &items[begun]
		group.Go(func() (err error) {
			if *item, err = d.changeOne(ctx, q, l, do); later(err) {
				return err
			}
			return nil
		})
	}
	answer := lettersChanged{DryRun: q.DryRun, walked: w}
	if err := group.Wait(); err != nil {
		answer.Stopped = err.Error()
	}
	if answer.Items = items[:begun]; begun < len(letters) {
		answer.Next = letters[begun].number
	}
	return answer, nil
}

// later tells errors that the next letter would meet as well.
func later(err error) bool {
	var unavailable *job.UnavailableError
	return errors.As(err, &unavailable) || errors.Is(err, cluster.ErrUnknown)
}

func (d *dlq) changeOne(ctx context.Context, q *letterQuestion, l *letter, do func(context.Context, *letter) (letterItem, error)) (letterItem, error) {
	item, err := do(ctx, l)
	item.Number, item.ID = l.number, l.ID
	if err == nil && !q.DryRun {
		if err = d.messages.RemoveLetter(ctx, l.number); err != nil && item.Result != letterRemoved {
			item.Error = "this is done, but the letter is still there; ask again, which does nothing twice: " + err.Error()
			return item, err
		}
	}
	if err != nil {
		item.Result, item.Error = letterFailed, err.Error()
	}
	return item, err
}

// requeuing is one request to requeue letters.
type requeuing struct {
	*dlq
	q     *letterQuestion
	large sync.Mutex // one large body at a time
}

// letter gives a letter's job a new life: under its own id while the ledger
// keeps it, else, or in another queue, as a new job. The new job's id comes
// from the letter, so that there is never a second one.
func (m *requeuing) letter(ctx context.Context, l *letter) (letterItem, error) {
	if l.broken {
		return letterItem{}, errors.New(l.Reason + "; remove it with 'yardmaster dlq rm'")
	}
	id := l.renewed()
	if in, known := m.knownIn(id); known {
		return letterItem{Result: letterStale, Job: id.String(), Queue: in, Note: "requeued before"}, nil
	}
	to := l.Queue
	if m.q.To != "" {
		to = m.q.To
	}
	found, kept := m.find(l)
	switch {
	case !kept || l.rejected():
		return m.enqueue(ctx, l, id, to)
	case found.State != job.Failed || found.Dispatches != l.n:
		return letterItem{Result: letterStale, Job: l.ID, Queue: found.Queue, Note: "the job is " + found.State.String() + " after dispatch " + fmt.Sprint(found.Dispatches)}, nil
	case to != l.Queue:
		return m.enqueue(ctx, l, id, to)
	}
	return m.retry(ctx, l)
}

func (m *requeuing) knownIn(id job.ID) (queue string, known bool) {
	m.view(func(lg *ledger.Ledger) { queue, known = lg.Known(id) })
	return queue, known
}

// renewed is the id of the job that is made of a letter. It names the letter
// by dispatch and record: an id that was forgotten may have been used again.
func (l *letter) renewed() job.ID {
	key := fmt.Sprintf("dead/%s@%d/%d", job.RequestID(l.job, l.n), l.Lane, l.Seq)
	id, _ := job.KeyID("", key) // far shorter than a key may be; of no queue, so the same for all
	return id
}

// rejected tells a record that never was a job.
func (l *letter) rejected() bool {
	return l.Attempts == 0 && l.Error != nil && l.Error.Type == job.FaultRejected
}

func (m *requeuing) retry(ctx context.Context, l *letter) (letterItem, error) {
	item := letterItem{Result: letterRetried, Job: l.ID, Queue: l.Queue}
	if m.q.DryRun {
		return item, nil
	}
	_, err := m.commander.do(ctx, &ledger.RetryJob{Job: l.job, N: l.n, Keep: m.q.KeepAttempts})
	if errors.Is(err, job.ErrNotFailed) || errors.Is(err, job.ErrLeaseLost) { // somebody was faster
		return letterItem{Result: letterStale, Job: l.ID, Queue: l.Queue, Note: "the job has gone on meanwhile"}, nil
	}
	return item, err
}

func (m *requeuing) enqueue(ctx context.Context, l *letter, id job.ID, to string) (letterItem, error) {
	spec, release, err := m.spec(ctx, l)
	if err != nil {
		return letterItem{}, err
	}
	defer release()
	item := letterItem{Result: letterEnqueued, Job: id.String(), Queue: to}
	if m.q.DryRun {
		_, err := m.door.check(to, &spec, id.String(), m.q.To != "")
		return item, err
	}
	a, err := m.door.take(ctx, to, spec, id.String(), m.q.To != "")
	if a.duplicate {
		item.Result, item.Note = letterStale, "requeued before"
	}
	return item, err
}

// anew is a job that is asked for once more: due at once, and whoever holds its
// guards, which hold back producers. All else is as it was.
func anew(spec job.Spec) job.Spec {
	spec.Undefer()
	spec.UniqueKey, spec.UniqueTTLMS, spec.RateLimitKey, spec.RateLimitMS, spec.DebounceKey, spec.DebounceMS = nil, nil, nil, nil, nil, nil
	return spec
}

// spec is what the new job is to do. release ends the use of a large one.
func (m *requeuing) spec(ctx context.Context, l *letter) (spec job.Spec, release func(), err error) {
	release = func() {}
	if l.record == nil {
		return spec, release, errors.New("the letter has no record, which was gone when it was written; only 'yardmaster dlq rm' is left")
	}
	if spec, err = job.ParseSpec(l.record); err == nil && spec.Blob != nil {
		m.large.Lock()
		release = m.large.Unlock
		spec, err = m.largeSpec(ctx, l, spec.Blob.Size)
	}
	var invalid *job.InvalidError
	if errors.As(err, &invalid) {
		err = fmt.Errorf("its record cannot be a job: %w; enqueue it anew, corrected, and remove the letter", err)
	}
	if err != nil {
		release()
		return spec, func() {}, err
	}
	spec = anew(spec)
	if m.q.KeepAttempts {
		spec.MaxAttempts = m.left(spec.MaxAttempts, l.Attempts)
	}
	return spec, release, nil
}

// largeSpec reads a body that lies beside the lanes.
func (m *requeuing) largeSpec(ctx context.Context, l *letter, size int64) (job.Spec, error) {
	body, err := m.messages.LoadRecordBody(ctx, l.record)
	if errors.Is(err, cluster.ErrNotStored) {
		return job.Spec{}, fmt.Errorf("its body of %d bytes is gone: large bodies are kept about as long as the yard remembers their job; enqueue it anew and remove the letter", size)
	}
	if err != nil {
		return job.Spec{}, err
	}
	spec, err := job.ParseSpec(body)
	if err == nil && spec.Blob != nil {
		err = &job.InvalidError{Reason: "its body points to another body"}
	}
	return spec, err
}

// left is how many attempts a job still has after some; one at least.
func (m *requeuing) left(own *int64, had uint32) *int64 {
	limit := int64(m.maxAttempts)
	if own != nil {
		limit = *own
	}
	n := max(1, limit-int64(had))
	return &n
}
