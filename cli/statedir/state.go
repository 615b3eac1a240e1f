package statedir

import (
	"encoding/json"
	"time"

	"yardmaster/ledger"
)

// state is what a directory says, as the truth stores it. Dispatches and events
// are lines that stay as they are; only the ones a command is about are read.
type state struct {
	head
	dispatches dispatches
	events     [][]byte // in the contract's form
}

// head is the part of the state that does not grow.
type head struct {
	Authority lease   `json:"authority"`
	Cursor    *string `json:"cursor"`
	Pending   uint64  `json:"pending"`
	Notified  uint64  `json:"notified"`
	Delivered uint64  `json:"delivered"` // cumulative, like Failed
	Failed    uint64  `json:"failed"`
}

type lease struct {
	Owner       string    `json:"owner"` // "": nobody holds it
	LeaseID     string    `json:"lease_id"`
	LeasedUntil string    `json:"leased_until"`
	Expires     time.Time `json:"expires,omitzero"` // zero: never
}

// event is what a state needs of an event's line.
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

// timeForm is how callers read times.
const timeForm = "2006-01-02T15:04:05.000Z"

// size is how many lines the state has.
func (s *state) size() int { return len(s.dispatches.lines) + len(s.events) }

// fold takes one more event in. What does not follow from what came before
// changes nothing: the ledger yields no such events, but a directory of the
// original may hold them, and that is how the original reads them.
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
		return s.foldDispatch(e, at.UTC().Format(timeForm))
	}
	return nil
}

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

// ledger gives the ledger that stands as the state says, for a command about
// one dispatch; nil for one that is about none, or none that is there.
func (s *state) ledger(at time.Time, about *record) (*ledger.Ledger, error) {
	r := ledger.Runtime{
		At: at, Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil,
		Expires: s.Authority.Expires, Cursor: s.Cursor, Delivered: s.Delivered, Failed: s.Failed,
		Pending: s.Pending, Notified: s.Notified,
	}
	if about != nil {
		r.Own = []ledger.OwnDispatch{{Request: about.RequestID, Target: about.Target, Metadata: about.Metadata, State: about.Status}}
		switch about.Status { // the ledger counts it itself
		case pending:
			r.Pending--
		case notified:
			r.Notified--
		}
	}
	return ledger.Restore(r)
}

// request is the dispatch that a command is about.
func request(c ledger.Command) (id string, any bool) {
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

// judge lets the ledger decide on a command and takes in what came of it. A
// command that the ledger refuses changes nothing. fresh tells that something
// happened: a dispatch that is queued again is answered without an event.
func (s *state) judge(c ledger.Command, at time.Time) (answer []byte, fresh bool, err error) {
	var about *record
	if id, any := request(c); any {
		if _, about, err = s.dispatches.find(id); err != nil {
			return nil, false, err
		}
	}
	l, err := s.ledger(at, about)
	if err != nil {
		return nil, false, err
	}
	result := l.Apply(ledger.Stamp{Index: 1, At: at}, []ledger.Command{c})[0]
	if result.Err != nil {
		return nil, false, result.Err
	}
	l.EventsAfter(0, func(_ uint64, _ time.Time, happened *ledger.Event) bool {
		var e event
		line := happened.JSON()
		if err = json.Unmarshal(line, &e); err != nil {
			return false
		}
		if err = s.fold(&e, at); err != nil {
			return false
		}
		s.events = append(s.events, line)
		fresh = true
		return true
	})
	s.Authority.Expires = l.Authority().Until
	return result.Event.JSON(), fresh, err
}

// compact lets go of events that say nothing about what still is: those of
// dispatches that have ended, and all but the latest of the others' kinds.
// Dispatches themselves are kept as long as a yard keeps them, so that a caller
// who looks or asks again soon after still finds them; the counts stay.
func (s *state) compact(at time.Time) error {
	present, err := s.forget(at.Add(-ledger.FinishedKeep).UTC().Format(timeForm))
	if err != nil {
		return err
	}
	last := make(map[string]int) // of each kind
	kinds := make([]struct {
		Event     string `json:"event"`
		RequestID string `json:"request_id"`
	}, len(s.events))
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
			needed = present[e.RequestID]
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

// forget lets go of dispatches that ended before a time, and gives the request
// ids of those that have not ended. Times in this form sort as texts.
func (s *state) forget(before string) (present map[string]bool, err error) {
	present = make(map[string]bool)
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
			present[r.RequestID] = true
		}
		kept = append(kept, line)
	}
	s.dispatches = dispatches{lines: kept}
	return present, nil
}
