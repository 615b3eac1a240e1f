package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// inReplay runs a test in a cluster in which a number of jobs have run, with their
// records in lane 0.
func inReplay(t *testing.T, jobs int, test func(h *harness)) {
	t.Helper()
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 64)
		for i := range jobs {
			h.enqueue("mail", fmt.Sprint("job", i), anyJob)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == uint64(jobs) })
		h.advance(100 * time.Millisecond)
		test(h)
		h.checkNoOverlap()
		if c := h.counts(); c != (ledger.SnapshotBacklog{Delivered: uint64(jobs)}) {
			t.Errorf("a replay changed the backlog: %+v", c)
		}
	})
}

func (h *harness) requestReplay(cursor string) {
	h.t.Helper()
	if r := h.propose(&ledger.RequestReplay{Cursor: &cursor}); r.Err != nil {
		h.t.Fatal(r.Err)
	}
}

// snapshot returns the contract's snapshot, with the state of the replay and the
// readiness.
func (h *harness) snapshot() (s ledger.Snapshot) {
	h.raft.View(func(l *ledger.Ledger) { s = l.Snapshot(ledger.SnapshotContext{Now: l.Now()}) })
	return s
}

// waitReplayed waits until the replay has ended. It returns how long that took and the
// replay events published meanwhile.
func (h *harness) waitReplayed() (took time.Duration, published []*ledger.AdvanceReplay) {
	h.t.Helper()
	began, before := time.Now(), len(h.raft.entries())
	h.until("the replay is done", func() bool { return h.snapshot().Replay.PendingEvents == 0 })
	return time.Since(began), commandsOf[*ledger.AdvanceReplay](h.raft.entries()[before:])
}

func TestReplay_FromTheBeginning(t *testing.T) {
	inReplay(t, 10_000, func(h *harness) {
		before := h.snapshot().Replay
		reads := 0
		h.lanes.set(func() { h.lanes.reads = 0 })
		h.requestReplay("0@0")
		h.until("it has begun", func() bool { c := *h.snapshot().Replay.Cursor; return c != "0@0" && c != *before.Cursor })
		s := h.snapshot()
		if s.Replay.LastReplayedEventID == nil || s.Replay.PendingEvents == 0 || s.Replay.PendingEvents >= 10_000 || !s.Readiness.Ready {
			t.Errorf("half-way: %+v %+v", s.Replay, s.Readiness)
		}
		_, published := h.waitReplayed()
		h.lanes.set(func() { reads = h.lanes.reads })
		if reads < 10_000/replayBatch || len(published) == 0 || len(published) > 6 {
			t.Errorf("%d reads, %d events", reads, len(published))
		}
		after := h.snapshot().Replay
		if *after.Cursor != "0@10000" || *after.LastReplayedEventID != *before.LastReplayedEventID {
			t.Errorf("afterwards %s, %s", *after.Cursor, *after.LastReplayedEventID)
		}
		entries := len(h.raft.entries())
		h.advance(2 * time.Second)
		if said := commandsOf[*ledger.AdvanceReplay](h.raft.entries()[entries:]); len(said) > 0 {
			t.Errorf("%d events after the end of the replay", len(said))
		}
	})
}

// TestReplay_ReadsOnce checks that exactly the records after the requested
// cursor are read again.
func TestReplay_ReadsOnce(t *testing.T) {
	for cursor, want := range map[string]uint64{
		"0@0": 1000, "0@400": 600, "0@999": 1, "0@1000": 0, "0@9999": 0,
		"cursor-1": 1000, "1@5": 1000, "0@": 1000,
	} {
		t.Run(cursor, func(t *testing.T) {
			inReplay(t, 1000, func(h *harness) {
				h.lanes.set(func() { h.lanes.down = errors.New("no leader") }) // nothing can be read yet
				h.requestReplay(cursor)
				if left := h.snapshot().Replay.PendingEvents; left != want {
					t.Errorf("%d are to be read again, want %d", left, want)
				}
				h.lanes.set(func() { h.lanes.down = nil })
				h.waitReplayed()
				h.wantReason("")
			})
		})
	}
}

// TestReplay_DoesNotDelayJobs checks that new jobs run during a replay as
// without one, and that the replay does not read their records.
func TestReplay_DoesNotDelayJobs(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 64)
		for range 5000 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 5000 })
		h.advance(100 * time.Millisecond)
		h.requestReplay("0@0")
		for i := range 20 {
			began := time.Now()
			h.enqueue("mail", "", anyJob)
			h.until("it ran", func() bool { return h.counts().Delivered == uint64(5001+i) })
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("a job took %s during a replay", took)
			}
		}
		if s := h.snapshot(); s.Replay.PendingEvents == 0 || !strings.HasPrefix(*s.Replay.Cursor, "0@") {
			t.Fatalf("the replay has already ended: %+v", s.Replay)
		}
		h.waitReplayed()
		if got := *h.snapshot().Replay.Cursor; got != "0@5020" {
			t.Errorf("afterwards at %s", got)
		}
	})
}

func TestReplay_LastRequestWins(t *testing.T) {
	inReplay(t, 5000, func(h *harness) {
		h.requestReplay("0@0")
		h.until("it has begun", func() bool { return h.snapshot().Replay.PendingEvents < 5000 })
		h.requestReplay("0@4900")
		if s := h.snapshot().Replay; s.PendingEvents != 100 || *s.Cursor != "0@4900" || s.LastReplayedEventID != nil {
			t.Errorf("after another request: %+v", s)
		}
		if took, _ := h.waitReplayed(); took > 500*time.Millisecond {
			t.Errorf("a hundred records took %s", took)
		}
		h.requestReplay("0@0")
		h.until("it has begun", func() bool { return h.snapshot().Replay.PendingEvents < 5000 })
		h.propose(&ledger.RequestReplay{})
		if s := h.snapshot().Replay; s.PendingEvents != 0 || *s.Cursor != "0@5000" {
			t.Errorf("after null: %+v", s)
		}
		before := 0
		h.advance(replayRetryDelay)
		h.lanes.set(func() { before = h.lanes.reads })
		h.advance(time.Second)
		h.lanes.set(func() {
			if polls := int(time.Second / pollInterval); h.lanes.reads-before > polls+1 {
				t.Errorf("%d reads in a second after null, want %d polls", h.lanes.reads-before, polls)
			}
		})
	})
}

// TestReplay_NextTenure checks that the next tenure continues a replay at the
// committed progress.
func TestReplay_NextTenure(t *testing.T) {
	inReplay(t, 5000, func(h *harness) {
		h.requestReplay("0@0")
		h.until("it has begun", func() bool { return h.snapshot().Replay.PendingEvents < 5000 })
		h.end()
		left := h.snapshot().Replay.PendingEvents
		h.lanes.set(func() { h.lanes.lanes[0].lost = map[uint64]bool{1: true} }) // a record that was already read again
		h.begin()
		if now := h.snapshot().Replay.PendingEvents; left == 0 || now > left {
			t.Errorf("%d were left, the next tenure begins with %d", left, now)
		}
		h.waitReplayed()
		h.wantReason("")
		if s := h.snapshot(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// TestReplay_Reclaimed checks that records reclaimed before or during a replay
// do not count as damage.
func TestReplay_Reclaimed(t *testing.T) {
	inReplay(t, 3000, func(h *harness) {
		h.lanes.set(func() { h.lanes.lanes[0].first = 501 })
		h.requestReplay("0@0")
		h.until("it has begun", func() bool { return h.snapshot().Replay.PendingEvents <= 2500 })
		h.lanes.set(func() { h.lanes.lanes[0].first = 2900 })
		if took, _ := h.waitReplayed(); took > time.Second {
			t.Errorf("a hundred records took %s", took)
		}
		if s := h.snapshot(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// TestReplay_Damage checks that damage is reported with its position, and that
// the replay continues after it.
func TestReplay_Damage(t *testing.T) {
	inReplay(t, 1000, func(h *harness) {
		h.lanes.set(func() {
			lane := h.lanes.lanes[0]
			lane.lost = map[uint64]bool{17: true, 18: true, 19: true, 600: true, 1000: true}
			lane.records[99].Body = []byte(`{"params":{},"function":"other"}`)
			lane.records[199].Body = []byte(`{"par`)
		})
		h.requestReplay("0@0")
		h.waitReplayed()
		s := h.snapshot()
		for i, want := range []string{"records 17 to 19 are missing", "record 100 is not what was ingested", "record 200 is not", "record 600 is missing", "record 1000 is missing"} {
			if i >= len(s.Readiness.Reasons) || !strings.HasPrefix(s.Readiness.Reasons[i], "lane 0: "+want) {
				t.Errorf("reason %d of %q, want %q", i, s.Readiness.Reasons, want)
			}
		}
		if len(s.Readiness.Reasons) != 5 {
			t.Errorf("%d reasons", len(s.Readiness.Reasons))
		}
		h.lanes.set(func() {
			lane := h.lanes.lanes[0]
			lane.lost = nil
			lane.records[99].Body, lane.records[199].Body = []byte(anyJob), []byte(anyJob)
		})
		h.requestReplay("0@16")
		h.waitReplayed()
		if s := h.snapshot(); !s.Readiness.Ready {
			t.Errorf("after the repair: %q", s.Readiness.Reasons)
		}
	})
}

// TestReplay_AnotherJobsRecord checks that a record whose bytes were replaced
// by another job's is detected by the job that still needs it.
func TestReplay_AnotherJobsRecord(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		for i := range 10 {
			h.enqueue("mail", fmt.Sprint("waits", i), anyJob)
		}
		for i := range 10 { // the holder's record is the one that came last
			h.enqueue("mail", fmt.Sprint("one", i), `{"params":{},"debounce_key":"k","debounce_ms":60000}`)
		}
		h.until("all are ingested", func() bool { return *h.snapshot().Replay.Cursor == "0@20" })
		h.requestReplay("0@0")
		h.waitReplayed()
		if s := h.snapshot(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
		h.lanes.set(func() { h.lanes.lanes[0].records[6].Key = "nobody knows" })
		h.requestReplay("0@0")
		h.waitReplayed()
		if s := h.snapshot(); len(s.Readiness.Reasons) != 1 || !strings.HasPrefix(s.Readiness.Reasons[0], "lane 0: record 7 is not what was ingested") {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// TestReplay_RejectedRecords checks that a record that was rejected when it
// was ingested is not damage.
func TestReplay_RejectedRecords(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		for _, body := range []string{"", "not JSON", `{"params":[1]}`} {
			h.enqueue("mail", "", body)
		}
		h.until("all are dead", func() bool { return h.counts().Failed == 3 })
		h.requestReplay("0@0")
		h.waitReplayed()
		if s := h.snapshot(); !s.Readiness.Ready || s.Backlog.Failed != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// TestReplay_ReplacedStream checks that another stream under the lane's name
// is not read, and is reported as the lane's problem.
func TestReplay_ReplacedStream(t *testing.T) {
	inReplay(t, 500, func(h *harness) {
		identity := ""
		h.lanes.set(func() {
			identity = h.lanes.lanes[0].identity
			h.lanes.lanes[0].identity = "another"
		})
		h.requestReplay("0@0")
		h.advance(30 * time.Second)
		if left := h.snapshot().Replay.PendingEvents; left != 500 {
			t.Errorf("%d are left", left)
		}
		h.wantReason("its stream is another one")
		if said := commandsOf[*ledger.AdvanceReplay](h.raft.entries()); len(said) > 0 {
			t.Errorf("%d replay events without progress", len(said))
		}
		h.lanes.set(func() { h.lanes.lanes[0].identity = identity })
		h.waitReplayed()
	})
}
