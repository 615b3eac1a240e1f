package nodetest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
	"yardmaster/ledger"
)

// shows gives a member's snapshot.
func shows(t *testing.T, m *nodetest.Member) (s ledger.Snapshot) {
	t.Helper()
	if err := m.Ask("yard.snapshot", "", &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRereading asks a member that is not the authority to read everything
// again, while some jobs have run and one is running, and stops the authority
// half-way: the next one goes on, no job runs twice, and all members show it.
func TestRereading(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	const jobs = 6_000
	y := nodetest.Start(t, 3, settings)
	a := y.Members[0]
	a.AddQueue(t, "over", 0)
	a.AddQueue(t, "long", 1)
	old := y.WaitAuthority()
	asked := y.Members[0]
	if asked == old {
		asked = y.Members[1]
	}
	var ran, held tally
	release := make(chan struct{})
	worker := &overhop.Worker{Nodes: []string{asked.Node().Addresses().Overhop}}
	worker.Handle("over", 512, ran.handle)
	worker.Handle("long", 1, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		select {
		case <-release:
		case <-ctx.Done(): // the test has failed
		}
		return held.handle(ctx, q)
	})
	asked.RunWorker(t, worker)
	bulkLines(t, asked, jobs)
	y.Eventually("all have run", func() error { return asked.Holds("over", "completed", jobs) })
	long := asked.Enqueue(t, "long", `{"params":{}}`).String()
	asked.WaitState(t, long, "active")
	waits := asked.Enqueue(t, "long", `{"params":{}}`).String()
	asked.WaitState(t, waits, "waiting")
	before := shows(t, asked)

	if _, err := exec(asked, `{"command":"RequestReplay","cursor":"0@0,1@0,2@0"}`); err != nil {
		t.Fatal(err)
	}
	var left uint64
	y.Eventually("a part is read again", func() error {
		s := shows(t, asked)
		if left = s.Replay.PendingEvents; left >= jobs || s.Replay.LastReplayedEventID == nil {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
	began := time.Now()
	old.Stop()
	now := y.WaitAuthority(old)
	t.Logf("%d of %d were left, another authority after %s", left, jobs+2, time.Since(began))
	restIsRead(t, y, asked, left)
	t.Logf("done after %s", time.Since(began))

	old.Restart()
	close(release)
	for _, id := range []string{long, waits} {
		if j := now.WaitOutcome(t, id); j.State != "completed" || j.Dispatches != 1 {
			t.Errorf("%+v", j)
		}
	}
	y.WaitReady()
	for _, m := range y.Members {
		y.Eventually(m.Name+" shows it", func() error {
			s := shows(t, m)
			if want := before.Backlog.Delivered + 2; s.Backlog.Delivered != want || s.Replay.PendingEvents != 0 || *s.Replay.Cursor != *before.Replay.Cursor {
				return fmt.Errorf("%+v %+v, before the replay %+v", s.Backlog, s.Replay, before.Replay)
			}
			return nil
		})
	}
	if ran.jobs() != jobs || held.jobs() != 2 {
		t.Errorf("%d and %d jobs ran", ran.jobs(), held.jobs())
	}
	for _, c := range []*tally{&ran, &held} {
		for id, n := range c.ran {
			if n > 1 {
				t.Errorf("%s ran %d times", id, n)
			}
		}
	}
}

// restIsRead waits for the end of a replay of which so much is left: it never
// gets more, and nothing is found to be wrong.
func restIsRead(t *testing.T, y *nodetest.Yard, m *nodetest.Member, left uint64) {
	t.Helper()
	y.Eventually("the rest is read again", func() error {
		s := shows(t, m)
		if s.Replay.PendingEvents > left {
			t.Fatalf("%d records are left, there were %d before: %+v", s.Replay.PendingEvents, left, s.Replay)
		}
		for _, why := range s.Readiness.Reasons {
			if strings.HasPrefix(why, "replay") || strings.Contains(why, "record") {
				t.Errorf("not ready: %s", why)
			}
		}
		if left = s.Replay.PendingEvents; left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
}
