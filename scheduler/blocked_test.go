package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// blockedEvents returns the published blocked events: "system: …" or "user: …".
func (h *harness) blockedEvents() (published []string) {
	for _, c := range commandsOf[*ledger.Observe](h.raft.entries()) {
		for _, o := range c.Observations {
			if o.Event == ledger.RunHeartbeat {
				continue
			}
			if o.Subject != "n1" {
				h.t.Errorf("%+v names another subject than the authority", o)
			}
			published = append(published, strings.TrimPrefix(o.Event.String(), "run.blocked_on_")+": "+o.Detail)
		}
	}
	return published
}

// wantBlocked waits until a blocked event is published for the condition that readiness
// reports. It checks that one event is published however long the condition lasts,
// and another one when it has passed and come back.
func (h *harness) wantBlocked(want string, trouble, mend func()) {
	h.t.Helper()
	kind, text, _ := strings.Cut(want, ": ")
	if published := h.blockedEvents(); len(published) > 0 {
		h.t.Fatalf("published %q before the condition", published)
	}
	for times := 1; times <= 2; times++ {
		trouble()
		h.until("a blocked event", func() bool { return len(h.blockedEvents()) == times })
		h.advance(40 * time.Second)
		published := h.blockedEvents()
		if len(published) != times || !strings.HasPrefix(published[times-1], want) || !slices.Contains(h.reasons(), strings.TrimPrefix(published[times-1], kind+": ")) {
			h.t.Errorf("published %q, want %q; readiness reports %q", published, text, h.reasons())
		}
		mend()
		h.until("it has passed", func() bool { return len(h.reasons()) == 0 })
		h.advance(2 * time.Second)
	}
	h.endTenure()
	<-h.ended
	h.begin()
	h.advance(5 * time.Second)
	if published := h.blockedEvents(); len(published) != 2 {
		h.t.Errorf("the next tenure publishes a condition that has passed: %q", published)
	}
}

func TestBlocked(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		trouble    func(*harness)
		mend       func(*harness)
	}{
		{
			"StreamMissing", "user: streams are not as they were made: YARD_DLQ: stream does not exist",
			func(h *harness) {
				h.lanes.set(func() { h.lanes.ensureErr = &OperatorError{errors.New("YARD_DLQ: stream does not exist")} })
			},
			func(h *harness) { h.lanes.set(func() { h.lanes.ensureErr = nil }) },
		},
		{
			"StreamUnreachable", "system: streams are not as they were made: no answer",
			func(h *harness) { h.lanes.set(func() { h.lanes.ensureErr = errors.New("no answer") }) },
			func(h *harness) { h.lanes.set(func() { h.lanes.ensureErr = nil }) },
		},
		{
			"LaneReplaced", "user: lane 0 is not ingested: its stream is another one than the ledger's",
			func(h *harness) { h.lanes.set(func() { h.lanes.lanes[0].identity += "x" }) },
			func(h *harness) {
				h.lanes.set(func() { h.lanes.lanes[0].identity = strings.TrimSuffix(h.lanes.lanes[0].identity, "x") })
			},
		},
		{
			"FullLane", "user: lane 0 is full and takes no jobs",
			func(h *harness) { h.lanes.set(func() { h.lanes.max = 1 }) },
			func(h *harness) { h.lanes.set(func() { h.lanes.max = 0 }) },
		},
		{
			"LaneUnreadable", "system: lane 0 is not ingested: no answer",
			func(h *harness) { h.lanes.set(func() { h.lanes.readsFail = true }) },
			func(h *harness) { h.lanes.set(func() { h.lanes.readsFail = false }) },
		},
		{
			"History", "system: history is not published: ",
			func(h *harness) { h.streams.set(func() { h.streams.down = true }) },
			func(h *harness) { h.streams.set(func() { h.streams.down = false }) },
		},
		{
			"MemberSilent", "system: member n2 sends no heartbeat",
			func(h *harness) { n := h.node("n2"); n.do(func() { n.silent = true }) },
			func(h *harness) { n := h.node("n2"); n.do(func() { n.silent = false; n.heartbeat() }) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes := 1
			if tt.name == "MemberSilent" {
				nodes = 2
			}
			runHarness(t, nodes, func(h *harness) {
				h.advance(10 * time.Second)
				h.wantBlocked(tt.want, func() { tt.trouble(h) }, func() { tt.mend(h) })
			})
		})
	}
}

// TestBlocked_RunnerUnavailable checks that jobs for a runner whose members
// are down are published as blocked, and that conditions which pass quickly
// are not.
func TestBlocked_RunnerUnavailable(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		n := h.node("n3")
		n.do(func() { n.runners = []string{"press"}; n.heartbeat() })
		h.advance(10 * time.Second)
		n.do(func() { n.silent = true })
		h.advance(5 * time.Second)
		h.enqueue("mail", "", `{"function":"press#go","params":{}}`)
		h.until("a blocked event", func() bool { return len(h.blockedEvents()) > 0 })
		h.advance(time.Minute)
		want := []string{"system: jobs wait for runner press, which only members that are down have: n3"}
		if published := h.blockedEvents(); len(published) != 1 || !strings.HasPrefix(published[0], want[0]) {
			t.Errorf("published %q, want %q", published, want)
		}
	})
}

func TestBlocked_IgnoresTransients(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.advance(5 * time.Second)
		tenure := h.sched.current()
		for i := range 10 { // conditions shorter than a second
			tenure.loop.post(func() { tenure.unpublished[outbox.Results] = fmt.Errorf("results: away %d", i) })
			h.advance(700 * time.Millisecond)
			tenure.loop.post(func() { tenure.unpublished[outbox.Results] = nil })
			h.advance(700 * time.Millisecond)
		}
		if published := h.blockedEvents(); len(published) > 0 {
			t.Errorf("published %q", published)
		}
		for i := range 100 { // a condition whose text changes each time is published once
			tenure.loop.post(func() { tenure.unpublished[outbox.Results] = fmt.Errorf("results: away %d", i) })
			h.advance(300 * time.Millisecond)
		}
		if published := h.blockedEvents(); len(published) != 1 {
			t.Errorf("published %q", published)
		}
		// It is published again when it needs an operator.
		tenure.loop.post(func() { tenure.operator.note(outbox.Results.String(), &OperatorError{errors.New("lost")}) })
		h.advance(time.Second)
		if published := h.blockedEvents(); len(published) != 2 || !strings.HasPrefix(published[1], "user: results are not published") {
			t.Errorf("published %q", published)
		}
	})
}

// TestHeartbeat_Phase checks the phase in the authority's heartbeat events.
func TestHeartbeat_Phase(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = worksFor(10 * time.Second) })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.advance(5 * time.Second)
		h.enqueue("mail", "", anyJob)
		h.advance(20 * time.Second)
		var phases []string
		for _, c := range commandsOf[*ledger.Observe](h.raft.entries()) {
			for _, o := range c.Observations {
				phases = append(phases, o.Detail)
			}
		}
		if got := slices.Compact(phases); !slices.Equal(got, []string{"idle", "execute", "idle"}) {
			t.Errorf("phases are %q", phases)
		}
	})
}
