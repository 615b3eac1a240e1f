package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bootstrapMembers returns a command that sets n members.
func bootstrapMembers(n int) *SetMembers {
	c := &SetMembers{}
	for i := range n {
		c.Members = append(c.Members, Member{Node: fmt.Sprintf("n%d", i+1), Dir: "0000000a", Route: "h:1", Raft: "h:2", State: MemberPresent})
	}
	return c
}

// member draws a command about members, usually one that can succeed.
func (g *generator) member(t *rapid.T) Command {
	membership := g.ledger.Membership()
	if membership.Revision == 0 || rapid.IntRange(0, 9).Draw(t, "again") == 0 {
		return bootstrapMembers(3)
	}
	some := rapid.SampledFrom(membership.Members).Draw(t, "member")
	switch rapid.IntRange(0, 5).Draw(t, "about members") {
	case 0:
		return &ChangeMembers{Cancel: true}
	case 1:
		return &ChangeMembers{Leave: some.ServerID()}
	case 2, 3:
		c := &ChangeMembers{Join: &Member{
			Node: rapid.SampledFrom([]string{"n1", "n4", "n5", "n6"}).Draw(t, "joiner"),
			Dir:  rapid.SampledFrom([]string{"0000000b", "0000000c"}).Draw(t, "directory"),
		}}
		if rapid.Bool().Draw(t, "replace") {
			c.Leave = some.ServerID()
		}
		return c
	}
	return &AdvanceMember{ServerID: some.ServerID(), From: some.State, To: rapid.SampledFrom([]MemberState{MemberOut, MemberPresent, MemberLeaving}).Draw(t, "step")}
}

// TestMembers_OneChangeAtATime checks for random commands that at most one member
// joins and one leaves at a time, that present members have different names and are
// never too few, and that the revision increases exactly with every change.
func TestMembers_OneChangeAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGenerator()
		g.ledger.Apply(g.at, []Command{&Lead{Owner: "n1", Until: g.at.At.Add(time.Minute)}})
		g.at.Epoch = g.ledger.Authority().Epoch
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			before := g.ledger.Membership()
			held := slices.Clone(before.Members)
			c := g.member(t)
			g.at.Index++
			r := g.ledger.Apply(g.at, []Command{c})[0]
			after := g.ledger.Membership()
			if !slices.Equal(held, before.Members) {
				t.Fatal("a membership returned before has changed")
			}
			same := slices.Equal(before.Members, after.Members)
			if (after.Revision != before.Revision) == same {
				t.Fatalf("revision %d to %d by %+v, %v", before.Revision, after.Revision, c, r.Err)
			}
			if r.Err != nil && !same {
				t.Fatalf("%+v is refused and changes the membership: %v", c, r.Err)
			}
			checkMembership(t, after)
		}
		if again := roundTrip(t, g.ledger).Membership(); again.Revision != g.ledger.Membership().Revision || !slices.Equal(again.Members, g.ledger.Membership().Members) {
			t.Fatalf("after encoding and decoding: %+v", again)
		}
	})
}

func checkMembership(t *rapid.T, r Membership) {
	states := map[MemberState]int{}
	names := map[string]int{}
	for _, m := range r.Members {
		states[m.State]++
		if m.State == MemberPresent {
			names[m.Node]++
		}
		if names[m.Node] > 1 {
			t.Fatalf("%s is present twice: %+v", m.Node, r.Members)
		}
	}
	if states[MemberJoining] > 1 || states[MemberLeaving] > 1 || len(r.Members) > MaxMembers+1 || states[MemberPresent] > MaxMembers {
		t.Fatalf("more than one change: %+v", r.Members)
	}
	if states[MemberPresent] < MinMembers-1 || states[MemberPresent] < MinMembers && states[MemberLeaving]+states[MemberJoining] == 0 && r.Revision > 0 {
		t.Fatalf("too few present: %+v", r.Members)
	}
}

func TestMembers_Refusals(t *testing.T) {
	l := New()
	at := Stamp{Index: 1, Term: 1, At: time.Unix(1000, 0)}
	do := func(c Command) error {
		at.Index++
		at.Epoch = l.Authority().Epoch
		return l.Apply(at, []Command{c})[0].Err
	}
	must := func(c Command) {
		t.Helper()
		if err := do(c); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
	}
	refuse := func(c Command, want error) {
		t.Helper()
		if err := do(c); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", c, err, want)
		}
	}
	must(&Lead{Owner: "n1", Until: at.At.Add(time.Minute)})
	must(bootstrapMembers(3))
	must(bootstrapMembers(5)) // ignored
	if got := l.Membership(); got.Revision != 1 || len(got.PresentNodes()) != 3 {
		t.Fatalf("bootstrapped as %+v", got)
	}
	refuse(&ChangeMembers{}, ErrNoChange)
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	refuse(&ChangeMembers{Leave: "n2-0000000a"}, ErrMemberCount)
	refuse(&ChangeMembers{Leave: "n7-0000000a"}, ErrMemberNotFound)
	refuse(&ChangeMembers{Join: &Member{Node: "n2", Dir: "0000000b"}}, ErrMemberExists)

	must(&ChangeMembers{Join: &Member{Node: "n4", Dir: "0000000b"}})
	refuse(&ChangeMembers{Join: &Member{Node: "n5", Dir: "0000000b"}}, ErrMembersChanging)
	refuse(&ChangeMembers{Leave: "n1-0000000a"}, ErrMembersChanging)
	refuse(&AdvanceMember{ServerID: "n4-0000000b", From: MemberJoining, To: MemberLeaving}, ErrMemberState)
	refuse(&AdvanceMember{ServerID: "n1-0000000a", From: MemberJoining, To: MemberPresent}, ErrMemberState)
	must(&AdvanceMember{ServerID: "n4-0000000b", From: MemberJoining, To: MemberPresent})
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	must(&ChangeMembers{Leave: "n4-0000000b"})
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	must(&AdvanceMember{ServerID: "n4-0000000b", From: MemberLeaving, To: MemberOut})

	// A cancelled replacement keeps the old member.
	must(&ChangeMembers{Join: &Member{Node: "n3", Dir: "0000000c"}, Leave: "n3-0000000a"})
	if got := l.Membership().PendingChange(); got != "n3-0000000a is replaced by n3-0000000c" {
		t.Errorf("pending change: %q", got)
	}
	must(&ChangeMembers{Cancel: true})
	must(&AdvanceMember{ServerID: "n3-0000000c", From: MemberLeaving, To: MemberOut})
	if got := l.Membership(); got.PendingChange() != "" || len(got.PresentNodes()) != 3 || got.Members[2].Dir != "0000000a" {
		t.Errorf("after the cancelled replacement: %+v", got)
	}
}
