package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// clocks are the clocks of the members, which may be wrong. The bubble's clock tells how much time
// passes, and which time right wall clocks show.
type clocks struct {
	sim     *simulation
	lead    time.Duration // of right wall clocks over the bubble's
	members [members]memberClock
	first   bool // the cluster has had its first leader
}

// memberClock is the clock of one member.
type memberClock struct {
	ahead     time.Duration  // of its wall clock over the bubble's
	settings  []clockSetting // of its wall clock, the oldest first
	suspended time.Duration  // for how long its monotonic clock has not run
}

// clockSetting is a time at which a wall clock was set.
type clockSetting struct {
	at    time.Time
	ahead time.Duration // from then on
}

// clockCounts is what happened to the clocks of a run's members.
type clockCounts struct {
	WrongStarts   int // clusters whose first leader's clock was wrong
	Steps         int // clocks that were set while their members ran
	AllStepped    int // times at which all clocks were set
	InHandOver    int // times at which clocks were set while the authority moved
	Suspensions   int // members that were suspended
	ToldByWall    int // tenures that took elapsed time from wall clocks, because all members had stopped
	Waits         int // relative times that ended
	WaitsOverStep int // those while which the wall clocks of a majority were set
	WallTimes     int // wall-clock times that were reached
	Expiries      int // jobs that expired
}

func (c *clockCounts) add(o *clockCounts) {
	c.WrongStarts += o.WrongStarts
	c.Steps += o.Steps
	c.AllStepped += o.AllStepped
	c.InHandOver += o.InHandOver
	c.Suspensions += o.Suspensions
	c.ToldByWall += o.ToldByWall
	c.Waits += o.Waits
	c.WaitsOverStep += o.WaitsOverStep
	c.WallTimes += o.WallTimes
	c.Expiries += o.Expiries
}

func (c *clockCounts) summary() string {
	return fmt.Sprintf("%d wrong clocks at first starts, %d set (%d times all, %d times while the authority moved), %d members suspended, %d tenures went by wall clocks, %d relative times ended (%d over a step), %d start times, %d expiries",
		c.WrongStarts, c.Steps, c.AllStepped, c.InHandOver, c.Suspensions, c.ToldByWall, c.Waits, c.WaitsOverStep, c.WallTimes, c.Expiries)
}

// tooFew reports whether a clock fault, or what it is to be checked by, has hardly occurred in n runs.
func (c *clockCounts) tooFew(n int) bool {
	return min(c.WrongStarts*10, c.Steps*2, c.AllStepped*10, c.InHandOver*20, c.Suspensions*20, c.ToldByWall*50, c.Waits, c.WaitsOverStep*5, c.WallTimes*2, c.Expiries*5) < n
}

// newClocks returns the clocks of a run. In some runs the clock of the first leader is wrong, in a
// plan it is right. The leader reads it in the product's code, so that it is the bubble's, from which
// right clocks then differ.
func newClocks(sim *simulation) *clocks {
	c := &clocks{sim: sim}
	if sim.plan.Steps == nil && sim.chance("first clock is wrong", 400) {
		c.lead = sim.duration("first clock by", -40*time.Second, 40*time.Second)
	}
	for i := range c.members {
		c.members[i] = memberClock{ahead: c.lead, settings: []clockSetting{{sim.started, c.lead}}}
	}
	return c
}

// right returns the time that a right wall clock shows.
func (c *clocks) right() time.Time { return time.Now().Add(c.lead) }

// of returns the clock of a member.
func (c *clocks) of(name string) *memberClock {
	return &c.members[slices.IndexFunc(c.sim.nodes, func(n *node) bool { return n.name == name })]
}

// set sets the wall clock of a member.
func (c *clocks) set(name string, ahead time.Duration) {
	m := c.of(name)
	if m.ahead == ahead {
		return
	}
	c.sim.trace("%s's clock is set by %s", name, ahead-m.ahead)
	m.ahead = ahead
	m.settings = append(m.settings, clockSetting{time.Now(), ahead})
}

// heal sets all clocks right.
func (c *clocks) heal() {
	for _, n := range c.sim.nodes {
		c.set(n.name, c.lead)
	}
}

// onFirstElected is called when a process has become the leader. In a new cluster its wall clock is
// the bubble's until it is set right.
func (c *clocks) onFirstElected(proc *process) {
	if c.lead == 0 || proc.ledger.Clock().Now.Unix() > 0 {
		return
	}
	c.sim.report.Clocks.WrongStarts++
	c.set(proc.name, 0)
	key := "first clock of " + proc.id
	c.sim.after(c.sim.duration(key, 500*time.Millisecond, 20*time.Second), key, func() { c.set(proc.name, c.lead) })
}

// fault sets clocks, or suspends a member.
func (c *clocks) fault(target *node, d time.Duration) {
	sim := c.sim
	switch how := sim.intn("clock how", 10); {
	case how < 3:
		c.step(target, d)
	case how < 5:
		c.stepAll(d, sim.chance("clocks alike", 600))
	case how < 8:
		c.duringHandOver(target, d)
	default:
		c.suspend(target, d)
	}
}

// maxClockStep is how far a clock is off at most. The ledger's time follows, and a completed job must
// not be forgotten within a run, see [job.FinishedAge].
const maxClockStep = 80 * time.Second

// stepSize returns by how much a clock is set.
func (c *clocks) stepSize(key string) time.Duration {
	by := c.sim.duration("clock by "+key, time.Millisecond, maxClockStep)
	if c.sim.chance("small "+key, 300) {
		by /= 30
	}
	if c.sim.chance("back "+key, 500) {
		by = -by
	}
	return by
}

// step sets the clock of a member, and right again after d.
func (c *clocks) step(n *node, d time.Duration) {
	c.sim.report.Clocks.Steps++
	c.set(n.name, c.lead+c.stepSize(n.name))
	c.sim.after(d, "clock of "+n.name, func() { c.set(n.name, c.lead) })
}

// stepAll sets the clocks of all members, by the same or not, and right again after d.
func (c *clocks) stepAll(d time.Duration, alike bool) {
	c.sim.report.Clocks.AllStepped++
	by := c.stepSize("all")
	for _, n := range c.sim.nodes {
		if !alike {
			by = c.stepSize(n.name)
		}
		c.sim.report.Clocks.Steps++
		c.set(n.name, c.lead+by)
		c.sim.after(d, "clock of "+n.name, func() { c.set(n.name, c.lead) })
	}
}

// duringHandOver replaces the leader, and sets the clocks of a member or of all meanwhile.
func (c *clocks) duringHandOver(target *node, d time.Duration) {
	leader := c.sim.raft.leader
	if leader == nil {
		return
	}
	c.sim.report.Clocks.InHandOver++
	c.sim.within("clocks in hand-over", 50*time.Millisecond, func() {
		if c.sim.chance("all in hand-over", 500) {
			c.stepAll(d, true)
		} else {
			c.step(target, d)
		}
	})
	c.sim.raft.elect(leader)
}

// suspend pauses a node's process and stops its clocks, as a hypervisor does. Its wall clock is
// set right some time after it continues.
func (c *clocks) suspend(n *node, d time.Duration) {
	if c.sim.net.frozen[n.name].After(time.Now()) {
		return
	}
	c.sim.report.Clocks.Suspensions++
	c.sim.freeze(n, d)
	m := c.of(n.name)
	c.sim.after(d, "resumed "+n.name, func() {
		m.suspended += d
		c.set(n.name, m.ahead-d)
		key := "clock of resumed " + n.name
		c.sim.after(c.sim.duration(key, time.Millisecond, 4*time.Second), key, func() { c.set(n.name, c.lead) })
	})
}

// between returns the bounds of the median of the wall clocks that the authority may know: relative
// to the bubble's, from samples since a time. The median of two is the lower one.
func (c *clocks) between(since time.Time) (lowest, highest time.Duration) {
	var low, high [members]time.Duration
	for i := range c.members {
		m := &c.members[i]
		low[i], high[i] = m.ahead, m.ahead
		for k := len(m.settings) - 1; k >= 0; k-- {
			low[i], high[i] = min(low[i], m.settings[k].ahead), max(high[i], m.settings[k].ahead)
			if !m.settings[k].at.After(since) {
				break
			}
		}
	}
	slices.Sort(low[:])
	slices.Sort(high[:])
	return low[0], high[members/2]
}

// setClocksDuringHandOver sets clocks again and again while the authority moves.
func (sim *simulation) setClocksDuringHandOver(n *node, d time.Duration) {
	for i := range 3 {
		key := fmt.Sprintf("hand-over %d", i)
		sim.within(key, d, func() { sim.clocks.duringHandOver(n, d/2) })
	}
}

// stopAllAndSetClocks stops all nodes at once. The clocks of some are set before they start again.
func (sim *simulation) stopAllAndSetClocks(_ *node, d time.Duration) {
	for _, n := range sim.nodes {
		sim.crash(n, sim.duration("stopped "+n.name, d/4, d/2+time.Millisecond))
	}
	sim.within("clocks while stopped", d/4, func() { sim.clocks.stepAll(d, sim.chance("clocks alike", 600)) })
}

// heardMembers is which members a tenure has received heartbeats of.
type heardMembers struct {
	since   time.Time // the tenure's start
	before  uint64    // the epoch before it
	names   [members]string
	n       int
	latest  [members]uint64 // incarnation of each member, as far as it is known
	settled time.Time       // when a majority had been heard
	newest  time.Time       // when the last of them was heard first
	elapsed bool            // one of them had kept the elapsed time, and was heard in time
}

// knows notes that a member has sent something, and reports whether it was its latest incarnation,
// as far as the tenure knows: what an earlier one sends is ignored.
func (h *heardMembers) knows(name string, incarnation uint64) bool {
	for i := range h.latest {
		if nodeName(i) == name {
			h.latest[i] = max(h.latest[i], incarnation)
			return h.latest[i] == incarnation
		}
	}
	return false
}

// add adds the member that a heartbeat is from.
func (h *heardMembers) add(name string, b *job.Heartbeat) {
	if !h.knows(name, b.Incarnation) {
		return
	}
	if !b.Elapsed.IsZero() && b.ElapsedEpoch <= h.before && time.Since(h.since) < allHeardAfter {
		h.elapsed = true
	}
	if !slices.Contains(h.names[:h.n], name) {
		h.names[h.n] = name
		h.newest = time.Now()
		if h.n++; h.n == members/2+1 {
			h.settled = h.newest
		}
	}
}

// knewMedian reports whether the tenure knew the median of the members' clocks before a time: it does
// once it has handled one heartbeat of each of a majority.
func (h *heardMembers) knewMedian(at time.Time) bool {
	return h.n > members/2 && at.Sub(h.settled) > handlingTime
}

// allSuspended returns for how long all members together were suspended.
func (c *clocks) allSuspended() (all time.Duration) {
	for i := range c.members {
		all += c.members[i].suspended
	}
	return all
}

// noteUntriedClocks notes that a plan has set clocks and no relative time has ended since.
func (sim *simulation) noteUntriedClocks() {
	if sim.plan.Steps != nil && sim.report.Clocks.Steps > 0 && sim.report.Clocks.WaitsOverStep == 0 && sim.report.Untried == "" {
		sim.report.Untried = "no relative time has ended after the clocks were set"
	}
}
