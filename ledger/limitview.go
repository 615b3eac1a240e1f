package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// LimitView is a limit, and how much of it is used.
type LimitView struct {
	job.Limit
	Changed   time.Time    // when it was set last
	Running   int          // active jobs that use it
	Waiting   int          // waiting jobs that use it
	FullSince time.Time    // since when Total jobs have been active; zero: fewer are
	Tokens    int          // jobs that Rate would let start now
	NextToken time.Time    // when Rate lets the next job start, if Tokens is 0
	Circuit   CircuitState // all zero while the circuit is closed and no failure counts
}

// CircuitState is the state of a limit's circuit breaker.
type CircuitState struct {
	OpenedAt time.Time // zero: it is closed
	ProbeAt  time.Time // open: when the first probe may start
	Probes   int       // open: active jobs that are probes
	Failures int       // closed: failures within the time of the circuit
}

// Limits returns all limits by name, as they are at a time of the wall clock. Its cost grows with
// the number of limits, and of lists of waiting jobs. It must not be called on a copy.
func (j *jobs) Limits(at time.Time) []LimitView {
	views := make([]LimitView, 0, j.limits.byName.Len())
	if j.limits.byName.Len() == 0 {
		return views
	}
	waiting := make(map[*limit]int)
	for _, wl := range j.waitlists.Scan {
		for _, m := range wl.bounds {
			waiting[m] += wl.jobs.Len()
		}
	}
	for _, m := range j.limits.byName.Scan {
		view := m.view(&j.limits.clocks, at)
		view.Waiting = waiting[m]
		views = append(views, view)
	}
	return views
}

// Limit returns the settings of a limit; ok is false if there is no such limit.
func (j *jobs) Limit(name string) (settings job.Limit, ok bool) {
	if m := j.limits.get(name); m != nil {
		return m.Limit, true
	}
	return job.Limit{}, false
}

// QueuesWithLimit returns the queues that name a limit, at most maxUsageQueues.
func (j *jobs) QueuesWithLimit(limit string) (names []string) {
	for name, q := range j.queues.byName.Scan {
		if slices.Contains(q.config.Limits, limit) && len(names) < maxUsageQueues {
			names = append(names, name)
		}
	}
	return names
}

// view returns the limit without Waiting.
func (m *limit) view(c *clocks, at time.Time) LimitView {
	now := c.elapsedAt(at)
	v := LimitView{Limit: m.Limit, Changed: time.Unix(0, m.changed).UTC(), Running: m.running}
	if m.isFull(now) {
		v.FullSince = c.shownOrZero(m.fullSince)
	}
	if m.Rate.IsSet() {
		burst, _ := m.Bursts()
		if v.Tokens = m.bucket.Available(m.Rate, burst, now); v.Tokens == 0 {
			v.NextToken = c.shownOrZero(m.bucket.Next(m.Rate, burst))
		}
	}
	v.Circuit = CircuitState{OpenedAt: c.shownOrZero(m.circuit.openedAt), ProbeAt: c.shownOrZero(m.circuit.probeAt), Probes: m.circuit.probes}
	for _, failed := range m.circuit.failures {
		if failed > now-int64(m.Limit.Circuit.Within) {
			v.Circuit.Failures++
		}
	}
	return v
}

// shownOrZero is shown, except that it returns the zero time for 0.
func (c *clocks) shownOrZero(elapsed int64) time.Time {
	if elapsed == 0 {
		return time.Time{}
	}
	return c.shown(elapsed)
}

// LimitUsage is who uses a limit.
type LimitUsage struct {
	LimitView
	Queues     []QueueUse // that name the limit, or have jobs that do, by name
	MoreQueues int        // further ones
	Keys       []KeyUse   // those with the most active and waiting jobs, the largest first
	MoreKeys   int        // further keys with active or waiting jobs, of those that were counted
	Partial    bool       // there are so many jobs and keys that only some were counted by key
	Holders    []ActiveDispatch
}

// QueueUse is a queue whose jobs use a limit.
type QueueUse struct {
	Queue   string
	Named   bool // the queue names the limit, else only some of its jobs do
	Waiting int  // jobs that use the limit
}

// KeyUse is how much of a limit a key uses.
type KeyUse struct {
	Key              string
	Running, Waiting int
	Blocked          bool // a bound of the key permits no start
}

// How much a [LimitUsage] shows.
const (
	maxUsageQueues  = 50
	maxUsageKeys    = 50
	maxUsageHolders = 20
	maxUsageScan    = 4_000 // active jobs, and groups of waiting ones, that are counted by key
)

// LimitUsage returns who uses a limit; ok is false if there is no such limit. Its cost grows with
// the number of active jobs and of queues, but with that of keys only up to a bound. It must not be
// called on a copy.
func (j *jobs) LimitUsage(name string, at time.Time) (usage LimitUsage, ok bool) {
	m := j.limits.get(name)
	if m == nil {
		return LimitUsage{}, false
	}
	usage.LimitView = m.view(&j.limits.clocks, at)
	byQueue, unkeyed := make(map[*queue]int), 0
	var bound []*waitlist
	for _, wl := range j.waitlists.Scan {
		if slices.Contains(wl.bounds, m) {
			bound = append(bound, wl)
			byQueue[wl.queue] += wl.jobs.Len()
			usage.Waiting += wl.jobs.Len()
			if !wl.keyed {
				unkeyed += wl.jobs.Len()
			}
		}
	}
	for _, q := range j.queues.byName.Scan {
		switch {
		case !q.uses(name):
		case len(usage.Queues) == maxUsageQueues:
			usage.MoreQueues++
		default:
			usage.Queues = append(usage.Queues, QueueUse{q.name, slices.Contains(q.config.Limits, name), byQueue[q]})
		}
	}
	c := keyCounter{limit: m, places: make(map[string]int)}
	for stored := range j.holders(m, maxUsageScan) {
		c.of(stored.keyFor(name)).Running++
	}
	if unkeyed > 0 {
		c.of("").Waiting += unkeyed
	}
	c.countWaiting(bound)
	usage.Keys, usage.MoreKeys = c.largest()
	usage.Partial = c.partial || m.running > maxUsageScan
	usage.Holders = j.LimitHolders(name, nil, maxUsageHolders)
	return usage, true
}

// keyCounter counts the active and waiting jobs of a limit by key.
type keyCounter struct {
	limit   *limit
	uses    []KeyUse
	places  map[string]int // in uses, by key
	partial bool           // there are more groups than are counted
}

func (c *keyCounter) of(key string) *KeyUse {
	place, known := c.places[key]
	if !known {
		place = len(c.uses)
		c.places[key] = place
		k := c.limit.find(key)
		c.uses = append(c.uses, KeyUse{Key: key, Blocked: k != nil && k.blocked})
	}
	return &c.uses[place]
}

// countWaiting counts the jobs in up to maxUsageScan groups of waitlists.
func (c *keyCounter) countWaiting(waitlists []*waitlist) {
	groups := 0
	for _, wl := range waitlists {
		for _, g := range wl.groups {
			if !g.waits() {
				continue
			}
			if groups == maxUsageScan {
				c.partial = true
				return
			}
			groups++
			c.of(g.keyFor(c.limit.Name)).Waiting += g.jobs.Len()
		}
	}
}

// largest returns the largest uses in order, and how many others there are.
func (c *keyCounter) largest() (uses []KeyUse, more int) {
	slices.SortFunc(c.uses, func(a, b KeyUse) int {
		return cmp.Or(cmp.Compare(b.Running+b.Waiting, a.Running+a.Waiting), cmp.Compare(b.Running, a.Running), cmp.Compare(a.Key, b.Key))
	})
	shown := min(len(c.uses), maxUsageKeys)
	return c.uses[:shown:shown], len(c.uses) - shown
}

// holders yields up to n active jobs that use a limit, in the order in which they were placed.
func (j *jobs) holders(m *limit, n int) func(yield func(*storedJob) bool) {
	return func(yield func(*storedJob) bool) {
		uses := make(map[*queue]bool) // whether jobs of the queue may use the limit
		for item := range j.active.Scan {
			if n <= 0 {
				return
			}
			q := j.queueOf(item.number)
			may, known := uses[q]
			if !known {
				may = q.uses(m.Name)
				uses[q] = may
			}
			if !may {
				continue
			}
			stored := j.at(item.number)
			if !slices.Contains(stored.waitlist.bounds, m) {
				continue
			}
			n--
			if !yield(stored) {
				return
			}
		}
	}
}

// LimitHolders returns up to n active jobs that use a limit, under a key unless it is nil, in the
// order in which they were placed. Its cost grows with the number of active jobs of all queues.
func (j *jobs) LimitHolders(name string, key *string, n int) (holders []ActiveDispatch) {
	m := j.limits.get(name)
	if m == nil {
		return nil
	}
	for stored := range j.holders(m, m.running) {
		if key != nil && stored.keyFor(name) != *key {
			continue
		}
		if holders = append(holders, stored.activeDispatch()); len(holders) >= n {
			break
		}
	}
	return holders
}
