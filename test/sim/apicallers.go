package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

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
}

// call proposes a random command at a random node, and schedules the next call.
func (p *callers) call() {
	if !p.faultsActive() {
		return
	}
	p.after(p.duration("next call", callInterval/2, 2*callInterval), "call", p.call)
	proc := p.nodes[p.intn("called", members)].process
	if leader := p.raft.leader; leader != nil && p.chance("call the leader", 700) {
		proc = leader
	}
	if !proc.up {
		return
	}
	if c := p.randomCommand(); c != nil {
		p.do(proc, c)
	}
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
		Queue: "mail", Body: []byte("{}"), NoOverlap: p.chance("alone", 500), CatchUp: p.chance("catch up", 500),
	}}
}

// do proposes a command at a process, in a goroutine, and ignores the result, which
// the ledger shows.
func (p *callers) do(proc *process, c ledger.Command) {
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(proc.ctx, 2*time.Second)
		defer cancel()
		_, _, _ = proc.sched.Propose(ctx, c)
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

// leftovers returns the commands that resume paused queues, pause the cron entries and
// end the external dispatches.
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
	for _, id := range p.checker.external.unfinished() {
		all = append(all, &ledger.MarkFailed{RequestID: id, Reason: "no longer needed"})
	}
	return all
}
