package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// checkByName is a CheckPayload that rejects functions named wrong, and cannot decide about
// those named large unless it may read and readable is set.
// It calls counted when a wrong one is ingested.
func checkByName(readable *atomic.Bool, counted func()) CheckPayload {
	return func(_ context.Context, _ *job.Record, spec *job.Spec, mayRead bool) (Verdict, error) {
		switch {
		case strings.HasPrefix(spec.Function, "wrong"):
			return Verdict{&job.PayloadError{Path: "/to", Reason: "must be a string", Version: 3}, counted}, nil
		case strings.HasPrefix(spec.Function, "large") && (!mayRead || !readable.Load()):
			return Verdict{}, errors.New("the body cannot be read")
		}
		return Verdict{}, nil
	}
}

// TestIngest_Payloads checks that records whose payload does not match are rejected, whether
// they are received or read, and also within a message of several records.
func TestIngest_Payloads(t *testing.T) {
	var readable atomic.Bool
	readable.Store(true)
	rejected := 0
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 9)
		for _, received := range []bool{false, true} {
			records := h.lanes.storePacked("mail", `{"function":"right"}`, `{"function":"wrong"}`, `{"function":"right"}`)
			if received {
				h.sched.ReceiveRecords(records)
				h.sched.ReceiveRecords(records) // parsed again, but not ingested
			}
			for i, want := range []job.State{job.Completed, job.Failed, job.Completed} {
				id := h.id(records[i])
				h.until(fmt.Sprintf("record %d is %s", i, want), func() bool { return h.state(id) == want })
			}
			view, _ := h.find(h.id(records[1]))
			if view.Reason != "params/to: must be a string (schema version 3)" || view.Fault.Type != job.FaultRejected || view.DeadLetter == 0 {
				t.Errorf("%+v", view)
			}
		}
		if rejected != 2 {
			t.Errorf("%d records are counted, want 2", rejected)
		}
	}, func(c *Config) { c.CheckPayload = checkByName(&readable, func() { rejected++ }) })
}

// TestIngest_PayloadApart checks that a record whose body has to be read delays only its lane,
// until the body can be read, and that no record is lost or ingested twice.
func TestIngest_PayloadApart(t *testing.T) {
	var readable atomic.Bool
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 9)
		before := h.enqueueIn(0, "mail", "", `{"function":"before"}`)
		packed := h.lanes.storePacked("mail", `{"function":"first"}`, `{"function":"large"}`)
		h.sched.ReceiveRecords(packed)
		after, other := h.enqueueIn(0, "mail", "", `{"function":"after"}`), h.enqueueIn(1, "mail", "", `{"function":"other"}`)
		h.until("the other lane goes on", func() bool { return h.state(before) == job.Completed && h.state(other) == job.Completed })
		h.advance(2 * time.Second)
		for _, id := range []job.ID{h.id(packed[0]), h.id(packed[1]), after} {
			if _, known := h.find(id); known {
				t.Errorf("job %s is ingested", id)
			}
		}
		readable.Store(true)
		for _, id := range []job.ID{h.id(packed[0]), h.id(packed[1]), after} {
			h.until("the lane goes on", func() bool { return h.state(id) == job.Completed })
		}
		if c := h.counts(); c.Delivered != 5 || c.Failed != 0 {
			t.Errorf("the backlog is %+v", c)
		}
	}, func(c *Config) { c.CheckPayload = checkByName(&readable, nil) })
}

// TestIngest_LimitKey checks that a job gets the limit key that the configuration finds, and that
// a record is rejected for which it returns an error.
func TestIngest_LimitKey(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		records := h.lanes.storePacked("mail", `{"function":"found"}`, `{"function":"missing"}`, `{"function":"none","limit_key":"own"}`)
		h.sched.ReceiveRecords(records)
		for i, want := range []struct {
			state  job.State
			key    string
			reason string
		}{{job.Waiting, "acme", ""}, {job.Failed, "", "no key"}, {job.Waiting, "own", ""}} {
			id := h.id(records[i])
			h.until(fmt.Sprintf("record %d is %s", i, want.state), func() bool { return h.state(id) == want.state })
			if view, _ := h.find(id); view.LimitKey != want.key || view.Reason != want.reason {
				t.Errorf("record %d has the key %q, reason %q", i, view.LimitKey, view.Reason)
			}
		}
	}, func(c *Config) {
		c.LimitKey = func(queue string, spec *job.Spec) (*string, error) {
			switch spec.Function {
			case "found":
				return new("acme"), nil
			case "missing":
				return nil, &job.InvalidError{Reason: "no key"}
			}
			return spec.LimitKey, nil
		}
	})
}
