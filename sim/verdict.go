package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/scheduler"
)

// unfinished tells what keeps the yard from being as it should be.
func (j *judge) unfinished() (why []string) {
	y := j.y
	l := y.raft.leader
	if l == nil {
		return []string{"nobody leads"}
	}
	var open []string
	for _, key := range j.keys {
		id := j.jobs[key]
		if state, ok := l.ledger.State(id); !ok && !j.guards.excused[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("%s %s", key, state))
		}
	}
	for _, id := range j.crons.jobs {
		if state, ok := l.ledger.State(id); !ok && !j.gone[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("a tick's %s %s", id, state))
		}
	}
	open = append(open, j.own.unfinished()...)
	if want := y.plan.jobs(); len(j.keys) < want {
		why = append(why, fmt.Sprintf("%d of %d jobs are accepted", len(j.keys), want))
	}
	if len(l.ledger.Replay().Lanes) > 0 {
		why = append(why, "a replay goes on")
	}
	if len(open) > 0 {
		why = append(why, "not ended: "+strings.Join(open, ", "))
	}
	ctx, cancel := context.WithTimeout(y.ctx, time.Second)
	defer cancel()
	look, err := l.sched.Look(ctx)
	switch {
	case err != nil:
		why = append(why, err.Error())
	case look.Deferred || !look.Dispatching || look.Pending > 0:
		why = append(why, fmt.Sprintf("deferred %t, dispatching %t, pending %d", look.Deferred, look.Dispatching, look.Pending))
	}
	why = append(why, look.Reasons...)
	last := [3]uint64{j.lastLook, l.ledger.LastResult(), l.ledger.LastDead()}
	j.lastLook = l.ledger.LastEvent()
	for story, want := range last {
		if _, number := y.tales.ends(scheduler.Story(story)); number < want || want == 0 && story == 0 {
			why = append(why, fmt.Sprintf("%s is told to %d of %d", scheduler.Story(story), number, want))
		}
	}
	slices.Sort(why)
	return why
}

// noticed tells that the authority says of a lane that its end is gone.
func (j *judge) noticed(why []string) bool {
	return slices.ContainsFunc(why, func(text string) bool { return strings.Contains(text, "it went back") })
}

// close is the last judgement, over a yard that is well.
func (j *judge) close() {
	y := j.y
	for _, n := range y.nodes {
		n.life.catchUp(len(y.raft.log))
		j.same(n.life)
	}
	if told, want := y.tales.text(), j.history.String(); !strings.HasPrefix(want, told) {
		y.fail("history tells something else than what has happened")
	}
}
