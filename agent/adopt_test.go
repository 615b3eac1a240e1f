package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
)

// brought is an order for a dispatch that a worker has brought from elsewhere.
func brought(i byte) job.Assignment {
	o := order(i)
	o.Body, o.Started = nil, time.Now().Add(-time.Second)
	return o
}

// What a worker brings is counted, confirmed, recalled and reported like what
// was begun here.
func TestAdopt_IsInHand(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		want(t, "asked for before it came", b.Assign(batch(1, brought(1))), []job.Answer{job.NoRoom})
		want(t, "adopted", b.Adopt(brought(1)), true)
		want(t, "adopted again", b.Adopt(brought(1)), true)
		want(t, "running", b.Running(), 1)
		want(t, "asked for", b.Assign(batch(2, brought(1))), []job.Answer{job.Taken})
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		want(t, "adopted while it ends", b.Adopt(brought(1)), false)
		started, stopped := b.target.seen()
		want(t, "started", started, []string(nil))
		want(t, "stopped", stopped, []string{request(1) + " CANCELLED"})
		b.finish(1)
		synctest.Wait()
		want(t, "running after its end", b.Running(), 0)
		want(t, "asked for after its end", b.Assign(batch(3, brought(1))), []job.Answer{job.NoRoom})
		if b.bus.loads != 0 || len(b.bus.outcomes()) != 1 {
			t.Errorf("%d bodies were loaded, outcomes %+v", b.bus.loads, b.bus.outcomes())
		}
	})
}

func TestAdopt_EndsWithTheLease(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.target.onStop = func(id job.ID, n uint32, _ job.RecallReason) {
			b.Report(job.Outcome{Job: id, N: n, Status: job.Lost, Started: true}, nil)
		}
		want(t, "adopted", b.Adopt(brought(1)), true)
		b.bus.set(func() { b.bus.down = true })
		pass(7 * time.Second)
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " LEASE_EXPIRED"})
		want(t, "adopted without a lease", b.Adopt(brought(2)), false)
		want(t, "running", b.Running(), 0)
		b.bus.set(func() { b.bus.down = false })
		pass(2 * time.Second)
		want(t, "adopted under a new lease", b.Adopt(brought(2)), true)
		b.finish(2)
	})
}

func TestAdopt_DrainWaitsForIt(t *testing.T) {
	inBubble(t, Config{DrainGrace: 8 * time.Second}, func(t *testing.T, b *bench) {
		b.Adopt(brought(1))
		b.stop()
		pass(3 * time.Second)
		select {
		case <-b.done:
			t.Error("drained while a job ran")
		default:
		}
		want(t, "asked for while draining", b.Assign(batch(1, brought(1), order(2))), []job.Answer{job.Taken, job.Draining})
		b.finish(1)
		synctest.Wait()
		select {
		case err := <-b.done:
			b.done <- err
		default:
			t.Error("still draining after the job's end")
		}
	})
}

// A dispatch that has left yields no outcome here, whatever it was told before,
// and may come back.
func TestRecall_SupersededLeavesWithoutAnOutcome(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		for _, why := range []job.RecallReason{job.RecallCancelled, job.RecallSuperseded, job.RecallSuperseded} {
			b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: why})
		}
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " CANCELLED", request(1) + " SUPERSEDED"})
		want(t, "running", b.Running(), 0)
		want(t, "a late order for it", b.Assign(batch(2, order(1))), []job.Answer{job.Taken})
		want(t, "running after that", b.Running(), 0)
		want(t, "it comes back", b.Adopt(brought(1)), true)
		want(t, "running again", b.Running(), 1)
		b.finish(1)
		synctest.Wait()
		if got := b.bus.outcomes(); len(got) != 1 || got[0].Status != job.Success {
			t.Errorf("outcomes %+v", got)
		}
	})
}

// What an earlier move says of a dispatch that has come back since is late; a
// later one is heard, and so is whatever speaks for the dispatch itself.
func TestRecall_OfAnEarlierStay(t *testing.T) {
	for _, c := range []struct {
		held, moved uint64 // of the adoption; of the recall
		stays       bool
	}{
		{held: 20, moved: 10, stays: true}, {held: 20, moved: 20, stays: true},
		{held: 20, moved: 30}, {held: 20, moved: 0}, {held: 0, moved: 10},
	} {
		for _, held := range []bool{false, true} { // when it came back
			inBubble(t, Config{}, func(t *testing.T, b *bench) {
				if held {
					b.Assign(batch(1, order(1)))
				}
				if back := brought(1); c.held > 0 || !held {
					back.Moved = c.held
					want(t, "it comes back", b.Adopt(back), true)
				}
				b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallSuperseded, Moved: c.moved})
				if stays := b.Running() == 1; stays != c.stays {
					t.Errorf("adopted by entry %d, held before: %t; recalled by entry %d: it stays %t", c.held, held, c.moved, stays)
				}
				if c.stays {
					b.finish(1)
				}
			})
		}
	}
}

// A batch is not carried out further than the lease goes.
func TestLease_EndsWithinABatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.down = true })
		pass(5 * time.Second)
		b.target.onStart = func(job.Assignment) { time.Sleep(2 * time.Second) }
		want(t, "answers", b.Assign(batch(1, order(1), order(2))), []job.Answer{job.Taken, job.NoRoom})
		synctest.Wait()
		started, stopped := b.target.seen()
		want(t, "started", started, []string{request(1) + " send"})
		want(t, "stopped", stopped, []string{request(1) + " LEASE_EXPIRED"})
		b.finish(1)
		b.bus.set(func() { b.bus.down = false })
	})
}

// A body that comes after the lease's end starts nothing.
func TestLease_EndsWhileABodyComes(t *testing.T) {
	inBubble(t, Config{BeatEvery: 4 * time.Second}, func(t *testing.T, b *bench) {
		o := order(1)
		o.Body, o.Position = nil, job.Position{Lane: 1, Seq: 7}
		b.bus.set(func() {
			b.bus.down = true
			b.bus.bodies[o.Position] = []byte(body)
			b.bus.onLoad = func() {
				// The lease ends before anybody has looked.
				b.mu.Lock()
				b.lease = time.Now()
				b.mu.Unlock()
			}
		})
		want(t, "answers", b.Assign(batch(1, o)), []job.Answer{job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		want(t, "started", started, []string(nil))
		b.bus.set(func() { b.bus.down = false })
		pass(6 * time.Second)
		if got := b.bus.outcomes(); len(got) == 0 || got[len(got)-1].Status != job.Declined {
			t.Errorf("outcomes %+v", got)
		}
	})
}
