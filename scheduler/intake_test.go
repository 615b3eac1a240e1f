package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

func TestIntake_NoticedRecordIsFoldedAndPlacedInOneEntry(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		y.pass(50 * time.Millisecond)
		before := len(y.raft.entries())
		noticed := time.Now()
		id := y.enqueue("mail", "", `{"params":{"to":"x"}}`)
		y.until("the job ran", func() bool { return y.state(id) == job.Completed })

		entries := y.raft.entries()[before:]
		first := entries[0]
		if len(commandsOf[*ledger.Fold](entries[:1])) != 1 || len(commandsOf[*ledger.Place](entries[:1])) != 1 {
			t.Errorf("the first entry holds %T…, want a fold and a placement", first.Commands)
		}
		if wait := first.submitted.Sub(noticed); wait != 0 {
			t.Errorf("the entry left %v after the notice, want at once", wait)
		}
		started := y.node("n1").startedNow()
		if len(started) != 1 || started[0].Job != id || started[0].N != 1 || started[0].Attempt != 1 {
			t.Fatalf("started %+v", started)
		}
		a := started[0]
		if string(a.Body) != `{"params":{"to":"x"}}` || a.Worker != "w1" || a.Fence == 0 || a.Timeout != 5*time.Minute || a.MaxAttempts != 5 {
			t.Errorf("assignment %+v", a)
		}
	})
}

func TestIntake_WithoutNotices(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		var ids []job.ID
		for i := range 30 {
			ids = append(ids, y.id(y.lanes.store(uint8(i%3), "mail", "", anyJob)))
		}
		began := time.Now()
		y.until("all ran", func() bool { return y.counts().Delivered == 30 })
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("reading took %v", took)
		}
		for _, id := range ids {
			if y.state(id) != job.Completed {
				t.Errorf("job %s is %s", id, y.state(id))
			}
		}
		y.noDoubles()
	})
}

func TestIntake_NoticesInAnyOrderWithGapsAndDuplicates(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 100)
		y.pass(20 * time.Millisecond)
		var records []job.Record
		for i := range 10 {
			records = append(records, y.lanes.store(0, "mail", fmt.Sprint("key", i), anyJob))
		}
		y.lanes.set(func() { y.lanes.reads = 0 })
		began := time.Now()
		for _, i := range []int{1, 2, 0, 2, 1, 4, 8, 7, 3} { // 5, 6 and 9 are never told
			y.sched.Notice(records[i : i+1])
		}
		y.until("the gap is closed", func() bool { return y.counts().Delivered+y.counts().Notified == 10 })
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("closing the gap took %v", took)
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 10 })
		for i, a := range y.node("n1").startedNow() {
			if a.Position.Seq != uint64(i+1) {
				t.Errorf("start %d is record %d", i, a.Position.Seq)
			}
		}
		var from uint64
		for _, f := range commandsOf[*ledger.Fold](y.raft.entries()) {
			if f.From != from {
				t.Errorf("a fold goes from %d, the cursor was %d", f.From, from)
			}
			from = f.To
		}
	})
}

func TestIntake_SameKeyIsOneJob(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		y.pass(20 * time.Millisecond)
		for i := range 12 {
			y.enqueueIn(uint8(i%2), "mail", "invoice-7", anyJob)
		}
		y.until("it ran", func() bool { return y.counts().Delivered == 1 })
		y.enqueue("mail", "invoice-7", anyJob)
		y.pass(time.Second)
		if n := len(y.node("n1").startedNow()); n != 1 {
			t.Errorf("it started %d times", n)
		}
		y.sched.tenure().post(func() {
			if m := y.sched.tenure(); len(m.bodies.bodies) != 0 || m.bodies.bytes != 0 || len(m.shadow) != 0 {
				t.Errorf("%d bodies of %d bytes and %d shadows are left", len(m.bodies.bodies), m.bodies.bytes, len(m.shadow))
			}
		})
		y.pass(time.Millisecond)
	})
}

// The body that goes with an assignment is the one at the job's position, even
// if another came under its key.
func TestIntake_SecondBodyUnderOneKey(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		id := y.enqueue("mail", "k", `{"params":{"n":1}}`)
		y.enqueue("mail", "k", `{"params":{"n":2}}`)
		y.pass(50 * time.Millisecond)
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		if body := string(y.node("n1").startedNow()[0].Body); body != `{"params":{"n":1}}` {
			t.Errorf("body %s", body)
		}
	})
}

func TestIntake_InvalidRecordsBecomeDeadLetters(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		bodies := []string{
			`{"params":`, anyJob, `[]`, `{"params":{},"priority":11}`, `{"params":{},"priority":` + strings.Repeat("9", 100_000) + `}`, anyJob, "\xff\x00",
		}
		for _, body := range bodies {
			y.enqueue("mail", "", body)
		}
		y.enqueue("nobody", "", anyJob)
		y.enqueue("mail", strings.Repeat("k", job.MaxKeyLen+1), anyJob)
		y.until("dead letters", func() bool { return y.tales.items(DeadLetters) == 7 })
		y.until("the good ones ran", func() bool { return y.counts().Delivered == 2 })
		var letters strings.Builder
		for _, tale := range y.tales.told(DeadLetters) {
			letters.Write(tale.Body)
			letters.WriteByte('\n')
		}
		for _, want := range []string{"rejected: job is not valid JSON", "priority is 11", "the queue does not exist", "idempotency key is longer"} {
			if !strings.Contains(letters.String(), want) {
				t.Errorf("no dead letter says %q", want)
			}
		}
		for _, fold := range commandsOf[*ledger.Fold](y.raft.entries()) {
			for _, r := range fold.Rejected {
				if len(r.Reason) > maxReason {
					t.Errorf("a reason has %d bytes", len(r.Reason))
				}
			}
		}
	}, func(c *Config) { c.CreateQueues = false })
}

func TestIntake_LaneThatIsAnotherStreamIsNotFolded(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		first := y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.state(first) == job.Completed })
		if err := y.end(); err != nil {
			t.Fatalf("tenure ended with %v", err)
		}
		y.lanes.set(func() { y.lanes.lanes[0].records[0].Stored = time.Now() }) // rolled back and written again
		y.begin()
		y.enqueue("mail", "", anyJob)
		y.enqueueIn(1, "mail", "", anyJob) // the other lane goes on
		y.until("the other lane's job ran", func() bool { return y.counts().Delivered == 2 })
		y.pass(time.Second)
		look, err := y.sched.Look(y.ctx)
		if err != nil || !strings.Contains(fmt.Sprint(look.Reasons), "is not the one that was folded") {
			t.Errorf("reasons %q, error %v", look.Reasons, err)
		}
		if n := len(y.node("n1").startedNow()); n != 2 {
			t.Errorf("%d jobs started", n)
		}
	})
}

func TestIntake_LostRecordsStopTheirLane(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			y.lanes.store(0, "mail", "", anyJob)
		}
		y.lanes.set(func() { y.lanes.lanes[0].first = 3 }) // 1 and 2 are gone
		y.begin()
		y.enqueueIn(1, "mail", "", anyJob)
		y.until("the other lane's job ran", func() bool { return y.counts().Delivered == 1 })
		look, _ := y.sched.Look(y.ctx)
		if !strings.Contains(fmt.Sprint(look.Reasons), "from 1 on were lost") {
			t.Errorf("reasons %q", look.Reasons)
		}
		if c := y.counts(); c.Delivered != 1 || c.Pending != 0 {
			t.Errorf("counts %+v: the gap was skipped", c)
		}
	})
}

func TestIntake_LaneDownAndTailBroken(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		close(y.lanes.tailed) // every subscription breaks at once
		y.lanes.set(func() { y.lanes.down = errors.New("no leader") })
		y.pass(5 * time.Second)
		look, err := y.sched.Look(y.ctx)
		if err != nil || !strings.Contains(fmt.Sprint(look.Reasons), "no leader") {
			t.Errorf("look %+v, error %v", look, err)
		}
		y.lanes.store(0, "mail", "", anyJob)
		y.lanes.set(func() { y.lanes.down = nil })
		y.until("it ran", func() bool { return y.counts().Delivered == 1 })
		if look, _ := y.sched.Look(y.ctx); len(look.Reasons) != 0 {
			t.Errorf("reasons %q are left", look.Reasons)
		}
	})
}

// A lane with a long backlog does not keep the others waiting, and no entry
// grows beyond its bound.
func TestIntake_BacklogIsSharedAndBounded(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		long := `{"function":"` + strings.Repeat("f", 200) + `"}`
		for range 20_000 {
			y.lanes.store(0, "long-"+strings.Repeat("q", 100), "", long)
		}
		y.raft.set(func() { y.raft.delay = 20 * time.Millisecond })
		y.begin()
		id := y.enqueueIn(1, "mail", "", anyJob)
		began := time.Now()
		y.until("the short lane's job is known", func() bool { _, known := y.find(id); return known })
		if took := time.Since(began); took > 60*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		y.until("all are folded", func() bool { return y.counts().Pending == 20_001 })
		for _, f := range commandsOf[*ledger.Fold](y.raft.entries()) {
			size := 0
			for i := range f.Jobs {
				size += len(f.Jobs[i].Queue) + len(f.Jobs[i].Function) + foldSize
			}
			if size > maxEntry {
				t.Errorf("a fold of %d jobs takes %d bytes", len(f.Jobs), size)
			}
		}
		if y.raft.most > maxInFlight {
			t.Errorf("%d entries were in flight", y.raft.most)
		}
	})
}
