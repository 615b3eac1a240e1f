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

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// diagnosis is everything that determines why a job is in its state: what the local
// ledger has, and what the authority and the other nodes add.
type diagnosis struct {
	now        time.Time
	job        ledger.JobDiagnosis
	holders    []ledger.ActiveDispatch // active jobs of the queue, if its limit is reached
	outboxFull bool                    // so full that nothing is placed
	defaults   jobDefaults
	workers    string                          // the queue whose Overhop workers may run the job; "": none may
	runner     string                          // the runner that may run the job; "": none may
	placement  *scheduler.PlacementExplanation // nil: see noAnswer
	noAnswer   noAnswer                        // why placement is nil
	executors  []nodeExecutors                 // nil: not asked
}

// jobDefaults are the values for jobs that do not set them.
type jobDefaults struct {
	timeout     time.Duration
	maxAttempts uint32
}

// maxHolders is how many of the jobs that fill a queue's limit are listed.
const maxHolders = 20

// diagnose collects what is known about a job, from the ledger and from the other nodes,
// which it asks at the same time. It takes at most [explainTimeout] and never fails:
// unknown facts are left out. ok is false if the ledger does not have the job.
func (n *Node) diagnose(ctx context.Context, id job.ID) (d *diagnosis, ok bool) {
	d = n.newDiagnosis()
	n.raft.View(func(l *ledger.Ledger) { ok = d.readLedger(l, id) })
	if ok {
		n.queryNodes(ctx, d)
	}
	return d, ok
}

// readLedger reads a job from l into d. It reports false if l does not have the job.
func (d *diagnosis) readLedger(l *ledger.Ledger, id job.ID) (ok bool) {
	if d.job, ok = l.Diagnose(id); ok && d.job.LimitReached && d.job.State != job.Active && !d.job.State.Ended() {
		d.holders = l.ActiveInQueue(d.job.View.Queue, maxHolders)
	}
	d.outboxFull = l.OutboxBytes() >= ledger.MaxOutbox/4*3
	return ok
}

func (n *Node) newDiagnosis() *diagnosis {
	return &diagnosis{now: time.Now(), defaults: jobDefaults{n.cfg.Scheduler.DefaultTimeout, n.cfg.Scheduler.MaxAttempts}}
}

// queryNodes asks the authority and the other nodes about the job of d.
func (n *Node) queryNodes(ctx context.Context, d *diagnosis) {
	v := &d.job.View
	if v.State.Ended() {
		return
	}
	s := n.schedulerConfig()
	d.workers, d.runner = s.Route(v.Queue, v.Function)
	var queries sync.WaitGroup
	queries.Go(func() {
		query := scheduler.PlacementQuery{Queue: v.Queue, Function: v.Function, Job: v.ID, Dispatch: v.Dispatches}
		d.placement, d.noAnswer = n.explainPlacement(ctx, query)
	})
	switch v.State {
	case job.Waiting:
		queries.Go(func() { d.executors = n.queryExecutors(ctx, executorsRequest{d.workers, d.runner}) })
	case job.Active:
		queries.Go(func() { n.runningJobs.addProgress(ctx, v) })
	}
	queries.Wait()
}

// waitReason returns the reasons that block the job, or "" if it only waits for other
// jobs. The text does not change unless the situation does.
func (d *diagnosis) waitReason() string {
	var texts []string
	for _, r := range d.reasons() {
		if r.blocks {
			texts = append(texts, r.Text)
		}
	}
	return strings.Join(texts, ", and ")
}

// reasons returns the reasons for the job's state, the one to resolve first at the
// front.
func (d *diagnosis) reasons() (all []reason) {
	switch d.job.State {
	case job.Delayed:
		return append(append(all, d.delayReason()), d.blockers()...)
	case job.Waiting:
		if all = append(d.blockers(), d.executorReasons()...); len(all) > 0 && all[0].blocks {
			return append(all, d.orderReasons(true)...)
		}
		return append(d.orderReasons(false), all...)
	case job.Active:
		return d.runningReasons()
	case job.Completed:
		return append(all, d.completedReason())
	case job.Failed:
		return append(all, d.failedReason())
	}
	return nil
}

// delayReason returns what a delayed job waits for.
func (d *diagnosis) delayReason() reason {
	p := &d.job
	r := reason{Code: codeDelayed, Text: "it is due at " + formatTime(p.Due), Data: &reasonData{At: &p.Due}, blocks: true}
	switch {
	case p.Retrying && p.Redelivered:
		r.Code, r.Data.Error = codeGivenBack, p.Reason
		r.Text += fmt.Sprintf(": its last dispatch was given back (%s), and the attempt is not counted", p.Reason)
	case p.Retrying:
		limit := d.maxAttempts()
		r.Code, r.Data.Error, r.Data.Attempt, r.Data.MaxAttempts = codeBackoff, p.Reason, p.Attempts, limit
		r.Text += fmt.Sprintf(": attempt %d of %d failed (%s), and it is tried again then", p.Attempts, limit, p.Reason)
	case p.Debounced:
		r.Code = codeDebounced
		r.Text += ", unless another job with its debounce key takes its place before"
	}
	return r
}

func (d *diagnosis) maxAttempts() uint32 { return cmp.Or(d.job.MaxAttempts, d.defaults.maxAttempts) }

// blockers returns what prevents all jobs of the queue from starting.
func (d *diagnosis) blockers() (all []reason) {
	block := func(c code, data *reasonData, format string, args ...any) {
		all = append(all, reason{c, fmt.Sprintf(format, args...), data, true})
	}
	switch {
	case d.placement == nil && d.noAnswer.text != "":
		block(d.noAnswer.code, nil, "%s", d.noAnswer.text)
	case d.placement != nil && d.placement.LeaseUncertain:
		block(codeLease, nil, "the authority's lease is not certain: nothing is started meanwhile")
	}
	switch {
	case d.outboxFull:
		block(codeHistoryFull, nil, "history cannot be written: nothing is started until it can")
	case d.placement != nil && d.placement.Blocked != "":
		block(codeNotDispatching, nil, "%s", d.placement.Blocked)
	}
	p := &d.job
	if p.QueueView.Paused {
		block(codePaused, &reasonData{Queue: p.View.Queue, Since: timePtr(p.PausedSince)}, "queue %s is paused since %s", p.View.Queue, formatTime(p.PausedSince))
	}
	if p.LimitReached {
		active := p.QueueView.Counts[job.Active]
		data := &reasonData{Queue: p.View.Queue, Limit: p.QueueView.Config.Limit, Active: active, Holders: d.holderList()}
		data.MoreHolders = max(0, active-len(data.Holders))
		block(codeLimit, data, "queue %s runs as many jobs at once as its limit allows: %d", p.View.Queue, data.Limit)
	}
	return all
}

// holderList returns the jobs that fill the queue's limit.
func (d *diagnosis) holderList() []holder {
	holders := make([]holder, len(d.holders))
	for i := range d.holders {
		holders[i] = holderOf(&d.holders[i], d.defaults.timeout)
	}
	return holders
}

// holderOf converts an active dispatch. timeout is the one of jobs that set none.
func holderOf(a *ledger.ActiveDispatch, timeout time.Duration) holder {
	return holder{
		ID: a.ID, Node: a.Node, Channel: a.Channel, Since: a.Started.UTC(), Attempt: a.Attempt,
		Deadline: a.Started.Add(cmp.Or(a.Timeout, timeout)).UTC(), Stopping: a.Recalled != "",
	}
}

// executorReasons returns why no worker and no runner can take the job.
func (d *diagnosis) executorReasons() (all []reason) {
	if d.executors == nil || d.placement != nil && (d.placement.Available > 0 || d.placement.Placing) {
		return nil
	}
	able, drained := false, drainedReason(d.executors)
	notDrained := slices.DeleteFunc(slices.Clone(d.executors), func(h nodeExecutors) bool { return h.Drained })
	if d.workers != "" {
		if r := workersReason(d.workers, notDrained); r != nil {
			all = append(all, *r)
		} else {
			able = true
		}
	}
	if d.runner != "" && !able {
		switch r := runnerReason(d.runner, notDrained); {
		case r == nil:
			able = true
		case r.Code != codeRunnerMissing || d.workers == "" && drained == nil:
			all = append(all, *r)
		}
	}
	if able {
		return nil
	}
	if drained != nil {
		all = append(all, *drained)
	}
	if silent := silentMembers(d.executors); len(silent) > 0 {
		all = append(all, reason{Code: codeMembersSilent, Text: "no answer, so their workers and runners are not known: " + strings.Join(silent, ", ")})
	}
	return all
}

// orderReasons returns which jobs start before this one. blocked reports whether
// something else prevents its start.
func (d *diagnosis) orderReasons(blocked bool) []reason {
	p := &d.job
	switch {
	case p.Ahead > 0:
		return []reason{{Code: codeJobsAhead, Text: "jobs of its queue for the same executors that start before it: " + strconv.Itoa(p.Ahead), Data: &reasonData{Ahead: p.Ahead}}}
	case d.placement != nil && d.placement.Placing:
		return []reason{{Code: codeBeingPlaced, Text: "an executor has been chosen for it, which is being committed"}}
	case blocked:
		return []reason{{Code: codeNextInQueue, Text: "no job of its queue for the same executors starts before it"}}
	}
	return []reason{{Code: codeNextInQueue, Text: "it is the next to start"}}
}

// runningReasons returns where an active job runs, and what is unusual about it.
func (d *diagnosis) runningReasons() (all []reason) {
	p := &d.job
	deadline := p.Started.Add(cmp.Or(p.Timeout, d.defaults.timeout))
	data := &reasonData{
		Node: p.Node, Channel: p.Worker, Since: &p.Started, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: d.maxAttempts(),
		Deadline: &deadline, RemainingMS: max(0, deadline.Sub(d.now).Milliseconds()), Losses: p.Losses,
	}
	if r := p.Progress; r != nil {
		data.Lease, data.Percent = timePtr(r.Lease.UTC()), r.Percent
	}
	where := reason{Code: codeRunning, Data: data, Text: fmt.Sprintf("it runs on node %s, channel %s, since %s: attempt %d of %d, until %s at the latest",
		p.Node, p.Worker, formatTime(p.Started), p.Attempts, data.MaxAttempts, formatTime(deadline))}
	add := func(c code, format string, args ...any) {
		all = append(all, reason{Code: c, Text: fmt.Sprintf(format, args...), Data: &reasonData{Node: p.Node}})
	}
	if p.Recalled != "" {
		add(codeStopping, "it is being stopped: %s", p.Recalled)
	}
	all = append(all, where)
	switch {
	case d.placement == nil:
		all = append(all, reason{Code: d.noAnswer.code, Text: d.noAnswer.text})
	case d.placement.Dispatch != nil && d.placement.Dispatch.Silent:
		add(codeNodeSilent, "node %s has sent no heartbeat lately: it ends what it runs, and the job is started elsewhere once its lease is over", p.Node)
	case d.placement.Dispatch != nil && !d.placement.Dispatch.Confirmed:
		add(codeNotTaken, "node %s has not confirmed yet that it took it", p.Node)
	}
	return all
}

func (d *diagnosis) completedReason() reason {
	p := &d.job
	data := &reasonData{At: &p.Ended, Node: p.Node, Channel: p.Worker, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: d.maxAttempts(), Losses: p.Losses}
	return reason{Code: codeCompleted, Data: data, Text: fmt.Sprintf("it completed at %s, by attempt %d of %d, on node %s",
		formatTime(p.Ended), p.Attempts, data.MaxAttempts, p.Node)}
}

func (d *diagnosis) failedReason() reason {
	p := &d.job
	data := &reasonData{At: &p.Ended, Node: p.Node, Channel: p.Worker, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: d.maxAttempts(), Losses: p.Losses, Error: p.Reason}
	r := reason{Code: codeFailed, Data: data, Text: fmt.Sprintf("it failed at %s, after %d of %d attempts: %s; its dead letter: 'yardmaster dlq show %s'",
		formatTime(p.Ended), p.Attempts, data.MaxAttempts, p.Reason, p.ID)}
	if p.Fault != nil && p.Fault.Type == job.FaultCancelled {
		r.Code = codeCancelled
		r.Text = fmt.Sprintf("it was cancelled, and ended at %s, after %s: %s", formatTime(p.Ended), plural(int(p.Attempts), "attempt"), p.Reason)
	}
	return r
}

// formatTime returns t in UTC with milliseconds, for people.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// plural returns n with a noun, such as "2 jobs".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
