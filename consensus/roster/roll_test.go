package roster

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// roll is the yard's roll with some more peers.
func (s *site) roll(t *testing.T, of *Identity, revision uint64, more ...Peer) Roll {
	t.Helper()
	r := Roll{Revision: revision}
	for _, p := range of.Peers() {
		i := slices.IndexFunc(s.members, func(m Member) bool { return m.Name == p.Node })
		if p.Raft == "" && i >= 0 {
			p.Raft = s.members[i].Addr
		}
		r.Peers = append(r.Peers, p)
	}
	r.Peers = append(r.Peers, more...)
	return r
}

func TestRoll_LetsANewcomerIn(t *testing.T) {
	s := newSite(t, "n1", "n2")
	s.form(t)
	ctx := deadline(t)
	n1, n2 := wait(t, s.start(ctx, "n1")), wait(t, s.start(ctx, "n2"))

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	cfg := Config{Node: "n3", Dir: t.TempDir(), Listener: ln, Members: append(slices.Clone(s.members), Member{"n3", addr})}
	waiting, _ := s.waits(t, cfg)
	who, err := n1.Door().Meet(addr)
	if err != nil || who.Node != "n3" || who.Yard != "yard" || who.YardID != "" {
		t.Fatalf("who waits is met as %+v, %v", who, err)
	}
	roll := s.roll(t, n1, 2, Peer{Seat: who.Seat, Raft: addr, Since: 2})
	for _, id := range []*Identity{n1, n2} {
		if err := id.Enroll(roll); err != nil {
			t.Fatal(err)
		}
	}
	n3 := wait(t, waiting)
	if n3.Yard != n1.Yard || !n3.Newcomer() || n3.Incarnation != 2<<sinceBits+1 || len(n3.Peers()) != 3 {
		t.Errorf("it came in as %+v", n3)
	}
	conn, err := n1.Door().Dial(n3.ID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in, err := n3.Door().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()

	// Taken out again, it is cut off, knows it, and stays out.
	without := Roll{Revision: 3, Peers: s.roll(t, n1, 3).Peers[:2]}
	back, err := n3.Door().Dial(n1.ID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if _, err := n1.Door().Accept(); err != nil {
		t.Fatal(err)
	}
	if err := n1.Enroll(without); err != nil {
		t.Fatal(err)
	}
	_ = back.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := back.Read(make([]byte, 1)); err == nil {
		t.Error("its connection lives on")
	}
	if _, err := n1.Door().Dial(n3.ID(), time.Second); err == nil || !strings.Contains(err.Error(), "no member") {
		t.Errorf("dialled all the same: %v", err)
	}
	if err := n3.Close(); err != nil {
		t.Fatal(err)
	}
	var gone *GoneError
	cfg.Listener, cfg.Listen = nil, addr
	if got := <-start(ctx, cfg); !errors.As(got.err, &gone) {
		t.Fatalf("it starts again: %v", got.err)
	}
	n1.Close()
	n2.Close()
	if got := <-start(ctx, cfg); !errors.As(got.err, &gone) {
		t.Errorf("with nobody to ask it starts again: %v", got.err)
	}
}

func TestRoll_IsLearnedAtTheStart(t *testing.T) {
	s := newSite(t, "n1", "n2", "n3")
	s.form(t)
	ctx := deadline(t)
	n1 := wait(t, s.start(ctx, "n1"))
	roll := s.roll(t, n1, 5, Peer{Seat: Seat{"n4", "0badcafe"}, Raft: "127.0.0.1:4", Since: 5})
	roll.Peers[1].Raft = "127.0.0.1:9" // of a founder: what this node declares is its way there
	if err := n1.Enroll(roll); err != nil {
		t.Fatal(err)
	}
	n2 := wait(t, s.start(ctx, "n2"))
	if len(n2.Peers()) != 4 || n2.Door().Address("n4-0badcafe") != "127.0.0.1:4" || n2.Door().Address(n1.ID()) != s.members[0].Addr {
		t.Errorf("n2 knows %+v", n2.Peers())
	}
	if n2.Door().Address(roll.Peers[1].ID()) != s.members[1].Addr {
		t.Errorf("a founder's declared address is %s", n2.Door().Address(roll.Peers[1].ID()))
	}
	older := roll
	older.Revision, older.Peers = 4, nil
	if err := n2.Enroll(older); err != nil || len(n2.Peers()) != 4 {
		t.Errorf("an older roll was taken: %v", err)
	}
}
