package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// allPublished reports whether everything in the ledger is published and the outbox
// is empty.
func (h *harness) allPublished() (done bool) {
	h.raft.View(func(l *ledger.Ledger) {
		done = l.OutboxBytes() == 0 && h.streams.itemCount(outbox.History) == l.LastEvent() &&
			h.streams.itemCount(outbox.Results) == l.LastResult() && h.streams.itemCount(outbox.DeadLetters) == l.LastDeadLetter()
	})
	return done
}

// mixedJobs is work of which every third job fails for good and every other one
// returns a result.
func mixedJobs() func(*job.Assignment) (time.Duration, job.Outcome) {
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

// TestPublish_NoGapsThroughFaults publishes to fake streams that fail the test
// on a gap or a duplicate.
func TestPublish_NoGapsThroughFaults(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = mixedJobs() })
		n.offer(job.Overhop, "mail", "w1", 10)
		h.streams.set(func() { h.streams.faults = strings.Repeat("..k...r....kk..rk", 10) })
		for range 400 {
			h.enqueue("mail", "", anyJob)
			h.advance(time.Millisecond)
		}
		h.until("all ran", func() bool { c := h.counts(); return c.Delivered+c.Failed == 400 })
		h.streams.set(func() { h.streams.faults = "" })
		h.until("everything is published", h.allPublished)
		number := uint64(0)
		for _, batch := range h.streams.published(outbox.History) {
			lines, err := history.Expand(batch.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range bytes.Split(bytes.TrimSpace(lines), []byte("\n")) {
				var event struct{ Seq uint64 }
				if err := json.Unmarshal(line, &event); err != nil || event.Seq != number+1 {
					t.Fatalf("line %s after number %d: %v", line, number, err)
				}
				number = event.Seq
			}
			if len(batch.Body) > 256<<10 || batch.Count > 8000 {
				t.Errorf("a batch of %d events, %d bytes", batch.Count, len(batch.Body))
			}
			if batch.Header["Yard-Lanes"] == "" {
				t.Errorf("a batch without the lanes' cursors")
			}
		}
		if status, _ := h.sched.Status(h.ctx); len(status.Reasons) > 0 {
			t.Errorf("reasons %q are left", status.Reasons)
		}
	})
}

func TestPublish_NoGapsAcrossTenures(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = mixedJobs() })
		n.offer(job.Overhop, "mail", "w1", 10)
		for i := range 10 {
			for range 30 {
				h.enqueue("mail", "", anyJob)
				h.advance(time.Millisecond)
			}
			h.advance(time.Duration(i) * 700 * time.Microsecond)
			if err := h.end(); err != nil {
				t.Fatal(err)
			}
			h.begin()
		}
		h.until("all ran", func() bool { c := h.counts(); return c.Delivered+c.Failed == 300 })
		h.until("everything is published", h.allPublished)
		h.checkNoOverlap()
	})
}

func TestPublish_InvalidValues(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		outcomes := []job.Outcome{
			{Status: job.Success, Result: job.Value{Data: []byte(`{"open`)}},
			{Status: job.Success, Result: job.Value{Data: []byte{0xc0}, Msgpack: true}},
			{Status: job.Error, Final: true, Fault: &job.Fault{Message: "\xff", Details: []byte("{'x'")}},
		}
		n.do(func() {
			n.work = func(a *job.Assignment) (time.Duration, job.Outcome) { return 0, outcomes[a.Position.Seq-1] }
		})
		n.offer(job.Overhop, "mail", "w1", 1)
		for range outcomes {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all ran", func() bool { c := h.counts(); return c.Delivered+c.Failed == 3 })
		h.until("everything is published", h.allPublished)
		var letter api.DeadLetterMessage
		if err := json.Unmarshal(h.streams.published(outbox.DeadLetters)[0].Body, &letter); err != nil || string(letter.Error.Details) != `"{'x'"` || string(letter.Job) != anyJob {
			t.Errorf("dead letter %+v: %v", letter, err)
		}
		var line outbox.ResultLine
		first, _, _ := bytes.Cut(h.streams.published(outbox.Results)[0].Body, []byte("\n"))
		if err := json.Unmarshal(first, &line); err != nil || string(line.ResultBytes) != `{"open` {
			t.Errorf("result line %s: %v", first, err)
		}
	})
}

func TestPublish_RefusesTruncatedStream(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 10)
		for range 20 {
			h.enqueue("mail", "", anyJob)
			h.advance(15 * time.Millisecond)
		}
		h.until("everything is published", h.allPublished)
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.streams.set(func() { h.streams.batches[outbox.History] = h.streams.batches[outbox.History][:3] })
		h.begin()
		h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.counts().Delivered == 21 })
		h.advance(5 * time.Second)
		status, _ := h.sched.Status(h.ctx)
		if !strings.Contains(fmt.Sprint(status.Reasons), "it has lost them") {
			t.Errorf("reasons %q", status.Reasons)
		}
		if n := len(h.streams.published(outbox.History)); n != 3 {
			t.Errorf("%d batches: the gap was not detected", n)
		}
	})
}

func TestPublish_StreamAheadOfLedger(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.streams.set(func() { h.streams.batches[outbox.Results] = []outbox.Batch{{First: 1, Count: 50}} })
		h.begin()
		n := h.node("n1")
		n.do(func() { n.work = endsWith(job.Outcome{Status: job.Success, Result: job.Value{Data: []byte("1")}}) })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.counts().Delivered == 1 })
		h.advance(5 * time.Second)
		h.raft.View(func(l *ledger.Ledger) {
			if len(l.ResultsAfter(0)) != 1 {
				t.Errorf("the result is missing")
			}
		})
		if status, _ := h.sched.Status(h.ctx); !strings.Contains(fmt.Sprint(status.Reasons), "one of them went back") {
			t.Errorf("reasons %q", status.Reasons)
		}
	})
}

func TestPublish_LiveEventsToSubscribers(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		h.streams.set(func() { h.streams.watched = true })
		id := h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(10 * time.Millisecond)
		h.streams.mu.Lock()
		defer h.streams.mu.Unlock()
		if got, want := fmt.Sprint(h.streams.lines), "[dispatch-queued dispatch-notified worker.assigned dispatch-delivered]"; got != want {
			t.Errorf("live events %s, want %s", got, want)
		}
	})
}

// TestPublish_NoLiveEventsWithoutSubscribers checks that no live event is
// written without subscribers.
func TestPublish_NoLiveEventsWithoutSubscribers(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it ran, and history has it", func() bool { return h.state(id) == job.Completed && h.allPublished() })
		h.advance(10 * time.Millisecond)
		h.streams.mu.Lock()
		defer h.streams.mu.Unlock()
		if len(h.streams.lines) > 0 || h.streams.watchedCalls == 0 {
			t.Errorf("%d calls of HasSubscribers, published %q", h.streams.watchedCalls, h.streams.lines)
		}
	})
}

func TestOutbox_FullStopsIngestThenPlacement(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() {
			n.work = endsWith(job.Outcome{Status: job.Error, Final: true, Fault: &job.Fault{Message: strings.Repeat("x", job.MaxInlineFault)}})
		})
		due := time.Now().Add(4 * time.Minute)
		delayed := h.enqueue("later", "", delayedJob(due))
		const jobs = 7000
		for range jobs {
			h.lanes.store(0, "mail", "", anyJob)
		}
		h.until("all are ingested", func() bool { return h.counts().Pending == jobs })
		h.streams.set(func() { h.streams.down = true })
		n.offer(job.Overhop, "mail", "w1", 100)
		h.until("placing stops", func() bool {
			h.advance(2 * time.Second)
			return h.counts().Notified == 0
		})
		pending := h.enqueue("mail", "", anyJob)
		h.advance(time.Until(due) - 10*time.Second)
		h.until("the delayed job is due, and waits", func() bool { return h.state(delayed) == job.Waiting })
		if late := time.Since(due); late < 0 || late > 20*time.Millisecond {
			t.Errorf("the job started %v late", late)
		}
		h.raft.View(func(l *ledger.Ledger) {
			if b := l.OutboxBytes(); b < ledger.MaxOutbox/4*3 || b > ledger.MaxOutbox {
				t.Errorf("the outbox has %d bytes", b)
			}
		})
		if _, known := h.find(pending); known || h.counts().Pending == 0 {
			t.Errorf("ingested: %v; %d wait", known, h.counts().Pending)
		}
		status, _ := h.sched.Status(h.ctx)
		if !strings.Contains(fmt.Sprint(status.Reasons), "half full") || !strings.Contains(fmt.Sprint(status.Reasons), "no leader") {
			t.Errorf("reasons %q", status.Reasons)
		}
		if published := strings.Join(h.blockedEvents(), "\n"); strings.Count(published, "system: the outbox is half full") != 1 || strings.Count(published, "system: ") != 3 {
			t.Errorf("blocked events\n%s", published)
		}
		entries := len(h.raft.entries())
		h.advance(time.Minute)
		if more := len(h.raft.entries()) - entries; more > 25 {
			t.Errorf("%d entries in a minute while blocked", more)
		}

		h.streams.set(func() { h.streams.down = false })
		h.until("all goes on", func() bool { return h.counts().Failed == jobs+1 && h.allPublished() })
		if status, _ := h.sched.Status(h.ctx); len(status.Reasons) > 0 {
			t.Errorf("reasons %q are left", status.Reasons)
		}
		for _, s := range commandsOf[*ledger.Settle](h.raft.entries()) {
			size := 0
			for i := range s.Settlements {
				size += len(s.Settlements[i].Reason) + len(s.Settlements[i].Fault.Message) + outcomeSize
			}
			if size > maxEntrySize {
				t.Errorf("%d outcomes of %d bytes in one entry", len(s.Settlements), size)
			}
		}
	})
}

// TestBlockedReason checks that a blocked node ingests nothing, reports the
// reason, settles running jobs, and continues once it is no longer blocked.
func TestBlockedReason(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		var held atomic.Value
		held.Store("")
		h.sched.cfg.BlockedReason = func() string { return held.Load().(string) }
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.begin()
		n := h.node("n1")
		n.do(func() { n.work = worksFor(2 * time.Second) })
		n.offer(job.Overhop, "mail", "w1", 10)
		first := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(first) == job.Active })
		held.Store("the disk of the authority's node, n1, has next to no room")
		h.advance(4 * time.Second)
		second := h.enqueue("mail", "", anyJob)
		h.advance(4 * time.Second)
		if state := h.state(first); state != job.Completed {
			t.Errorf("the running job is %s", state)
		}
		if _, known := h.find(second); known {
			t.Error("a job was ingested")
		}
		h.wantReason("has next to no room")
		held.Store("")
		h.until("the other runs, too", func() bool { return h.state(second) == job.Completed })
	})
}
