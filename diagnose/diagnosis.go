package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// diagnosis is everything that determines why a job is in its state: what the local
// ledger has, and what the authority and the other nodes add.
type diagnosis struct {
	now        time.Time
	job        ledger.JobDiagnosis
	holders    []ledger.ActiveDispatch         // active jobs of the queue, if its limit is reached
	limits     []ledger.LimitBlock             // why limits permit no start
	keys       ledger.KeyOrder                 // of a waiting job
	keyCounts  ledger.KeyCounts                // of a queue
	outboxFull bool                            // so full that the authority places no job
	timeout    time.Duration                   // of jobs that set none
	attempts   uint32                          // maximum of jobs that set none
	workers    string                          // the queue whose Overhop workers may run the job; "": none may
	runner     string                          // the runner that may run the job; "": none may
	placement  *scheduler.PlacementExplanation // the authority's answer; nil: see noAnswer
	noAnswer   api.Reason                      // why placement is nil
	executors  []api.NodeExecutors             // the members' answers; nil: they were not asked
	letterGone bool                            // its dead letter no longer exists
}

// readLedger reads a job from l into d. It returns false if l does not have the job.
func (d *diagnosis) readLedger(l *ledger.Ledger, id job.ID) (ok bool) {
	d.job, ok = l.Diagnose(id)
	if ok && d.job.LimitReached && d.job.State != job.Active && !d.job.State.Ended() {
		d.holders = l.ActiveInQueue(d.job.View.Queue, api.MaxActiveJobs)
	}
	if ok {
		d.limits = l.LimitBlocks(id, d.now)
		d.keys, _ = l.KeyOrder(id)
	}
	d.outboxFull = outboxFull(l)
	return ok
}

// outboxFull reports whether the events and results in the outbox take so many bytes that
// the authority stops placing jobs.
func outboxFull(l *ledger.Ledger) bool { return l.OutboxBytes() >= ledger.MaxOutbox/4*3 }

// newDiagnosis returns a diagnosis without facts.
func (g *Diagnoser) newDiagnosis() *diagnosis {
	return &diagnosis{now: time.Now(), timeout: g.cfg.DefaultTimeout, attempts: g.cfg.MaxAttempts}
}

// queryNodes asks the authority and, depending on the job's state, the other nodes about
// the job of d, and adds their answers to d. It returns when all have answered or
// their time has passed.
func (g *Diagnoser) queryNodes(ctx context.Context, d *diagnosis) {
	v := &d.job.View
	if v.State.Ended() {
		return
	}
	d.workers, d.runner = g.cfg.Route(v.Queue, v.Function)
	var queries crash.Group
	queries.Run(func() {
		query := scheduler.PlacementQuery{Queue: v.Queue, Function: v.Function, Job: v.ID, Dispatch: v.Dispatches}
		d.placement, d.noAnswer = g.explainPlacement(ctx, query)
	})
	switch v.State {
	case job.Waiting:
		queries.Run(func() { d.executors = g.queryExecutors(ctx, executorsRequest{d.workers, d.runner}) })
	case job.Active:
		queries.Run(func() { g.AddProgress(ctx, v) })
	}
	_ = queries.Wait() // the functions return no errors
}

// reason is one reason of an explanation.
type reason struct {
	api.Reason
	blocks bool // it prevents a job from starting; blocking reasons come first
}

// apiReasons returns reasons as the API shows them, nil for nil.
func apiReasons(reasons []reason) []api.Reason {
	if reasons == nil {
		return nil
	}
	shown := make([]api.Reason, len(reasons))
	for i := range reasons {
		shown[i] = reasons[i].Reason
	}
	return shown
}

// waitReason returns the reasons that block the job, or "" if it only waits for other
// jobs. The text does not change unless the situation does.
func (d *diagnosis) waitReason() string {
	return strings.Join(blockingTexts(d.reasons()), ", and ")
}

// blockingTexts returns the texts of those reasons that prevent a job from starting.
func blockingTexts(reasons []reason) (texts []string) {
	for _, r := range reasons {
		if r.blocks {
			texts = append(texts, r.Text)
		}
	}
	return texts
}

// reasons returns the reasons for the job's state, the one to resolve first at the
// front.
func (d *diagnosis) reasons() (all []reason) {
	switch d.job.State {
	case job.Delayed:
		return append(append(all, d.delayReason()), d.blockers()...)
	case job.Waiting:
		all = append(d.blockers(), d.executorReasons()...)
		blocked := len(all) > 0 && all[0].blocks
		order := d.orderReasons(blocked)
		if blocked {
			return append(all, order...)
		}
		return append(order, all...)
	case job.Active:
		return d.runningReasons()
	case job.Completed, job.Failed, job.Cancelled, job.Expired:
		return append(all, d.endReason())
	}
	return nil
}

// delayReason returns why a job is delayed: its last dispatch was lost and did not
// count as an attempt, its last attempt failed, it has a debounce key, or else the
// producer chose the time at which it is due.
func (d *diagnosis) delayReason() reason {
	p := &d.job
	r := reason{Reason: api.Reason{Code: api.ReasonDelayed, Text: "it is due at " + ledger.FormatTime(p.Due), Data: &api.ReasonData{At: &p.Due}}, blocks: true}
	switch {
	case p.Retrying && p.Redelivered:
		r.Code, r.Data.Error = api.ReasonGivenBack, p.Reason
		r.Text += fmt.Sprintf(": its last dispatch was given back (%s), and the attempt is not counted", p.Reason)
	case p.Retrying:
		limit := d.maxAttempts()
		r.Code, r.Data.Error, r.Data.Attempt, r.Data.MaxAttempts = api.ReasonBackoff, p.Reason, p.Attempts, limit
		r.Text += fmt.Sprintf(": attempt %d of %d failed (%s), and it is tried again then", p.Attempts, limit, p.Reason)
		d.attemptSettings(r.Data)
		d.delaySettings(r.Data)
		r.Text += d.settingsNote(r.Data)
	case p.Debounced:
		r.Code = api.ReasonDebounced
		r.Text += ", unless another job with its debounce key takes its place before"
	}
	return r
}

// blockers returns what prevents every job of the queue from starting, whatever its
// function is: missing answers of the authority, its state, a pause, the limit.
func (d *diagnosis) blockers() (all []reason) {
	block := func(c api.ReasonCode, data *api.ReasonData, format string, args ...any) {
		all = append(all, reason{api.Reason{Code: c, Text: fmt.Sprintf(format, args...), Data: data}, true})
	}
	switch {
	case d.placement == nil && d.noAnswer.Text != "":
		block(d.noAnswer.Code, nil, "%s", d.noAnswer.Text)
	case d.placement != nil && d.placement.LeaseUncertain:
		block(api.ReasonLease, nil, "the authority's lease is not certain: nothing is started meanwhile")
	}
	switch {
	case d.outboxFull:
		block(api.ReasonHistoryFull, nil, "history cannot be written: nothing is started until it can")
	case d.placement != nil && d.placement.Blocked != "":
		block(api.ReasonNotDispatching, nil, "%s", d.placement.Blocked)
	}
	p := &d.job
	if p.QueueView.Paused {
		block(api.ReasonPaused, &api.ReasonData{Queue: p.View.Queue, Since: timePtr(p.PausedSince)}, "queue %s is paused since %s", p.View.Queue, ledger.FormatTime(p.PausedSince))
	}
	if p.LimitReached {
		active := p.QueueView.Counts[job.Active]
		data := &api.ReasonData{Queue: p.View.Queue, Limit: p.QueueView.Config.Limit, Active: active, Holders: d.holderList()}
		data.MoreHolders = max(0, active-len(data.Holders))
		block(api.ReasonLimit, data, "queue %s runs as many jobs at once as its limit allows: %d", p.View.Queue, data.Limit)
	}
	for i := range d.limits {
		all = append(all, d.limitReason(&d.limits[i]))
	}
	return all
}

// holderList returns the active jobs in holders as the API shows them.
func (d *diagnosis) holderList() []api.ActiveJob {
	holders := make([]api.ActiveJob, len(d.holders))
	for i := range d.holders {
		holders[i] = api.NewActiveJob(&d.holders[i], d.timeout)
	}
	return holders
}

// executorReasons returns why no worker and no runner can take the job, or nil if one
// can, or if the members were not asked. A missing runner is not a reason if workers may
// run the job, or if drained nodes have the executors.
func (d *diagnosis) executorReasons() (all []reason) {
	placeable := d.placement != nil && (d.placement.Available > 0 || d.placement.Placing)
	if d.executors == nil || placeable {
		return nil
	}
	drained := drainedReason(d.executors)
	notDrained := slices.DeleteFunc(slices.Clone(d.executors), func(n api.NodeExecutors) bool { return n.Drained })
	if d.workers != "" {
		r := workersReason(d.workers, notDrained)
		if r == nil {
			return nil
		}
		all = append(all, *r)
	}
	if d.runner != "" {
		r := runnerReason(d.runner, notDrained)
		if r == nil {
			return nil
		}
		if r.Code != api.ReasonRunnerMissing || d.workers == "" && drained == nil {
			all = append(all, *r)
		}
	}
	if drained != nil {
		all = append(all, *drained)
	}
	if silent := silentMembers(d.executors); len(silent) > 0 {
		all = append(all, reason{Reason: api.Reason{Code: api.ReasonMembersSilent, Text: "no answer, so their workers and runners are not known: " + strings.Join(silent, ", ")}})
	}
	return all
}

// orderReasons returns which jobs start before this one. blocked reports whether
// something else prevents its start.
func (d *diagnosis) orderReasons(blocked bool) []reason {
	p := &d.job
	switch {
	case d.keys.Fair:
		return []reason{d.fairReason()}
	case p.Ahead > 0:
		return []reason{{Reason: api.Reason{Code: api.ReasonJobsAhead, Text: d.aheadText(), Data: &api.ReasonData{Ahead: p.Ahead}}}}
	case d.placement != nil && d.placement.Placing:
		return []reason{{Reason: api.Reason{Code: api.ReasonBeingPlaced, Text: "an executor has been chosen for it, which is being committed"}}}
	case blocked:
		return []reason{{Reason: api.Reason{Code: api.ReasonNextInQueue, Text: "no job of its queue for the same executors starts before it"}}}
	}
	return []reason{{Reason: api.Reason{Code: api.ReasonNextInQueue, Text: "it is the next to start"}}}
}

// aheadText returns how many jobs start before this one by priority and then by acceptance,
// and which starts do not follow that order because jobs are overdue.
func (d *diagnosis) aheadText() string {
	p := &d.job
	text := fmt.Sprintf("jobs of its queue for the same executors that start before it, %s: %d", d.orderText(), p.Ahead)
	isOverdue := func(due time.Time) bool { return d.now.Sub(due) > scheduler.OverdueAfter }
	switch {
	case p.AheadHigher > 0 && isOverdue(p.Due):
		text += fmt.Sprintf("; %d of them have a higher priority, but it has been due for more than a minute and may start before them: one start in %d is of the job that has been due for longest",
			p.AheadHigher, scheduler.OverdueShare)
	case !p.LowerDue.IsZero() && isOverdue(p.LowerDue):
		text += fmt.Sprintf("; besides these, one start in %d is of a job of a lower priority that has been due for more than a minute", scheduler.OverdueShare)
	}
	return text
}

// runningReasons returns where an active job runs, after that it is being stopped if it
// is, and before what the authority adds about its node.
func (d *diagnosis) runningReasons() (all []reason) {
	p := &d.job
	deadline := p.Started.Add(cmp.Or(p.Timeout, d.timeout))
	data := &api.ReasonData{
		Node: p.Node, Channel: p.Worker, Since: &p.Started, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: d.maxAttempts(),
		Deadline: &deadline, RemainingMS: max(0, deadline.Sub(d.now).Milliseconds()), Losses: p.Losses,
	}
	d.attemptSettings(data)
	d.timeoutSettings(data)
	if r := p.Progress; r != nil {
		data.Lease, data.Percent = timePtr(r.Lease.UTC()), r.Percent
	}
	where := reason{Reason: api.Reason{Code: api.ReasonRunning, Data: data, Text: fmt.Sprintf("it runs on node %s, channel %s, since %s: attempt %d of %d, until %s at the latest%s",
		p.Node, p.Worker, ledger.FormatTime(p.Started), p.Attempts, data.MaxAttempts, ledger.FormatTime(deadline), d.settingsNote(data))}}
	add := func(c api.ReasonCode, format string, args ...any) {
		all = append(all, reason{Reason: api.Reason{Code: c, Text: fmt.Sprintf(format, args...), Data: &api.ReasonData{Node: p.Node}}})
	}
	if p.Recalled != "" {
		add(api.ReasonStopping, "it is being stopped: %s", p.Recalled)
		all[0].Text += cancelledBy(p.Cancellation)
	}
	all = append(all, where)
	switch {
	case d.placement == nil:
		all = append(all, reason{Reason: d.noAnswer})
	case d.placement.Dispatch != nil && d.placement.Dispatch.Silent:
		add(api.ReasonNodeSilent, "node %s has sent no heartbeat lately: it ends what it runs, and the job is started elsewhere once its lease is over", p.Node)
	case d.placement.Dispatch != nil && !d.placement.Dispatch.Confirmed:
		add(api.ReasonNotTaken, "node %s has not confirmed yet that it took it", p.Node)
	}
	return all
}

// endReason returns when and where the job completed, or when and why it failed, was
// cancelled or expired.
func (d *diagnosis) endReason() reason {
	p := &d.job
	data := &api.ReasonData{At: &p.Ended, Node: p.Node, Channel: p.Worker, Dispatch: p.Dispatches, Attempt: p.Attempts, MaxAttempts: d.maxAttempts(), Losses: p.Losses}
	r := reason{Reason: api.Reason{Data: data}}
	endedAt := ledger.FormatTime(p.Ended)
	if p.State == job.Completed {
		r.Code = api.ReasonCompleted
		r.Text = fmt.Sprintf("it completed at %s, by attempt %d of %d, on node %s", endedAt, p.Attempts, data.MaxAttempts, p.Node)
		return r
	}
	d.attemptSettings(data)
	data.Error = p.Reason
	if p.State == job.Cancelled {
		r.Code = api.ReasonCancelled
		r.Text = fmt.Sprintf("it was cancelled%s, and ended at %s, after %s", cancelledBy(p.Cancellation), endedAt, plural(int(p.Attempts), "attempt"))
		return r
	}
	if p.State == job.Expired {
		expires := p.Expires
		if expires.IsZero() { // only the index has the job
			expires = p.Ended
		}
		r.Code = api.ReasonExpired
		r.Text = fmt.Sprintf("it expired at %s, before it could start; 'yardmaster job retry %s' lets it wait again, without an expiry", ledger.FormatTime(expires), p.ID)
		return r
	}
	r.Code = api.ReasonFailed
	if p.Fault != nil && p.Fault.Type == job.FaultRejected {
		r.Text = fmt.Sprintf("it was rejected at %s: %s; %s", endedAt, p.Reason, d.letterText())
		return r
	}
	var hint string
	if p.Fault != nil && p.Fault.Type == job.FaultTimeout && p.Attempts < data.MaxAttempts && !job.DecidedByRule(p.Reason) {
		hint = " (a timeout is final unless the job or its queue has retry_on_timeout)"
	}
	r.Text = fmt.Sprintf("it failed at %s, after %d of %d attempts%s: %s%s; %s",
		endedAt, p.Attempts, data.MaxAttempts, d.settingsNote(data), p.Reason, hint, d.letterText())
	return r
}

// letterText names the dead letter of a failed job.
func (d *diagnosis) letterText() string {
	if d.letterGone {
		return fmt.Sprintf("its dead letter is gone: it was requeued or removed, see 'yardmaster job history %s', or dropped by the retention of dead letters", d.job.ID)
	}
	return fmt.Sprintf("its dead letter: 'yardmaster dlq show %s'", d.job.ID)
}

// cancelledBy names who cancelled a job and why, as the rest of a sentence.
func cancelledBy(c *job.Cancellation) (text string) {
	if c == nil {
		return ""
	}
	if c.Actor != "" {
		text = fmt.Sprintf(" by %s, over %s", c.Actor, c.Door)
	}
	if c.Reason != "" {
		text += fmt.Sprintf(" (%s)", c.Reason)
	}
	return text
}

// plural returns n with a noun, such as "1 job" or "2 jobs".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// timePtr returns a pointer to t, or nil for the zero time.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
