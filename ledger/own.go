package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// ErrBacklogFull asks a caller to queue its own dispatch later.
var ErrBacklogFull = fmt.Errorf("dispatch error: %d own dispatches are unfinished; try again later", MaxOwn)

// NotFoundError refuses a mark on a dispatch that the ledger does not hold.
type NotFoundError struct{ RequestID string }

func (e *NotFoundError) Error() string {
	return "dispatch error: dispatch record not found: " + e.RequestID
}

// TransitionError refuses a step that the contract's order does not have.
type TransitionError struct{ RequestID, From, To string }

func (e *TransitionError) Error() string {
	return "dispatch error: invalid transition for " + e.RequestID + ": " + e.From + " -> " + e.To
}

// JobsDispatchError refuses a caller's mark on a job's dispatch.
type JobsDispatchError struct{ RequestID string }

func (e *JobsDispatchError) Error() string {
	return "dispatch error: " + e.RequestID + " names a job's dispatch, which is marked by whoever runs it; use `job cancel` or `job retry`"
}

// own holds the callers' own dispatches. They are never scheduled: whoever
// queued one marks it.
type own struct {
	byID       *btree.Map[string, *ownRecord]
	finished   *btree.BTreeG[ownFinish] // by the time they ended
	unfinished int
}

// ownRecord is immutable once it is stored.
type ownRecord struct {
	request, target string
	metadata        json.RawMessage
	state           uint8 // index into ownStates
	reason          string
	queued, ended   int64
}

var ownStates = [...]string{"pending", "notified", "delivered", "failed"}

const (
	ownPending = iota
	ownNotified
	ownDelivered
	ownFailed
)

type ownFinish struct {
	at      int64
	request string
}

func newOwn() own {
	return own{
		byID: new(btree.Map[string, *ownRecord]),
		finished: btree.NewBTreeGOptions(func(a, b ownFinish) bool {
			return a.at < b.at || a.at == b.at && a.request < b.request
		}, treeOptions),
	}
}

func (o *own) copy() own {
	return own{byID: o.byID.Copy(), finished: o.finished.Copy(), unfinished: o.unfinished}
}

// forget lets finished dispatches go like finished jobs.
func (o *own) forget(before int64) {
	for range maxForgotten {
		oldest, ok := o.finished.Min()
		if !ok || o.finished.Len() <= FinishedKeepMax && oldest.at > before {
			return
		}
		o.finished.Delete(oldest)
		o.byID.Delete(oldest.request)
	}
}

func (l *Ledger) applyContract(at Stamp, c Command) Result {
	switch c := c.(type) {
	case *AcquireAuthority:
		return l.acquire(at, c)
	case *RenewAuthority:
		return l.renewByCaller(c)
	case *QueueDispatch:
		return l.queueDispatch(c)
	case *MarkNotified:
		return l.mark(c.RequestID, ownNotified, c.Channel)
	case *MarkDelivered:
		return l.mark(c.RequestID, ownDelivered, "")
	case *MarkFailed:
		return l.mark(c.RequestID, ownFailed, c.Reason)
	case *RequestReplay:
		return l.requestReplay(c)
	case *CaptureSnapshot:
		return l.answer(Event{Kind: SnapshotCaptured})
	}
	return Result{Err: ErrUnknownKind}
}

func (l *Ledger) queueDispatch(c *QueueDispatch) Result {
	queued := Event{Kind: DispatchQueued, A: c.Target, Extra: &Extra{Request: c.RequestID, Metadata: c.Metadata}}
	if r, ok := l.own.byID.Get(c.RequestID); ok {
		if r.target == c.Target && sameValue(r.metadata, c.Metadata) {
			queued.Extra.Metadata = r.metadata
			return Result{Event: &queued} // said before: the same answer, nothing new
		}
		return Result{Err: fmt.Errorf("dispatch error: duplicate request id with other content: %s", c.RequestID)}
	}
	if _, _, jobs := job.ParseRequestID(c.RequestID); jobs {
		return Result{Err: &JobsDispatchError{RequestID: c.RequestID}} // also of a job yet to come
	}
	if l.own.unfinished >= MaxOwn {
		return Result{Err: ErrBacklogFull}
	}
	l.own.byID.Set(c.RequestID, &ownRecord{request: c.RequestID, target: c.Target, metadata: c.Metadata, queued: l.now})
	l.own.unfinished++
	l.counts.Pending++
	return l.answer(queued)
}

// sameValue tells that two JSON texts mean the same: keys may stand in another
// order. Numbers are compared as they are written.
func sameValue(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) || len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	value := func(text json.RawMessage) (v any, err error) {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		return v, dec.Decode(&v)
	}
	x, err := value(a)
	if err != nil {
		return false
	}
	y, err := value(b)
	return err == nil && reflect.DeepEqual(x, y)
}

// isJobs tells that a request id names a dispatch of a job that is known.
func (l *Ledger) isJobs(request string) bool {
	id, _, ok := job.ParseRequestID(request)
	return ok && (l.jobs.byID[id] != nil || l.jobs.gone.has(id))
}

// mark moves an own dispatch on. A pending one that fails passes through
// notified with the channel "none", so that the order always holds.
func (l *Ledger) mark(request string, to uint8, text string) Result {
	r, ok := l.own.byID.Get(request)
	if !ok {
		if l.isJobs(request) {
			return Result{Err: &JobsDispatchError{RequestID: request}}
		}
		return Result{Err: &NotFoundError{RequestID: request}}
	}
	allowed := r.state == ownPending && (to == ownNotified || to == ownFailed) ||
		r.state == ownNotified && (to == ownDelivered || to == ownFailed)
	if !allowed {
		return Result{Err: &TransitionError{RequestID: request, From: ownStates[r.state], To: ownStates[to]}}
	}
	if r.state == ownPending && to == ownFailed {
		l.step(r, ownNotified, "none")
		r, _ = l.own.byID.Get(request)
	}
	return l.step(r, to, text)
}

func (l *Ledger) step(r *ownRecord, to uint8, text string) Result {
	next := *r
	next.state, next.reason = to, text
	e := Event{A: text, Extra: &Extra{Request: r.request}}
	switch to {
	case ownNotified:
		e.Kind = DispatchNotified
		l.counts.Pending--
		l.counts.Notified++
	case ownDelivered:
		e.Kind = DispatchDelivered
		l.counts.Notified--
		l.counts.Delivered++
	case ownFailed:
		e.Kind = DispatchFailed
		l.counts.Notified--
		l.counts.Failed++
	}
	if to != ownNotified {
		next.ended = l.now
		l.own.unfinished--
		l.own.finished.Set(ownFinish{l.now, r.request})
	}
	l.own.byID.Set(r.request, &next)
	return l.answer(e)
}
