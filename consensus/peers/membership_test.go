package peers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// nextMembership returns the membership list of a node with the given revision and
// more peers.
func (s *testSite) nextMembership(t *testing.T, of *Identity, revision uint64, more ...Peer) Membership {
	t.Helper()
	m := Membership{Revision: revision}
	for _, p := range of.Peers() {
		i := slices.IndexFunc(s.members, func(declared Member) bool { return declared.Name == p.Node })
		if p.Raft == "" && i >= 0 {
			p.Raft = s.members[i].Addr
		}
		m.Peers = append(m.Peers, p)
	}
	m.Peers = append(m.Peers, more...)
	return m
}

func TestMembership_AddWaitingNode(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	s.form(t)
	ctx := deadline(t)
	n1, n2 := wait(t, s.start(ctx, "n1")), wait(t, s.start(ctx, "n2"))

	ln := testnet.Listen(t)
	addr := ln.Addr().String()
	cfg := Config{Node: "n3", Dir: t.TempDir(), Listener: ln, Members: append(slices.Clone(s.members), Member{"n3", addr})}
	waiting, _ := s.startWaiting(t, cfg)
	probed, err := n1.Listener().Probe(addr)
	if err != nil || probed.Node != "n3" || probed.Yard != "yard" || probed.YardID != "" {
		t.Fatalf("probe returned %+v, %v", probed, err)
	}
	membership := s.nextMembership(t, n1, 2, Peer{MemberID: probed.MemberID, Raft: addr, JoinRevision: 2})
	for _, id := range []*Identity{n1, n2} {
		if err := id.UpdateMembership(membership); err != nil {
			t.Fatal(err)
		}
	}
	n3 := wait(t, waiting)
	if n3.Yard != n1.Yard || !n3.Joined() || n3.Incarnation != 2<<incarnationBits+1 || len(n3.Peers()) != 3 {
		t.Errorf("joined as %+v", n3)
	}
	conn, err := n1.Listener().Dial(n3.ServerID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in, err := n3.Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	// Once removed it is disconnected, records that, and cannot join again.
	without := Membership{Revision: 3, Peers: s.nextMembership(t, n1, 3).Peers[:2]}
	back, err := n3.Listener().Dial(n1.ServerID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if _, err := n1.Listener().Accept(); err != nil {
		t.Fatal(err)
	}
	if err := n1.UpdateMembership(without); err != nil {
		t.Fatal(err)
	}
	_ = back.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := back.Read(make([]byte, 1)); err == nil {
		t.Error("its connection stays open")
	}
	if _, err := n1.Listener().Dial(n3.ServerID(), time.Second); err == nil || !strings.Contains(err.Error(), "member of this yard") {
		t.Errorf("dialled after the removal: %v", err)
	}
	if err := n3.Close(); err != nil {
		t.Fatal(err)
	}
	var gone *RemovedError
	cfg.Listener, cfg.Listen = nil, addr
	if got := <-start(ctx, cfg); !errors.As(got.err, &gone) {
		t.Fatalf("start after the removal: %v", got.err)
	}
	n1.Close()
	n2.Close()
	if got := <-start(ctx, cfg); !errors.As(got.err, &gone) {
		t.Errorf("start after the removal, without other members: %v", got.err)
	}
}

func TestMembership_RefreshedAtStart(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	s.form(t)
	ctx := deadline(t)
	n1 := wait(t, s.start(ctx, "n1"))
	membership := s.nextMembership(t, n1, 5, Peer{MemberID: MemberID{"n4", "0badcafe"}, Raft: "127.0.0.1:4", JoinRevision: 5})
	membership.Peers[1].Raft = "127.0.0.1:9" // a bootstrap member: the configured address takes precedence
	if err := n1.UpdateMembership(membership); err != nil {
		t.Fatal(err)
	}
	n2 := wait(t, s.start(ctx, "n2"))
	if len(n2.Peers()) != 4 || n2.Listener().Address("n4-0badcafe") != "127.0.0.1:4" || n2.Listener().Address(n1.ServerID()) != s.members[0].Addr {
		t.Errorf("peers of n2: %+v", n2.Peers())
	}
	if n2.Listener().Address(membership.Peers[1].ServerID()) != s.members[1].Addr {
		t.Errorf("address of a bootstrap member is %s", n2.Listener().Address(membership.Peers[1].ServerID()))
	}
	older := membership
	older.Revision, older.Peers = 4, nil
	if err := n2.UpdateMembership(older); err != nil || len(n2.Peers()) != 4 {
		t.Errorf("an older membership was accepted: %v", err)
	}
}
