package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// inReplay runs a test over a yard in which so many jobs have run: their
// records lie in lane 0.
func inReplay(t *testing.T, jobs int, test func(y *yard)) {
	t.Helper()
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 64)
		for i := range jobs {
			y.enqueue("mail", fmt.Sprint("job", i), anyJob)
		}
		y.until("all ran", func() bool { return y.counts().Delivered == uint64(jobs) })
		y.pass(100 * time.Millisecond)
		test(y)
		y.noDoubles()
		if c := y.counts(); c != (ledger.Counts{Delivered: uint64(jobs)}) {
			t.Errorf("a replay changed what was done: %+v", c)
		}
	})
}

func (y *yard) replay(cursor string) {
	y.t.Helper()
	if r := y.do(&ledger.RequestReplay{Cursor: &cursor}); r.Err != nil {
		y.t.Fatal(r.Err)
	}
}

// shown is what every node's snapshot says of replay and readiness.
func (y *yard) shown() (s ledger.Snapshot) {
	y.raft.View(func(l *ledger.Ledger) { s = l.Snapshot(ledger.Surroundings{Now: l.Now()}) })
	return s
}

// replayed waits until nothing is left to read, and gives how long that took
// and what was told on the way.
func (y *yard) replayed() (took time.Duration, told []*ledger.Reread) {
	y.t.Helper()
	began, before := time.Now(), len(y.raft.entries())
	y.until("the replay is done", func() bool { return y.shown().Replay.PendingEvents == 0 })
	return time.Since(began), commandsOf[*ledger.Reread](y.raft.entries()[before:])
}

func TestReplay_FromTheBeginning(t *testing.T) {
	inReplay(t, 10_000, func(y *yard) {
		before := y.shown().Replay
		reads := 0
		y.lanes.set(func() { y.lanes.reads = 0 })
		y.replay("0@0")
		y.until("it has begun", func() bool { c := *y.shown().Replay.Cursor; return c != "0@0" && c != *before.Cursor })
		s := y.shown()
		if s.Replay.LastReplayedEventID == nil || s.Replay.PendingEvents == 0 || s.Replay.PendingEvents >= 10_000 || !s.Readiness.Ready {
			t.Errorf("half-way: %+v %+v", s.Replay, s.Readiness)
		}
		_, told := y.replayed()
		y.lanes.set(func() { reads = y.lanes.reads })
		if reads < 10_000/rereadBatch || len(told) == 0 || len(told) > 6 {
			t.Errorf("%d reads, told %d times", reads, len(told))
		}
		after := y.shown().Replay
		if *after.Cursor != "0@10000" || *after.LastReplayedEventID != *before.LastReplayedEventID {
			t.Errorf("afterwards %s, %s", *after.Cursor, *after.LastReplayedEventID)
		}
		entries := len(y.raft.entries())
		y.pass(2 * time.Second)
		if said := commandsOf[*ledger.Reread](y.raft.entries()[entries:]); len(said) > 0 {
			t.Errorf("a replay that is over is told of %d times", len(said))
		}
	})
}

// Only what lies behind the cursor is read again, and all of it.
func TestReplay_WhatIsRead(t *testing.T) {
	for cursor, want := range map[string]uint64{
		"0@0": 1000, "0@400": 600, "0@999": 1, "0@1000": 0, "0@9999": 0,
		"cursor-1": 1000, "1@5": 1000, "0@": 1000,
	} {
		t.Run(cursor, func(t *testing.T) {
			inReplay(t, 1000, func(y *yard) {
				y.lanes.set(func() { y.lanes.down = errors.New("no leader") }) // nothing is read yet
				y.replay(cursor)
				if left := y.shown().Replay.PendingEvents; left != want {
					t.Errorf("%d are to be read again, want %d", left, want)
				}
				y.lanes.set(func() { y.lanes.down = nil })
				y.replayed()
				y.says("")
			})
		})
	}
}

// New jobs run as if there were no replay, and are none of its business.
func TestReplay_HoldsUpNothing(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 64)
		for range 5000 {
			y.enqueue("mail", "", anyJob)
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 5000 })
		y.pass(100 * time.Millisecond)
		y.replay("0@0")
		for i := range 20 {
			began := time.Now()
			y.enqueue("mail", "", anyJob)
			y.until("it ran", func() bool { return y.counts().Delivered == uint64(5001+i) })
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("a job took %s beside a replay", took)
			}
		}
		if s := y.shown(); s.Replay.PendingEvents == 0 || !strings.HasPrefix(*s.Replay.Cursor, "0@") {
			t.Fatalf("the replay is over already: %+v", s.Replay)
		}
		y.replayed()
		if got := *y.shown().Replay.Cursor; got != "0@5020" {
			t.Errorf("afterwards at %s", got)
		}
	})
}

func TestReplay_TheLastRequestCounts(t *testing.T) {
	inReplay(t, 5000, func(y *yard) {
		y.replay("0@0")
		y.until("it has begun", func() bool { return y.shown().Replay.PendingEvents < 5000 })
		y.replay("0@4900")
		if s := y.shown().Replay; s.PendingEvents != 100 || *s.Cursor != "0@4900" || s.LastReplayedEventID != nil {
			t.Errorf("after another request: %+v", s)
		}
		if took, _ := y.replayed(); took > 500*time.Millisecond {
			t.Errorf("a hundred records took %s", took)
		}
		y.replay("0@0")
		y.until("it has begun", func() bool { return y.shown().Replay.PendingEvents < 5000 })
		y.do(&ledger.RequestReplay{})
		if s := y.shown().Replay; s.PendingEvents != 0 || *s.Cursor != "0@5000" {
			t.Errorf("after null: %+v", s)
		}
		before := 0
		y.pass(rereadAgain)
		y.lanes.set(func() { before = y.lanes.reads })
		y.pass(time.Second)
		y.lanes.set(func() {
			if polls := int(time.Second / pollEvery); y.lanes.reads-before > polls+1 {
				t.Errorf("%d reads in a second after null, want %d polls", y.lanes.reads-before, polls)
			}
		})
	})
}

// The next tenure goes on where the one before had told it was.
func TestReplay_NextTenure(t *testing.T) {
	inReplay(t, 5000, func(y *yard) {
		y.replay("0@0")
		y.until("it has begun", func() bool { return y.shown().Replay.PendingEvents < 5000 })
		y.end()
		left := y.shown().Replay.PendingEvents
		y.lanes.set(func() { y.lanes.lanes[0].lost = map[uint64]bool{1: true} }) // of what nobody reads again
		y.begin()
		if now := y.shown().Replay.PendingEvents; left == 0 || now > left {
			t.Errorf("%d were left, the next tenure begins with %d", left, now)
		}
		y.replayed()
		y.says("")
		if s := y.shown(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// What was reclaimed, before or meanwhile, is no damage.
func TestReplay_Reclaimed(t *testing.T) {
	inReplay(t, 3000, func(y *yard) {
		y.lanes.set(func() { y.lanes.lanes[0].first = 501 })
		y.replay("0@0")
		y.until("it has begun", func() bool { return y.shown().Replay.PendingEvents <= 2500 })
		y.lanes.set(func() { y.lanes.lanes[0].first = 2900 })
		if took, _ := y.replayed(); took > time.Second {
			t.Errorf("a hundred records took %s", took)
		}
		if s := y.shown(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// Damage is told by its place, and the replay goes on behind it.
func TestReplay_Damage(t *testing.T) {
	inReplay(t, 1000, func(y *yard) {
		y.lanes.set(func() {
			lane := y.lanes.lanes[0]
			lane.lost = map[uint64]bool{17: true, 18: true, 19: true, 600: true, 1000: true}
			lane.records[99].Body = []byte(`{"params":{},"function":"other"}`)
			lane.records[199].Body = []byte(`{"par`)
		})
		y.replay("0@0")
		y.replayed()
		s := y.shown()
		for i, want := range []string{"records 17 to 19 are missing", "record 100 is not what was folded", "record 200 is not", "record 600 is missing", "record 1000 is missing"} {
			if i >= len(s.Readiness.Reasons) || !strings.HasPrefix(s.Readiness.Reasons[i], "lane 0: "+want) {
				t.Errorf("reason %d of %q, want %q", i, s.Readiness.Reasons, want)
			}
		}
		if len(s.Readiness.Reasons) != 5 {
			t.Errorf("%d reasons", len(s.Readiness.Reasons))
		}
		y.lanes.set(func() {
			lane := y.lanes.lanes[0]
			lane.lost = nil
			lane.records[99].Body, lane.records[199].Body = []byte(anyJob), []byte(anyJob)
		})
		y.replay("0@16")
		y.replayed()
		if s := y.shown(); !s.Readiness.Ready {
			t.Errorf("after it was mended: %q", s.Readiness.Reasons)
		}
	})
}

// A record that its own bytes make another job's is found out by the job that
// still needs it.
func TestReplay_AnotherJobsRecord(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		for i := range 10 {
			y.enqueue("mail", fmt.Sprint("waits", i), anyJob)
		}
		for i := range 10 { // the holder's record is the one that came last
			y.enqueue("mail", fmt.Sprint("one", i), `{"params":{},"debounce_key":"k","debounce_ms":60000}`)
		}
		y.until("all are folded", func() bool { return *y.shown().Replay.Cursor == "0@20" })
		y.replay("0@0")
		y.replayed()
		if s := y.shown(); !s.Readiness.Ready {
			t.Errorf("%q", s.Readiness.Reasons)
		}
		y.lanes.set(func() { y.lanes.lanes[0].records[6].Key = "nobody knows" })
		y.replay("0@0")
		y.replayed()
		if s := y.shown(); len(s.Readiness.Reasons) != 1 || !strings.HasPrefix(s.Readiness.Reasons[0], "lane 0: record 7 is not what was folded") {
			t.Errorf("%q", s.Readiness.Reasons)
		}
	})
}

// What was no job when it was folded need not be one now.
func TestReplay_Rejects(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		for _, body := range []string{"", "not JSON", `{"params":[1]}`} {
			y.enqueue("mail", "", body)
		}
		y.until("all are dead", func() bool { return y.counts().Failed == 3 })
		y.replay("0@0")
		y.replayed()
		if s := y.shown(); !s.Readiness.Ready || s.Backlog.Failed != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// Another stream under the lane's name is not read at all; the lane's own
// trouble says so.
func TestReplay_AnotherStream(t *testing.T) {
	inReplay(t, 500, func(y *yard) {
		identity := ""
		y.lanes.set(func() {
			identity = y.lanes.lanes[0].identity
			y.lanes.lanes[0].identity = "another"
		})
		y.replay("0@0")
		y.pass(30 * time.Second)
		if left := y.shown().Replay.PendingEvents; left != 500 {
			t.Errorf("%d are left", left)
		}
		y.says("its stream is another one")
		if said := commandsOf[*ledger.Reread](y.raft.entries()); len(said) > 0 {
			t.Errorf("told %d times of nothing", len(said))
		}
		y.lanes.set(func() { y.lanes.lanes[0].identity = identity })
		y.replayed()
	})
}
