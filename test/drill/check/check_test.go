package check

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const second = int64(time.Second)

// Each test feeds the check wrong evidence as well, to show that it is detected.

func TestOverlaps(t *testing.T) {
	runs := []Run{
		{Job: "a", Fence: 1, Begin: 10 * second, End: 20 * second}, {Job: "a", Fence: 2, Begin: 15 * second, End: 16 * second}, // given up at 14
		{Job: "b", Fence: 1, Begin: 10 * second, End: 20 * second}, {Job: "b", Fence: 2, Begin: 15 * second, End: 16 * second}, // never given up
		{Job: "c", Fence: 1, Begin: 10 * second, End: 20 * second}, {Job: "c", Fence: 2, Begin: 15 * second, End: 16 * second}, // given up too late
		{Job: "d", Fence: 1, Begin: 10 * second, End: 20 * second}, {Job: "d", Fence: 2, Begin: 20 * second, End: 21 * second}, // one after the other
		{Job: "e", Fence: 1, Begin: 10 * second, End: 0}, {Job: "e", Fence: 2, Begin: 15 * second, End: 16 * second}, // its worker died
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
		wrong   string // part of the message; "" if there must be none
	}{
		{"true", []Lease{acquired(4, "n1"), renewed(4, "n1"), acquired(9, "n2"), renewed(9, "n2")},
			[]View{{Node: "n3", Owner: "n1", Epoch: 4}, {Node: "n3", Owner: "n2", Epoch: 9}, {Node: "n1", Owner: "n1", Epoch: 4}, {Node: "n1"}}, ""},
		{"a former owner renews", []Lease{acquired(4, "n1"), acquired(9, "n2"), renewed(4, "n1")}, nil, "n1 renewed epoch 4"},
		{"another node renews", []Lease{acquired(4, "n1"), renewed(4, "n2")}, nil, "n2 renewed epoch 4"},
		{"epochs decrease", []Lease{acquired(9, "n1"), acquired(4, "n2")}, nil, "epoch 4 follows epoch 9"},
		{"one epoch, two owners", []Lease{acquired(4, "n1"), acquired(4, "n2")}, nil, "was acquired by n1 and by n2"},
		{"never acquired", []Lease{acquired(4, "n1")}, []View{{Node: "n3", Owner: "n2", Epoch: 5}}, "history has"},
		{"a node shows an older epoch", []Lease{acquired(4, "n1"), acquired(9, "n2")},
			[]View{{Node: "n3", Owner: "n2", Epoch: 9}, {Node: "n3", Owner: "n1", Epoch: 4}}, "showed epoch 4 after 9"},
		{"a restarted node shows an older epoch", []Lease{acquired(4, "n1"), acquired(9, "n2")},
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

func TestLinearizable(t *testing.T) {
	at := func(from, to int64, create bool, answer Answer) Operation {
		return Operation{Name: "q", Create: create, Answer: answer, From: from, To: to}
	}
	for _, c := range []struct {
		name    string
		changes []Operation
		want    bool
	}{
		{"in turn", []Operation{at(1, 2, true, Done), at(3, 4, true, Refused), at(5, 6, false, Done), at(7, 8, false, Refused)}, true},
		{"created twice", []Operation{at(1, 2, true, Done), at(3, 4, true, Done)}, false},
		{"created twice concurrently", []Operation{at(1, 4, true, Done), at(2, 3, true, Done)}, false},
		{"one of two concurrent", []Operation{at(1, 4, true, Done), at(2, 3, true, Refused)}, true},
		{"gone without removal", []Operation{at(1, 2, true, Done), at(3, 4, false, Refused)}, false},
		{"removed by an unanswered operation", []Operation{at(1, 2, true, Done), at(3, 4, false, Unknown), at(5, 6, false, Refused)}, true},
		{"an operation has no effect before it began", []Operation{at(1, 2, true, Done), at(3, 4, false, Refused), at(5, 6, false, Unknown)}, false},
	} {
		if ok, undecided := Linearizable(c.changes); ok != c.want || undecided {
			t.Errorf("%s: %t, undecided %t", c.name, ok, undecided)
		}
	}
	other := at(3, 4, true, Done)
	other.Name = "p"
	if ok, _ := Linearizable([]Operation{at(1, 2, true, Done), other}); !ok {
		t.Error("operations on two names were treated as one")
	}
}

func TestReadinessErrors(t *testing.T) {
	gaps := Gaps([]int64{0, second, 12 * second, 13 * second, 40 * second}, 5*time.Second, 0, 20*second)
	if fmt.Sprint(gaps) != fmt.Sprint([]Gap{{second, 12 * second}}) {
		t.Fatalf("%v", gaps)
	}
	samples := []Sample{
		{"n1", 2 * second, true, ""},  // within the grace period
		{"n1", 8 * second, false, ""}, // reported
		{"n2", 8 * second, true, ""},
		{"n2", 9 * second, true, ""},
		{"n3", 11*second + second/2, true, ""}, // just before jobs start again
		{"n3", 15 * second, true, ""},
	}
	got := ReadinessErrors(gaps, samples, 4*time.Second)
	if len(got) != 1 || !strings.HasPrefix(got[0], "n2 ") {
		t.Errorf("%q", got)
	}
}
