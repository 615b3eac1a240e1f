package consensus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestLead_OneTenureAtATimeAndJoined(t *testing.T) {
	y := newYard(t, "n1", "n2", "n3")
	y.start(y.names()...)
	ctx, cancel := context.WithCancel(t.Context())
	type tenure struct {
		node string
		term uint64
	}
	begun := make(chan tenure, 16)
	done := make(chan error, 3)
	for name, n := range y.nodes {
		var inside atomic.Int32
		go func() {
			done <- n.Lead(ctx, func(ctx context.Context, term uint64) error {
				if inside.Add(1) > 1 {
					t.Errorf("%s: a term began before the last one's end", name)
				}
				defer inside.Add(-1)
				begun <- tenure{name, term}
				<-ctx.Done()
				return nil
			})
		}()
	}
	first := <-begun
	if err := y.nodes[first.node].Transfer(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	second := <-begun
	if second.node == first.node || second.term <= first.term {
		t.Errorf("%+v after %+v", second, first)
	}
	cancel() // hands over to the third at most, whose Lead ends too
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLead_AFailingLeaderHandsOver(t *testing.T) {
	y := newYard(t, "n1", "n2", "n3")
	y.start(y.names()...)
	leader := y.leader()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- leader.Lead(ctx, func(context.Context, uint64) error {
			calls.Add(1)
			return errors.New("cannot go on")
		})
	}()
	eventually(t, "another leader", func() (bool, any) {
		s := leader.Status()
		return s.State == "follower" && s.Leader != "" && s.Leader != leader.id.Node, s
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if calls.Load() != 1 {
		t.Errorf("started %d times before it handed over", calls.Load())
	}
}

func TestLead_AloneStartsAgain(t *testing.T) {
	y := newYard(t, "solo")
	y.start("solo")
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	done := make(chan error, 1)
	begun := time.Now()
	go func() {
		done <- y.nodes["solo"].Lead(ctx, func(ctx context.Context, _ uint64) error {
			if calls.Add(1) == 1 {
				return errors.New("first time fails")
			}
			cancel()
			<-ctx.Done()
			return nil
		})
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if calls.Load() != 2 || time.Since(begun) < restartAfter {
		t.Errorf("%d starts within %v", calls.Load(), time.Since(begun))
	}
}

func TestLead_EndsWithTheNode(t *testing.T) {
	y := newYard(t, "solo")
	y.start("solo")
	n := y.leader()
	inside := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- n.Lead(t.Context(), func(ctx context.Context, _ uint64) error {
			close(inside)
			<-ctx.Done()
			return nil
		})
	}()
	<-inside
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestThree_LateBootstrap(t *testing.T) {
	y := newYard(t, "n1", "n2", "n3")
	// n3 forms with the others, who have to hear so, but crashes before it opens
	// raft.
	formed, crashed := make(chan struct{}), make(chan error, 1)
	go func() {
		id, err := Identify(t.Context(), IdentityConfig{Node: "n3", Dir: y.dirs["n3"], Listen: y.members[2].Addr, Members: y.members}, quiet)
		if err == nil {
			<-formed
			err = id.Close()
		}
		crashed <- err
	}()
	y.start("n1", "n2")
	close(formed)
	if err := <-crashed; err != nil {
		t.Fatal(err)
	}
	leader := y.leader()
	last := addQueues(t, leader, acquire(t, leader), "early")
	y.start("n3")
	if err := y.nodes["n3"].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
}
