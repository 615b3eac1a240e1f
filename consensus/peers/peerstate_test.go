package peers

import "testing"

// The contacts are those of members only, and a member is found by the address
// that its membership list has.
func TestPeerState(t *testing.T) {
	n2 := MemberID{Node: "n2", Dir: "22222222"}
	s := newPeerState(hello{Node: "n1", Dir: "11111111"}, []Member{{"n1", "host1:1"}, {"n2", "host2:1"}}, discardLog)
	if got := s.Address(n2.ServerID()); got != "" {
		t.Errorf("address %q before the yard has formed", got)
	}
	s.updateHello(func(h *hello) { h.BootstrapMembers = []MemberID{{Node: "n1", Dir: "11111111"}, n2} })
	if got := s.Address(n2.ServerID()); got != "host2:1" {
		t.Errorf("address %q, want the declared one", got)
	}
	s.updateHello(func(h *hello) {
		h.Membership = &Membership{Revision: 1, Peers: []Peer{{MemberID: n2, Raft: "host3:1", JoinRevision: 1}}}
	})
	if got := s.Address(n2.ServerID()); got != "host3:1" || s.nameAt(got) != "n2" {
		t.Errorf("address %q of %s, want that of the list", got, s.nameAt(got))
	}
	s.recordContact(&hello{Node: "n9"}, false, "")
	s.recordRefusal("host3:1", "is of another build")
	if got := s.Contacts(); len(got) != 1 || got[0].Name != "n2" || got[0].Refused != "is of another build" {
		t.Errorf("contacts are %+v, want a refusal of n2", got)
	}
}
