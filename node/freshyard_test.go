package node

import (
	"errors"
	"testing"
	"time"

	"yardmaster/backup"
	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// A job that is accepted while a restore begins, behind its look at the lanes,
// is not lost: the restore is refused, and the job runs.
func TestRestore_EarlyJob(t *testing.T) {
	n := alone(t, nil)
	desk := newBackups(n)
	r, err := desk.seat(backup.Plan{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.stop()
	before, epoch, err := r.admit(t.Context())
	if err != nil || before {
		t.Fatalf("a fresh yard: %t, %v", before, err)
	}
	if err := r.insist(t.Context(), &ledger.BringBack{Stage: ledger.BringBegin, ID: r.id, Source: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	early, err := enqueue(n, "mail", `{"params":{}}`, "early", false)
	if err != nil {
		t.Fatal(err)
	}
	var refused *cluster.APIError
	if err := r.vacate(t.Context(), before, epoch); !errors.As(err, &refused) || refused.Code != "409" {
		t.Fatalf("with a job: %v", err)
	}
	n.raft.View(func(l *ledger.Ledger) {
		if id, _ := l.Bringing(); id != "" {
			t.Errorf("restore %s is under way still", id)
		}
	})
	if id, err := n.viewer.locate(t.Context(), "early", "mail"); err != nil || id != early.id {
		t.Errorf("the job: %v, %v, want %v", id, err, early.id)
	}
	if late := enqueueLater(t, n); late.position.Seq != early.position.Seq+1 {
		t.Errorf("the lane goes on with %+v", late.position)
	}
	if _, _, err := r.admit(t.Context()); !errors.As(err, &refused) || refused.Code != "409" {
		t.Errorf("asked again: %v", err)
	}
}

// A restore that has lost its seat removes nothing.
func TestRestore_LostSeat(t *testing.T) {
	n := alone(t, nil)
	begin := func() *bringer {
		t.Helper()
		r, err := newBackups(n).seat(backup.Plan{}, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.stop)
		_, epoch, err := r.admit(t.Context())
		if err == nil {
			err = r.insist(t.Context(), &ledger.BringBack{Stage: ledger.BringBegin, ID: r.id, Source: "elsewhere"})
		}
		if err == nil {
			err = r.settled(t.Context(), func(l *ledger.Ledger) bool { return l.Authority().Epoch > epoch })
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, second := begin(), begin()
	if err := first.empty(t.Context()); !errors.Is(err, ledger.ErrBringSeat) {
		t.Errorf("the first: %v", err)
	}
	if _, err := n.messages.LaneInfo(t.Context(), 0); err != nil {
		t.Errorf("the lane: %v", err)
	}
	if err := second.empty(t.Context()); err != nil {
		t.Errorf("the second: %v", err)
	}
	if _, err := n.messages.LaneInfo(t.Context(), 0); !errors.Is(err, cluster.ErrStreamMissing) {
		t.Errorf("the lane: %v", err)
	}
	if err := second.reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueLater(t, n)
}

// enqueueLater hands a job to the door as soon as lanes are open again.
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

// A yard whose restore is given up is as fresh as it was: it takes jobs in, tells
// its history on, and may be restored.
func TestRestore_Abandon(t *testing.T) {
	n := alone(t, nil)
	desk := newBackups(n)
	r, err := desk.seat(backup.Plan{}, false)
	if err != nil {
		t.Fatal(err)
	}
	told := func() (all, told uint64) {
		n.raft.View(func(l *ledger.Ledger) { all, told = l.LastEvent(), l.ToldEvents() })
		return all, told
	}
	applied(t, n, func() bool { _, n := told(); return n > 0 })
	if err := r.begin(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.reopen(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = desk.seat(backup.Plan{}, true); err != nil { // at once
		t.Fatal(err)
	}
	if err := r.begin(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = desk.seat(backup.Plan{}, true); err != nil {
		t.Fatal(err)
	}
	if err := r.abandon(r.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = desk.seat(backup.Plan{}, true); err != nil {
		t.Fatal(err)
	}
	if before, _, err := r.admit(t.Context()); before || err != nil {
		t.Errorf("fresh again: %t, %v", before, err)
	}
	enqueueLater(t, n)
	applied(t, n, func() bool { all, told := told(); return all == told && all > 1 })
	waitReady(t, n)
}

// applied waits until the ledger is as it should be.
func applied(t *testing.T, n *Node, fits func() bool) {
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
			t.Fatal("the ledger does not come to it")
		}
	}
}
