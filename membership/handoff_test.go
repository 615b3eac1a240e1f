package membership

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
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

// idleAgent is an agent that knows no edge.
type idleAgent struct{ Agent }

func (idleAgent) Edges() []string { return nil }

// A node without the authority has none to transfer, and the wait for other nodes' edges
// ends with its context.
func TestHandOff_NothingToTransfer(t *testing.T) {
	d := NewDrainer(&Transferer{Node: "n1", Owner: func() string { return "n2" }}, DrainConfig{Agent: idleAgent{}})
	if err := d.transferOwnAuthority(t.Context()); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	d.awaitEdges(ended)
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
	d.ifDrained(give)
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
