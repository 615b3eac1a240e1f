package consensus

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// addMember starts a member that is not a bootstrap member, after adding it to the
// membership lists of the running members.
func (c *testCluster) addMember(name string, revision uint64) *Node {
	c.t.Helper()
	ln := testnet.Listen(c.t)
	addr := ln.Addr().String()
	c.dirs[name] = c.t.TempDir()
	c.members = append(c.members, Member{Name: name, Addr: addr})
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	c.t.Cleanup(cancel)
	identified := make(chan *Identity, 1)
	go func() {
		id, err := Identify(ctx, IdentityConfig{Node: name, Dir: c.dirs[name], Listener: ln, Members: c.members}, discardLog)
		if err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
		identified <- id
	}()
	leader := c.leader()
	waiting, err := leader.Probe(addr)
	for ; err != nil && ctx.Err() == nil; waiting, err = leader.Probe(addr) {
	}
	membership := Membership{Revision: revision}
	for _, p := range leader.id.Peers() {
		i := slices.IndexFunc(c.members, func(m Member) bool { return m.Name == p.Node })
		p.Raft = c.members[i].Addr
		membership.Peers = append(membership.Peers, p)
	}
	membership.Peers = append(membership.Peers, Peer{MemberID: waiting.MemberID, Raft: addr, JoinRevision: revision})
	for _, n := range c.nodes {
		if err := n.id.UpdateMembership(membership); err != nil {
			c.t.Fatal(err)
		}
	}
	id := <-identified
	if id == nil {
		c.t.FailNow()
	}
	cfg := Config{Dir: c.dirs[name], heartbeatTimeout: 300 * time.Millisecond}
	store, err := OpenStore(cfg, id, discardLog)
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := Open(cfg, id, store, discardLog)
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
	return n
}

func TestMembership_AddThenPromote(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	leader := c.leader()
	c.propose(leader)
	n4 := c.addMember("n4", 2)
	if err := leader.AddMember(t.Context(), n4.id.ServerID(), false); err != nil {
		t.Fatal(err)
	}
	if err := n4.WaitApplied(t.Context(), leader.Status().Applied); err != nil {
		t.Fatal(err)
	}

	// Until it is promoted, it may start again from empty.
	c.kill("n4")
	reopened, err := c.open("n4")
	if err != nil {
		t.Fatal(err)
	}
	c.nodes["n4"] = reopened
	if err := reopened.WaitApplied(t.Context(), leader.Status().Applied); err != nil {
		t.Fatal(err)
	}
	if err := reopened.Promote(); err != nil {
		t.Fatal(err)
	}
	if err := leader.AddMember(t.Context(), reopened.id.ServerID(), true); err != nil {
		t.Fatal(err)
	}
	voters := 0
	for _, m := range leader.Status().Members {
		if m.Voter {
			voters++
		}
	}
	if voters != 4 {
		t.Errorf("%d voters: %+v", voters, leader.Status().Members)
	}
	if err := leader.Transfer(t.Context(), "n4"); err != nil {
		t.Fatal(err)
	}
	if leader = c.leader(); leader.id.Node != "n4" {
		t.Fatalf("%s leads", leader.id.Node)
	}
	c.propose(leader)

	// A bootstrap member can be removed.
	out := c.nodes["n1"].id.ServerID()
	if err := leader.RemoveVoter(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if err := leader.RemoveVoter(t.Context(), out); err != nil {
		t.Errorf("removed again: %v", err)
	}
	c.kill("n1")
	c.propose(c.leader())
	var notLeader *NotLeaderError
	if err := c.nodes["n2"].AddMember(t.Context(), "n9-00000000", false); !errors.As(err, &notLeader) {
		t.Errorf("added by a follower: %v", err)
	}
}

// propose commits an entry at the leader.
func (c *testCluster) propose(leader *Node) {
	c.t.Helper()
	at := time.Now()
	if _, err := leader.Propose(c.t.Context(), ledger.Proposal{At: at, Commands: []ledger.Command{&ledger.Lead{Owner: leader.id.Node, Until: at.Add(time.Second)}}}); err != nil {
		c.t.Fatal(err)
	}
}
