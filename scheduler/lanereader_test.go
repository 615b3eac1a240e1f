package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

func (h *harness) laneReady() (ready bool) {
	done := make(chan struct{})
	tenure := h.sched.current()
	tenure.loop.post(func() { ready = tenure.lanes.all[0].ready; close(done) })
	<-done
	return ready
}

// TestVerifyLane_ReplacedDuringTenure checks that a lane whose stream is
// replaced during a tenure is not ingested until the old stream is back.
func TestVerifyLane_ReplacedDuringTenure(t *testing.T) {
	for name, change := range map[string]func(*fakeLane) (undo func()){
		"another identity": func(l *fakeLane) func() {
			was := l.identity
			l.identity = "another"
			return func() { l.identity = was }
		},
		"rolled back": func(l *fakeLane) func() {
			was := l.records
			l.records = l.records[:5]
			return func() { l.records = was }
		},
		"another record": func(l *fakeLane) func() {
			was := l.records[9].Key
			l.records[9].Key = "another"
			return func() { l.records[9].Key = was }
		},
	} {
		t.Run(name, func(t *testing.T) {
			runHarness(t, 1, func(h *harness) {
				h.node("n1").offer(job.Overhop, "mail", "w1", 8)
				for i := range 10 {
					h.enqueue("mail", string(rune('a'+i)), anyJob)
				}
				h.until("all ran", func() bool { return h.counts().Delivered == 10 })
				var undo func()
				h.lanes.set(func() { undo = change(h.lanes.lanes[0]) })
				h.advance(verifyInterval + 2*recheckAfter)
				if h.laneReady() {
					t.Error("the lane is still ingested")
				}
				if got := h.reasons(); len(got) != 1 || !strings.HasPrefix(got[0], "lane 0 is not ingested: ") {
					t.Errorf("reasons %q", got)
				}
				h.lanes.set(undo)
				h.advance(3 * time.Second)
				h.enqueue("mail", "later", anyJob)
				h.until("folding goes on", func() bool { return h.counts().Delivered == 11 })
				if got := h.reasons(); len(got) > 0 {
					t.Errorf("reasons afterwards %q", got)
				}
			})
		})
	}
}

func TestVerifyLane_NoAnswerIsNoMismatch(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.lanes.set(func() { h.lanes.down = errors.New("no leader") })
		h.advance(3 * verifyInterval)
		if !h.laneReady() {
			t.Error("a lane that does not answer was stopped")
		}
		h.lanes.set(func() { h.lanes.down = nil })
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.counts().Delivered == 1 })
	})
}

// TestVerifyLane_JobsOfLostLaneWait checks that jobs whose bodies are in a
// lane that was deleted or created again wait until it is back, and that jobs
// of other lanes run.
func TestVerifyLane_JobsOfLostLaneWait(t *testing.T) {
	for name, change := range map[string]func(*fakeLane){
		"another identity": func(l *fakeLane) { l.identity = "another" },
		"removed":          func(l *fakeLane) { l.identity = "" },
	} {
		t.Run(name, func(t *testing.T) {
			runHarness(t, 2, func(h *harness) {
				large := `{"params":{"x":"` + strings.Repeat("x", 2*maxCachedBody) + `"}}`
				lost := h.enqueueIn(1, "mail", "lost", large)
				h.enqueueIn(1, "mail", "at hand", anyJob)
				h.until("both are ingested", func() bool { return h.counts().Pending == 2 })
				var was string
				h.lanes.set(func() { was = h.lanes.lanes[1].identity; change(h.lanes.lanes[1]) })
				h.advance(verifyInterval + 2*recheckAfter)
				h.node("n1").offer(job.Overhop, "mail", "w1", 8)
				h.enqueueIn(0, "mail", "other", large)
				h.until("the others ran", func() bool { return h.counts().Delivered == 2 })
				h.advance(3 * time.Second)
				if s := h.state(lost); s != job.Waiting {
					t.Errorf("the job whose body is lost is %s", s)
				}
				h.lanes.set(func() { h.lanes.lanes[1].identity = was })
				h.until("it ran", func() bool { return h.counts().Delivered == 3 })
			})
		})
	}
}

// TestVerifyLane_DeadLettersOfLostLane checks that a failed job of a lost lane
// gets a dead letter, without its record, and that other dead letters are
// published as well.
func TestVerifyLane_DeadLettersOfLostLane(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.enqueueIn(1, "mail", "lost", anyJob)
		h.until("it is ingested", func() bool { return h.counts().Pending == 1 })
		h.lanes.set(func() { h.lanes.lanes[1].identity = "" })
		h.advance(verifyInterval + 2*recheckAfter)
		n := h.node("n1")
		n.do(func() { n.work = endsWith(job.Outcome{Status: job.Error, Final: true}) })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.until("it died", func() bool { return h.counts().Failed == 1 })
		h.enqueueIn(0, "mail", "other", anyJob)
		h.until("another died", func() bool { return h.counts().Failed == 2 })
		h.until("both have letters", func() bool { return len(h.streams.published(outbox.DeadLetters)) == 2 })
		if got := h.reasons(); len(got) != 1 || !strings.HasPrefix(got[0], "lane 1 is not ingested: ") {
			t.Errorf("reasons %q", got)
		}
	})
}

// TestPlace_LaneIsNotServed checks that a new authority starts no job before its lane is
// served, for example because all nodes have just been started: the job would use its limits,
// and reach its worker later, together with others.
func TestPlace_LaneIsNotServed(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		for range 3 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("they wait", func() bool { return h.counts().Pending == 3 })
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.lanes.set(func() { h.lanes.down = errors.New("no leader") })
		h.begin()
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.advance(5 * time.Second)
		if got := h.counts(); got.Pending != 3 {
			t.Errorf("%+v while the lane is not served, want 3 pending", got)
		}
		h.lanes.set(func() { h.lanes.down = nil })
		h.until("they ran", func() bool { return h.counts().Delivered == 3 })
	})
}
