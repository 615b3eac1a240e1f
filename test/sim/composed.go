package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// composedPerMille is how many faults are composed, of a thousand.
const composedPerMille = 150

// composedFaults are faults of several parts, each of which makes the others worse. A
// part that begins later does so at a random time within the fault.
var composedFaults = []struct {
	name   string
	inject func(sim *simulation, target *node, d time.Duration)
}{
	{"a node that is cut off crashes and starts again", (*simulation).crashWhileCutOff},
	{"authorities are paused while they hand over", (*simulation).pauseDuringHandOver},
	{"a node loses the authority, then its disk, then its process", (*simulation).loseAuthorityAndDisk},
	{"workers hop between nodes while theirs is cut off", (*simulation).hopWhileCutOff},
	{"a node is frozen and crashes without having continued", (*simulation).crashWhileFrozen},
	{"all nodes restart, one after the other", (*simulation).restartInTurn},
	{"the authority crashes and its lane is without a leader", (*simulation).crashWithLane},
	{"each node is cut off from one other, and the authority moves", (*simulation).cutRing},
	{"clocks are set while the authority moves", (*simulation).setClocksDuringHandOver},
	{"all nodes stop, and their clocks are set meanwhile", (*simulation).stopAllAndSetClocks},
}

// injectComposed injects a random composed fault, which ends with the fault phase.
func (sim *simulation) injectComposed(target *node) {
	d := min(sim.duration("composed lasts", 500*time.Millisecond, 12*time.Second), sim.faultTimeLeft())
	fault := composedFaults[sim.intn("which composed", len(composedFaults))]
	sim.trace("composed fault at %s for %s: %s", target.name, d, fault.name)
	sim.report.Composed++
	fault.inject(sim, target, d)
}

// within calls do at a random time in the next d.
func (sim *simulation) within(key string, d time.Duration, do func()) {
	sim.after(sim.duration(key, 0, d+1), key, do)
}

// isolate drops all messages from and to a node.
func (sim *simulation) isolate(n *node, lasts time.Duration) {
	for _, other := range sim.nodes {
		if other != n {
			sim.cut(n.name, other.name, lasts)
			sim.cut(other.name, n.name, lasts)
		}
	}
	sim.raft.ensureLeader()
}

// crashWhileCutOff has a node crash while it is cut off, and start again before or
// after it is reached again.
func (sim *simulation) crashWhileCutOff(n *node, d time.Duration) {
	sim.isolate(n, d)
	sim.within("crash of "+n.name, d, func() {
		sim.crash(n, sim.duration("down "+n.name, time.Millisecond, d))
	})
}

// pauseDuringHandOver replaces the leader, and pauses the old one, the new one or both
// while that happens.
func (sim *simulation) pauseDuringHandOver(_ *node, d time.Duration) {
	old := sim.raft.leader
	if old == nil {
		return
	}
	which := sim.intn("paused", 3)
	if which != 0 {
		sim.within("pause of the old", 20*time.Millisecond, func() { sim.freeze(old.node, d) })
	}
	sim.raft.elect(old)
	if next := sim.raft.leader; next != nil && which != 1 {
		sim.within("pause of the new", 60*time.Millisecond, func() { sim.freeze(next.node, d) })
	}
}

// loseAuthorityAndDisk deposes the leader, whose disk then accepts no writes and whose
// process then crashes.
func (sim *simulation) loseAuthorityAndDisk(_ *node, d time.Duration) {
	old := sim.raft.leader
	if old == nil {
		return
	}
	sim.raft.elect(old)
	sim.within("disk of the old", d/4, func() { sim.stick(old.node, d*3/4) })
	sim.after(d/4, "crash of the old", func() {
		sim.within("crash of the old", d/2, func() { sim.crash(old.node, d/4) })
	})
}

// hopWhileCutOff cuts a node off. Its workers lose their connections and bring their
// jobs to other nodes, and the workers of a random node lose theirs again and again.
func (sim *simulation) hopWhileCutOff(n *node, d time.Duration) {
	sim.isolate(n, d)
	sim.within("first hop", d/4, func() { sim.disconnectWorkers(n.process) })
	for i := range 4 {
		key := fmt.Sprintf("hop %d", i)
		sim.within(key, d, func() { sim.disconnectWorkers(sim.nodes[sim.intn(key, members)].process) })
	}
}

// disconnectWorkers makes the Overhop workers that run jobs at a process lose their
// connections and try to resume their jobs.
func (sim *simulation) disconnectWorkers(proc *process) {
	var runs []*jobRun
	for _, r := range sim.checker.runs {
		if r.process == proc && proc.up && !r.ended && r.detachedUntil.IsZero() && r.Kind == job.Overhop {
			runs = append(runs, r)
		}
	}
	slices.SortFunc(runs, func(a, b *jobRun) int { return strings.Compare(a.key(), b.key()) })
	for _, r := range runs {
		r.detach(sim)
	}
}

// crashWhileFrozen pauses a node's process and ends it without it having continued.
func (sim *simulation) crashWhileFrozen(n *node, d time.Duration) {
	sim.freeze(n, d)
	sim.within("crash of "+n.name, d, func() {
		down := sim.duration("down "+n.name, time.Millisecond, 2*time.Second)
		sim.crash(n, down)
		sim.after(down, "unfrozen "+n.name, func() { delete(sim.net.frozen, n.name) })
	})
}

// restartInTurn drains and restarts all nodes, one after the other.
func (sim *simulation) restartInTurn(_ *node, d time.Duration) {
	for i, n := range sim.nodes {
		sim.after(d*time.Duration(i)/members, "turn of "+n.name, func() {
			if !n.process.up {
				return
			}
			n.process.agent.Drain()
			if sim.raft.leader == n.process {
				sim.raft.elect(n.process)
			}
			sim.within("stop of "+n.name, d/members, func() { sim.crash(n, d/members/4) })
		})
	}
}

// crashWithLane has the leader's node crash, and its lane has no leader while it is down.
func (sim *simulation) crashWithLane(_ *node, d time.Duration) {
	leader := sim.raft.leader
	if leader == nil {
		return
	}
	sim.lanes.lanes[slices.Index(sim.nodes, leader.node)].downUntil = time.Now().Add(d)
	sim.crash(leader.node, d)
}

// cutRing cuts the nodes off from each other in a ring, one link after the other, and
// replaces the leader meanwhile.
func (sim *simulation) cutRing(_ *node, d time.Duration) {
	for i, n := range sim.nodes {
		sim.within("ring "+n.name, d/2, func() {
			sim.cut(n.name, sim.nodes[(i+1)%members].name, d/2)
			sim.raft.ensureLeader()
		})
	}
	sim.within("ring leader", d, func() {
		if leader := sim.raft.leader; leader != nil {
			sim.raft.elect(leader)
		}
	})
}
