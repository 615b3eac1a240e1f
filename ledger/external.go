package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ErrBacklogFull is returned for an external dispatch while [MaxExternal]
// others are unfinished.
var ErrBacklogFull = fmt.Errorf("dispatch error: %d external dispatches are unfinished; try again later", MaxExternal)

// NotFoundError is returned for a mark on a dispatch that the ledger does not
// have.
type NotFoundError struct{ RequestID string }

func (e *NotFoundError) Error() string {
	return "dispatch error: dispatch record not found: " + e.RequestID
}

// TransitionError is returned for a transition that the contract does not
// permit.
type TransitionError struct{ RequestID, From, To string }

func (e *TransitionError) Error() string {
	return "dispatch error: invalid transition for " + e.RequestID + ": " + e.From + " -> " + e.To
}

// JobDispatchError is returned for a caller's mark on a job's dispatch.
type JobDispatchError struct{ RequestID string }

func (e *JobDispatchError) Error() string {
	return "dispatch error: " + e.RequestID + " names a job's dispatch, which only its executor marks; use `job cancel` or `job retry`"
}

// external holds the dispatches that callers queue with the contract's
// QueueDispatch. The scheduler never places them; the caller that queued one
// marks it.
type external struct {
	byID       *btree.Map[string, *externalDispatch]
	finished   *btree.BTreeG[externalFinish] // by the time at which they ended
	unfinished int
}

// externalDispatch is one external dispatch. It is immutable once stored.
type externalDispatch struct {
	requestID, target string
	metadata          json.RawMessage
	state             uint8 // index into externalStates
	reason            string
	queued, ended     int64
}

// externalStates are in the order of the events from DispatchQueued on.
var externalStates = [...]string{"pending", "notified", "delivered", "failed"}

const (
	externalPending = iota
	externalNotified
	externalDelivered
	externalFailed
)

type externalFinish struct {
	at        int64
	requestID string
}

func newExternal() external {
	return external{
		byID: new(btree.Map[string, *externalDispatch]),
		finished: btree.NewBTreeGOptions(func(a, b externalFinish) bool {
			return a.at < b.at || a.at == b.at && a.requestID < b.requestID
		}, treeOptions),
	}
}

func (e *external) copy() external {
	return external{byID: e.byID.Copy(), finished: e.finished.Copy(), unfinished: e.unfinished}
}

// prune removes finished dispatches under the same rules as finished jobs.
func (e *external) prune(cutoff int64) {
	for range maxPruned {
		oldest, ok := e.finished.Min()
		if !ok || e.finished.Len() <= MaxFinished && oldest.at > cutoff {
			return
		}
		e.finished.Delete(oldest)
		e.byID.Delete(oldest.requestID)
	}
}

func (c *MarkNotified) apply(l *Ledger) Result {
	return l.mark(c.RequestID, externalNotified, c.Channel)
}

func (c *MarkDelivered) apply(l *Ledger) Result {
	return l.mark(c.RequestID, externalDelivered, "")
}

func (c *MarkFailed) apply(l *Ledger) Result {
	return l.mark(c.RequestID, externalFailed, c.Reason)
}

func (c *CaptureSnapshot) apply(l *Ledger) Result { return l.respond(Event{Kind: SnapshotCaptured}) }

func (c *QueueDispatch) apply(l *Ledger) Result {
	queued := Event{Kind: DispatchQueued, A: c.Target, Extra: &Extra{Request: c.RequestID, Metadata: c.Metadata}}
	if r, ok := l.external.byID.Get(c.RequestID); ok {
		if r.target == c.Target && equalJSON(r.metadata, c.Metadata) {
			queued.Extra.Metadata = r.metadata
			return Result{Event: &queued} // repeated: the same answer, no change
		}
		return Result{Err: fmt.Errorf("dispatch error: duplicate request id with other content: %s", c.RequestID)}
	}
	if _, _, jobs := job.ParseRequestID(c.RequestID); jobs {
		return Result{Err: &JobDispatchError{RequestID: c.RequestID}} // also if the job is not known yet
	}
	if l.external.unfinished >= MaxExternal {
		return Result{Err: ErrBacklogFull}
	}
	l.external.byID.Set(c.RequestID, &externalDispatch{requestID: c.RequestID, target: c.Target, metadata: c.Metadata, queued: l.now})
	l.external.unfinished++
	return l.respond(queued)
}

// equalJSON reports whether two JSON texts have the same value; the order of
// keys does not matter. Numbers are compared as written.
func equalJSON(a, b json.RawMessage) bool {
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

// mark moves an external dispatch to another state. A pending one that fails
// passes through notified with the channel "none", so that every dispatch has
// the contract's order of events.
func (l *Ledger) mark(request string, to uint8, text string) Result {
	r, ok := l.external.byID.Get(request)
	if !ok {
		id, _, ok := job.ParseRequestID(request)
		if _, known := l.Known(id); ok && known {
			return Result{Err: &JobDispatchError{RequestID: request}}
		}
		return Result{Err: &NotFoundError{RequestID: request}}
	}
	allowed := r.state == externalPending && (to == externalNotified || to == externalFailed) ||
		r.state == externalNotified && (to == externalDelivered || to == externalFailed)
	if !allowed {
		return Result{Err: &TransitionError{RequestID: request, From: externalStates[r.state], To: externalStates[to]}}
	}
	if r.state == externalPending && to == externalFailed {
		l.transition(r, externalNotified, "none")
		r, _ = l.external.byID.Get(request)
	}
	return l.transition(r, to, text)
}

// transition stores r in state to and emits the event with the text as its
// first field.
func (l *Ledger) transition(r *externalDispatch, to uint8, text string) Result {
	next := *r
	next.state, next.reason = to, text
	if to != externalNotified {
		next.ended = l.now
		l.external.unfinished--
		l.external.finished.Set(externalFinish{l.now, r.requestID})
	}
	l.external.byID.Set(r.requestID, &next)
	return l.respond(Event{Kind: DispatchQueued + EventKind(to), A: text, Extra: &Extra{Request: r.requestID}})
}
