package clustertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// snapshotOf returns a member's snapshot.
func snapshotOf(t *testing.T, m *clustertest.Member) (s ledger.Snapshot) {
	t.Helper()
	if err := m.Request("yard.snapshot", "", &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRecordReplay starts a replay of all records at a follower while jobs have run and one
// is running, and stops the authority half-way: the next one must continue the replay, no
// job may run twice, and all members must report the replay.
func TestRecordReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	const jobs = 6_000
	cl := clustertest.Start(t, 3, testConfig)
	a := cl.Members[0]
	a.AddQueue(t, "over", 0)
	a.AddQueue(t, "long", 1)
	old := cl.WaitAuthority()
	asked := cl.Members[0]
	if asked == old {
		asked = cl.Members[1]
	}
	var ran, held callCounter
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
	cl.Eventually("all have run", func() error { return asked.CheckCount("over", "completed", jobs) })
	long := asked.Enqueue(t, "long", `{"params":{}}`).String()
	asked.WaitState(t, long, "active")
	waits := asked.Enqueue(t, "long", `{"params":{}}`).String()
	asked.WaitState(t, waits, "waiting")
	before := snapshotOf(t, asked)

	if _, err := exec(asked, `{"command":"RequestReplay","cursor":"0@0,1@0,2@0"}`); err != nil {
		t.Fatal(err)
	}
	var left uint64
	cl.Eventually("some records are read again", func() error {
		s := snapshotOf(t, asked)
		if left = s.Replay.PendingEvents; left >= jobs || s.Replay.LastReplayedEventID == nil {
			return fmt.Errorf("%d records are left", left)
		}
		return nil
	})
	began := time.Now()
	old.Stop()
	now := cl.WaitAuthority(old)
	t.Logf("%d of %d were left, another authority after %s", left, jobs+2, time.Since(began))
	waitReplayed(t, cl, asked, left)
	t.Logf("done after %s", time.Since(began))

	old.Restart()
	close(release)
	for _, id := range []string{long, waits} {
		if j := now.WaitOutcome(t, id); j.State != "completed" || j.Dispatches != 1 {
			t.Errorf("%+v", j)
		}
	}
	cl.WaitReady()
	for _, m := range cl.Members {
		cl.Eventually(m.Name+" shows it", func() error {
			s := snapshotOf(t, m)
			if want := before.Backlog.Delivered + 2; s.Backlog.Delivered != want || s.Replay.PendingEvents != 0 || *s.Replay.Cursor != *before.Replay.Cursor {
				return fmt.Errorf("%+v %+v, before the replay %+v", s.Backlog, s.Replay, before.Replay)
			}
			return nil
		})
	}
	if ran.jobs() != jobs || held.jobs() != 2 {
		t.Errorf("%d and %d jobs ran", ran.jobs(), held.jobs())
	}
	for _, c := range []*callCounter{&ran, &held} {
		for id, n := range c.calls {
			if n > 1 {
				t.Errorf("%s ran %d times", id, n)
			}
		}
	}
}

// waitReplayed waits for the end of a replay with this number of records left: the number
// must not grow, and no fault may be found.
func waitReplayed(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, left uint64) {
	t.Helper()
	cl.Eventually("all records are read again", func() error {
		s := snapshotOf(t, m)
		if s.Replay.PendingEvents > left {
			t.Fatalf("%d records are left, there were %d before: %+v", s.Replay.PendingEvents, left, s.Replay)
		}
		for _, why := range s.Readiness.Reasons {
			if strings.HasPrefix(why, "replay") || strings.Contains(why, "record") {
				t.Errorf("not ready: %s", why)
			}
		}
		if left = s.Replay.PendingEvents; left > 0 {
			return fmt.Errorf("%d records are left", left)
		}
		return nil
	})
}
