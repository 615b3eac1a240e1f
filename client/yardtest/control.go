package yardtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Times of waiting, all virtual.
const (
	pollTime  = time.Millisecond
	settled   = 15 * time.Millisecond // for which nothing may happen: longer than withdrawn capacity takes to reach the authority
	grace     = 100 * time.Millisecond
	awaitTime = time.Minute
	idleLimit = time.Hour // for which Drain and RunOne wait although no job starts or ends
)

// await lets virtual time pass until problem returns "". It fails the test after awaitTime.
func (y *Yard) await(what string, problem func() string) {
	y.t.Helper()
	until := time.Now().Add(awaitTime)
	for {
		synctest.Wait()
		reason := problem()
		switch {
		case reason == "":
			return
		case !time.Now().Before(until):
			y.t.Fatalf("yardtest: %s: not within %s: %s", what, awaitTime, reason)
		}
		time.Sleep(pollTime)
	}
}

// authorityProblem returns why no jobs are placed; "" if they are.
func (y *Yard) authorityProblem() string {
	leader := y.core.Leader()
	if leader == nil {
		return "no member holds the authority"
	}
	status, err := leader.Scheduler.Status(y.ctx)
	switch {
	case err != nil:
		return leader.Name + ": " + err.Error()
	case !status.Dispatching || status.Deferred:
		return fmt.Sprintf("%s does not place jobs yet: %s", leader.Name, strings.Join(status.Reasons, "; "))
	}
	created := false
	leader.View(func(l *ledger.Ledger) { created = l.StreamsCreated() })
	if !created {
		return "the streams are being created"
	}
	return ""
}

// workerProblem returns why a worker takes no jobs; "" if it does, or has ended or was lost.
func (y *Yard) workerProblem(w *work) string {
	y.net.mu.Lock()
	lost := w.lost
	y.net.mu.Unlock()
	select {
	case <-w.ended:
		lost = true
	default:
	}
	if lost {
		return ""
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(w.ids) == 0 || !y.gate.hasOffered(w.ids[len(w.ids)-1]) {
		return "a worker is not connected"
	}
	return ""
}

// problem returns what is still to be done; "" if nothing is due and no job runs.
func (y *Yard) problem() string {
	if reason := y.authorityProblem(); reason != "" {
		return reason
	}
	n := y.anyNode()
	if n == nil {
		return "no member runs"
	}
	ends := y.core.Streams.LaneEnds()
	reason := ""
	n.View(func(l *ledger.Ledger) {
		for i, c := range l.Lanes() {
			if c.Cursor < ends[i] {
				reason = "the ledger does not have all jobs yet"
			}
		}
		l.Crons("", func(c ledger.CronView) bool {
			if c.Publishing {
				reason = "a job of cron entry " + c.Name + " is being enqueued"
			}
			return reason == ""
		})
		w := y.gate.workload(l)
		wait, mayBeDue := l.NextDue().Wait(ledger.SameClock(time.Now()))
		switch {
		case w.active > 0:
			reason = fmt.Sprintf("%d jobs run", w.active)
		case w.startable:
			reason = "jobs of " + strings.Join(w.due, ", ") + " are due"
		case mayBeDue && wait <= 0:
			reason = "a delayed job is due"
		case l.OutboxBytes() > 0:
			reason = "results are being stored"
		}
	})
	if reason != "" {
		return reason
	}
	y.mu.Lock()
	works := slices.Clone(y.works)
	y.mu.Unlock()
	for _, w := range works {
		if reason := y.workerProblem(w); reason != "" {
			return reason
		}
	}
	return ""
}

// settle lets virtual time pass until nothing is due and no job runs, at most for most if
// that is not 0. It fails the test if that takes idleLimit in which no job starts or ends.
func (y *Yard) settle(what string, most time.Duration) {
	y.t.Helper()
	began := time.Now()
	var quietSince, busySince time.Time
	last := ""
	for {
		synctest.Wait()
		now := time.Now()
		reason := y.problem()
		if activity := y.activity(); busySince.IsZero() || activity != last {
			busySince, last = now, activity
		}
		switch {
		case reason != "":
			quietSince = time.Time{}
			if now.Sub(busySince) >= idleLimit {
				y.t.Fatalf("yardtest: %s: no job has started or ended for %s, and %s.%s%s", what, idleLimit, reason, y.quorumHint(), y.listActive())
			}
		case quietSince.IsZero():
			quietSince = now
		case now.Sub(quietSince) >= settled:
			return
		}
		if most > 0 && now.Sub(began) >= most {
			return
		}
		time.Sleep(pollTime + now.Sub(busySince)/100) // seldom, if nothing happens
	}
}

// activity returns a text that changes when a job starts or ends.
func (y *Yard) activity() string {
	n := y.anyNode()
	if n == nil {
		return ""
	}
	var b strings.Builder
	n.View(func(l *ledger.Ledger) {
		for _, q := range l.Queues() {
			fmt.Fprint(&b, " ", q.Counts)
		}
	})
	return b.String()
}

// quorumHint returns what to do if too few members run for any of them to lead.
func (y *Yard) quorumHint() string {
	running := len(y.net.running())
	if running > len(y.cfg.Members)/2 {
		return ""
	}
	return fmt.Sprintf(" Only %d of %d members run, which is no majority: call Restart to start the others.", running, len(y.cfg.Members))
}

// Drain runs jobs until none is due now and none runs. Jobs that are delayed or wait for
// their next attempt stay as they are, unless they become due meanwhile.
//
// A handler that waits for the test never ends: then let it run with [Yard.Advance]. If no job
// starts or ends for an hour of virtual time, Drain fails the test and names the jobs that run.
func (y *Yard) Drain() {
	y.t.Helper()
	defer y.enter()()
	if hint := y.quorumHint(); hint != "" {
		y.t.Fatalf("yardtest: Drain: no member can hold the authority.%s", hint)
	}
	y.settle("Drain", 0)
}

// Advance lets virtual time pass. Jobs that become due meanwhile run: delayed ones, next
// attempts and those of cron entries. So do those that become due at the end, for which
// Advance takes up to a tenth of a second more.
func (y *Yard) Advance(d time.Duration) {
	y.t.Helper()
	time.Sleep(d)
	defer y.enter()()
	y.settle("Advance", grace)
}

// RunOne runs one attempt of one job, the one that has been due for longest of all queues
// with a free worker, and returns the job as it is then. It fails the test if none is due.
func (y *Yard) RunOne() api.Job {
	y.t.Helper()
	defer y.enter()()
	y.gate.set(held, slot{})
	defer y.gate.set(closed, slot{})
	y.catchUp()
	time.Sleep(settled) // the authority has learned that there is no capacity
	queue, ok := y.nextQueue()
	if !ok {
		y.t.Fatalf("yardtest: RunOne: no job is due whose queue has a free worker; there are %s", y.list(""))
	}
	only, _ := y.gate.slotOf(queue)
	y.gate.set(single, only)
	y.await("start of a job of queue "+queue, func() string {
		if y.gate.chosen().Job.IsZero() {
			return "the authority does not place it"
		}
		return ""
	})
	started := y.gate.chosen()
	until := time.Now().Add(idleLimit)
	for y.runs(started) {
		if !time.Now().Before(until) {
			y.t.Fatalf("yardtest: RunOne: the job has not ended within %s.%s", idleLimit, y.listActive())
		}
		time.Sleep(pollTime)
	}
	return y.show(started.Job)
}

// runs reports whether a dispatch is active.
func (y *Yard) runs(id job.DispatchID) (active bool) {
	synctest.Wait()
	if n := y.anyNode(); n != nil {
		n.View(func(l *ledger.Ledger) { _, active = l.Dispatch(id.Job, id.N) })
	}
	return active
}

// nextQueue returns the queue with capacity whose first waiting job was due first.
func (y *Yard) nextQueue() (queue string, ok bool) {
	n := y.anyNode()
	if n == nil {
		return "", false
	}
	var first time.Time
	n.View(func(l *ledger.Ledger) {
		for _, name := range y.gate.workload(l).due {
			waiting := l.List(name, job.Waiting, 0, 1)
			_, free := y.gate.slotOf(name)
			if free && len(waiting) > 0 && (!ok || waiting[0].RunAt.Before(first)) {
				queue, first, ok = name, waiting[0].RunAt, true
			}
		}
	})
	return queue, ok
}

// Fail makes the next n attempts of a queue's jobs fail, with an error of the type
// "yardtest", without a call of their handlers. It fails the test if queue is no name of a queue
// or n is not positive.
func (y *Yard) Fail(queue string, n int) {
	y.t.Helper()
	if err := job.ValidQueue(queue); err != nil {
		y.t.Fatalf("yardtest: Fail: %v", err)
	}
	if n < 1 {
		y.t.Fatalf("yardtest: Fail: %d attempts are to fail; it is 1 or more", n)
	}
	y.gate.failNext(queue, n)
}

// KillAuthority kills the member that holds the authority, as if its process had been
// killed: its connections are cut, and it comes back with [Yard.Restart] only. Another member
// takes over as virtual time passes, by the rules of a real yard: jobs that wait start
// within seconds, and what ran at the member itself is given back once its lease is over.
func (y *Yard) KillAuthority() {
	y.t.Helper()
	defer y.enter()()
	n := y.anyNode()
	if n == nil || n.Member != y.core.Leader() {
		y.t.Fatalf("yardtest: KillAuthority: no member holds the authority at present.%s", y.quorumHint())
	}
	n.Kill()
	y.net.cut(func(l *link) bool { return l.node == n })
	_ = n.listener.Close()
	y.gate.forget(n)
}

// Restart starts the members again that were killed. They have what they had on their disks,
// and get what they have missed.
func (y *Yard) Restart() {
	y.t.Helper()
	defer y.enter()()
	for _, old := range slices.Clone(y.net.nodes) {
		if old.Running() {
			continue
		}
		old.Wait()
		n, err := y.start(y.core.Restart(old.Member))
		if err != nil {
			y.t.Fatalf("yardtest: restart %s: %v", old.Name, err)
		}
		y.net.replace(old, n)
	}
	select {
	case y.electNow <- struct{}{}:
	default:
	}
}

// LoseWorker cuts the connection of a worker of [Yard.Work] for good, as if its host had
// been lost: of one that runs a job, if there is any. Its handlers go on until their leases
// end; then another worker may get the jobs.
func (y *Yard) LoseWorker() {
	y.t.Helper()
	defer y.enter()()
	synctest.Wait()
	w := y.busyWorker()
	if w == nil {
		y.t.Fatal("yardtest: LoseWorker: no worker is left")
	}
	y.net.lose(w)
}

// busyWorker returns the worker whose job has run for longest, or else the first one; nil if
// none is connected.
func (y *Yard) busyWorker() (found *work) {
	var since time.Time
	if n := y.anyNode(); n != nil {
		n.View(func(l *ledger.Ledger) {
			l.ActiveDispatches(func(d ledger.ActiveDispatch) bool {
				w := y.workerOf(strings.TrimPrefix(d.Channel, job.Channel(job.Overhop, "")))
				if w != nil && y.isConnected(w) && (found == nil || d.Started.Before(since)) {
					found, since = w, d.Started
				}
				return true
			})
		})
	}
	y.mu.Lock()
	works := slices.Clone(y.works)
	y.mu.Unlock()
	for _, w := range works {
		if found == nil && y.isConnected(w) {
			found = w
		}
	}
	return found
}

func (y *Yard) workerOf(id string) *work {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.workers[id]
}

// isConnected reports whether a worker runs and was not lost.
func (y *Yard) isConnected(w *work) bool {
	y.net.mu.Lock()
	defer y.net.mu.Unlock()
	select {
	case <-w.ended:
		return false
	default:
		return !w.lost
	}
}

// catchUp waits until the ledger has all jobs that were enqueued, if there is an authority.
func (y *Yard) catchUp() {
	if n := y.anyNode(); n != nil {
		ctx, cancel := context.WithTimeout(y.ctx, awaitTime)
		defer cancel()
		_ = n.viewer.CatchUp(ctx) // without an authority, what is there is shown
	}
}
