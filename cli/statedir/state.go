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
	messages   []message // in the order they were created
	events     [][]byte  // as JSON of the contract
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

// lease is the lease of the authority.
type lease struct {
	Owner       string    `json:"owner"` // "" means that there is no authority
	LeaseID     string    `json:"lease_id"`
	LeasedUntil string    `json:"leased_until"`     // as the owner gave it
	Expires     time.Time `json:"expires,omitzero"` // zero means never
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

	MessageID  string `json:"message_id"`
	FromWorker string `json:"from_worker"`
	ToWorker   string `json:"to_worker"`
}

// timeFormat is the format of times in the files.
const timeFormat = "2006-01-02T15:04:05.000Z"

// size returns the number of dispatches, messages and events.
func (s *state) size() int { return len(s.dispatches.lines) + len(s.messages) + len(s.events) }

// fold applies an event to the state, as if it happened now. An event that does not
// follow from the state changes nothing. The ledger makes no such events, but a
// directory of the original program may hold them, and that program ignores them too.
func (s *state) fold(e *event, now time.Time) error {
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
		return s.foldDispatch(e, now.UTC().Format(timeFormat))
	case messageCreated, messageNotified, messageDelivered:
		s.foldMailbox(e, now.UTC().Format(timeFormat))
	}
	return nil
}

// foldDispatch applies an event about a dispatch to the state: it adds the dispatch
// or changes its status, and updates the counts. now is the time of the event, in
// timeFormat. An event that the dispatch's status does not permit changes nothing.
func (s *state) foldDispatch(e *event, now string) error {
	line, dispatch, err := s.dispatches.find(e.RequestID)
	if err != nil {
		return err
	}
	status := "" // before the event; "" if the dispatch is unknown
	if dispatch != nil {
		status = dispatch.Status
	}

	switch {
	case e.Event == "DispatchQueued" && dispatch == nil:
		s.Pending++
		dispatch = &record{RequestID: e.RequestID, Target: e.Target, Status: pending, CreatedAt: now, Metadata: e.Metadata}
	case e.Event == "DispatchNotified" && status == pending:
		s.Notified++
		dispatch.Status, dispatch.NotifiedAt, dispatch.Reason = notified, &now, &e.Channel
	case e.Event == "DispatchDelivered" && status == notified:
		s.Delivered++
		dispatch.Status, dispatch.DeliveredAt = delivered, &now
	case e.Event == "DispatchFailed" && (status == pending || status == notified):
		s.Failed++
		dispatch.Status, dispatch.FailedAt, dispatch.Reason = failed, &now, &e.Reason
	default:
		return nil
	}

	switch status {
	case pending:
		s.Pending--
	case notified:
		s.Notified--
	}
	return s.dispatches.put(line, dispatch)
}

// ledger returns a ledger in this state as of now, for one command. Of the dispatches,
// it holds only the one that the command refers to, and the counts of the others.
// dispatch is nil if the command refers to no known dispatch.
func (s *state) ledger(now time.Time, dispatch *record) (*ledger.Ledger, error) {
	r := ledger.Runtime{
		At: now, Owner: s.Authority.Owner, LeaseID: s.Authority.LeaseID, LeasedUntil: s.Authority.LeasedUntil,
		Expires: s.Authority.Expires, Cursor: s.Cursor, Delivered: s.Delivered, Failed: s.Failed,
		Pending: s.Pending, Notified: s.Notified,
	}
	if dispatch != nil {
		r.External = []ledger.RuntimeDispatch{{RequestID: dispatch.RequestID, Target: dispatch.Target, Metadata: dispatch.Metadata, State: dispatch.Status}}
		switch dispatch.Status { // the ledger counts this dispatch itself
		case pending:
			r.Pending--
		case notified:
			r.Notified--
		}
	}
	return ledger.FromRuntime(r)
}

// requestID returns the request id of the dispatch that a command refers to. ok is
// false if the command refers to none.
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

// apply applies a command to a ledger in this state and folds the resulting events
// into the state. It returns the event that answers the command, as JSON. changed
// reports whether there were events: queuing the same dispatch again makes none. A
// command that the ledger refuses changes nothing, and its error is returned.
func (s *state) apply(c ledger.Command, now time.Time) (answer []byte, changed bool, err error) {
	var dispatch *record
	if id, ok := requestID(c); ok {
		if _, dispatch, err = s.dispatches.find(id); err != nil {
			return nil, false, err
		}
	}
	l, err := s.ledger(now, dispatch)
	if err != nil {
		return nil, false, err
	}
	result := l.Apply(ledger.Stamp{Index: 1, At: now}, []ledger.Command{c})[0]
	if result.Err != nil {
		return nil, false, result.Err
	}

	l.EventsAfter(0, func(_ uint64, _ time.Time, applied *ledger.Event) bool {
		line := eventLine(applied)
		var e event
		if err = json.Unmarshal(line, &e); err == nil {
			err = s.fold(&e, now)
		}
		s.events = append(s.events, line)
		changed = true
		return err == nil
	})
	s.Authority.Expires = l.Authority().Until
	return eventLine(result.Event), changed, err
}

// eventLine returns an event as JSON in the form of the original program, in which a
// DispatchQueued without metadata has the value null.
func eventLine(e *ledger.Event) []byte {
	if e.Kind == ledger.DispatchQueued && len(e.Extra.Metadata) == 0 {
		withNull, extra := *e, *e.Extra
		extra.Metadata = json.RawMessage("null")
		withNull.Extra = &extra
		e = &withNull
	}
	return e.JSON()
}

// compact drops events that do not describe the current state: the events of ended
// dispatches and delivered messages, and all but the latest event of each other kind.
// It keeps the ended dispatches and delivered messages themselves for
// [ledger.FinishedRetention], as a yard does, and does not change the counts.
func (s *state) compact(now time.Time) error {
	before := now.Add(-ledger.FinishedRetention).UTC().Format(timeFormat)
	open, err := s.prune(before)
	if err != nil {
		return err
	}
	undelivered := s.pruneMessages(before)
	latest := make(map[string]int) // index of the latest event of each kind
	events := make([]event, len(s.events))
	for i, line := range s.events {
		if err := json.Unmarshal(line, &events[i]); err != nil {
			return err
		}
		latest[events[i].Event] = i
	}

	kept := s.events[:0:0]
	for i, line := range s.events {
		needed := true
		switch e := &events[i]; e.Event {
		case "DispatchQueued", "DispatchNotified", "DispatchDelivered", "DispatchFailed":
			needed = open[e.RequestID]
		case messageCreated, messageNotified, messageDelivered:
			needed = undelivered[e.MessageID]
		case "AuthorityAcquired", "ReplayRequested", "SnapshotCaptured":
			needed = i == latest[e.Event]
		case "AuthorityRenewed":
			needed = i == latest[e.Event] && i > latest["AuthorityAcquired"]
		}
		if needed {
			kept = append(kept, line)
		}
	}
	s.events = kept
	return nil
}

// prune removes the dispatches that ended before the given time, which is in timeFormat
// and so can be compared as text. It returns the request ids of the dispatches that have
// not ended.
func (s *state) prune(before string) (open map[string]bool, err error) {
	open = make(map[string]bool)
	kept := s.dispatches.lines[:0:0]
	for _, line := range s.dispatches.lines {
		r, err := decodeRecord(line)
		if err != nil {
			return nil, err
		}
		endedBefore := r.DeliveredAt != nil && *r.DeliveredAt < before || r.FailedAt != nil && *r.FailedAt < before
		if endedBefore {
			continue
		}
		if r.Status == pending || r.Status == notified {
			open[r.RequestID] = true
		}
		kept = append(kept, line)
	}
	s.dispatches = dispatches{lines: kept}
	return open, nil
}
