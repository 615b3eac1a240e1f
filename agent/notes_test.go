package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
)

// notes are those that an authority takes which commits every report that it
// gets, whether it answers or not. Within one report they must be in order.
func (b *fakeBus) notes(t *testing.T) (taken []string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	last := uint64(0)
	for _, r := range b.reports {
		if len(r.Notes) > job.MaxNotes {
			t.Errorf("%d notes in one report", len(r.Notes))
		}
		for i, n := range r.Notes {
			if number := r.FirstNote + uint64(i); number > last {
				last = number
				taken = append(taken, fmt.Sprintf("%d %s %t %s", number, n.Worker, n.Stalled, n.Detail))
			}
		}
	}
	return taken
}

// Notes go in order and are repeated until one report of them is answered, by
// whoever has the authority then.
func TestNotes_KeptUntilAnswered(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.hold = make(chan struct{}) }) // the authority commits, and hangs
		b.Stalled("overhop/w", job.StalledAck)
		synctest.Wait()
		b.Recovered("overhop/w", job.RecoveredCredit)
		b.Stalled("overhop/v", job.StalledLease)
		pass(100 * time.Millisecond)
		want(t, "before the first is answered", b.bus.notes(t), []string{"1 overhop/w true ack-timeout"})
		b.bus.change(func() { b.bus.node, b.bus.epoch, b.bus.hold, b.bus.down = "n3", 8, nil, true })
		pass(3 * time.Second) // refused again and again
		b.bus.set(func() { b.bus.down = false })
		pass(2 * time.Second)
		reports := len(b.bus.reports)
		want(t, "taken", b.bus.notes(t), []string{
			"1 overhop/w true ack-timeout", "2 overhop/w false credit", "3 overhop/v true lease-expired",
		})
		pass(5 * time.Second)
		want(t, "reports after the answer", len(b.bus.reports), reports)
		b.Recovered("overhop/v", job.RecoveredAlive)
		synctest.Wait()
		want(t, "the next one", b.bus.notes(t)[3:], []string{"4 overhop/v false alive"})
		last := b.bus.reports[len(b.bus.reports)-1]
		want(t, "told with it", last.Notes, []job.Note{{Worker: "overhop/v", Detail: "alive"}})
	})
}

// Outcomes are not kept waiting by notes that nobody answers, nor the other
// way round.
func TestNotes_BesideOutcomes(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold = hold })
		b.finish(1)
		synctest.Wait()
		b.Stalled("overhop/w", job.StalledAck)
		synctest.Wait()
		want(t, "said beside an outcome", len(b.bus.notes(t)), 1)
		close(hold)
		synctest.Wait()
		want(t, "settled", b.bus.settled, map[string]int{request(1): 1})
	})
}

// What waits is bounded, and the numbers tell what was given up.
func TestNotes_Bounded(t *testing.T) {
	n := notes{first: 1}
	for i := range mostNotes + 5 {
		n.add(job.Note{Worker: fmt.Sprint(i)})
	}
	want(t, "waiting", len(n.waiting), mostNotes)
	var r job.Report
	n.fill(&r)
	want(t, "first number", r.FirstNote, uint64(6))
	want(t, "first note", r.Notes[0].Worker, "5")
	n.add(job.Note{Worker: "late"}) // gives up one that is on its way
	n.fill(new(job.Report))
	n.landed(&r, errors.New("no answer"))
	want(t, "after no answer", len(n.waiting), mostNotes)
	n.fill(&r)
	want(t, "first number now", r.FirstNote, uint64(7))
	n.add(job.Note{Worker: "later"})
	n.landed(&r, nil)
	want(t, "after an answer", n.first, 7+uint64(job.MaxNotes))
	want(t, "first waiting", n.waiting[0].Worker, fmt.Sprint(6+job.MaxNotes))
	if !slices.ContainsFunc(n.waiting, func(n job.Note) bool { return n.Worker == "later" }) {
		t.Error("the last note is gone")
	}
}

// An answer about notes of which the oldest were given up meanwhile, or all of
// them, takes away no note that has not been sent.
func TestNotes_GivenUpOnTheirWay(t *testing.T) {
	for _, late := range []int{1, job.MaxNotes - 1, job.MaxNotes, job.MaxNotes + 7} {
		n := notes{first: 1}
		for i := range mostNotes {
			n.add(job.Note{Worker: fmt.Sprint(i + 1)})
		}
		var r job.Report
		n.fill(&r)
		for i := range late {
			n.add(job.Note{Worker: fmt.Sprint(mostNotes + i + 1)})
		}
		n.landed(&r, nil)
		first := uint64(max(job.MaxNotes, late) + 1)
		want(t, "first number", n.first, first)
		want(t, "first note", n.waiting[0].Worker, fmt.Sprint(first))
		want(t, "notes kept", len(n.waiting), mostNotes+late-int(first)+1)
		want(t, "may be sent", n.due(), true)
	}
}
