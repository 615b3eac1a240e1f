package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// unfinished returns what keeps the cluster from having recovered: jobs that have not
// ended, conditions of the authority, unpublished history.
func (ch *checker) unfinished() (problems []string) {
	sim := ch.sim
	leader := sim.raft.leader
	if leader == nil {
		return []string{"no leader"}
	}
	var open []string
	for _, key := range ch.keys {
		id := ch.jobs[key]
		if state, ok := leader.ledger.State(id); !ok && !ch.guards.noJob[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("%s %s", key, state))
		}
	}
	for _, id := range ch.crons.jobs {
		if state, ok := leader.ledger.State(id); !ok && !ch.removed[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("job of a tick %s %s", id, state))
		}
	}
	open = append(open, ch.external.unfinished()...)
	if want := sim.plan.jobs(); len(ch.keys) < want {
		problems = append(problems, fmt.Sprintf("%d of %d jobs are accepted", len(ch.keys), want))
	}
	if len(leader.ledger.Replay().Lanes) > 0 {
		problems = append(problems, "a replay is running")
	}
	if len(open) > 0 {
		problems = append(problems, "not ended: "+strings.Join(open, ", "))
	}
	ctx, cancel := context.WithTimeout(sim.ctx, time.Second)
	defer cancel()
	status, err := leader.sched.Status(ctx)
	switch {
	case err != nil:
		problems = append(problems, err.Error())
	case status.Deferred || !status.Dispatching || status.Pending > 0:
		problems = append(problems, fmt.Sprintf("deferred %t, dispatching %t, pending %d", status.Deferred, status.Dispatching, status.Pending))
	}
	problems = append(problems, status.Reasons...)
	last := [3]uint64{ch.lastEvents, leader.ledger.LastResult(), leader.ledger.LastDeadLetter()}
	ch.lastEvents = leader.ledger.LastEvent()
	for stream, want := range last {
		if _, number := sim.history.last(outbox.Stream(stream)); number < want || want == 0 && stream == 0 {
			problems = append(problems, fmt.Sprintf("%s published to %d of %d", outbox.Stream(stream), number, want))
		}
	}
	slices.Sort(problems)
	return problems
}

// lossReported reports whether the authority reports a truncated lane.
func (ch *checker) lossReported(problems []string) bool {
	return slices.ContainsFunc(problems, func(text string) bool { return strings.Contains(text, "it went back") })
}

// checkFinal checks a cluster that has recovered: that all ledgers are equal, and that
// the published history is what has happened.
func (ch *checker) checkFinal() {
	sim := ch.sim
	for _, n := range sim.nodes {
		n.process.catchUp(len(sim.raft.log))
		ch.checkHash(n.process)
	}
	if published, want := sim.history.published(), ch.history.String(); !strings.HasPrefix(want, published) {
		sim.fail("the published history differs from the events")
	}
}
