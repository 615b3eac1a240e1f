package sim

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// faultTimeLeft returns the time until the fault phase ends.
func (sim *simulation) faultTimeLeft() time.Duration {
	return time.Until(sim.started.Add(warmup + sim.shape.faults))
}

// startFaults injects faults at random times until the fault phase ends.
func (sim *simulation) startFaults() {
	if !sim.plan.MajorOnly {
		sim.net.lossPerMille = []int{0, 0, 20, 150}[sim.intn("lossy", 4)]
	}
	sim.scheduleFault()
}

// scheduleFault schedules the next fault, which schedules the one after it.
func (sim *simulation) scheduleFault() {
	if !sim.faultsActive() {
		return
	}
	sim.after(sim.duration("next fault", 50*time.Millisecond, sim.shape.faultPause), "fault", func() {
		if !sim.faultsActive() {
			return
		}
		if sim.nextFaultEnabled() {
			target := sim.nodes[sim.intn("whose", members)]
			if sim.chance("composed", composedPerMille) {
				sim.injectComposed(target)
			} else {
				sim.injectFault(sim.intn("fault", 100), target)
			}
		}
		sim.scheduleFault()
	})
}

// injectFault injects the fault with number n, of 100, into a node, a lane or a stream.
// It ends at the latest with the fault phase.
func (sim *simulation) injectFault(n int, target *node) {
	d := sim.duration("fault lasts", 20*time.Millisecond, 9*time.Second)
	if sim.chance("short", 400) {
		d /= 20
	}
	d = min(d, sim.faultTimeLeft())
	switch {
	case n < 23:
		sim.crash(target, d)
	case n < 25:
		sim.trace("power loss of all nodes")
		for _, n := range sim.nodes {
			sim.crash(n, sim.duration("dark "+n.name, d/2, d+time.Millisecond))
		}
	case n < 43:
		sim.partition(target, d)
	case n < 51:
		sim.freeze(target, d)
	case n < 55:
		sim.stick(target, d)
	case n < 66:
		if leader := sim.raft.leader; leader != nil {
			sim.trace("leader replaced")
			sim.raft.elect(leader)
		}
	case n < 73:
		sim.clocks.fault(target, d)
	case n < 85:
		lane := sim.intn("which lane", members)
		sim.trace("lane %d is down for %s", lane, d)
		sim.lanes.lanes[lane].downUntil = time.Now().Add(d)
	case n < 92:
		stream := outbox.Stream(sim.intn("which story", 3))
		sim.trace("%s cannot be written for %s", stream, d)
		sim.history.down[stream] = time.Now().Add(d)
	case n < 94:
		sim.lanes.truncate(uint8(sim.intn("which end", members)))
	case target.process.up:
		sim.trace("%s drains", target.name)
		target.process.agent.Drain() // until its next start
		sim.after(d, "restart "+target.name, func() {
			if target.process.up {
				target.process.crash()
			}
			sim.restart(target)
		})
	}
}

// freeze pauses a node's process.
func (sim *simulation) freeze(n *node, d time.Duration) {
	sim.trace("%s is frozen for %s", n.name, d)
	sim.net.frozen[n.name] = time.Now().Add(d)
	sim.raft.ensureLeader()
	sim.after(d+time.Millisecond, "thaw", sim.raft.ensureLeader)
}

// stick makes a node's disk refuse writes.
func (sim *simulation) stick(n *node, lasts time.Duration) {
	sim.trace("%s's disk accepts no writes for %s", n.name, lasts)
	sim.net.diskBlocked[n.name] = time.Now().Add(lasts)
	sim.raft.ensureLeader()
	sim.after(lasts+time.Millisecond, "disk "+n.name, sim.raft.ensureLeader)
}

// crash crashes a node and restarts it after d.
func (sim *simulation) crash(n *node, d time.Duration) {
	if !n.process.up {
		return
	}
	n.process.crash()
	sim.after(d, "restart "+n.name, func() { sim.restart(n) })
}

// restart starts a node that is down, unless it is to stay broken.
func (sim *simulation) restart(n *node) {
	if !n.process.up && n != sim.brokenNode {
		n.start()
		sim.raft.ensureLeader()
	}
}

// truncate removes the end of a lane, with some ingested records, as if its stream had
// been restored from an old copy. The authority has to report that until
// checkRecovery restores the lane.
func (s *lanes) truncate(number uint8) {
	leader := s.sim.raft.leader
	if leader == nil || s.truncated() != nil || !s.made {
		return
	}
	lane, folded := &s.lanes[number], leader.ledger.Lanes()[number].Cursor
	left := folded - min(folded, 1+uint64(s.sim.intn("lost", 3)))
	if left == 0 || left < lane.first {
		return
	}
	lane.truncatedTo, lane.damaged = left, true
	s.sim.trace("lane %d truncated to %d, ingested to %d", number, left, folded)
}

// truncated returns the truncated lane, or nil.
func (s *lanes) truncated() *lane {
	for i := range s.lanes {
		if s.lanes[i].truncatedTo > 0 {
			return &s.lanes[i]
		}
	}
	return nil
}

// keepOneBroken leaves, in some runs, one node broken after the others are healed.
func (sim *simulation) keepOneBroken() {
	if !sim.chance("outsider", 400) || !sim.nextFaultEnabled() {
		return
	}
	n := sim.nodes[sim.intn("outsider who", members)]
	const long = time.Hour
	sim.brokenNode = n
	how := sim.intn("outsider how", 5)
	sim.trace("%s stays broken (%d)", n.name, how)
	switch how {
	case 0:
		if n.process.up {
			n.process.crash()
		}
	case 1:
		sim.freeze(n, long)
	case 2:
		sim.net.diskBlocked[n.name] = time.Now().Add(long)
	default: // it cannot send, or cannot receive, or neither
		for _, other := range sim.nodes {
			if other != n {
				sim.net.cut[[2]string{n.name, other.name}] = how == 3 || sim.chance("deaf", 500)
				sim.net.cut[[2]string{other.name, n.name}] = how == 4
			}
		}
	}
}

// cut drops all messages from one node to another.
func (sim *simulation) cut(from, to string, lasts time.Duration) {
	link := [2]string{from, to}
	sim.net.cut[link] = true
	sim.after(lasts, fmt.Sprintf("mend %s %s", from, to), func() {
		delete(sim.net.cut, link)
		sim.raft.ensureLeader()
	})
}

// partition cuts a node off from another or from all, in one direction or both.
func (sim *simulation) partition(n *node, d time.Duration) {
	how := sim.intn("cut how", 3)
	one := sim.intn("cut whom", members+2)
	for i, other := range sim.nodes {
		if other == n || one < members && i != one {
			continue
		}
		if how != 1 {
			sim.cut(n.name, other.name, d)
		}
		if how != 2 {
			sim.cut(other.name, n.name, d)
		}
	}
	sim.trace("%s is cut off (%d, %d) for %s", n.name, how, one, d)
	sim.raft.ensureLeader()
	if sim.chance("crashes cut off", 250) && d > time.Second {
		sim.after(sim.duration("crash cut off", 0, d), "crash cut off "+n.name, func() {
			sim.crash(n, sim.duration("down cut off", time.Millisecond, 2*time.Second))
		})
	}
}
