package consensus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestLead_OneTermAtATime(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	ctx, cancel := context.WithCancel(t.Context())
	type tenure struct {
		node string
		term uint64
	}
	started := make(chan tenure, 16)
	done := make(chan error, 3)
	for name, n := range c.nodes {
		var inside atomic.Int32
		go func() {
			done <- n.Lead(ctx, func(ctx context.Context, term uint64) error {
				if inside.Add(1) > 1 {
					t.Errorf("%s: a term started before the last one ended", name)
				}
				defer inside.Add(-1)
				started <- tenure{name, term}
				<-ctx.Done()
				return nil
			})
		}()
	}
	first := <-started
	if err := c.nodes[first.node].Transfer(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	second := <-started
	if second.node == first.node || second.term <= first.term {
		t.Errorf("%+v after %+v", second, first)
	}
	cancel() // transfers at most to the third node, whose Lead also ends
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestLead_FailureTransfersLeadership(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	leader := c.leader()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- leader.Lead(ctx, func(context.Context, uint64) error {
			calls.Add(1)
			return errors.New("failed")
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
		t.Errorf("started %d times before the transfer", calls.Load())
	}
}

func TestLead_SingleNodeRestarts(t *testing.T) {
	c := newTestCluster(t, "solo")
	c.start("solo")
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	done := make(chan error, 1)
	started := time.Now()
	go func() {
		done <- c.nodes["solo"].Lead(ctx, func(ctx context.Context, _ uint64) error {
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
	if calls.Load() != 2 || time.Since(started) < restartDelay {
		t.Errorf("%d starts within %v", calls.Load(), time.Since(started))
	}
}

func TestLead_EndsOnClose(t *testing.T) {
	c := newTestCluster(t, "solo")
	c.start("solo")
	n := c.leader()
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

func TestThreeNodes_LateBootstrap(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	// n3 forms the cluster with the others, but crashes before it starts Raft.
	formed, crashed := make(chan struct{}), make(chan error, 1)
	go func() {
		id, err := Identify(t.Context(), IdentityConfig{Node: "n3", Dir: c.dirs["n3"], Listen: c.members[2].Addr, Members: c.members}, discardLog)
		if err == nil {
			<-formed
			err = id.Close()
		}
		crashed <- err
	}()
	c.start("n1", "n2")
	close(formed)
	if err := <-crashed; err != nil {
		t.Fatal(err)
	}
	leader := c.leader()
	last := addQueues(t, leader, acquire(t, leader), "early")
	c.start("n3")
	if err := c.nodes["n3"].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
}
