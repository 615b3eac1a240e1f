package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

func TestLanes_IngestAndPlaceInOneEntry(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		h.advance(50 * time.Millisecond)
		before := len(h.raft.entries())
		noticed := time.Now()
		id := h.enqueue("mail", "", `{"params":{"to":"x"}}`)
		h.until("the job ran", func() bool { return h.state(id) == job.Completed })

		entries := h.raft.entries()[before:]
		first := entries[0]
		if len(commandsOf[*ledger.Ingest](entries[:1])) != 1 || len(commandsOf[*ledger.Place](entries[:1])) != 1 {
			t.Errorf("the first entry contains %T…, want an ingest and a placement", first.Commands)
		}
		if wait := first.submitted.Sub(noticed); wait != 0 {
			t.Errorf("the entry was submitted %v after the record was received, want at once", wait)
		}
		started := h.node("n1").startedNow()
		if len(started) != 1 || started[0].Job != id || started[0].N != 1 || started[0].Attempt != 1 {
			t.Fatalf("started %+v", started)
		}
		a := started[0]
		if string(a.Body) != `{"params":{"to":"x"}}` || a.Worker != "w1" || a.Fence == 0 || a.Timeout != 5*time.Minute || a.MaxAttempts != 5 {
			t.Errorf("assignment %+v", a)
		}
	})
}

func TestLanes_PollWithoutNotifications(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		var ids []job.ID
		for i := range 30 {
			ids = append(ids, h.id(h.lanes.store(uint8(i%3), "mail", "", anyJob)))
		}
		began := time.Now()
		h.until("all ran", func() bool { return h.counts().Delivered == 30 })
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("reading took %v", took)
		}
		for _, id := range ids {
			if h.state(id) != job.Completed {
				t.Errorf("job %s is %s", id, h.state(id))
			}
		}
		h.checkNoOverlap()
	})
}

func TestLanes_ReorderedNotifications(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 100)
		h.advance(20 * time.Millisecond)
		var records []job.Record
		for i := range 10 {
			records = append(records, h.lanes.store(0, "mail", fmt.Sprint("key", i), anyJob))
		}
		h.lanes.set(func() { h.lanes.reads = 0 })
		began := time.Now()
		for _, i := range []int{1, 2, 0, 2, 1, 4, 8, 7, 3} { // 5, 6 and 9 are never received
			h.sched.ReceiveRecords(records[i : i+1])
		}
		h.until("the gap is closed", func() bool { return h.counts().Delivered+h.counts().Notified == 10 })
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("closing the gap took %v", took)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 10 })
		for i, a := range h.node("n1").startedNow() {
			if a.Position.Seq != uint64(i+1) {
				t.Errorf("start %d is record %d", i, a.Position.Seq)
			}
		}
		var from uint64
		for _, f := range commandsOf[*ledger.Ingest](h.raft.entries()) {
			if f.From != from {
				t.Errorf("an ingest starts at %d, the cursor was %d", f.From, from)
			}
			from = f.To
		}
	})
}

func TestLanes_SameKeyIsOneJob(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		h.advance(20 * time.Millisecond)
		for i := range 12 {
			h.enqueueIn(uint8(i%2), "mail", "invoice-7", anyJob)
		}
		h.until("it ran", func() bool { return h.counts().Delivered == 1 })
		h.enqueue("mail", "invoice-7", anyJob)
		h.advance(time.Second)
		if n := len(h.node("n1").startedNow()); n != 1 {
			t.Errorf("it started %d times", n)
		}
		h.sched.current().loop.post(func() {
			if tenure := h.sched.current(); len(tenure.lanes.bodies.bodies) != 0 || tenure.lanes.bodies.bytes != 0 || len(tenure.lanes.provisional) != 0 {
				t.Errorf("%d bodies of %d bytes and %d provisional waitlists are left", len(tenure.lanes.bodies.bodies), tenure.lanes.bodies.bytes, len(tenure.lanes.provisional))
			}
		})
		h.advance(time.Millisecond)
	})
}

// TestLanes_SecondBodyUnderOneKey checks that an assignment carries the body
// at the job's position, even if another record came under the same key.
func TestLanes_SecondBodyUnderOneKey(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id := h.enqueue("mail", "k", `{"params":{"n":1}}`)
		h.enqueue("mail", "k", `{"params":{"n":2}}`)
		h.advance(50 * time.Millisecond)
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		if body := string(h.node("n1").startedNow()[0].Body); body != `{"params":{"n":1}}` {
			t.Errorf("body %s", body)
		}
	})
}

func TestLanes_InvalidRecordsBecomeDeadLetters(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		bodies := []string{
			`{"params":`, anyJob, `[]`, `{"params":{},"priority":11}`, `{"params":{},"priority":` + strings.Repeat("9", 100_000) + `}`, anyJob, "\xff\x00",
		}
		for _, body := range bodies {
			h.enqueue("mail", "", body)
		}
		h.enqueue("nobody", "", anyJob)
		h.enqueue("mail", strings.Repeat("k", job.MaxKeyLen+1), anyJob)
		h.until("dead letters", func() bool { return h.streams.itemCount(outbox.DeadLetters) == 7 })
		h.until("the good ones ran", func() bool { return h.counts().Delivered == 2 })
		var letters strings.Builder
		for _, batch := range h.streams.published(outbox.DeadLetters) {
			letters.Write(batch.Body)
			letters.WriteByte('\n')
		}
		for _, want := range []string{"rejected: job is not valid JSON", "priority is 11", "the queue does not exist", "idempotency key is longer"} {
			if !strings.Contains(letters.String(), want) {
				t.Errorf("no dead letter has the reason %q", want)
			}
		}
		for _, fold := range commandsOf[*ledger.Ingest](h.raft.entries()) {
			for _, r := range fold.Rejected {
				if len(r.Reason) > maxReason {
					t.Errorf("a reason has %d bytes", len(r.Reason))
				}
			}
		}
	}, func(c *Config) { c.CreateQueues = false })
}

func TestLanes_ReplacedStreamIsNotIngested(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		first := h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.state(first) == job.Completed })
		if err := h.end(); err != nil {
			t.Fatalf("tenure ended with %v", err)
		}
		h.lanes.set(func() { h.lanes.lanes[0].records[0].Stored = time.Now() }) // rolled back and written again
		h.begin()
		h.enqueue("mail", "", anyJob)
		h.enqueueIn(1, "mail", "", anyJob) // the other lane is not affected
		h.until("the other lane's job ran", func() bool { return h.counts().Delivered == 2 })
		h.advance(time.Second)
		status, err := h.sched.Status(h.ctx)
		if err != nil || !strings.Contains(fmt.Sprint(status.Reasons), "is not the one that was ingested") {
			t.Errorf("reasons %q, error %v", status.Reasons, err)
		}
		if n := len(h.node("n1").startedNow()); n != 2 {
			t.Errorf("%d jobs started", n)
		}
	})
}

func TestLanes_LostRecordsStopTheirLane(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			h.lanes.store(0, "mail", "", anyJob)
		}
		h.lanes.set(func() { h.lanes.lanes[0].first = 3 }) // 1 and 2 were purged
		h.begin()
		h.enqueueIn(1, "mail", "", anyJob)
		h.until("the other lane's job ran", func() bool { return h.counts().Delivered == 1 })
		status, _ := h.sched.Status(h.ctx)
		if !strings.Contains(fmt.Sprint(status.Reasons), "from 1 on were lost") {
			t.Errorf("reasons %q", status.Reasons)
		}
		if c := h.counts(); c.Delivered != 1 || c.Pending != 0 {
			t.Errorf("counts %+v: the gap was skipped", c)
		}
	})
}

func TestLanes_DownAndTailBroken(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		close(h.lanes.tailEnds) // every subscription breaks at once
		h.lanes.set(func() { h.lanes.down = errors.New("no leader") })
		h.advance(5 * time.Second)
		status, err := h.sched.Status(h.ctx)
		if err != nil || !strings.Contains(fmt.Sprint(status.Reasons), "no leader") {
			t.Errorf("status %+v, error %v", status, err)
		}
		h.lanes.store(0, "mail", "", anyJob)
		h.lanes.set(func() { h.lanes.down = nil })
		h.until("it ran", func() bool { return h.counts().Delivered == 1 })
		if status, _ := h.sched.Status(h.ctx); len(status.Reasons) != 0 {
			t.Errorf("reasons %q are left", status.Reasons)
		}
	})
}

// TestLanes_BacklogIsSharedAndBounded checks that a lane with a long backlog
// does not delay the others, and that no entry exceeds its maximum size.
func TestLanes_BacklogIsSharedAndBounded(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		long := `{"function":"` + strings.Repeat("f", 200) + `"}`
		for range 20_000 {
			h.lanes.store(0, "long-"+strings.Repeat("q", 100), "", long)
		}
		h.raft.set(func() { h.raft.delay = 20 * time.Millisecond })
		h.begin()
		id := h.enqueueIn(1, "mail", "", anyJob)
		began := time.Now()
		h.until("the short lane's job is known", func() bool { _, known := h.find(id); return known })
		if took := time.Since(began); took > 60*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		h.until("all are ingested", func() bool { return h.counts().Pending == 20_001 })
		for _, f := range commandsOf[*ledger.Ingest](h.raft.entries()) {
			size := 0
			for i := range f.Jobs {
				size += len(f.Jobs[i].Queue) + len(f.Jobs[i].Function) + recordSize
			}
			if size > maxEntrySize {
				t.Errorf("an ingest of %d jobs takes %d bytes", len(f.Jobs), size)
			}
		}
		if h.raft.maxInFlight > maxInFlight {
			t.Errorf("%d entries were in flight", h.raft.maxInFlight)
		}
	})
}

// TestLanes_PackedRecords checks that the records of one message become jobs of their own, each
// with its body, also if one of them is rejected, if the message is read and not received, and
// after another tenure has begun.
func TestLanes_PackedRecords(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		body := func(n int) string { return fmt.Sprintf(`{"params":{"n":%d}}`, n) }
		received := h.lanes.storePacked("mail", body(1), body(2), `{"params":`, body(3))
		h.sched.ReceiveRecords(received)
		read := h.lanes.storePacked("mail", body(4), body(5))
		h.sched.ReceiveRecords(read[:1]) // without the other it does not count
		h.until("all are ingested", func() bool { return h.counts().Pending == 5 && h.counts().Failed == 1 })
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.begin()
		last := h.lanes.storePacked("mail", body(6), `{`)
		h.until("the last are ingested", func() bool { return h.counts().Pending == 6 && h.counts().Failed == 2 })
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		h.until("all ran", func() bool { return h.counts().Delivered == 6 })
		started := h.node("n1").startedNow()
		want := []job.Position{{Seq: 1}, {Seq: 1, Index: 1}, {Seq: 1, Index: 3}, {Seq: 2}, {Seq: 2, Index: 1}, {Seq: 3}}
		for i, a := range started {
			if a.Position != want[i] || len(a.Body) > 0 && string(a.Body) != body(i+1) {
				t.Errorf("start %d is %s with body %s, want %s", i, a.Position, a.Body, want[i])
			}
		}
		for _, r := range []job.Record{received[2], last[1]} {
			if view, found := h.find(h.id(r)); !found || view.State != job.Failed || view.Position != r.Position {
				t.Errorf("the rejected record at %s: %+v", r.Position, view)
			}
		}
		if view, _ := h.find(h.id(read[1])); view.Position != read[1].Position {
			t.Errorf("a record that was read is at %s, want %s", view.Position, read[1].Position)
		}
		h.checkNoOverlap()
	})
}
