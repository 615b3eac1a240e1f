package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// blocked gives what history was told of blockers: "system: …" or "user: …".
func (y *yard) blocked() (told []string) {
	for _, c := range commandsOf[*ledger.Observe](y.raft.entries()) {
		for _, o := range c.Observations {
			if o.Event == ledger.RunHeartbeat {
				continue
			}
			if o.Subject != "n1" {
				y.t.Errorf("%+v is told of somebody else than the authority", o)
			}
			told = append(told, strings.TrimPrefix(o.Event.String(), "run.blocked_on_")+": "+o.Detail)
		}
	}
	return told
}

// blocks waits until history is told of what readiness names, checks that it
// is told once however long it lasts, and that it is told again when it has
// passed and come back.
func (y *yard) blocks(want string, trouble, mend func()) {
	y.t.Helper()
	kind, text, _ := strings.Cut(want, ": ")
	if told := y.blocked(); len(told) > 0 {
		y.t.Fatalf("told of %q before there is anything", told)
	}
	for times := 1; times <= 2; times++ {
		trouble()
		y.until("history tells of it", func() bool { return len(y.blocked()) == times })
		y.pass(40 * time.Second)
		told := y.blocked()
		if len(told) != times || !strings.HasPrefix(told[times-1], want) || !slices.Contains(y.reasons(), strings.TrimPrefix(told[times-1], kind+": ")) {
			y.t.Errorf("told of %q, want %q; readiness names %q", told, text, y.reasons())
		}
		mend()
		y.until("it has passed", func() bool { return len(y.reasons()) == 0 })
		y.pass(2 * time.Second)
	}
	y.endTenure()
	<-y.ended
	y.begin()
	y.pass(5 * time.Second)
	if told := y.blocked(); len(told) != 2 {
		y.t.Errorf("the next tenure tells of what has passed: %q", told)
	}
}

func TestBlocked(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		trouble    func(*yard)
		mend       func(*yard)
	}{
		{
			"StreamMissing", "user: streams are not as they were made: YARD_DLQ: stream does not exist",
			func(y *yard) {
				y.lanes.set(func() { y.lanes.ensures = &DecideError{errors.New("YARD_DLQ: stream does not exist")} })
			},
			func(y *yard) { y.lanes.set(func() { y.lanes.ensures = nil }) },
		},
		{
			"StreamUnseen", "system: streams are not as they were made: no answer",
			func(y *yard) { y.lanes.set(func() { y.lanes.ensures = errors.New("no answer") }) },
			func(y *yard) { y.lanes.set(func() { y.lanes.ensures = nil }) },
		},
		{
			"OtherLane", "user: lane 0 is not folded: its stream is another one than the ledger's",
			func(y *yard) { y.lanes.set(func() { y.lanes.lanes[0].identity += "x" }) },
			func(y *yard) {
				y.lanes.set(func() { y.lanes.lanes[0].identity = strings.TrimSuffix(y.lanes.lanes[0].identity, "x") })
			},
		},
		{
			"FullLane", "user: lane 0 is full and takes no jobs",
			func(y *yard) { y.lanes.set(func() { y.lanes.max = 1 }) },
			func(y *yard) { y.lanes.set(func() { y.lanes.max = 0 }) },
		},
		{
			"UnreadLane", "system: lane 0 is not folded: no answer",
			func(y *yard) { y.lanes.set(func() { y.lanes.unread = true }) },
			func(y *yard) { y.lanes.set(func() { y.lanes.unread = false }) },
		},
		{
			"History", "system: history is not published: ",
			func(y *yard) { y.tales.set(func() { y.tales.down = true }) },
			func(y *yard) { y.tales.set(func() { y.tales.down = false }) },
		},
		{
			"Unheard", "system: member n2 is not heard",
			func(y *yard) { n := y.node("n2"); n.look(func() { n.silent = true }) },
			func(y *yard) { n := y.node("n2"); n.look(func() { n.silent = false; n.beat() }) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes := 1
			if tt.name == "Unheard" {
				nodes = 2
			}
			inYard(t, nodes, func(y *yard) {
				y.pass(10 * time.Second)
				y.blocks(tt.want, func() { tt.trouble(y) }, func() { tt.mend(y) })
			})
		})
	}
}

// Jobs for a runner whose members are down block the yard; what passes at once
// does not.
func TestBlocked_RunnerAway(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		n := y.node("n3")
		n.look(func() { n.runners = []string{"press"}; n.beat() })
		y.pass(10 * time.Second)
		n.look(func() { n.silent = true })
		y.pass(5 * time.Second)
		y.enqueue("mail", "", `{"function":"press#go","params":{}}`)
		y.until("history tells of it", func() bool { return len(y.blocked()) > 0 })
		y.pass(time.Minute)
		want := []string{"system: jobs wait for runner press, which only members that are down have: n3"}
		if told := y.blocked(); len(told) != 1 || !strings.HasPrefix(told[0], want[0]) {
			t.Errorf("told of %q, want %q", told, want)
		}
	})
}

func TestBlocked_NotOfWhatPasses(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.pass(5 * time.Second)
		m := y.sched.tenure()
		for i := range 10 { // each of its kind shorter than a second
			m.post(func() { m.untold[Results] = fmt.Sprint("results: away ", i) })
			y.pass(700 * time.Millisecond)
			m.post(func() { m.untold[Results] = "" })
			y.pass(700 * time.Millisecond)
		}
		if told := y.blocked(); len(told) > 0 {
			t.Errorf("told of %q", told)
		}
		for i := range 100 { // one that is worded otherwise each time is not news
			m.post(func() { m.untold[Results] = fmt.Sprint("results: away ", i) })
			y.pass(300 * time.Millisecond)
		}
		if told := y.blocked(); len(told) != 1 {
			t.Errorf("told of %q", told)
		}
		// That it has become the operator's is.
		m.post(func() { m.decidable(Results.String(), &DecideError{errors.New("lost")}) })
		y.pass(time.Second)
		if told := y.blocked(); len(told) != 2 || !strings.HasPrefix(told[1], "user: results are not published") {
			t.Errorf("told of %q", told)
		}
	})
}

// A heartbeat says what the authority does.
func TestHeartbeat_Phase(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = lasting(10 * time.Second) })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.pass(5 * time.Second)
		y.enqueue("mail", "", anyJob)
		y.pass(20 * time.Second)
		var phases []string
		for _, c := range commandsOf[*ledger.Observe](y.raft.entries()) {
			for _, o := range c.Observations {
				phases = append(phases, o.Detail)
			}
		}
		if got := slices.Compact(phases); !slices.Equal(got, []string{"idle", "execute", "idle"}) {
			t.Errorf("phases are %q", phases)
		}
	})
}
