// Package contractcheck computes the authority and the backlog from the events
// of the runtime contract, line by line, and compares them with a snapshot. It is
// written from the contract's text and shares no code with the ledger, so that it
// can check the ledger independently: in the ledger's own tests, and in drills
// that read the history of a cluster after a fault.
package contractcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
)

// retention is how long the id of an ended dispatch stays reserved. Afterwards
// the same request id may name a new dispatch.
const retention = 24 * time.Hour

// The states of a dispatch. It goes through them in this order; Delivered and
// Failed are final.
const (
	Unknown   = ""
	Pending   = "pending"
	Notified  = "notified"
	Delivered = "delivered"
	Failed    = "failed"
)

// transitions maps each dispatch event to the state it requires and the state it
// leads to.
var transitions = map[string]struct{ from, to string }{
	"DispatchQueued":    {Unknown, Pending},
	"DispatchNotified":  {Pending, Notified},
	"DispatchDelivered": {Notified, Delivered},
	"DispatchFailed":    {Notified, Failed},
}

// requiredFields maps each event of the contract, and those beside it, to the
// string fields that it must carry besides "event". An event that is not listed is
// unknown.
var requiredFields = map[string][]string{
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
	"operator.acted":        {"action", "actor", "door"},
	"job.changed":           {"job", "queue", "from", "to"},
	"jobs.forgotten":        {"queue"},
	"job.details":           {"job", "queue", "accepted"},
}

// Checker is the state computed from a base snapshot and the events since.
type Checker struct {
	number     uint64 // of the last event applied
	at         time.Time
	lease      *lease            // nil if no node holds the authority
	counts     map[string]uint64 // of dispatches, by state
	dispatches map[string]dispatch
	// baseline counts the dispatches that the base snapshot counts without
	// naming them.
	baseline struct{ pending, notified uint64 }
}

type dispatch struct {
	state string
	ended time.Time
}

type lease struct{ owner, id, until string }

// countedStates are the states whose dispatches a snapshot counts.
var countedStates = []string{Pending, Notified, Delivered, Failed}

// New returns a Checker that starts before the first event.
func New() *Checker {
	return &Checker{dispatches: make(map[string]dispatch), counts: map[string]uint64{Pending: 0, Notified: 0, Delivered: 0, Failed: 0}}
}

// FromSnapshot returns a Checker that starts from a snapshot covering all events
// up to number.
func FromSnapshot(snapshot []byte, number uint64) (*Checker, error) {
	held, counts, err := readSnapshot(snapshot)
	if err != nil {
		return nil, err
	}
	b := New()
	b.number, b.lease, b.counts = number, held, counts
	b.baseline.pending, b.baseline.notified = counts[Pending], counts[Notified]
	return b, nil
}

// Number returns the number of the last event applied, 0 before the first.
func (c *Checker) Number() uint64 { return c.number }

// Owner returns the node that holds the authority, or "" if there is none.
func (c *Checker) Owner() string {
	if c.lease == nil {
		return ""
	}
	return c.lease.owner
}

// State returns the state of a dispatch, [Unknown] if no event has named it.
func (c *Checker) State(request string) string { return c.dispatches[request].state }

// Each calls fn for every dispatch that events have named, in unspecified order.
func (c *Checker) Each(fn func(request, state string)) {
	for request, d := range c.dispatches {
		fn(request, d.state)
	}
}

// Apply applies one line of history: an event with its number and time. It
// returns an error, and changes nothing, if the event cannot follow the previous
// ones.
func (c *Checker) Apply(line []byte) error {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("malformed line of history %q: %w", line, err)
	}
	var number uint64
	var at time.Time
	if json.Unmarshal(event["seq"], &number) != nil || json.Unmarshal(event["at"], &at) != nil {
		return fmt.Errorf("line of history without a number or a time: %s", line)
	}
	if number != c.number+1 {
		return fmt.Errorf("event %d follows event %d: %s", number, c.number, line)
	}
	if at.Before(c.at) {
		return fmt.Errorf("event %d has an earlier time than the event before it (%s): %s", number, c.at, line)
	}
	if err := c.apply(event, at); err != nil {
		return fmt.Errorf("event %d, %s: %w", number, line, err)
	}
	c.number, c.at = number, at
	return nil
}

// apply applies a decoded event. Events about replays, snapshots, runs, workers
// and operators change neither the authority nor the backlog. A snapshot in an event is
// compared with what the events before it add up to.
func (c *Checker) apply(event map[string]json.RawMessage, at time.Time) error {
	name, err := stringField(event, "event")
	if err != nil {
		return err
	}
	fields, listed := requiredFields[name]
	if !listed {
		return errors.New("unknown event: neither one of the fourteen of the contract nor one beside them")
	}
	texts := make(map[string]string)
	for _, field := range fields {
		if texts[field], err = stringField(event, field); err != nil {
			return err
		}
	}
	switch name {
	case "AuthorityAcquired", "AuthorityRenewed":
		if name == "AuthorityRenewed" && (c.lease == nil || c.lease.owner != texts["owner"]) {
			return fmt.Errorf("the authority is held by %q", c.Owner())
		}
		c.lease = &lease{texts["owner"], texts["lease_id"], texts["leased_until"]}
	case "DispatchQueued", "DispatchNotified", "DispatchDelivered", "DispatchFailed":
		return c.advance(name, texts["request_id"], at)
	case "SnapshotCaptured":
		if snapshot, ok := event["snapshot"]; ok {
			return c.CheckSnapshot(snapshot)
		}
	}
	return nil
}

func stringField(event map[string]json.RawMessage, field string) (s string, err error) {
	raw, ok := event[field]
	if !ok || len(raw) == 0 || raw[0] != '"' {
		return "", fmt.Errorf("%s must be a string", field)
	}
	return s, json.Unmarshal(raw, &s)
}

// advance applies an event of a dispatch. The first event of a dispatch that
// only the base snapshot counts is taken from the baseline.
func (c *Checker) advance(event, request string, at time.Time) error {
	d, named := c.dispatches[request]
	s := transitions[event]
	switch {
	case !named && s.from == Pending && c.baseline.pending > 0:
		c.baseline.pending--
		d.state = Pending
	case !named && s.from == Notified && c.baseline.notified > 0:
		c.baseline.notified--
		d.state = Notified
	case event == "DispatchQueued" && !d.ended.IsZero() && at.Sub(d.ended) >= retention:
		d = dispatch{}
	}
	if d.state != s.from {
		return fmt.Errorf("the dispatch is %q, must be %q", d.state, s.from)
	}
	c.counts[s.to]++
	if s.from != Unknown {
		c.counts[s.from]--
	}
	d.state = s.to
	if s.to == Delivered || s.to == Failed {
		d.ended = at
	}
	c.dispatches[request] = d
	return nil
}

// CheckSnapshot returns an error if the authority or the backlog of a snapshot
// differs from what the events add up to.
func (c *Checker) CheckSnapshot(snapshot []byte) error {
	held, counts, err := readSnapshot(snapshot)
	if err != nil {
		return err
	}
	if !maps.Equal(counts, c.counts) {
		return fmt.Errorf("after event %d the backlog is %v, the snapshot has %v", c.number, c.counts, counts)
	}
	if (held == nil) != (c.lease == nil) || held != nil && *held != *c.lease {
		return fmt.Errorf("after event %d the lease is %+v, the snapshot has %+v", c.number, c.lease, held)
	}
	return nil
}

// readSnapshot reads the lease and the backlog from a snapshot. The lease is nil
// if no node holds the authority.
func readSnapshot(snapshot []byte) (held *lease, counts map[string]uint64, err error) {
	var doc struct {
		Authority struct {
			Owner   *string `json:"owner"`
			LeaseID *string `json:"lease_id"`
			Until   *string `json:"leased_until"`
		} `json:"authority"`
		Backlog map[string]*uint64 `json:"backlog"`
	}
	if err := json.Unmarshal(snapshot, &doc); err != nil {
		return nil, nil, fmt.Errorf("malformed snapshot %q: %w", snapshot, err)
	}
	counts = make(map[string]uint64)
	for _, state := range countedStates {
		if doc.Backlog[state] == nil {
			return nil, nil, fmt.Errorf("the snapshot has no complete backlog: %s", snapshot)
		}
		counts[state] = *doc.Backlog[state]
	}
	a := doc.Authority
	switch {
	case a.Owner == nil && a.LeaseID == nil && a.Until == nil:
		return nil, counts, nil
	case a.Owner == nil || a.LeaseID == nil || a.Until == nil:
		return nil, nil, fmt.Errorf("the snapshot has an incomplete lease: %s", snapshot)
	}
	return &lease{*a.Owner, *a.LeaseID, *a.Until}, counts, nil
}
