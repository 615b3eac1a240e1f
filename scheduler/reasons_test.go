package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// waitReason waits until the status has a reason containing text.
func (h *harness) waitReason(text string) {
	h.t.Helper()
	h.until("a reason is "+text, func() bool { return strings.Contains(strings.Join(h.reasons(), "\n"), text) })
}

// TestReasons_MembersSilent checks the reason for members that are part of the
// Raft majority and send no heartbeats over NATS.
func TestReasons_MembersSilent(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.advance(3 * time.Second)
		h.wantReason("")
		for _, name := range []string{"n2", "n3"} {
			n := h.node(name)
			n.do(func() { n.silent = true })
		}
		h.waitReason("member n2 sends no heartbeat: start it, or repair the network between it and n1")
		h.wantReason("member n3 sends no heartbeat")
		n2 := h.node("n2")
		n2.do(func() { n2.silent = false; n2.heartbeat() })
		h.until("a majority is heard", func() bool { return len(h.reasons()) == 0 })
	})
}

// TestReasons_LeaseUncertain checks the reason for a lease that could not be
// renewed for too long.
func TestReasons_LeaseUncertain(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		tenure := h.sched.current()
		answer := make(chan AuthorityStatus, 1)
		tenure.loop.post(func() { answer <- tenure.status(time.Now().Add(trustTime + time.Second)) })
		l := <-answer
		if l.Dispatching || len(l.Reasons) != 1 || !strings.HasPrefix(l.Reasons[0], "the authority's lease is not certain: nothing is started") {
			t.Errorf("%+v", l)
		}
	})
}

// TestReasons_StreamsMissing checks the reason for a missing stream, which is
// never created again.
func TestReasons_StreamsMissing(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.advance(time.Second)
		h.wantReason("")
		h.lanes.set(func() { h.lanes.ensureErr = errors.New("YARD_DLQ: stream does not exist") })
		h.waitReason("streams are not as they were made: YARD_DLQ: stream does not exist")
		h.lanes.set(func() {
			h.lanes.ensureErr = errors.Join(errors.New("YARD_JOBS_2: no leader"), errors.New("YARD_RESULTS: no leader"))
		})
		h.waitReason("streams are not as they were made: YARD_JOBS_2: no leader; YARD_RESULTS: no leader")
		h.lanes.set(func() { h.lanes.ensureErr = nil })
		h.until("it is there again", func() bool { return len(h.reasons()) == 0 })
	})
}

// TestReasons_NotPublished checks the reason for each stream of the outbox
// that cannot be written.
func TestReasons_NotPublished(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.streams.set(func() { h.streams.down = true })
		h.enqueue("mail", "", anyJob)
		h.waitReason("history is not published: ")
		tenure := h.sched.current()
		for story, name := range map[outbox.Stream]string{outbox.Results: "results", outbox.DeadLetters: "dead letters"} {
			tenure.loop.post(func() { tenure.unpublished[story] = errors.New(name + ": no leader") })
			h.waitReason(name + " are not published: no leader")
		}
		h.streams.set(func() { h.streams.down = false })
		tenure.loop.post(func() { tenure.unpublished = [3]error{} })
		h.until("all goes on", func() bool { return len(h.reasons()) == 0 })
	})
}

// TestReasons_StreamsBeingCreated checks the reason of a new cluster whose
// streams cannot be created yet.
func TestReasons_StreamsBeingCreated(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.advance(time.Second)
		tenure := h.sched.current()
		tenure.loop.post(func() { tenure.streams.problem = streamsBeingCreated })
		h.waitReason("the yard's streams are being made")
		tenure.loop.post(func() { tenure.streams.problem = "" })
		h.until("they are made", func() bool { return len(h.reasons()) == 0 })
	})
}
