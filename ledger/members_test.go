package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// founders is a yard of n members.
func founders(n int) *SetMembers {
	c := &SetMembers{}
	for i := range n {
		c.Members = append(c.Members, Member{Node: fmt.Sprintf("n%d", i+1), Dir: "0000000a", Route: "h:1", Raft: "h:2", State: Present})
	}
	return c
}

// member draws a command about members, most often one that makes sense.
func (y *yard) member(t *rapid.T) Command {
	roll := y.ledger.Roll()
	if roll.Revision == 0 || rapid.IntRange(0, 9).Draw(t, "again") == 0 {
		return founders(3)
	}
	some := rapid.SampledFrom(roll.Members).Draw(t, "member")
	switch rapid.IntRange(0, 5).Draw(t, "about members") {
	case 0:
		return &ChangeMembers{Cancel: true}
	case 1:
		return &ChangeMembers{Leave: some.ID()}
	case 2, 3:
		c := &ChangeMembers{Join: &Member{
			Node: rapid.SampledFrom([]string{"n1", "n4", "n5", "n6"}).Draw(t, "joiner"),
			Dir:  rapid.SampledFrom([]string{"0000000b", "0000000c"}).Draw(t, "directory"),
		}}
		if rapid.Bool().Draw(t, "replace") {
			c.Leave = some.ID()
		}
		return c
	}
	return &StepMember{ID: some.ID(), From: some.State, To: rapid.SampledFrom([]MemberState{Out, Present, Leaving}).Draw(t, "step")}
}

// TestMembers_OneChangeAtATime: whatever is asked, at most one seat comes and
// one goes, nobody sits under a name twice who counts, those who count are
// never too few, and the roll's revision grows with every change and with
// nothing else.
func TestMembers_OneChangeAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := newYard()
		y.ledger.Apply(y.at, []Command{&Lead{Owner: "n1", Until: y.at.At.Add(time.Minute)}})
		y.at.Epoch = y.ledger.Authority().Epoch
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			before := y.ledger.Roll()
			held := slices.Clone(before.Members)
			c := y.member(t)
			y.at.Index++
			r := y.ledger.Apply(y.at, []Command{c})[0]
			after := y.ledger.Roll()
			if !slices.Equal(held, before.Members) {
				t.Fatal("a roll that was given out has changed")
			}
			same := slices.Equal(before.Members, after.Members)
			if (after.Revision != before.Revision) == same {
				t.Fatalf("revision %d to %d by %+v, %v", before.Revision, after.Revision, c, r.Err)
			}
			if r.Err != nil && !same {
				t.Fatalf("%+v is refused and changes the roll: %v", c, r.Err)
			}
			checkRoll(t, after)
		}
		if again := roundTrip(t, y.ledger).Roll(); again.Revision != y.ledger.Roll().Revision || !slices.Equal(again.Members, y.ledger.Roll().Members) {
			t.Fatalf("encoded and decoded it is %+v", again)
		}
	})
}

func checkRoll(t *rapid.T, r Roll) {
	states := map[MemberState]int{}
	names := map[string]int{}
	for _, m := range r.Members {
		states[m.State]++
		if m.State == Present {
			names[m.Node]++
		}
		if names[m.Node] > 1 {
			t.Fatalf("%s counts twice: %+v", m.Node, r.Members)
		}
	}
	if states[Joining] > 1 || states[Leaving] > 1 || len(r.Members) > MaxMembers+1 || states[Present] > MaxMembers {
		t.Fatalf("too much at once: %+v", r.Members)
	}
	if states[Present] < MinMembers-1 || states[Present] < MinMembers && states[Leaving]+states[Joining] == 0 && r.Revision > 0 {
		t.Fatalf("too few count: %+v", r.Members)
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
	must(founders(3))
	must(founders(5)) // heard and passed over
	if got := l.Roll(); got.Revision != 1 || len(got.Present()) != 3 {
		t.Fatalf("founded as %+v", got)
	}
	refuse(&ChangeMembers{}, ErrNoChange)
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	refuse(&ChangeMembers{Leave: "n2-0000000a"}, ErrMemberCount)
	refuse(&ChangeMembers{Leave: "n7-0000000a"}, ErrMemberNotFound)
	refuse(&ChangeMembers{Join: &Member{Node: "n2", Dir: "0000000b"}}, ErrMemberExists)

	must(&ChangeMembers{Join: &Member{Node: "n4", Dir: "0000000b"}})
	refuse(&ChangeMembers{Join: &Member{Node: "n5", Dir: "0000000b"}}, ErrMembersChanging)
	refuse(&ChangeMembers{Leave: "n1-0000000a"}, ErrMembersChanging)
	refuse(&StepMember{ID: "n4-0000000b", From: Joining, To: Leaving}, ErrMemberStep)
	refuse(&StepMember{ID: "n1-0000000a", From: Joining, To: Present}, ErrMemberStep)
	must(&StepMember{ID: "n4-0000000b", From: Joining, To: Present})
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	must(&ChangeMembers{Leave: "n4-0000000b"})
	refuse(&ChangeMembers{Cancel: true}, ErrNoChange)
	must(&StepMember{ID: "n4-0000000b", From: Leaving, To: Out})

	// A replacement that is cancelled lets the old one stay.
	must(&ChangeMembers{Join: &Member{Node: "n3", Dir: "0000000c"}, Leave: "n3-0000000a"})
	if got := l.Roll().Under(); got != "n3-0000000a is replaced by n3-0000000c" {
		t.Errorf("under way: %q", got)
	}
	must(&ChangeMembers{Cancel: true})
	must(&StepMember{ID: "n3-0000000c", From: Leaving, To: Out})
	if got := l.Roll(); got.Under() != "" || len(got.Present()) != 3 || got.Members[2].Dir != "0000000a" {
		t.Errorf("after the cancelled replacement: %+v", got)
	}
}
