package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

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

// jobDispatchError returns the error for a caller's mark on a job's dispatch.
func jobDispatchError(requestID string) error {
	return fmt.Errorf("dispatch error: %s names a job's dispatch, which only its executor marks; use `job cancel` or `job retry`", requestID)
}

// external holds the dispatches that callers queue with the contract's
// QueueDispatch. The scheduler never places them; the caller that queued one
// marks it.
type external struct {
	byID       *btree.Map[string, *externalDispatch]
	finished   *btree.BTreeG[*externalDispatch] // by the time at which they ended
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

func newExternal() external {
	return external{
		byID: new(btree.Map[string, *externalDispatch]),
		finished: btree.NewBTreeGOptions(func(a, b *externalDispatch) bool {
			return a.ended < b.ended || a.ended == b.ended && a.requestID < b.requestID
		}, treeOptions),
	}
}

func (e *external) copy() external {
	return external{byID: e.byID.Copy(), finished: e.finished.Copy(), unfinished: e.unfinished}
}

// addExternal adds a dispatch in any state, and counts it in the backlog unless
// it has ended: delivered and failed dispatches are counted for good when they
// end. It reports whether it replaced another dispatch.
func (l *Ledger) addExternal(d *externalDispatch) (replaced bool) {
	switch d.state {
	case externalPending:
		l.counts.Pending++
		l.external.unfinished++
	case externalNotified:
		l.counts.Notified++
		l.external.unfinished++
	default:
		l.external.finished.Set(d)
	}
	_, replaced = l.external.byID.Set(d.requestID, d)
	return replaced
}

// prune removes finished dispatches under the same rules as finished jobs.
func (e *external) prune(now int64, limits finishedLimits) {
	for range maxPruned {
		oldest, ok := e.finished.Min()
		if !ok || e.finished.Len() <= limits.count && now-oldest.ended < limits.age {
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

func (c *CaptureSnapshot) apply(l *Ledger) Result {
	s := c.Context
	s.Now = time.Unix(0, l.now)
	snapshot, err := json.Marshal(l.Snapshot(s))
	if err != nil {
		return Result{Err: err}
	}
	return l.respond(Event{Kind: SnapshotCaptured, Extra: &Extra{Metadata: snapshot}})
}

// apply adds a pending dispatch. For a repeated command it returns the same
// answer and changes nothing. It refuses a request id that has the form of a
// job's dispatch, even if there is no such job yet.
func (c *QueueDispatch) apply(l *Ledger) Result {
	event := Event{Kind: DispatchQueued, A: c.Target, Extra: &Extra{Request: c.RequestID, Metadata: c.Metadata}}
	if existing, ok := l.external.byID.Get(c.RequestID); ok {
		if existing.target == c.Target && equalJSON(existing.metadata, c.Metadata) {
			event.Extra.Metadata = existing.metadata
			return Result{Event: &event}
		}
		return Result{Err: fmt.Errorf("dispatch error: duplicate request id with other content: %s", c.RequestID)}
	}
	if _, _, ofJob := job.ParseRequestID(c.RequestID); ofJob {
		return Result{Err: jobDispatchError(c.RequestID)}
	}
	if l.external.unfinished >= MaxExternal {
		return Result{Err: ErrBacklogFull}
	}
	l.external.byID.Set(c.RequestID, &externalDispatch{requestID: c.RequestID, target: c.Target, metadata: c.Metadata, queued: l.now})
	l.external.unfinished++
	return l.respond(event)
}

// equalJSON reports whether two JSON texts have the same value. The order of
// keys does not matter; numbers are compared as written. An empty text equals
// only another empty one, and an invalid text only the same bytes.
func equalJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) || len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	parse := func(text json.RawMessage) (value any, err error) {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		return value, dec.Decode(&value)
	}
	valueA, errA := parse(a)
	valueB, errB := parse(b)
	return errA == nil && errB == nil && reflect.DeepEqual(valueA, valueB)
}

// mark moves an external dispatch to the state to, if the contract permits that
// transition. text is the channel or the failure's reason. A pending dispatch
// that fails passes through notified with the channel "none", so that every
// dispatch has the contract's order of events.
func (l *Ledger) mark(requestID string, to uint8, text string) Result {
	dispatch, ok := l.external.byID.Get(requestID)
	if !ok {
		id, _, ofJob := job.ParseRequestID(requestID)
		if _, known := l.Known(id); ofJob && known {
			return Result{Err: jobDispatchError(requestID)}
		}
		return Result{Err: &NotFoundError{RequestID: requestID}}
	}

	from := dispatch.state
	permitted := false
	switch from {
	case externalPending:
		permitted = to == externalNotified || to == externalFailed
	case externalNotified:
		permitted = to == externalDelivered || to == externalFailed
	}
	if !permitted {
		return Result{Err: &TransitionError{RequestID: requestID, From: externalStates[from], To: externalStates[to]}}
	}

	if from == externalPending && to == externalFailed {
		dispatch, _ = l.transition(dispatch, externalNotified, "none")
	}
	_, result := l.transition(dispatch, to, text)
	return result
}

// transition replaces a dispatch by one in the state to, and emits the event
// with text as its first field.
func (l *Ledger) transition(dispatch *externalDispatch, to uint8, text string) (*externalDispatch, Result) {
	next := *dispatch
	next.state, next.reason = to, text
	if to != externalNotified {
		next.ended = l.now
		l.external.unfinished--
		l.external.finished.Set(&next)
	}
	l.external.byID.Set(next.requestID, &next)
	kind := DispatchQueued + EventKind(to) // the kinds are in the order of the states
	return &next, l.respond(Event{Kind: kind, A: text, Extra: &Extra{Request: next.requestID}})
}
