package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
)

func TestAssign_SeenOnceNeverStartedAgain(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		want(t, "first", b.Assign(batch(1, order(1), order(1))), []job.Answer{job.Taken, job.Taken})
		hold := make(chan struct{})
		b.bus.set(func() { b.bus.hold = hold })
		b.finish(1)
		synctest.Wait()
		want(t, "outcome on its way", b.Assign(batch(2, order(1))), []job.Answer{job.Taken})
		b.bus.set(func() { b.bus.hold = nil })
		close(hold)
		synctest.Wait()
		want(t, "settled", b.Assign(batch(3, order(1))), []job.Answer{job.Taken})
		pass(rememberFor)
		b.Assign(batch(4, order(2)))
		b.finish(2) // turns the memory
		synctest.Wait()
		want(t, "settled a while ago", b.Assign(batch(5, order(1))), []job.Answer{job.Taken})
		started, _ := b.target.seen()
		want(t, "started", started, []string{request(1) + " send", request(2) + " send"})
		want(t, "running", b.Running(), 0)
	})
}

func TestAssign_Refusals(t *testing.T) {
	inBubble(t, Config{DrainGrace: time.Second}, func(t *testing.T, b *bench) {
		stale := batch(1, order(1), order(2))
		stale.Epoch = 4
		want(t, "lower epoch", b.Assign(stale), []job.Answer{job.StaleEpoch, job.StaleEpoch})
		alien := order(1)
		alien.Kind = job.RRQ
		b.target.full = true
		want(t, "no such target, no room", b.Assign(batch(1, alien, order(1))), []job.Answer{job.NoRoom, job.NoRoom})
		want(t, "running", b.Running(), 0)
		b.target.full = false
		want(t, "refused before, and another copy comes late", b.Assign(batch(2, order(1), order(3))), []job.Answer{job.NoRoom, job.Taken})
		former := batch(3, order(4))
		former.Incarnation = 2
		want(t, "meant for a former life", b.Assign(former), []job.Answer{job.StaleEpoch})
		b.Drain()
		want(t, "draining", b.Assign(batch(3, order(2))), []job.Answer{job.Draining})
		synctest.Wait()
		last := b.bus.beats[len(b.bus.beats)-1]
		if !last.Draining || last.Running != 1 || last.Incarnation != 3 {
			t.Errorf("last beat %+v", last)
		}
		b.finish(3)
	})
}

func TestAssign_HigherEpochIsTheNewMeasure(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		next := batch(1, order(1))
		next.Epoch = 9
		want(t, "higher", b.Assign(next), []job.Answer{job.Taken})
		want(t, "former", b.Assign(batch(2, order(2))), []job.Answer{job.StaleEpoch})
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		_, stopped := b.target.seen()
		want(t, "recalled by the former", stopped, []string(nil))
		b.finish(1)
	})
}

func TestAssign_BadBodyIsAFinalError(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		bad := order(1)
		bad.Body = []byte(`{"function":`)
		want(t, "answer", b.Assign(batch(1, bad)), []job.Answer{job.Taken})
		synctest.Wait()
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Status != job.Error || got[0].Fault.Type != job.FaultInvalid || got[0].Started {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestLoad_BodiesComeAfterwards(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		here, gone := order(1), order(2)
		here.Body, here.Position = nil, job.Position{Lane: 1, Seq: 7}
		gone.Body, gone.Position = nil, job.Position{Lane: 1, Seq: 8}
		b.bus.bodies[here.Position] = []byte(body)
		want(t, "answers", b.Assign(batch(1, here, gone)), []job.Answer{job.Taken, job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		want(t, "started", started, []string{request(1) + " send"})
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Job != (job.ID{2}) || got[0].Status != job.Error || !got[0].Final {
			t.Errorf("lost body: %+v", got)
		}
		b.finish(1)
	})
}

func TestLoad_BlobBehindTheBodyThatCame(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		at := job.Position{Lane: 1, Seq: 7}
		b.bus.set(func() { b.bus.bodies[at] = []byte(`{"function":"whole","params":{"much":true}}`) })
		o := order(1)
		o.Position = at
		o.Body = []byte(`{"function":"pointer","blob":{"name":"b","chunks":1,"size":9,"sha256":"` + strings.Repeat("0", 64) + `"}}`)
		want(t, "answers", b.Assign(batch(1, o)), []job.Answer{job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		want(t, "started", started, []string{request(1) + " whole"})
		b.finish(1)
		synctest.Wait()
	})
}

func TestLoad_TakesRoomWhileItWaits(t *testing.T) {
	inBubble(t, Config{Loads: 1}, func(t *testing.T, b *bench) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		b.bus.set(func() { b.bus.loadErr = errDown })
		o := order(1)
		o.Body = nil
		b.Assign(batch(1, o))
		pass(2 * lazily)
		want(t, "room while loading", b.bus.lastOffers(), map[string]int{"w": 2})
		pass(5 * time.Second) // all tries
		got := b.bus.outcomes()
		if len(got) != 1 || got[0].Status != job.Declined || b.bus.loads != loadTries {
			t.Errorf("after %d loads: %+v", b.bus.loads, got)
		}
		want(t, "room given back", b.bus.lastOffers(), map[string]int{"w": 3})
	})
}

func TestLoad_RecalledMeanwhile(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.bus.set(func() { b.bus.loadErr = errDown })
		o := order(1)
		o.Body = nil
		b.Assign(batch(1, o))
		b.Recall(job.Recall{Job: o.Job, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		pass(5 * time.Second)
		started, stopped := b.target.seen()
		want(t, "started", started, []string(nil))
		want(t, "stopped", stopped, []string(nil))
		if got := b.bus.outcomes(); len(got) != 1 || got[0].Status != job.Cancelled {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestRecall_ReachesTheTargetOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *bench) {
		b.Assign(batch(1, order(1)))
		for range 2 {
			b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		}
		b.Recall(job.Recall{Job: job.ID{9}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		_, stopped := b.target.seen()
		want(t, "stopped", stopped, []string{request(1) + " QUEUE_REMOVED"})
		b.finish(1)
	})
}
