package check

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const second = int64(time.Second)

// A check that finds nothing wrong must be able to: each is told lies.

func TestOverlaps(t *testing.T) {
	runs := []Run{
		{"a", 1, 10 * second, 20 * second}, {"a", 2, 15 * second, 16 * second}, // given up at 14
		{"b", 1, 10 * second, 20 * second}, {"b", 2, 15 * second, 16 * second}, // never given up
		{"c", 1, 10 * second, 20 * second}, {"c", 2, 15 * second, 16 * second}, // given up too late
		{"d", 1, 10 * second, 20 * second}, {"d", 2, 20 * second, 21 * second}, // one after the other
		{"e", 1, 10 * second, 0}, {"e", 2, 15 * second, 16 * second}, // its worker died
	}
	ends := []End{
		{Job: "a", Failed: true, Reason: "lease is over", At: 14 * second}, {Job: "a", At: 16 * second},
		{Job: "b", At: 16 * second}, // delivered
		{Job: "c", Failed: true, Reason: "lease is over", At: 18 * second},
	}
	got := Overlaps(runs, ends)
	if len(got) != 3 {
		t.Fatalf("%v", got)
	}
	for i, want := range []string{"lease is over", "", ""} {
		if got[i].Reason != want || got[i].For != second {
			t.Errorf("%v", got[i])
		}
	}
}

func TestSameDispatch(t *testing.T) {
	if got := SameDispatch([]Run{{Job: "a", Fence: 1}, {Job: "a", Fence: 2}, {Job: "b", Fence: 1}}); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if got := SameDispatch([]Run{{Job: "a", Fence: 1}, {Job: "b", Fence: 1}, {Job: "b", Fence: 1}}); fmt.Sprint(got) != "[b]" {
		t.Errorf("%q", got)
	}
}

func acquired(epoch int, owner string) Lease {
	return Lease{Acquired: true, Owner: owner, ID: fmt.Sprintf("%d-%s", epoch, owner)}
}

func renewed(epoch int, owner string) Lease {
	l := acquired(epoch, owner)
	l.Acquired = false
	return l
}

func TestLeases(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []Lease
		views   []View
		wrong   string // "": nothing is
	}{
		{"true", []Lease{acquired(4, "n1"), renewed(4, "n1"), acquired(9, "n2"), renewed(9, "n2")},
			[]View{{Node: "n3", Owner: "n1", Epoch: 4}, {Node: "n3", Owner: "n2", Epoch: 9}, {Node: "n1", Owner: "n1", Epoch: 4}, {Node: "n1"}}, ""},
		{"an old one renews", []Lease{acquired(4, "n1"), acquired(9, "n2"), renewed(4, "n1")}, nil, "no order"},
		{"another one renews", []Lease{acquired(4, "n1"), renewed(4, "n2")}, nil, "no order"},
		{"epochs go back", []Lease{acquired(9, "n1"), acquired(4, "n2")}, nil, "epoch 4 follows epoch 9"},
		{"one epoch, two owners", []Lease{acquired(4, "n1"), acquired(4, "n2")}, nil, "is of n1 and of n2"},
		{"nobody acquired", []Lease{acquired(4, "n1")}, []View{{Node: "n3", Owner: "n2", Epoch: 5}}, "history says"},
		{"a node goes back", []Lease{acquired(4, "n1"), acquired(9, "n2")},
			[]View{{Node: "n3", Owner: "n2", Epoch: 9}, {Node: "n3", Owner: "n1", Epoch: 4}}, "showed epoch 4 after 9"},
		{"a node has started again", []Lease{acquired(4, "n1"), acquired(9, "n2")},
			[]View{{Node: "n3", Owner: "n2", Epoch: 9}, {Node: "n3", Life: 1, Owner: "n1", Epoch: 4}}, ""},
		{"no epoch", []Lease{{Acquired: true, Owner: "n1", ID: "mine"}}, nil, "no epoch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(Leases(c.history, c.views), "; ")
			if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
				t.Errorf("%q, want %q", got, c.wrong)
			}
		})
	}
}

func TestDecided(t *testing.T) {
	at := func(from, til int64, what bool, answer Answer) Change {
		return Change{Name: "q", Make: what, Answer: answer, From: from, Til: til}
	}
	for _, c := range []struct {
		name    string
		changes []Change
		want    bool
	}{
		{"in turn", []Change{at(1, 2, true, Done), at(3, 4, true, Refused), at(5, 6, false, Done), at(7, 8, false, Refused)}, true},
		{"both made it", []Change{at(1, 2, true, Done), at(3, 4, true, Done)}, false},
		{"both made it at once", []Change{at(1, 4, true, Done), at(2, 3, true, Done)}, false},
		{"one of two at once", []Change{at(1, 4, true, Done), at(2, 3, true, Refused)}, true},
		{"gone by itself", []Change{at(1, 2, true, Done), at(3, 4, false, Refused)}, false},
		{"an unknown one took it away", []Change{at(1, 2, true, Done), at(3, 4, false, Unknown), at(5, 6, false, Refused)}, true},
		{"an unknown one cannot act before it was asked", []Change{at(1, 2, true, Done), at(3, 4, false, Refused), at(5, 6, false, Unknown)}, false},
	} {
		if ok, undecided := Decided(c.changes); ok != c.want || undecided {
			t.Errorf("%s: %t, undecided %t", c.name, ok, undecided)
		}
	}
	other := at(3, 4, true, Done)
	other.Name = "p"
	if ok, _ := Decided([]Change{at(1, 2, true, Done), other}); !ok {
		t.Error("two names are taken for one")
	}
}

func TestHonest(t *testing.T) {
	stills := Stills([]int64{0, second, 12 * second, 13 * second, 40 * second}, 5*time.Second, 0, 20*second)
	if fmt.Sprint(stills) != fmt.Sprint([]Still{{second, 12 * second}}) {
		t.Fatalf("%v", stills)
	}
	looks := []Look{
		{"n1", 2 * second, true, ""},  // it had no time to notice
		{"n1", 8 * second, false, ""}, // it has
		{"n2", 8 * second, true, ""},
		{"n2", 9 * second, true, ""},
		{"n3", 11*second + second/2, true, ""}, // work goes on
		{"n3", 15 * second, true, ""},
	}
	got := Honest(stills, looks, 4*time.Second)
	if len(got) != 1 || !strings.HasPrefix(got[0], "n2 ") {
		t.Errorf("%q", got)
	}
}
