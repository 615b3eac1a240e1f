package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// inquiry is all that bears on why a job is where it is: the local ledger's
// word, and what the authority and the other nodes add.
type inquiry struct {
	now      time.Time
	plight   ledger.Plight
	holders  []ledger.Active // of the queue's limit, if it is reached
	full     bool            // the outbox: nothing is placed
	defaults inquiryDefaults
	workers  string         // the queue whose Overhop workers may run it
	runner   string         // the runner that may
	why      *scheduler.Why // nil: see silence
	silence  silence
	hands    []nodeHands // nil: not asked
}

// inquiryDefaults are what a job has that does not say otherwise.
type inquiryDefaults struct {
	timeout     time.Duration
	maxAttempts uint32
}

// maxHolders is how many of the jobs that fill a queue's limit are told.
const maxHolders = 20

// inquire asks whoever knows something about a job, all at once; it takes no
// longer than [whyTime] and never fails: what is not known is left out. ok is
// false if the ledger does not have the job.
func (n *Node) inquire(ctx context.Context, id job.ID) (q *inquiry, ok bool) {
	q = n.newInquiry()
	n.raft.View(func(l *ledger.Ledger) { ok = q.look(l, id) })
	if ok {
		n.follow(ctx, q)
	}
	return q, ok
}

// look takes what the ledger knows of a job; false if it does not have it.
func (q *inquiry) look(l *ledger.Ledger, id job.ID) (ok bool) {
	if q.plight, ok = l.Plight(id); ok && q.plight.Full && q.plight.State != job.Active && !q.plight.State.Ended() {
		q.holders = l.Holders(q.plight.View.Queue, maxHolders)
	}
	q.full = l.OutboxBytes() >= ledger.MaxOutbox/4*3
	return ok
}

func (n *Node) newInquiry() *inquiry {
	return &inquiry{now: time.Now(), defaults: inquiryDefaults{n.cfg.Scheduler.DefaultTimeout, n.cfg.Scheduler.MaxAttempts}}
}

// follow asks the others about a job that the ledger has.
func (n *Node) follow(ctx context.Context, q *inquiry) {
	v := &q.plight.View
	if v.State.Ended() {
		return
	}
	s := n.schedulerConfig()
	q.workers, q.runner = s.Hands(v.Queue, v.Function)
	var asking sync.WaitGroup
	asking.Go(func() {
		question := scheduler.WhyQuestion{Queue: v.Queue, Function: v.Function, Job: v.ID, Dispatch: v.Dispatches}
		q.why, q.silence = n.askWhy(ctx, question)
	})
	switch v.State {
	case job.Waiting:
		asking.Go(func() { q.hands = n.askHands(ctx, handsQuestion{q.workers, q.runner}) })
	case job.Active:
		asking.Go(func() { n.running.add(ctx, v) })
	}
	asking.Wait()
}

// because is what of an explanation stands still while nothing changes; "" if
// nothing is in the job's way but other jobs.
func (q *inquiry) because() string {
	var texts []string
	for _, r := range q.reasons() {
		if r.blocks {
			texts = append(texts, r.Text)
		}
	}
	return strings.Join(texts, ", and ")
}

// reasons are in the order of what has to be mended first.
func (q *inquiry) reasons() (all []reason) {
	switch q.plight.State {
	case job.Delayed:
		return append(append(all, q.later()), q.inTheWay()...)
	case job.Waiting:
		if all = append(q.inTheWay(), q.withoutHands()...); len(all) > 0 && all[0].blocks {
			return append(all, q.turn(true)...)
		}
		return append(q.turn(false), all...)
	case job.Active:
		return q.running()
	case job.Completed:
		return append(all, q.completed())
	case job.Failed:
		return append(all, q.failed())
	}
	return nil
}

// later tells what a delayed job waits for.
func (q *inquiry) later() reason {
	p := &q.plight
	r := reason{Code: codeDelayed, Text: "it is due at " + clock(p.Due), Data: &reasonData{At: &p.Due}, blocks: true}
	switch {
	case p.Again && p.Redelivered:
		r.Code, r.Data.Error = codeGivenBack, p.Reason
		r.Text += fmt.Sprintf(": its last dispatch was given back (%s), and the attempt is not counted", p.Reason)
	case p.Again:
		most := q.maxAttempts()
		r.Code, r.Data.Error, r.Data.Attempt, r.Data.MaxAttempts = codeBackoff, p.Reason, p.Attempts, most
		r.Text += fmt.Sprintf(": attempt %d of %d failed (%s), and it is tried again then", p.Attempts, most, p.Reason)
	case p.Debounced:
		r.Code = codeDebounced
		r.Text += ", unless another job with its debounce key takes its place before"
	}
	return r
}

func (q *inquiry) maxAttempts() uint32 { return cmp.Or(q.plight.MaxAttempts, q.defaults.maxAttempts) }

// inTheWay tells what keeps any job of its queue from being started.
func (q *inquiry) inTheWay() (all []reason) {
	add := func(c code, data *reasonData, format string, args ...any) {
		all = append(all, reason{c, fmt.Sprintf(format, args...), data, true})
	}
	switch {
	case q.why == nil && q.silence.text != "":
		add(q.silence.code, nil, "%s", q.silence.text)
	case q.why != nil && q.why.Unsure:
		add(codeLease, nil, "the authority's lease is not certain: nothing is started meanwhile")
	}
	switch {
	case q.full:
		add(codeHistoryFull, nil, "history cannot be written: nothing is started until it can")
	case q.why != nil && q.why.Blocked != "":
		add(codeBlocked, nil, "%s", q.why.Blocked)
	}
	p := &q.plight
	if p.Line.Paused {
		add(codePaused, &reasonData{Queue: p.View.Queue, Since: given(p.Paused)}, "queue %s is paused since %s", p.View.Queue, clock(p.Paused))
	}
	if p.Full {
		active := p.Line.Counts[job.Active]
		data := &reasonData{Queue: p.View.Queue, Limit: p.Line.Config.Limit, Active: active, Holders: q.holding()}
		data.MoreHolders = max(0, active-len(data.Holders))
		add(codeLimit, data, "queue %s runs as many jobs at once as its limit allows: %d", p.View.Queue, data.Limit)
	}
	return all
}

// holding are the jobs that fill the queue's limit.
func (q *inquiry) holding() []holder {
	holders := make([]holder, len(q.holders))
	for i := range q.holders {
		holders[i] = holderOf(&q.holders[i], q.defaults.timeout)
	}
	return holders
}

func holderOf(a *ledger.Active, timeout time.Duration) holder {
	return holder{
		ID: a.ID, Node: a.Node, Channel: a.Channel, Since: a.Started.UTC(), Attempt: a.Attempt,
		Deadline: a.Started.Add(cmp.Or(a.Timeout, timeout)).UTC(), Stopping: a.Recalled != "",
	}
}

// withoutHands tells why nobody takes the job.
func (q *inquiry) withoutHands() (all []reason) {
	if q.hands == nil || q.why != nil && (q.why.Room > 0 || q.why.Placing) {
		return nil
	}
	able, drained := false, whyDrained(q.hands)
	working := slices.DeleteFunc(slices.Clone(q.hands), func(h nodeHands) bool { return h.Drained })
	if q.workers != "" {
		if r := whyWorkers(q.workers, working); r != nil {
			all = append(all, *r)
		} else {
			able = true
		}
	}
	if q.runner != "" && !able {
		switch r := whyRunner(q.runner, working); {
		case r == nil:
			able = true
		case r.Code != codeRunnerMissing || q.workers == "" && drained == nil:
			all = append(all, *r)
		}
	}
	if able {
		return nil
	}
	if drained != nil {
		all = append(all, *drained)
	}
	if unheard := unheardOf(q.hands); len(unheard) > 0 {
		all = append(all, reason{Code: codeUnheard, Text: "not heard, so what they have is not known: " + strings.Join(unheard, ", ")})
	}
	return all
}

// turn tells whose turn it is.
func (q *inquiry) turn(blocked bool) []reason {
	p := &q.plight
	switch {
	case p.Ahead > 0:
		return []reason{{Code: codeAhead, Text: "jobs of its queue for the same hands that start before it: " + strconv.Itoa(p.Ahead), Data: &reasonData{Ahead: p.Ahead}}}
	case q.why != nil && q.why.Placing:
		return []reason{{Code: codePlacing, Text: "a worker has been chosen for it, which is being committed"}}
	case blocked:
		return []reason{{Code: codeNext, Text: "no job of its queue for the same hands starts before it"}}
	}
	return []reason{{Code: codeNext, Text: "it is the next to start"}}
}

// running tells where an active job is, and what is not as it should be.
func (q *inquiry) running() (all []reason) {
	p := &q.plight
	deadline := p.Started.Add(cmp.Or(p.Timeout, q.defaults.timeout))
	data := &reasonData{
		Node: p.Node, Channel: p.Worker, Since: &p.Started, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: q.maxAttempts(),
		Deadline: &deadline, RemainingMS: max(0, deadline.Sub(q.now).Milliseconds()), Losses: p.Losses,
	}
	if r := p.Running; r != nil {
		data.Lease, data.Percent = given(r.Lease.UTC()), r.Percent
	}
	where := reason{Code: codeRunning, Data: data, Text: fmt.Sprintf("it runs on node %s, channel %s, since %s: attempt %d of %d, until %s at the latest",
		p.Node, p.Worker, clock(p.Started), p.Attempts, data.MaxAttempts, clock(deadline))}
	add := func(c code, format string, args ...any) {
		all = append(all, reason{Code: c, Text: fmt.Sprintf(format, args...), Data: &reasonData{Node: p.Node}})
	}
	if p.Recalled != "" {
		add(codeStopping, "it has been told to stop: %s", p.Recalled)
	}
	all = append(all, where)
	switch {
	case q.why == nil:
		all = append(all, reason{Code: q.silence.code, Text: q.silence.text})
	case q.why.Sent != nil && q.why.Sent.Silent:
		add(codeNodeSilent, "node %s is not heard: it ends what it runs, and the job is started elsewhere once its lease is over", p.Node)
	case q.why.Sent != nil && !q.why.Sent.Taken:
		add(codeNotTaken, "node %s has not answered yet that it took it", p.Node)
	}
	return all
}

func (q *inquiry) completed() reason {
	p := &q.plight
	data := &reasonData{At: &p.Ended, Node: p.Node, Channel: p.Worker, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: q.maxAttempts(), Losses: p.Losses}
	return reason{Code: codeCompleted, Data: data, Text: fmt.Sprintf("it completed at %s, by attempt %d of %d, on node %s",
		clock(p.Ended), p.Attempts, data.MaxAttempts, p.Node)}
}

func (q *inquiry) failed() reason {
	p := &q.plight
	data := &reasonData{At: &p.Ended, Node: p.Node, Channel: p.Worker, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: q.maxAttempts(), Losses: p.Losses, Error: p.Reason}
	r := reason{Code: codeFailed, Data: data, Text: fmt.Sprintf("it failed at %s, after %d of %d attempts: %s; its dead letter: 'yardmaster dlq show %s'",
		clock(p.Ended), p.Attempts, data.MaxAttempts, p.Reason, p.ID)}
	if p.Fault != nil && p.Fault.Type == job.FaultCancelled {
		r.Code = codeCancelled
		r.Text = fmt.Sprintf("it was cancelled, and ended at %s, after %s: %s", clock(p.Ended), count(int(p.Attempts), "attempt"), p.Reason)
	}
	return r
}

// clock writes a time as people read it, to the millisecond.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// count writes a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
