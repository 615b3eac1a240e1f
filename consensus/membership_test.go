package consensus

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"yardmaster/ledger"
)

// join starts a member that was not there when the yard formed, once the
// members that run have it on their roll.
func (y *yard) join(name string, revision uint64) *Node {
	y.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		y.t.Fatal(err)
	}
	addr := ln.Addr().String()
	y.dirs[name] = y.t.TempDir()
	y.members = append(y.members, Member{Name: name, Addr: addr})
	ctx, cancel := context.WithTimeout(y.t.Context(), 20*time.Second)
	y.t.Cleanup(cancel)
	identified := make(chan *Identity, 1)
	go func() {
		id, err := Identify(ctx, IdentityConfig{Node: name, Dir: y.dirs[name], Listener: ln, Members: y.members}, quiet)
		if err != nil {
			y.t.Errorf("%s: %v", name, err)
		}
		identified <- id
	}()
	leader := y.leader()
	who, err := leader.Meet(addr)
	for ; err != nil && ctx.Err() == nil; who, err = leader.Meet(addr) {
	}
	roll := Roll{Revision: revision}
	for _, p := range leader.id.Peers() {
		i := slices.IndexFunc(y.members, func(m Member) bool { return m.Name == p.Node })
		p.Raft = y.members[i].Addr
		roll.Peers = append(roll.Peers, p)
	}
	roll.Peers = append(roll.Peers, Peer{Seat: who.Seat, Raft: addr, Since: revision})
	for _, n := range y.nodes {
		if err := n.id.Enroll(roll); err != nil {
			y.t.Fatal(err)
		}
	}
	id := <-identified
	if id == nil {
		y.t.FailNow()
	}
	cfg := Config{Dir: y.dirs[name], HeartbeatTimeout: 300 * time.Millisecond}
	store, err := OpenStore(cfg, id, quiet)
	if err != nil {
		y.t.Fatal(err)
	}
	n, err := Open(cfg, id, store, quiet)
	if err != nil {
		y.t.Fatal(err)
	}
	y.nodes[name] = n
	return n
}

func TestMembership_ANewcomerGetsTheLogAndThenAVote(t *testing.T) {
	y := newYard(t, "n1", "n2", "n3")
	y.start(y.names()...)
	leader := y.leader()
	y.propose(leader)
	n4 := y.join("n4", 2)
	if err := leader.Admit(t.Context(), n4.id.ID(), false); err != nil {
		t.Fatal(err)
	}
	if err := n4.WaitApplied(t.Context(), leader.Status().Applied); err != nil {
		t.Fatal(err)
	}

	// Until it is told that its votes count, it may be begun again.
	y.kill("n4")
	again, err := y.open("n4")
	if err != nil {
		t.Fatal(err)
	}
	y.nodes["n4"] = again
	if err := again.WaitApplied(t.Context(), leader.Status().Applied); err != nil {
		t.Fatal(err)
	}
	if err := again.Vouch(); err != nil {
		t.Fatal(err)
	}
	if err := leader.Admit(t.Context(), again.id.ID(), true); err != nil {
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
	if leader = y.leader(); leader.id.Node != "n4" {
		t.Fatalf("%s leads", leader.id.Node)
	}
	y.propose(leader)

	// And a founder may go.
	out := y.nodes["n1"].id.ID()
	if err := leader.Expel(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if err := leader.Expel(t.Context(), out); err != nil {
		t.Errorf("once more: %v", err)
	}
	y.kill("n1")
	y.propose(y.leader())
	var notLeader *NotLeaderError
	if err := y.nodes["n2"].Admit(t.Context(), "n9-00000000", false); !errors.As(err, &notLeader) {
		t.Errorf("a follower admits: %v", err)
	}
}

// propose commits an entry at the leader.
func (y *yard) propose(leader *Node) {
	y.t.Helper()
	at := time.Now()
	if _, err := leader.Propose(y.t.Context(), Proposal{At: at, Commands: []ledger.Command{&ledger.Lead{Owner: leader.id.Node, Until: at.Add(time.Second)}}}); err != nil {
		y.t.Fatal(err)
	}
}
