package node

import (
	"errors"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A job that is accepted after the restore has checked the lanes is not lost: the restore is
// rejected, and the job runs.
func TestRestore_JobAcceptedBeforeClear(t *testing.T) {
	n := startSingleNode(t, nil)
	b := newBackups(n)
	r, err := b.startRestore(backup.Plan{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.cancel()
	resumed, epoch, err := r.checkFresh(t.Context())
	if err != nil || resumed {
		t.Fatalf("an empty cluster: %t, %v", resumed, err)
	}
	if err := r.propose(t.Context(), &ledger.Restore{Stage: ledger.RestoreBegin, ID: r.id, Source: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	early, err := enqueue(n, "mail", `{"params":{}}`, "early", false)
	if err != nil {
		t.Fatal(err)
	}
	var apiErr *cluster.APIError
	if err := r.clearIfFresh(t.Context(), resumed, epoch); !errors.As(err, &apiErr) || apiErr.Code != "409" {
		t.Fatalf("with a job: %v", err)
	}
	n.raft.View(func(l *ledger.Ledger) {
		if id, _ := l.Restoring(); id != "" {
			t.Errorf("restore %s is still under way", id)
		}
	})
	if id, err := n.viewer.locate(t.Context(), "early", "mail"); err != nil || id != early.id {
		t.Errorf("the job: %v, %v, want %v", id, err, early.id)
	}
	if late := enqueueLater(t, n); late.position.Seq != early.position.Seq+1 {
		t.Errorf("the lane continues at %+v", late.position)
	}
	if _, _, err := r.checkFresh(t.Context()); !errors.As(err, &apiErr) || apiErr.Code != "409" {
		t.Errorf("checked again: %v", err)
	}
}

// A restore that was superseded removes nothing.
func TestRestore_Superseded(t *testing.T) {
	n := startSingleNode(t, nil)
	begin := func() *restorer {
		t.Helper()
		r, err := newBackups(n).startRestore(backup.Plan{}, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.cancel)
		_, epoch, err := r.checkFresh(t.Context())
		if err == nil {
			err = r.propose(t.Context(), &ledger.Restore{Stage: ledger.RestoreBegin, ID: r.id, Source: "elsewhere"})
		}
		if err == nil {
			err = r.awaitLedger(t.Context(), func(l *ledger.Ledger) bool { return l.Authority().Epoch > epoch })
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, second := begin(), begin()
	if err := first.removeStreams(t.Context()); !errors.Is(err, ledger.ErrNotRestoring) {
		t.Errorf("the first: %v", err)
	}
	if _, err := n.cluster.LaneInfo(t.Context(), 0); err != nil {
		t.Errorf("the lane: %v", err)
	}
	if err := second.removeStreams(t.Context()); err != nil {
		t.Errorf("the second: %v", err)
	}
	if _, err := n.cluster.LaneInfo(t.Context(), 0); !errors.Is(err, cluster.ErrStreamMissing) {
		t.Errorf("the lane: %v", err)
	}
	if err := second.reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueLater(t, n)
}

// enqueueLater enqueues a job, with retries until the lanes are open again.
func enqueueLater(t *testing.T, n *Node) accepted {
	t.Helper()
	for t.Context().Err() == nil {
		late, err := enqueue(n, "mail", `{"params":{}}`, "late", false)
		var later *job.UnavailableError
		if err == nil {
			return late
		}
		if !errors.As(err, &later) && !errors.Is(err, cluster.ErrUnknown) {
			t.Fatal(err)
		}
	}
	return accepted{}
}

// A cluster whose restore is abandoned accepts jobs, publishes its history, and can be
// restored again.
func TestRestore_Abandon(t *testing.T) {
	n := startSingleNode(t, nil)
	b := newBackups(n)
	r, err := b.startRestore(backup.Plan{}, false)
	if err != nil {
		t.Fatal(err)
	}
	published := func() (all, published uint64) {
		n.raft.View(func(l *ledger.Ledger) { all, published = l.LastEvent(), l.PublishedEvents() })
		return all, published
	}
	waitApplied(t, n, func() bool { _, n := published(); return n > 0 })
	if err := r.prepare(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.reopen(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = b.startRestore(backup.Plan{}, true); err != nil { // a second restore
		t.Fatal(err)
	}
	if err := r.prepare(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = b.startRestore(backup.Plan{}, true); err != nil {
		t.Fatal(err)
	}
	if err := r.abandon(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = b.startRestore(backup.Plan{}, true); err != nil {
		t.Fatal(err)
	}
	if before, _, err := r.checkFresh(t.Context()); before || err != nil {
		t.Errorf("after the abandonment: %t, %v", before, err)
	}
	enqueueLater(t, n)
	waitApplied(t, n, func() bool { all, published := published(); return all == published && all > 1 })
	waitReady(t, n)
}

// waitApplied waits until fits reports true for the local ledger.
func waitApplied(t *testing.T, n *Node, fits func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		_, changed := n.raft.Applied()
		if fits() {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatal("not in 20 s")
		}
	}
}
