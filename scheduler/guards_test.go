package scheduler

import (
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
)

// Of the records with one unique key exactly one runs, though many of them are
// read, and placed, while the fold that decides is in flight; what was reserved
// for the others is free again.
func TestFold_UniqueKeys(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		const keys, each = 20, 6
		y.raft.set(func() { y.raft.delay = 12 * time.Millisecond })
		n := y.node("n1")
		n.offer(job.Overhop, "mail", "w1", 3)
		for i := range each {
			for k := range keys {
				y.enqueueIn(uint8((i+k)%2), "mail", "", fmt.Sprintf(`{"params":{},"unique_key":"k%d"}`, k))
			}
			y.pass(time.Millisecond)
		}
		y.enqueue("mail", "", anyJob) // behind them all
		y.until("one of each key ran, and the last", func() bool { return y.counts().Delivered == keys+1 })
		y.pass(time.Second)
		if c := y.counts(); c.Delivered != keys+1 || c.Pending != 0 || c.Notified != 0 || c.Failed != 0 {
			t.Errorf("the backlog is %+v", c)
		}
		if started := len(n.startedNow()); started != keys+1 {
			t.Errorf("%d dispatches started, want %d", started, keys+1)
		}
	})
}

// A job that is debounced while it waits starts as the newest record asks,
// once, and carries that record's body.
func TestFold_Debounced(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		var id job.ID
		for i := range 5 {
			made := y.enqueue("mail", "", fmt.Sprintf(`{"params":{"i":%d},"debounce_key":"d","debounce_ms":50}`, i))
			if i == 0 {
				id = made
			}
			y.pass(80 * time.Millisecond) // it has become due, and nobody is there
		}
		y.until("it waits", func() bool { return y.state(id) == job.Waiting })
		n.offer(job.Overhop, "mail", "w1", 2)
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		y.pass(time.Second)
		started := n.startedNow()
		if len(started) != 1 || started[0].Position.Seq != 5 || started[0].Job != id {
			t.Errorf("started %+v", started)
		}
	})
}
