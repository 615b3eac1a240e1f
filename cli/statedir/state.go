package statedir

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// state is the content of the state file. Dispatches and events stay encoded;
// only those that a command refers to are decoded.
type state struct {
	summary
	dispatches dispatches
	events     [][]byte // as JSON of the contract
}

// summary is the part of the state that has a constant size.
type summary struct {
	Authority lease   `json:"authority"`
	Cursor    *string `json:"cursor"`
	Pending   uint64  `json:"pending"`
	Notified  uint64  `json:"notified"`
	Delivered uint64  `json:"delivered"` // cumulative, like Failed
	Failed    uint64  `json:"failed"`
}

type lease struct {
	Owner       string    `json:"owner"` // "": none
	LeaseID     string    `json:"lease_id"`
	LeasedUntil string    `json:"leased_until"`
	Expires     time.Time `json:"expires,omitzero"` // zero: never
}

// event holds the fields of an event that the state needs.
type event struct {
	Event     string          `json:"event"`
	RequestID string          `json:"request_id"`
	Target    string          `json:"target"`
	Metadata  json.RawMessage `json:"metadata"`
	Channel   string          `json:"channel"`
	Reason    string          `json:"reason"`

	Owner       string  `json:"owner"`
	LeaseID     string  `json:"lease_id"`
	LeasedUntil string  `json:"leased_until"`
	Cursor      *string `json:"cursor"`
}

// timeFormat is the format of times in the files.
const timeFormat = "2006-01-02T15:04:05.000Z"

// size returns the number of dispatches and events.
func (s *state) size() int { return len(s.dispatches.lines) + len(s.events) }

// fold applies an event to the state. An event that does not follow from the
// state changes nothing. The ledger makes no such events, but a directory of the
// original program may hold them, and that program ignores them too.
func (s *state) fold(e *event, at time.Time) error {
	switch e.Event {
	case "AuthorityAcquired":
		s.Authority = lease{Owner: e.Owner, LeaseID: e.LeaseID, LeasedUntil: e.LeasedUntil}
	case "AuthorityRenewed":
		if s.Authority.Owner == e.Owner {
			s.Authority = lease{Owner: e.Owner, LeaseID: e.LeaseID, LeasedUntil: e.LeasedUntil}
		}
	case "ReplayRequested":
		s.Cursor = e.Cursor
	case "DispatchQueued", "DispatchNotified", "DispatchDelivered", "DispatchFailed":
		return s.foldDispatch(e, at.UTC().Format(timeFormat))
	}
	return nil
}

// foldDispatch applies a dispatch event to the state.
func (s *state) foldDispatch(e *event, now string) error {
	i, r, err := s.dispatches.find(e.RequestID)
	if err != nil {
		return err
	}
	from := ""
	if r != nil {
		from = r.Status
	}
	switch {
	case e.Event == "DispatchQueued" && r == nil:
		s.Pending++
		r = &record{RequestID: e.RequestID, Target: e.Target, Status: pending, CreatedAt: now, Metadata: e.Metadata}
	case e.Event == "DispatchNotified" && from == pending:
		s.Notified++
		r.Status, r.NotifiedAt, r.Reason = notified, &now, &e.Channel
	case e.Event == "DispatchDelivered" && from == notified:
		s.Delivered++
		r.Status, r.DeliveredAt = delivered, &now
	case e.Event == "DispatchFailed" && (from == pending || from == notified):
		s.Failed++
		r.Status, r.FailedAt, r.Reason = failed, &now, &e.Reason
	default:
		return nil
	}
	switch from {
	case pending:
		s.Pending--
	case notified:
		s.Notified--
	}
	return s.dispatches.put(i, r)
}

// ledger returns a ledger in this state that holds at most one dispatch, that of
// the command, which is nil if the command refers to no known dispatch.
func (s *state) ledger(at time.Time, dispatch *record) (*ledger.Ledger, error) {
	r := ledger.Runtime{
		At: at, Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil,
		Expires: s.Authority.Expires, Cursor: s.Cursor, Delivered: s.Delivered, Failed: s.Failed,
		Pending: s.Pending, Notified: s.Notified,
	}
	if dispatch != nil {
		r.External = []ledger.RuntimeDispatch{{RequestID: dispatch.RequestID, Target: dispatch.Target, Metadata: dispatch.Metadata, State: dispatch.Status}}
		switch dispatch.Status { // the ledger counts this one itself
		case pending:
			r.Pending--
		case notified:
			r.Notified--
		}
	}
	return ledger.FromRuntime(r)
}

// requestID returns the request id in a command, if it has one.
func requestID(c ledger.Command) (id string, ok bool) {
	switch c := c.(type) {
	case *ledger.QueueDispatch:
		return c.RequestID, true
	case *ledger.MarkNotified:
		return c.RequestID, true
	case *ledger.MarkDelivered:
		return c.RequestID, true
	case *ledger.MarkFailed:
		return c.RequestID, true
	}
	return "", false
}

// decide applies a command to the ledger and folds the resulting events into the
// state. It returns the event that answers the command; changed reports whether
// the state has changed, which it does not if a dispatch is queued again. A
// command that the ledger refuses changes nothing and returns its error.
func (s *state) decide(c ledger.Command, at time.Time) (answer []byte, changed bool, err error) {
	var dispatch *record
	if id, ok := requestID(c); ok {
		if _, dispatch, err = s.dispatches.find(id); err != nil {
			return nil, false, err
		}
	}
	l, err := s.ledger(at, dispatch)
	if err != nil {
		return nil, false, err
	}
	result := l.Apply(ledger.Stamp{Index: 1, At: at}, []ledger.Command{c})[0]
	if result.Err != nil {
		return nil, false, result.Err
	}
	l.EventsAfter(0, func(_ uint64, _ time.Time, applied *ledger.Event) bool {
		var e event
		line := applied.JSON()
		if err = json.Unmarshal(line, &e); err != nil {
			return false
		}
		if err = s.fold(&e, at); err != nil {
			return false
		}
		s.events = append(s.events, line)
		changed = true
		return true
	})
	s.Authority.Expires = l.Authority().Until
	return result.Event.JSON(), changed, err
}

// compact drops events that do not describe the current state: the events of ended
// dispatches, and all but the latest event of each other kind. It keeps the ended
// dispatches themselves for [ledger.FinishedRetention], as a yard does, and does
// not change the counts.
func (s *state) compact(at time.Time) error {
	open, err := s.prune(at.Add(-ledger.FinishedRetention).UTC().Format(timeFormat))
	if err != nil {
		return err
	}
	last := make(map[string]int) // index of the last event of each kind
	kinds := make([]event, len(s.events))
	for i, line := range s.events {
		if err := json.Unmarshal(line, &kinds[i]); err != nil {
			return err
		}
		last[kinds[i].Event] = i
	}
	kept := s.events[:0:0]
	for i, line := range s.events {
		needed := true
		switch e := &kinds[i]; e.Event {
		case "DispatchQueued", "DispatchNotified", "DispatchDelivered", "DispatchFailed":
			needed = open[e.RequestID]
		case "AuthorityAcquired", "ReplayRequested", "SnapshotCaptured":
			needed = i == last[e.Event]
		case "AuthorityRenewed":
			needed = i == last[e.Event] && i > last["AuthorityAcquired"]
		}
		if needed {
			kept = append(kept, line)
		}
	}
	s.events = kept
	return nil
}

// prune removes dispatches that ended before a time in timeFormat, which sorts
// as text. It returns the request ids of the dispatches that have not ended.
func (s *state) prune(before string) (open map[string]bool, err error) {
	open = make(map[string]bool)
	kept := s.dispatches.lines[:0:0]
	for _, line := range s.dispatches.lines {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		switch {
		case r.DeliveredAt != nil && *r.DeliveredAt < before, r.FailedAt != nil && *r.FailedAt < before:
			continue
		case r.Status == pending || r.Status == notified:
			open[r.RequestID] = true
		}
		kept = append(kept, line)
	}
	s.dispatches = dispatches{lines: kept}
	return open, nil
}
