package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// told tells whether all that happened is published and trimmed.
func (y *yard) allTold() (done bool) {
	y.raft.View(func(l *ledger.Ledger) {
		done = l.OutboxBytes() == 0 && y.tales.items(History) == l.LastEvent() &&
			y.tales.items(Results) == l.LastResult() && y.tales.items(DeadLetters) == l.LastDead()
	})
	return done
}

// mixed is work of which every third fails for good and every other says
// something.
func mixed() func(*job.Assignment) (time.Duration, job.Outcome) {
	n := 0
	return func(*job.Assignment) (time.Duration, job.Outcome) {
		n++
		o := job.Outcome{Status: job.Success, Started: true}
		switch n % 3 {
		case 0:
			o = job.Outcome{Status: job.Error, Final: true, Started: true, Fault: &job.Fault{Message: "no"}}
		case 1:
			o.Result = job.Value{Data: fmt.Appendf(nil, `{"n":%d}`, n)}
		}
		return time.Millisecond, o
	}
}

// The fake streams refuse what does not follow on, so that these tests fail on
// a gap or a second copy.
func TestPublish_DenseThroughFaults(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = mixed() })
		n.offer(job.Overhop, "mail", "w1", 10)
		y.tales.set(func() { y.tales.faults = strings.Repeat("..k...r....kk..rk", 10) })
		for range 400 {
			y.enqueue("mail", "", anyJob)
			y.pass(time.Millisecond)
		}
		y.until("all ran", func() bool { c := y.counts(); return c.Delivered+c.Failed == 400 })
		y.tales.set(func() { y.tales.faults = "" })
		y.until("all is told", y.allTold)
		number := uint64(0)
		for _, tale := range y.tales.told(History) {
			for _, line := range bytes.Split(bytes.TrimSpace(tale.Body), []byte("\n")) {
				var event struct{ Seq uint64 }
				if err := json.Unmarshal(line, &event); err != nil || event.Seq != number+1 {
					t.Fatalf("line %s after number %d: %v", line, number, err)
				}
				number = event.Seq
			}
			if len(tale.Body) > maxTale || tale.Count > maxLines {
				t.Errorf("a tale of %d lines, %d bytes", tale.Count, len(tale.Body))
			}
			if tale.Header["Yard-Lanes"] == "" {
				t.Errorf("a tale without the lanes' positions")
			}
		}
		if look, _ := y.sched.Look(y.ctx); len(look.Reasons) > 0 {
			t.Errorf("reasons %q are left", look.Reasons)
		}
	})
}

func TestPublish_DenseOverTenures(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = mixed() })
		n.offer(job.Overhop, "mail", "w1", 10)
		for i := range 10 {
			for range 30 {
				y.enqueue("mail", "", anyJob)
				y.pass(time.Millisecond)
			}
			y.pass(time.Duration(i) * 700 * time.Microsecond)
			if err := y.end(); err != nil {
				t.Fatal(err)
			}
			y.begin()
		}
		y.until("all ran", func() bool { c := y.counts(); return c.Delivered+c.Failed == 300 })
		y.until("all is told", y.allTold)
		y.noDoubles()
	})
}

func TestPublish_PoisonGoesThrough(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		outcomes := []job.Outcome{
			{Status: job.Success, Result: job.Value{Data: []byte(`{"open`)}},
			{Status: job.Success, Result: job.Value{Data: []byte{0xc0}, Msgpack: true}},
			{Status: job.Error, Final: true, Fault: &job.Fault{Message: "\xff", Details: []byte("{'x'")}},
		}
		n.look(func() {
			n.work = func(a *job.Assignment) (time.Duration, job.Outcome) { return 0, outcomes[a.Position.Seq-1] }
		})
		n.offer(job.Overhop, "mail", "w1", 1)
		for range outcomes {
			y.enqueue("mail", "", anyJob)
		}
		y.until("all ran", func() bool { c := y.counts(); return c.Delivered+c.Failed == 3 })
		y.until("all is told", y.allTold)
		var letter DeadLetter
		if err := json.Unmarshal(y.tales.told(DeadLetters)[0].Body, &letter); err != nil || string(letter.Error.Details) != `"{'x'"` || string(letter.Job) != anyJob {
			t.Errorf("dead letter %+v: %v", letter, err)
		}
		var line ResultLine
		first, _, _ := bytes.Cut(y.tales.told(Results)[0].Body, []byte("\n"))
		if err := json.Unmarshal(first, &line); err != nil || string(line.Broken) != `{"open` {
			t.Errorf("result line %s: %v", first, err)
		}
	})
}

func TestPublish_StreamThatLostItsEndIsNotContinued(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 10)
		for range 20 {
			y.enqueue("mail", "", anyJob)
			y.pass(15 * time.Millisecond)
		}
		y.until("all is told", y.allTold)
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		y.tales.set(func() { y.tales.stories[History] = y.tales.stories[History][:3] })
		y.begin()
		y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.counts().Delivered == 21 })
		y.pass(5 * time.Second)
		look, _ := y.sched.Look(y.ctx)
		if !strings.Contains(fmt.Sprint(look.Reasons), "it has lost them") {
			t.Errorf("reasons %q", look.Reasons)
		}
		if n := len(y.tales.told(History)); n != 3 {
			t.Errorf("%d tales: the gap was written over", n)
		}
	})
}

func TestPublish_StreamAheadOfTheLedgerTrimsNothing(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		y.tales.set(func() { y.tales.stories[Results] = []Tale{{First: 1, Count: 50}} })
		y.begin()
		n := y.node("n1")
		n.look(func() { n.work = ending(job.Outcome{Status: job.Success, Result: job.Value{Data: []byte("1")}}) })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.counts().Delivered == 1 })
		y.pass(5 * time.Second)
		y.raft.View(func(l *ledger.Ledger) {
			if len(l.ResultsAfter(0)) != 1 {
				t.Errorf("the result is gone")
			}
		})
		if look, _ := y.sched.Look(y.ctx); !strings.Contains(fmt.Sprint(look.Reasons), "one of them went back") {
			t.Errorf("reasons %q", look.Reasons)
		}
	})
}

func TestPublish_LiveEventsWhileWatched(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		y.tales.set(func() { y.tales.watched = true })
		id := y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		y.pass(10 * time.Millisecond)
		y.tales.mu.Lock()
		defer y.tales.mu.Unlock()
		if got, want := fmt.Sprint(y.tales.lines), "[dispatch-queued dispatch-notified worker.assigned dispatch-delivered]"; got != want {
			t.Errorf("live events %s, want %s", got, want)
		}
	})
}

// While nobody listens, no event is written for the live feed.
func TestPublish_NoLiveEventsUnwatched(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it ran, and history has it", func() bool { return y.state(id) == job.Completed && y.allTold() })
		y.pass(10 * time.Millisecond)
		y.tales.mu.Lock()
		defer y.tales.mu.Unlock()
		if len(y.tales.lines) > 0 || y.tales.asked == 0 {
			t.Errorf("asked %d times whether somebody listens, then published %q", y.tales.asked, y.tales.lines)
		}
	})
}

// A notice does not name its queue: the line behind it, which does, is in the
// same message, wherever that ends.
func TestPublish_NoticesKeepTheirQueue(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.tales.set(func() { y.tales.down = true })
		for range maxLines {
			y.lanes.store(0, "mail", "", anyJob)
		}
		y.node("n1").offer(job.Overhop, "mail", "w1", 100)
		y.until("all ran", func() bool { return y.counts().Delivered == maxLines })
		longest := uint64(0)
		for after := range uint64(3 * maxLines) {
			tale, err := y.sched.tenure().gatherHistory(y.ctx, after)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(tale.Body)), "\n")
			if last := lines[len(lines)-1]; strings.Contains(last, `"DispatchNotified"`) || !tale.More {
				t.Fatalf("%d events behind number %d, more: %v; they end with %s", tale.Count, after, tale.More, last)
			}
			longest = max(longest, tale.Count)
		}
		if longest > maxLines+1 {
			t.Errorf("%d events in a message", longest)
		}
	})
}

func TestOutbox_FullStopsFoldingThenPlacing(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() {
			n.work = ending(job.Outcome{Status: job.Error, Final: true, Fault: &job.Fault{Message: strings.Repeat("x", job.MaxInlineFault)}})
		})
		due := time.Now().Add(4 * time.Minute)
		delayed := y.enqueue("later", "", delayedJob(due))
		const jobs = 7000
		for range jobs {
			y.lanes.store(0, "mail", "", anyJob)
		}
		y.until("all are folded", func() bool { return y.counts().Pending == jobs })
		y.tales.set(func() { y.tales.down = true })
		n.offer(job.Overhop, "mail", "w1", 100)
		y.until("placing stops", func() bool {
			y.pass(2 * time.Second)
			return y.counts().Notified == 0
		})
		unfolded := y.enqueue("mail", "", anyJob)
		y.pass(time.Until(due) - 10*time.Second)
		y.until("the delayed job is due, and waits", func() bool { return y.state(delayed) == job.Waiting })
		if late := time.Since(due); late < 0 || late > 20*time.Millisecond {
			t.Errorf("it was due %v before", late)
		}
		y.raft.View(func(l *ledger.Ledger) {
			if b := l.OutboxBytes(); b < ledger.MaxOutbox/4*3 || b > ledger.MaxOutbox {
				t.Errorf("the outbox has %d bytes", b)
			}
		})
		if _, known := y.find(unfolded); known || y.counts().Pending == 0 {
			t.Errorf("folded: %v; %d wait", known, y.counts().Pending)
		}
		look, _ := y.sched.Look(y.ctx)
		if !strings.Contains(fmt.Sprint(look.Reasons), "half full") || !strings.Contains(fmt.Sprint(look.Reasons), "no leader") {
			t.Errorf("reasons %q", look.Reasons)
		}
		if told := strings.Join(y.blocked(), "\n"); strings.Count(told, "system: the outbox is half full") != 1 || strings.Count(told, "system: ") != 3 {
			t.Errorf("history is told of\n%s", told)
		}
		entries := len(y.raft.entries())
		y.pass(time.Minute)
		if more := len(y.raft.entries()) - entries; more > 25 {
			t.Errorf("%d entries in a minute in which nothing can go on", more)
		}

		y.tales.set(func() { y.tales.down = false })
		y.until("all goes on", func() bool { return y.counts().Failed == jobs+1 && y.allTold() })
		if look, _ := y.sched.Look(y.ctx); len(look.Reasons) > 0 {
			t.Errorf("reasons %q are left", look.Reasons)
		}
		for _, s := range commandsOf[*ledger.Settle](y.raft.entries()) {
			size := 0
			for i := range s.Ends {
				size += len(s.Ends[i].Reason) + len(s.Ends[i].Fault.Message) + endSize
			}
			if size > maxEntry {
				t.Errorf("%d outcomes of %d bytes in one entry", len(s.Ends), size)
			}
		}
	})
}

// A node without room takes nothing from the lanes, says why, settles what is in
// hand, and goes on when there is room.
func TestHeld(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		var held atomic.Value
		held.Store("")
		y.sched.cfg.Held = func() string { return held.Load().(string) }
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		y.begin()
		n := y.node("n1")
		n.look(func() { n.work = lasting(2 * time.Second) })
		n.offer(job.Overhop, "mail", "w1", 10)
		first := y.enqueue("mail", "", anyJob)
		y.until("it runs", func() bool { return y.state(first) == job.Active })
		held.Store("the disk of the authority's node, n1, has next to no room")
		y.pass(4 * time.Second)
		second := y.enqueue("mail", "", anyJob)
		y.pass(4 * time.Second)
		if state := y.state(first); state != job.Completed {
			t.Errorf("the job in hand is %s", state)
		}
		if _, known := y.find(second); known {
			t.Error("a job was folded")
		}
		y.says("has next to no room")
		held.Store("")
		y.until("the other runs, too", func() bool { return y.state(second) == job.Completed })
	})
}
