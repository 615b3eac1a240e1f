package sim

import (
	"context"
	"fmt"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// callers play those who ask something of the yard while things break, and who
// clear away afterwards what would keep it from coming to rest.
type callers struct {
	*yard
	owned int // own dispatches that were asked for
}

const callEvery = 120 * time.Millisecond

var (
	pausable = []string{"mail", "narrow"}
	entries  = []string{"tick", "tock"} // of cron
)

// begin calls every now and then.
func (p *callers) begin() {
	if p.plan.Alone {
		return
	}
	p.after(calmFor, "call", p.call)
}

func (p *callers) call() {
	if !p.storms() {
		return
	}
	p.after(p.between("next call", callEvery/2, 2*callEvery), "call", p.call)
	l := p.nodes[p.pick("called", members)].life
	if leader := p.raft.leader; leader != nil && p.chance("call the leader", 700) {
		l = leader
	}
	if !l.up {
		return
	}
	if c := p.wish(); c != nil {
		p.do(l, c)
	}
}

// wish is what a caller asks for.
func (p *callers) wish() ledger.Command {
	ids := p.judge.ids()
	one := func(what string) (id job.ID) {
		if len(ids) > 0 {
			id = ids[p.pick(what, len(ids))]
		}
		return id
	}
	switch n := p.pick("call", 100); {
	case n < 12:
		return &ledger.CancelJob{Job: one("cancel"), Reason: "asked"}
	case n < 50:
		return &ledger.PauseQueue{Name: pausable[p.pick("pause", len(pausable))], Paused: p.chance("paused", 350)}
	case n < 62:
		return &ledger.RetryJob{Job: one("retry"), Keep: p.chance("keep", 300)}
	case n < 65:
		return &ledger.RemoveJob{Job: one("remove")}
	case n < 72:
		p.owned++
		return &ledger.QueueDispatch{RequestID: fmt.Sprintf("own-%d", p.owned), Target: "a caller's"}
	case n < 84:
		return p.mark()
	case n < 88:
		cursor := fmt.Sprintf("0@%d,1@0", p.pick("replay from", 5))
		return &ledger.RequestReplay{Cursor: &cursor}
	case n < 93:
		return p.cron()
	case n < 95:
		return &ledger.PauseCron{Name: entries[p.pick("entry", len(entries))], Paused: p.chance("paused", 500)}
	case n < 96:
		return &ledger.CaptureSnapshot{}
	}
	return nil
}

// mark moves one of the own dispatches on, perhaps as the contract forbids.
func (p *callers) mark() ledger.Command {
	open := p.judge.own.unfinished()
	if len(open) == 0 {
		return nil
	}
	id := open[p.pick("own", len(open))]
	switch p.pick("mark", 4) {
	case 0:
		return &ledger.MarkFailed{RequestID: id, Reason: "asked"}
	case 1:
		return &ledger.MarkDelivered{RequestID: id}
	}
	return &ledger.MarkNotified{RequestID: id, Channel: "phone"}
}

func (p *callers) cron() ledger.Command {
	return &ledger.SetCron{Replace: true, Cron: ledger.Cron{
		Name: entries[p.pick("entry", len(entries))], Times: [...]string{"@every 1s", "* * * * * *", "*/3 * * * * *"}[p.pick("times", 3)],
		Queue: "mail", Body: []byte("{}"), Alone: p.chance("alone", 500), CatchUp: p.chance("catch up", 500),
	}}
}

func (p *callers) do(l *life, c ledger.Command) {
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
		defer cancel()
		_, _, _ = l.sched.Do(ctx, c) // what came of it the ledger shows
	})
}

// clear resumes what was paused, also by a call that was under way when all was
// healed, ends what only callers end, and has it stay so.
func (p *callers) clear() {
	for i, c := range p.leftovers() {
		p.after(time.Duration(i)*time.Microsecond, fmt.Sprintf("clear %d", i), func() {
			if l := p.raft.leader; l != nil {
				p.do(l, c)
			}
		})
	}
	p.after(150*time.Millisecond, "clear away", p.clear)
}

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
	for _, name := range entries {
		if c, ok := l.Cron(name); ok && !c.Paused {
			all = append(all, &ledger.PauseCron{Name: name, Paused: true})
		}
	}
	for _, id := range p.judge.own.unfinished() {
		all = append(all, &ledger.MarkFailed{RequestID: id, Reason: "nobody wants it any more"})
	}
	return all
}
