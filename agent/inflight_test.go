package agent

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/yardmaster-dev/yardmaster/job"
)

func TestAssign_StartsOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		wantEqual(t, "first", b.Assign(batch(1, assignment(1), assignment(1))), []job.Answer{job.Taken, job.Taken})
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports = hold })
		b.finish(1)
		synctest.Wait()
		wantEqual(t, "outcome in flight", b.Assign(batch(2, assignment(1))), []job.Answer{job.Taken})
		b.transport.set(func() { b.transport.holdReports = nil })
		close(hold)
		synctest.Wait()
		wantEqual(t, "settled", b.Assign(batch(3, assignment(1))), []job.Answer{job.Taken})
		advance(recentTTL)
		b.Assign(batch(4, assignment(2)))
		b.finish(2) // rotates the recent keys
		synctest.Wait()
		wantEqual(t, "settled a while ago", b.Assign(batch(5, assignment(1))), []job.Answer{job.Taken})
		started, _ := b.target.seen()
		wantEqual(t, "started", started, []string{requestID(1) + " send", requestID(2) + " send"})
		wantEqual(t, "running", b.Running(), 0)
	})
}

func TestAssign_Refusals(t *testing.T) {
	inBubble(t, Config{DrainTimeout: time.Second}, func(t *testing.T, b *harness) {
		stale := batch(1, assignment(1), assignment(2))
		stale.Epoch = 4
		wantEqual(t, "lower epoch", b.Assign(stale), []job.Answer{job.StaleEpoch, job.StaleEpoch})
		alien := assignment(1)
		alien.Kind = job.RRQ
		b.target.full = true
		wantEqual(t, "unknown target, no capacity", b.Assign(batch(1, alien, assignment(1))), []job.Answer{job.NoCapacity, job.NoCapacity})
		wantEqual(t, "running", b.Running(), 0)
		b.target.full = false
		wantEqual(t, "refused before, and another copy comes late", b.Assign(batch(2, assignment(1), assignment(3))), []job.Answer{job.NoCapacity, job.Taken})
		earlier := batch(3, assignment(4))
		earlier.Incarnation = 2
		wantEqual(t, "meant for a previous incarnation", b.Assign(earlier), []job.Answer{job.StaleEpoch})
		b.Drain()
		wantEqual(t, "draining", b.Assign(batch(3, assignment(2))), []job.Answer{job.Draining})
		synctest.Wait()
		last := b.transport.heartbeats[len(b.transport.heartbeats)-1]
		if !last.Draining || last.Running != 1 || last.Incarnation != 3 {
			t.Errorf("last heartbeat %+v", last)
		}
		b.finish(3)
	})
}

func TestAssign_HigherEpochWins(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		next := batch(1, assignment(1))
		next.Epoch = 9
		wantEqual(t, "new authority", b.Assign(next), []job.Answer{job.Taken})
		wantEqual(t, "previous authority", b.Assign(batch(2, assignment(2))), []job.Answer{job.StaleEpoch})
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		_, stopped := b.target.seen()
		wantEqual(t, "recalled by the previous authority", stopped, []string(nil))
		b.finish(1)
	})
}

func TestAssign_InvalidBodyIsFinal(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		bad := assignment(1)
		bad.Body = []byte(`{"function":`)
		wantEqual(t, "answer", b.Assign(batch(1, bad)), []job.Answer{job.Taken})
		synctest.Wait()
		got := b.transport.outcomes()
		if len(got) != 1 || got[0].Status != job.Error || got[0].Fault.Type != job.FaultInvalid || got[0].Started {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestLoad_FetchesBodies(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		here, gone := assignment(1), assignment(2)
		here.Body, here.Position = nil, job.Position{Lane: 1, Seq: 7}
		gone.Body, gone.Position = nil, job.Position{Lane: 1, Seq: 8}
		b.transport.bodies[here.Position] = []byte(body)
		wantEqual(t, "answers", b.Assign(batch(1, here, gone)), []job.Answer{job.Taken, job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		wantEqual(t, "started", started, []string{requestID(1) + " send"})
		got := b.transport.outcomes()
		if len(got) != 1 || got[0].Job != (job.ID{2}) || got[0].Status != job.Error || !got[0].Final {
			t.Errorf("lost body: %+v", got)
		}
		b.finish(1)
	})
}

func TestLoad_InlineBodyRefersToBlob(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		at := job.Position{Lane: 1, Seq: 7}
		b.transport.set(func() { b.transport.bodies[at] = []byte(`{"function":"whole","params":{"much":true}}`) })
		o := assignment(1)
		o.Position = at
		o.Body = []byte(`{"function":"pointer","blob":{"name":"b","chunks":1,"size":9,"sha256":"` + strings.Repeat("0", 64) + `"}}`)
		wantEqual(t, "answers", b.Assign(batch(1, o)), []job.Answer{job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		wantEqual(t, "started", started, []string{requestID(1) + " whole"})
		b.finish(1)
		synctest.Wait()
	})
}

// TestLoad_ReleasesTheBatch checks that a batch is not kept in memory while a
// blob is loaded, although the body that refers to the blob shares its memory.
func TestLoad_ReleasesTheBatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		at := job.Position{Lane: 1, Seq: 7}
		loading, loaded := make(chan struct{}), make(chan struct{})
		b.transport.set(func() {
			b.transport.bodies[at] = []byte(`{"function":"whole","params":{"much":true}}`)
			b.transport.onLoad = func() { close(loading); <-loaded }
		})
		message := func() weak.Pointer[byte] {
			message := append(make([]byte, 0, 256<<10), `{"function":"pointer","blob":{"name":"b","chunks":1,"size":9,"sha256":"`...)
			message = append(append(message, strings.Repeat("0", 64)...), `"}}`...)
			o := assignment(1)
			o.Position, o.Body = at, message
			wantEqual(t, "answers", b.Assign(batch(1, o)), []job.Answer{job.Taken})
			return weak.Make(&message[0])
		}()
		<-loading
		runtime.GC()
		if message.Value() != nil {
			t.Error("the batch is still reachable")
		}
		close(loaded)
		synctest.Wait()
		started, _ := b.target.seen()
		wantEqual(t, "started", started, []string{requestID(1) + " whole"})
		b.finish(1)
		synctest.Wait()
	})
}

func TestLoad_ReservesSlot(t *testing.T) {
	inBubble(t, Config{maxLoads: 1}, func(t *testing.T, b *harness) {
		b.Offer(job.Offer{Kind: job.Overhop, Key: "mail", Worker: "w", Free: 3})
		b.transport.set(func() { b.transport.loadErr = errDown })
		o := assignment(1)
		o.Body = nil
		b.Assign(batch(1, o))
		advance(2 * coalesceDelay)
		wantEqual(t, "capacity while loading", b.transport.lastOffers(), map[string]int{"w": 2})
		advance(5 * time.Second) // enough for all attempts
		got := b.transport.outcomes()
		if len(got) != 1 || got[0].Status != job.Declined || b.transport.loads != maxLoadAttempts {
			t.Errorf("after %d loads: %+v", b.transport.loads, got)
		}
		wantEqual(t, "capacity released", b.transport.lastOffers(), map[string]int{"w": 3})
	})
}

func TestLoad_RecalledWhileLoading(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.loadErr = errDown })
		o := assignment(1)
		o.Body = nil
		b.Assign(batch(1, o))
		b.Recall(job.Recall{Job: o.Job, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		advance(5 * time.Second)
		started, stopped := b.target.seen()
		wantEqual(t, "started", started, []string(nil))
		wantEqual(t, "stopped", stopped, []string(nil))
		if got := b.transport.outcomes(); len(got) != 1 || got[0].Status != job.RunCancelled {
			t.Errorf("outcomes %+v", got)
		}
	})
}

func TestRecall_KeepsMessageUntilStarted(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.target.onStart = func(job.Assignment) { time.Sleep(2 * time.Second) }
		b.Assign(batch(1, assignment(1)))
		advance(time.Second)
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled, Message: "not any more"})
		advance(2 * time.Second)
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " CANCELLED"})
		wantEqual(t, "message", b.target.lastMessage, "not any more")
		b.finish(1)
	})
}

func TestRecall_StopsTargetOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		for range 2 {
			b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		}
		b.Recall(job.Recall{Job: job.ID{9}, N: 1, Epoch: 5, Reason: job.RecallQueueGone})
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " QUEUE_REMOVED"})
		b.finish(1)
	})
}
