package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// producers simulates the producers of jobs.
type producers struct{ sim *simulation }

// The work of a run.
const (
	jobsPerYard = 50
	narrowLimit = 2       // limit of the queue "narrow"
	longBody    = 5 << 10 // bytes, more than an assignment carries
)

// start schedules all enqueues and creates the queue "narrow".
func (p *producers) start() {
	sim := p.sim
	for i := range sim.plan.drawn() {
		key := fmt.Sprintf("k%d", i)
		wait := sim.duration("plan "+key, 50*time.Millisecond, warmup+sim.shape.faults)
		queue := [...]string{"mail", "narrow", "post"}[sim.intn("queue "+key, 3)]
		sim.after(wait, "enqueue "+key, func() { p.enqueue(queue, key, p.body(queue, key)) })
	}
	p.ensure("make narrow", func(l *ledger.Ledger) bool { _, ok := l.Queue("narrow"); return ok },
		&ledger.AddQueue{ID: job.ID{1}, Name: "narrow", Config: job.QueueConfig{Limit: narrowLimit, RetryOnTimeout: true}})
	if sim.plan.Steps != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(limitCommands())) {
		p.ensure("make limit "+name, func(l *ledger.Ledger) bool { _, ok := l.Limit(name); return ok }, limitCommands()[name])
	}
}

// body returns the body of a job; some bodies are invalid.
func (p *producers) body(queue, key string) []byte {
	sim := p.sim
	var fields []string
	if queue == "post" {
		fields = append(fields, `"function":"`+runnerName+`#go"`)
	}
	params := ""
	if sim.chance("long "+key, 100) {
		params = `"x":"` + strings.Repeat("x", longBody) + `"`
	}
	fields = append(fields, `"params":{`+params+`}`)
	if sim.chance("timeouts "+key, 200) {
		fields = append(fields, `"retry_on_timeout":`+strconv.FormatBool(queue != "narrow"))
	}
	switch n := sim.intn("more "+key, 100); {
	case n < 3:
		fields = append(fields, `"priority":"high"`)
	case n < 13:
		fields = append(fields, fmt.Sprintf(`"delay_ms":%d`, sim.intn("delay "+key, 8000)))
	case n < 17:
		at := sim.clocks.right().Add(sim.duration("run at "+key, 0, 8*time.Second))
		fields = append(fields, `"run_at":"`+at.UTC().Format(time.RFC3339Nano)+`"`)
	case n >= 94:
		fields = append(fields, fmt.Sprintf(`"expires_in_ms":%d`, 300+sim.intn("expiry "+key, 8000)))
	case n < 25:
		fields = append(fields, fmt.Sprintf(`"priority":%d`, sim.intn("priority "+key, 10)))
	case queue != "mail":
	case n < 30:
		fields = append(fields, fmt.Sprintf(`"unique_key":"u%d","unique_ttl_ms":%d`, n%2, 500+sim.intn("ttl "+key, 4000)))
	case n < 32:
		fields = append(fields, fmt.Sprintf(`"unique_key":"e%d","unique_until":"%s"`, n%2, [...]string{"start", "end"}[n%2]))
	case n < 38:
		fields = append(fields, fmt.Sprintf(`"rate_limit_key":"r","rate_limit_ms":%d`, 200+sim.intn("rate "+key, 3000)))
	case n < 44:
		fields = append(fields, fmt.Sprintf(`"debounce_key":"d%d","debounce_ms":%d`, n%2, 200+sim.intn("window "+key, 3000)))
	}
	body := strings.Join(fields, ",")
	if !strings.Contains(body, "debounce_key") { // a later record would change the limits of the job
		body = strings.Join(append(fields, p.limits(key)...), ",")
	}
	return []byte("{" + body + "}")
}

// limits returns the fields with the limits that a job names. The jobs of a plan name none.
func (p *producers) limits(key string) []string {
	if p.sim.plan.Steps != nil {
		return nil
	}
	limitKey := p.sim.intn("limit key "+key, 3)
	switch n := p.sim.intn("limits "+key, 10); {
	case n < 2:
		return []string{fmt.Sprintf(`"limits":{"shared":"k%d"}`, limitKey)}
	case n < 3:
		return []string{fmt.Sprintf(`"limits":{"shared":"","paced":""},"limit_key":"k%d"`, limitKey)}
	case n < 4:
		return []string{`"limits":{"paced":""}`}
	}
	return nil
}

// enqueue publishes a record until it is acknowledged, each time under the same key
// and possibly to another lane.
func (p *producers) enqueue(queue, key string, body []byte) {
	sim := p.sim
	if queue == "narrow" && !p.hasQueue("narrow") || bytes.Contains(body, []byte(`"limits"`)) && !p.hasLimits() {
		sim.after(100*time.Millisecond, "enqueue "+key, func() { p.enqueue(queue, key, body) })
		return
	}
	node := sim.nodes[sim.intn("by "+key, members)].process
	number := uint8(sim.intn("lane "+key, members))
	wait := sim.delay("publish "+key, 3*time.Millisecond, 800*time.Millisecond)
	again := func() {
		sim.after(sim.duration("again "+key, 50*time.Millisecond, time.Second), "enqueue "+key, func() { p.enqueue(queue, key, body) })
	}
	sim.after(wait, "publish "+key, func() {
		if !sim.lanes.made || sim.lanes.lanes[number].truncatedTo > 0 || sim.lanes.checkAvailable(node, number, "publish "+key) != nil {
			again()
			return
		}
		record := body
		if id, err := job.KeyID(queue, key); err == nil && sim.chance("large "+key, 100) {
			record = sim.lanes.storeLarge(id, body)
		}
		answered := false // the producer has an answer, or waits no more
		stored := func(message []job.Record, r job.Record, fresh bool) {
			sim.trace("%s stored as %d@%d.%d, fresh %t", key, number, r.Seq, r.Index, fresh)
			if answered {
				return
			}
			answered = true
			if sim.minorFaultsActive() && sim.chance("unacknowledged "+key, 80) {
				again()
				return
			}
			sim.checker.onAccepted(key, &r)
			if bytes.Contains(body, []byte(`_key":`)) && sim.faultsActive() && sim.chance("repeat "+key, 400) { // by a caller, or an outbox after a crash
				sim.after(sim.duration("repeat "+key, 50*time.Millisecond, 6*time.Second), "enqueue "+key, func() { p.enqueue(queue, key, body) })
			}
			if r.Index == 0 {
				p.notify(node, message)
			}
		}
		if sim.plan.Steps != nil || !sim.chance("packed "+key, 500) { // the steps of a plan have their times
			r, fresh := sim.lanes.store(number, queue, key, record)
			stored([]job.Record{r}, r, fresh)
			return
		}
		sim.lanes.pack(number, waitingRecord{queue, key, record, stored})
		sim.after(time.Second, "no answer "+key, func() {
			if !answered {
				answered = true
				again()
			}
		})
	})
}

// notify sends the records of a stored message to the authority, unless the first is too long.
func (p *producers) notify(from *process, message []job.Record) {
	to, _, ok := from.authority.authority()
	if r := &message[0]; !ok || len(r.Body) > 4<<10 || p.sim.chance("unnoticed "+r.Key, 100) {
		return
	}
	p.sim.net.send(from, to, "notice "+message[0].Key, func(dst *process) { dst.sched.ReceiveRecords(message) })
}

// hasLimits reports whether any node's ledger has all limits of the run.
func (p *producers) hasLimits() bool {
	for _, n := range p.sim.nodes {
		all := true
		for name := range limitCommands() {
			_, ok := n.process.ledger.Limit(name)
			all = all && ok
		}
		if all {
			return true
		}
	}
	return false
}

// hasQueue reports whether any node's ledger has a queue.
func (p *producers) hasQueue(queue string) (ok bool) {
	for _, n := range p.sim.nodes {
		_, has := n.process.ledger.Queue(queue)
		ok = ok || has
	}
	return ok
}

// ensure proposes a command to the leader repeatedly until done is true of its ledger.
func (p *producers) ensure(key string, done func(*ledger.Ledger) bool, c ledger.Command) {
	leader := p.sim.raft.leader
	if leader != nil && done(leader.ledger) {
		return
	}
	if leader != nil {
		p.sim.callers.do(leader, c)
	}
	p.sim.after(150*time.Millisecond, key, func() { p.ensure(key, done, c) })
}

// callers simulates callers of the API. They propose random commands during the fault
// phase, and afterwards undo what would keep the cluster from recovering.
type callers struct {
	*simulation
	external int // external dispatches queued so far
}

const callInterval = 120 * time.Millisecond

var (
	pausable    = []string{"mail", "narrow"}
	cronEntries = []string{"tick", "tock"}
)

// start schedules the first call.
func (p *callers) start() {
	if p.plan.NoCallers {
		return
	}
	p.after(warmup, "call", p.call)
	p.after(warmup, "operate", p.operate)
}

// call proposes a random command at a random node, and schedules the next call.
func (p *callers) call() {
	if !p.faultsActive() {
		return
	}
	p.after(p.duration("next call", callInterval/2, 2*callInterval), "call", p.call)
	proc := p.target("call")
	if !proc.up {
		return
	}
	if c := p.randomCommand(); c != nil {
		p.do(proc, c)
	}
}

// target returns the process that is called: mostly the leader.
func (p *callers) target(what string) *process {
	if leader := p.raft.leader; leader != nil && p.chance(what+" the leader", 700) {
		return leader
	}
	return p.nodes[p.intn(what+"ed", members)].process
}

// randomCommand returns a command, or nil.
func (p *callers) randomCommand() ledger.Command {
	ids := p.checker.ids()
	pick := func(what string) (id job.ID) {
		if len(ids) > 0 {
			id = ids[p.intn(what, len(ids))]
		}
		return id
	}
	switch n := p.intn("call", 100); {
	case n < 12:
		return &ledger.CancelJob{Job: pick("cancel"), Reason: "asked"}
	case n < 50:
		return &ledger.PauseQueue{Name: pausable[p.intn("pause", len(pausable))], Paused: p.chance("paused", 350)}
	case n < 62:
		return &ledger.RetryJob{Job: pick("retry"), KeepAttempts: p.chance("keep", 300)}
	case n < 65:
		return &ledger.RemoveJob{Job: pick("remove")}
	case n < 72:
		p.external++
		return &ledger.QueueDispatch{RequestID: fmt.Sprintf("own-%d", p.external), Target: "a caller's"}
	case n < 84:
		return p.randomMark()
	case n < 88:
		cursor := fmt.Sprintf("0@%d,1@0", p.intn("replay from", 5))
		return &ledger.RequestReplay{Cursor: &cursor}
	case n < 93:
		return p.randomCron()
	case n < 95:
		return &ledger.PauseCron{Name: cronEntries[p.intn("entry", len(cronEntries))], Paused: p.chance("paused", 500)}
	case n < 96:
		return &ledger.CaptureSnapshot{}
	}
	return nil
}

// randomMark returns a command that marks an external dispatch, possibly in an invalid
// order.
func (p *callers) randomMark() ledger.Command {
	open := p.checker.external.unfinished()
	if len(open) == 0 {
		return nil
	}
	id := open[p.intn("own", len(open))]
	switch p.intn("mark", 4) {
	case 0:
		return &ledger.MarkFailed{RequestID: id, Reason: "asked"}
	case 1:
		return &ledger.MarkDelivered{RequestID: id}
	}
	return &ledger.MarkNotified{RequestID: id, Channel: "phone"}
}

// randomCron returns a command that sets a cron entry.
func (p *callers) randomCron() ledger.Command {
	return &ledger.SetCron{Replace: true, Cron: ledger.Cron{
		Name: cronEntries[p.intn("entry", len(cronEntries))], Schedule: [...]string{"@every 1s", "* * * * * *", "*/3 * * * * *"}[p.intn("times", 3)],
		Queue: "mail", Body: []byte(`{"params":{}}`), NoOverlap: p.chance("alone", 500), CatchUp: p.chance("catch up", 500),
	}}
}

// do proposes a command at a process, in a goroutine, and ignores the result, which
// the ledger shows.
func (p *callers) do(proc *process, c ledger.Command) {
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(proc.ctx, 2*time.Second)
		defer cancel()
		result, _, err := proc.sched.Propose(ctx, c)
		retry, ok := c.(*ledger.RetryJob)
		if !ok || err != nil || !errors.Is(result.Err, job.ErrRecordReclaimed) {
			return
		}
		restored := *retry
		restored.Relocated, err = p.restoreRecord(ctx, proc, retry.Job)
		if err == nil {
			_, _, _ = proc.sched.Propose(ctx, &restored)
		}
	})
}

// restoreRecord stores a copy of the record of a job, as it is in the job's dead letter,
// in the stream of relocated records.
func (p *callers) restoreRecord(ctx context.Context, proc *process, id job.ID) (seq uint64, err error) {
	return askLane(ctx, proc, job.RelocatedLane, "restore "+id.String(), func(*lane) (uint64, error) {
		p.trace("%s restores the record of %s", proc.id, id)
		return p.lanes.storeRelocated(job.Record{Queue: "mail", Body: []byte(`{"params":{}}`)}, id), nil
	})
}

// cleanUp undoes what callers left behind, repeatedly, because calls may still be in
// flight.
func (p *callers) cleanUp() {
	for i, c := range p.leftovers() {
		p.after(time.Duration(i)*time.Microsecond, fmt.Sprintf("clear %d", i), func() {
			if leader := p.raft.leader; leader != nil {
				p.do(leader, c)
			}
		})
	}
	p.after(150*time.Millisecond, "clear away", p.cleanUp)
}

// leftovers returns the commands that resume paused queues, pause the cron entries, end the
// external dispatches, and have the operation go on as fast as it can.
func (p *callers) leftovers() (all []ledger.Command) {
	if p.raft.leader == nil {
		return nil
	}
	l := p.raft.leader.ledger
	for _, name := range pausable {
		if q, ok := l.Queue(name); ok && q.Paused {
			all = append(all, &ledger.PauseQueue{Name: name})
		}
	}
	for _, name := range cronEntries {
		if c, ok := l.Cron(name); ok && !c.Paused {
			all = append(all, &ledger.PauseCron{Name: name, Paused: true})
		}
	}
	for _, op := range l.Operations() {
		if !op.State.Ended() && (op.State == ledger.OperationPaused || op.Rate > 0) {
			all = append(all, &ledger.ChangeOperation{Number: op.Number, State: ledger.OperationRunning, Rate: new(uint32), Asked: asked})
		}
	}
	for _, id := range p.checker.external.unfinished() {
		all = append(all, &ledger.MarkFailed{RequestID: id, Reason: "no longer needed"})
	}
	return all
}
