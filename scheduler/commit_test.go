package scheduler

import (
	"sync"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// entriesAfter gives what was committed since, renewals and told apart left
// out.
func (y *yard) entriesAfter(n int) (found []logged) {
	for _, e := range y.raft.entries()[n:] {
		for _, c := range e.Commands {
			switch c.(type) {
			case *ledger.Told, *ledger.Renew, *ledger.Observe:
			default:
				found = append(found, e)
			}
			break
		}
	}
	return found
}

func TestGroupCommit_SettlingAloneWaitsForARide(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = lasting(100 * time.Millisecond) })
		n.offer(job.Overhop, "mail", "w1", 2)
		first := y.enqueue("mail", "", anyJob)
		y.until("it runs", func() bool { return y.state(first) == job.Active })
		y.pass(time.Until(y.fleet.orders()[0].at.Add(100 * time.Millisecond))) // its outcome comes now
		before := len(y.raft.entries())
		y.pass(4 * time.Millisecond)
		if got := y.state(first); got != job.Active || len(y.entriesAfter(before)) != 0 {
			t.Fatalf("it is %s, after 4 ms; entries %+v", got, y.entriesAfter(before))
		}
		second := y.enqueue("mail", "", anyJob) // the ride
		y.until("both", func() bool { return y.state(first) == job.Completed && y.state(second) == job.Active })
		entries := y.entriesAfter(before)
		if len(entries) != 1 || len(commandsOf[*ledger.Settle](entries)) != 1 || len(commandsOf[*ledger.Fold](entries)) != 1 {
			t.Errorf("entries %+v", entries)
		}
		y.until("without a ride, it goes after a while", func() bool { return y.state(second) == job.Completed })
		last := y.entriesAfter(before)[1]
		if wait := last.submitted.Sub(y.fleet.orders()[1].at.Add(100 * time.Millisecond)); wait != settleAlone {
			t.Errorf("it waited %v", wait)
		}
	})
}

func TestGroupCommit_FurtherEntriesAreWorthTheirWrite(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.raft.set(func() { y.raft.delay = 10 * time.Millisecond })
		y.pass(100 * time.Millisecond)
		before := len(y.raft.entries())
		began := time.Now()
		y.enqueue("mail", "", anyJob) // at once
		y.pass(time.Millisecond)
		y.enqueue("mail", "", anyJob) // when it has waited 3 ms
		y.pass(time.Millisecond)
		y.enqueue("mail", "", anyJob) // with it
		y.pass(20 * time.Millisecond)
		var at []time.Duration
		for _, e := range y.entriesAfter(before) {
			at = append(at, e.submitted.Sub(began))
		}
		if len(at) != 2 || at[0] != 0 || at[1] != time.Millisecond+oldEnough {
			t.Errorf("entries went after %v", at)
		}
		before = len(y.raft.entries())
		y.enqueue("mail", "", anyJob)
		y.pass(0)
		var many []job.Record
		for range 2 * fullEntry / foldSize { // worth a write of their own
			many = append(many, y.lanes.store(0, "mail", "", anyJob))
		}
		y.sched.Notice(many)
		y.pass(30 * time.Millisecond)
		entries := y.entriesAfter(before)
		if len(entries) < 2 || entries[1].submitted != entries[0].submitted {
			t.Errorf("%d entries, the second not at once", len(entries))
		}
	})
}

func TestGroupCommit_InFlightIsBounded(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.raft.set(func() { y.raft.delay = 100 * time.Millisecond; y.raft.most = 0 })
		y.node("n1").offer(job.Overhop, "mail", "w1", 5000)
		var callers sync.WaitGroup
		for i := range 3000 {
			y.enqueue("mail", "", anyJob)
			callers.Go(func() { y.do(&ledger.AddQueue{ID: job.ID{byte(i), byte(i >> 8)}, Name: "q"}) })
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 3000 })
		callers.Wait()
		if y.raft.most != maxInFlight {
			t.Errorf("%d entries were in flight at most, want %d", y.raft.most, maxInFlight)
		}
		for _, e := range y.raft.entries() {
			size := 0
			for _, c := range e.Commands {
				switch c := c.(type) {
				case *ledger.Fold:
					size += len(c.Jobs) * (foldSize + 4)
				case *ledger.Place:
					size += len(c.Placements) * placeSize
				case *ledger.Settle:
					size += len(c.Ends) * endSize
				default:
					size += commandSize
				}
			}
			if size > maxEntry {
				t.Errorf("an entry takes %d bytes", size)
			}
		}
		y.noDoubles()
	})
}
