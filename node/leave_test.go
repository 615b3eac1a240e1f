package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// One that stays is enough, and whoever does not answer is waited for no longer than
// followAnswer.
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
		{"one hangs, one leaves", "hangs leaves", false, followAnswer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got := anyStays(t.Context(), strings.Fields(tc.members), func(ctx context.Context, name string) (following, error) {
					switch name {
					case "gone":
						return following{}, cluster.ErrNoNode
					case "hangs":
						<-ctx.Done()
						return following{}, ctx.Err()
					}
					return following{Leaving: name == "leaves"}, nil
				})
				if took := time.Since(began); got != tc.want || took != tc.took {
					t.Errorf("%v after %s, want %v after %s", got, took, tc.want, tc.took)
				}
			})
		})
	}
}

// takesWork tells whether a node would take an order, whatever its room.
func takesWork(n *Node) bool {
	_, epoch, _ := n.watch.authority()
	return n.hands.Assign(job.Batch{Epoch: epoch, Assignments: []job.Assignment{{Job: job.ID{1}, N: 1}}})[0] != job.Draining
}

// A whole yard that stops gives nothing away, and takes nothing back: neither does a
// node that stops alone hand its authority to nobody.
func TestLeave_WholeYard(t *testing.T) {
	n := alone(t, nil)
	if !takesWork(n) {
		t.Fatal("it takes no work before")
	}
	if n.leave(t.Context()) {
		t.Error("somebody else is said to stay")
	}
	if owner, _, _ := n.watch.authority(); owner != n.cfg.Node.Name {
		t.Errorf("%q has the authority", owner)
	}
	if takesWork(n) {
		t.Error("it takes work still")
	}
	if !n.commander.leaving.Load() {
		t.Error("others do not hear that it leaves")
	}
	for what, handle := range map[string]func(context.Context, *cluster.Request) (any, error){"drained": n.handleDrain, "resumed": n.handleResume} {
		var refused *cluster.APIError
		if _, err := handle(t.Context(), nil); !errors.As(err, &refused) || refused.Code != "409" {
			t.Errorf("while it stops it is %s: %v", what, err)
		}
	}
}

func TestLeave_Steps(t *testing.T) {
	n := alone(t, nil)
	var refused *cluster.APIError
	if err := n.giveAway(t.Context()); !errors.As(err, &refused) || refused.Code != "409" {
		t.Errorf("with nobody to take the authority: %v", err)
	}
	owner, epoch, _ := n.watch.authority()
	n.watch.set("n2", epoch+1)
	if err := n.giveAway(t.Context()); err != nil {
		t.Errorf("while another has the authority: %v", err)
	}
	n.watch.set(owner, epoch+2)
	ended, end := context.WithCancel(t.Context())
	end()
	n.awaitEdges(ended) // nobody's edge is known: it ends with its context
	n.abandon(ended)    // a node alone leads for itself
	if _, err := enqueue(n, "mail", `{"function":"f","params":{}}`, "k", false); err != nil {
		t.Errorf("it takes no jobs any more: %v", err)
	}
}

// Of nodes that are drained together, none counts on the other.
func TestDrain_Together(t *testing.T) {
	a, b := newDrain(new(atomic.Bool)), newDrain(new(atomic.Bool))
	var second error
	first := a.begin(func() bool {
		second = b.begin(func() bool { return !a.leaving.Load() }, func() {})
		return !b.leaving.Load()
	}, func() {})
	if first != nil || !errors.Is(second, errNobodyStays) {
		t.Errorf("both are asked at once: %v and %v", first, second)
	}
	if !a.under() || b.under() || b.leaving.Load() {
		t.Errorf("drained %v and %v; the second leaves: %v", a.under(), b.under(), b.leaving.Load())
	}
}

// A drain that is taken back while it begins leaves nothing behind, and one that
// meets the node's end takes nothing back.
func TestDrain_Meanwhile(t *testing.T) {
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
		t.Error("the rest of the drain is carried out after it was taken back")
	}
	if err := d.begin(func() bool { d.close(); return false }, give); !errors.Is(err, errStops) || !d.leaving.Load() {
		t.Errorf("the node stops meanwhile: %v, leaves %v", err, d.leaving.Load())
	}
	if err := d.end(func() { t.Error("a node that stops takes work again") }); !errors.Is(err, errStops) {
		t.Errorf("resumed while it stops: %v", err)
	}
}

// A member whose replacement is taken back works on.
func TestHeedRoll_Stays(t *testing.T) {
	n := alone(t, nil)
	do := func(c ledger.Command) {
		t.Helper()
		if err := (roster{n}).Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	waits := func(want bool) {
		t.Helper()
		for takesWork(n) != want {
			_, changed := n.raft.Applied()
			select {
			case <-changed:
			case <-time.After(20 * time.Millisecond): // the roll is heeded beside the ledger
			case <-soon.Done():
				t.Fatalf("it takes work: %v", !want)
			}
		}
	}
	do(&ledger.SetMembers{Members: roster{n}.Founders()})
	do(&ledger.ChangeMembers{Leave: n.id.ID(), Join: &ledger.Member{Node: "n2", Dir: "0000000b", Route: "127.0.0.1:1", Raft: "127.0.0.1:2"}})
	waits(false)
	do(&ledger.ChangeMembers{Cancel: true})
	waits(true)
}
