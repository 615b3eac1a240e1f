// Package recount folds the runtime contract's events, line by line, into what
// a snapshot must say of authority and backlog. It is written from the
// contract's text and shares no code with the ledger, so that the two can be
// held against each other: by the ledger's own tests, and by drills that read
// the history of a yard which has been through something.
package recount

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// kept is how long a runtime knows a dispatch that has ended. Later the same
// request id may name a new one.
const kept = 24 * time.Hour

// Where a dispatch stands. It takes these steps in this order and no other;
// the last two are ends.
const (
	Unknown   = ""
	Pending   = "pending"
	Notified  = "notified"
	Delivered = "delivered"
	Failed    = "failed"
)

// steps: what an event makes of a dispatch, and what that must have been.
var steps = map[string]struct{ from, to string }{
	"DispatchQueued":    {Unknown, Pending},
	"DispatchNotified":  {Pending, Notified},
	"DispatchDelivered": {Notified, Delivered},
	"DispatchFailed":    {Notified, Failed},
}

// fields that an event must carry, beside "event". What is not named here is
// no event.
var fields = map[string][]string{
	"AuthorityAcquired":     {"owner", "lease_id", "leased_until"},
	"AuthorityRenewed":      {"owner", "lease_id", "leased_until"},
	"DispatchQueued":        {"request_id", "target"},
	"DispatchNotified":      {"request_id", "channel"},
	"DispatchDelivered":     {"request_id"},
	"DispatchFailed":        {"request_id", "reason"},
	"ReplayRequested":       nil,
	"SnapshotCaptured":      nil,
	"run.heartbeat":         {"owner", "phase"},
	"run.blocked_on_user":   {"owner", "reason"},
	"run.blocked_on_system": {"owner", "reason"},
	"worker.assigned":       {"worker", "task_id"},
	"worker.stalled":        {"worker", "reason"},
	"worker.recovered":      {"worker", "recovery"},
}

// Book is the count so far: a base, and the events since.
type Book struct {
	number     uint64 // of the last event
	at         time.Time
	lease      *lease // nil: nobody holds it
	counts     backlog
	dispatches map[string]dispatch
	// before are dispatches that the base counts and does not name.
	before struct{ pending, notified uint64 }
}

type dispatch struct {
	state string
	ended time.Time
}

type lease struct{ owner, id, until string }

type backlog struct{ Pending, Notified, Delivered, Failed uint64 }

// New begins before the first event.
func New() *Book { return &Book{dispatches: make(map[string]dispatch)} }

// From begins with a snapshot that shows all events up to a number.
func From(snapshot []byte, number uint64) (*Book, error) {
	held, counts, err := readSnapshot(snapshot)
	if err != nil {
		return nil, err
	}
	b := New()
	b.number, b.lease, b.counts = number, held, counts
	b.before.pending, b.before.notified = counts.Pending, counts.Notified
	return b, nil
}

// Number is the last event's, 0 before the first.
func (b *Book) Number() uint64 { return b.number }

// Owner holds the authority; "" if nobody does.
func (b *Book) Owner() string {
	if b.lease == nil {
		return ""
	}
	return b.lease.owner
}

// State is where a dispatch stands, [Unknown] if no event named it.
func (b *Book) State(request string) string { return b.dispatches[request].state }

// Each gives every dispatch that events have named, in no order.
func (b *Book) Each(see func(request, state string)) {
	for request, d := range b.dispatches {
		see(request, d.state)
	}
}

// Line folds one line of history: an event with its number and time. An event
// that cannot follow those before it is an error, and changes nothing.
func (b *Book) Line(line []byte) error {
	var said map[string]json.RawMessage
	if err := json.Unmarshal(line, &said); err != nil {
		return fmt.Errorf("history says %q: %w", line, err)
	}
	var number uint64
	var at time.Time
	if json.Unmarshal(said["seq"], &number) != nil || json.Unmarshal(said["at"], &at) != nil {
		return fmt.Errorf("history says %s: must have a number and a time", line)
	}
	if number != b.number+1 {
		return fmt.Errorf("event %d follows event %d: %s", number, b.number, line)
	}
	if at.Before(b.at) {
		return fmt.Errorf("event %d is older than the one before it, of %s: %s", number, b.at, line)
	}
	if err := b.fold(said, at); err != nil {
		return fmt.Errorf("event %d, %s: %w", number, line, err)
	}
	b.number, b.at = number, at
	return nil
}

// fold takes an event. Those of replays, snapshots, runs and workers tell of
// something that changes neither authority nor backlog.
func (b *Book) fold(said map[string]json.RawMessage, at time.Time) error {
	name, err := text(said, "event")
	if err != nil {
		return err
	}
	needed, known := fields[name]
	if !known {
		return errors.New("it is none of the fourteen events")
	}
	texts := make(map[string]string)
	for _, field := range needed {
		if texts[field], err = text(said, field); err != nil {
			return err
		}
	}
	switch name {
	case "AuthorityAcquired", "AuthorityRenewed":
		if name == "AuthorityRenewed" && (b.lease == nil || b.lease.owner != texts["owner"]) {
			return fmt.Errorf("the authority is held by %q", b.Owner())
		}
		b.lease = &lease{texts["owner"], texts["lease_id"], texts["leased_until"]}
	case "DispatchQueued", "DispatchNotified", "DispatchDelivered", "DispatchFailed":
		return b.step(name, texts["request_id"], at)
	}
	return nil
}

func text(said map[string]json.RawMessage, field string) (s string, err error) {
	raw, ok := said[field]
	if !ok || len(raw) == 0 || raw[0] != '"' {
		return "", fmt.Errorf("%s must be a string", field)
	}
	return s, json.Unmarshal(raw, &s)
}

// step moves a dispatch on.
func (b *Book) step(event, request string, at time.Time) error {
	d, named := b.dispatches[request]
	s := steps[event]
	switch {
	case !named && s.from == Pending && b.before.pending > 0:
		b.before.pending--
		d.state = Pending
	case !named && s.from == Notified && b.before.notified > 0:
		b.before.notified--
		d.state = Notified
	case event == "DispatchQueued" && !d.ended.IsZero() && at.Sub(d.ended) >= kept:
		d = dispatch{}
	}
	if d.state != s.from {
		return fmt.Errorf("its dispatch is %q, and must be %q", d.state, s.from)
	}
	*b.counts.of(s.to)++
	if s.from != Unknown {
		*b.counts.of(s.from)--
	}
	d.state = s.to
	if s.to == Delivered || s.to == Failed {
		d.ended = at
	}
	b.dispatches[request] = d
	return nil
}

func (c *backlog) of(state string) *uint64 {
	switch state {
	case Pending:
		return &c.Pending
	case Notified:
		return &c.Notified
	case Delivered:
		return &c.Delivered
	}
	return &c.Failed
}

// Agrees is nil if a snapshot says of authority and backlog what the events
// come to.
func (b *Book) Agrees(snapshot []byte) error {
	held, counts, err := readSnapshot(snapshot)
	if err != nil {
		return err
	}
	if counts != b.counts {
		return fmt.Errorf("after event %d the backlog is %+v, the snapshot says %+v", b.number, b.counts, counts)
	}
	if (held == nil) != (b.lease == nil) || held != nil && *held != *b.lease {
		return fmt.Errorf("after event %d the lease is %+v, the snapshot says %+v", b.number, b.lease, held)
	}
	return nil
}

// readSnapshot takes what events can tell out of a snapshot.
func readSnapshot(snapshot []byte) (*lease, backlog, error) {
	var said struct {
		Authority struct {
			Owner   *string `json:"owner"`
			LeaseID *string `json:"lease_id"`
			Until   *string `json:"leased_until"`
		} `json:"authority"`
		Backlog struct {
			Pending   *uint64 `json:"pending"`
			Notified  *uint64 `json:"notified"`
			Delivered *uint64 `json:"delivered"`
			Failed    *uint64 `json:"failed"`
		} `json:"backlog"`
	}
	if err := json.Unmarshal(snapshot, &said); err != nil {
		return nil, backlog{}, fmt.Errorf("the snapshot is %q: %w", snapshot, err)
	}
	a, c := said.Authority, said.Backlog
	if c.Pending == nil || c.Notified == nil || c.Delivered == nil || c.Failed == nil {
		return nil, backlog{}, fmt.Errorf("the snapshot counts no backlog: %s", snapshot)
	}
	counts := backlog{*c.Pending, *c.Notified, *c.Delivered, *c.Failed}
	switch {
	case a.Owner == nil && a.LeaseID == nil && a.Until == nil:
		return nil, counts, nil
	case a.Owner == nil || a.LeaseID == nil || a.Until == nil:
		return nil, backlog{}, fmt.Errorf("the snapshot shows half a lease: %s", snapshot)
	}
	return &lease{*a.Owner, *a.LeaseID, *a.Until}, counts, nil
}
