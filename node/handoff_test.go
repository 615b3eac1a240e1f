package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// One member that stays suffices, and anyStays waits no longer than followerTimeout for
// members that do not answer.
func TestAnyStays(t *testing.T) {
	for _, tc := range []struct {
		name    string
		members string
		want    bool
		took    time.Duration
	}{
		{"nobody else", "", false, 0},
		{"one stays", "stays", true, 0},
		{"all leave", "leaves leaves", false, 0},
		{"one is gone, one leaves", "gone leaves", false, 0},
		{"one hangs, one stays", "hangs stays", true, 0},
		{"one hangs, one leaves", "hangs leaves", false, followerTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got := anyStays(t.Context(), strings.Fields(tc.members), func(ctx context.Context, name string) (followerStatus, error) {
					switch name {
					case "gone":
						return followerStatus{}, cluster.ErrNodeUnreachable
					case "hangs":
						<-ctx.Done()
						return followerStatus{}, ctx.Err()
					}
					return followerStatus{Leaving: name == "leaves"}, nil
				})
				if took := time.Since(began); got != tc.want || took != tc.took {
					t.Errorf("%v after %s, want %v after %s", got, took, tc.want, tc.took)
				}
			})
		})
	}
}

// acceptsWork reports whether a node would accept an assignment, whatever its free slots.
func acceptsWork(n *Node) bool {
	_, epoch, _ := n.authority.current()
	return n.agent.Assign(job.AssignmentBatch{Epoch: epoch, Assignments: []job.Assignment{{Job: job.ID{1}, N: 1}}})[0] != job.Draining
}

// When the whole cluster stops, nothing is handed over, and drains can no longer be started
// or taken back.
func TestHandOff_AllNodesStop(t *testing.T) {
	n := startSingleNode(t, nil)
	if !acceptsWork(n) {
		t.Fatal("the node takes no work at the start")
	}
	if n.handOff(t.Context()) {
		t.Error("handOff reports another member")
	}
	if owner, _, _ := n.authority.current(); owner != n.cfg.Node.Name {
		t.Errorf("%q holds the authority", owner)
	}
	if acceptsWork(n) {
		t.Error("it still takes work")
	}
	if !n.proposer.leaving.Load() {
		t.Error("it does not announce that it is leaving")
	}
	for what, handle := range map[string]func(context.Context, *cluster.Request) (any, error){"drained": n.handleDrain, "resumed": n.handleResume} {
		var apiErr *cluster.APIError
		if _, err := handle(t.Context(), nil); !errors.As(err, &apiErr) || apiErr.Code != "409" {
			t.Errorf("%s while stopping: %v", what, err)
		}
	}
}

func TestHandOff_Steps(t *testing.T) {
	n := startSingleNode(t, nil)
	var apiErr *cluster.APIError
	if err := n.transferOwnAuthority(t.Context()); !errors.As(err, &apiErr) || apiErr.Code != "409" {
		t.Errorf("without another member: %v", err)
	}
	owner, epoch, _ := n.authority.current()
	n.authority.set("n2", epoch+1)
	if err := n.transferOwnAuthority(t.Context()); err != nil {
		t.Errorf("without the authority: %v", err)
	}
	n.authority.set(owner, epoch+2)
	ended, end := context.WithCancel(t.Context())
	end()
	n.awaitEdges(ended)   // no edge is known: returns when its context ends
	n.leaveStreams(ended) // a single node has no member to transfer to
	if _, err := enqueue(n, "mail", `{"function":"f","params":{}}`, "k", false); err != nil {
		t.Errorf("it no longer accepts jobs: %v", err)
	}
}

// Of several members that are drained at the same time, none counts on another.
func TestDrain_Concurrent(t *testing.T) {
	a, b := newDrain(new(atomic.Bool)), newDrain(new(atomic.Bool))
	var second error
	first := a.begin(func() bool {
		second = b.begin(func() bool { return !a.leaving.Load() }, func() {})
		return !b.leaving.Load()
	}, func() {})
	if first != nil || !errors.Is(second, errNoOtherMember) {
		t.Errorf("errors of both: %v and %v", first, second)
	}
	if !a.active() || b.active() || b.leaving.Load() {
		t.Errorf("drained: %v and %v; the second announces leaving: %v", a.active(), b.active(), b.leaving.Load())
	}
}

// A drain that is taken back while it begins has no effect, and a node that stops meanwhile
// does not take work again.
func TestDrain_ResumedDuringDrain(t *testing.T) {
	d := newDrain(new(atomic.Bool))
	takes := true
	give, take := func() { takes = false }, func() { takes = true }
	stays := func() bool { return true }
	if err := d.begin(stays, give); err != nil || takes {
		t.Fatalf("drained: %v, takes work %v", err, takes)
	}
	since := d.Since()
	if err := d.begin(stays, give); err != nil || d.Since() != since {
		t.Errorf("drained again: %v, since %s and %s", err, since, d.Since())
	}
	if err := d.end(take); err != nil || !takes || d.leaving.Load() {
		t.Errorf("resumed: %v, takes work %v, leaves %v", err, takes, d.leaving.Load())
	}
	d.ifDrained(true, give)
	if !takes {
		t.Error("the rest of the drain is carried out although it was taken back")
	}
	if err := d.begin(func() bool { d.close(); return false }, give); !errors.Is(err, errStopping) || !d.leaving.Load() {
		t.Errorf("stopped meanwhile: %v, leaves %v", err, d.leaving.Load())
	}
	if err := d.end(func() { t.Error("a stopping node takes work again") }); !errors.Is(err, errStopping) {
		t.Errorf("resumed while stopping: %v", err)
	}
}

// A member whose replacement is cancelled takes work again.
func TestApplyMembership_RemovalCancelled(t *testing.T) {
	n := startSingleNode(t, nil)
	do := func(c ledger.Command) {
		t.Helper()
		if err := (membershipAdapter{n}).Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	waits := func(want bool) {
		t.Helper()
		for acceptsWork(n) != want {
			_, changed := n.raft.Applied()
			select {
			case <-changed:
			case <-time.After(20 * time.Millisecond): // the membership is applied after the ledger changes
			case <-soon.Done():
				t.Fatalf("takes work: %v", !want)
			}
		}
	}
	do(&ledger.SetMembers{Members: membershipAdapter{n}.BootstrapMembers()})
	do(&ledger.ChangeMembers{Leave: n.id.ServerID(), Join: &ledger.Member{Node: "n2", Dir: "0000000b", Route: "127.0.0.1:1", Raft: "127.0.0.1:2"}})
	waits(false)
	do(&ledger.ChangeMembers{Cancel: true})
	waits(true)
}
