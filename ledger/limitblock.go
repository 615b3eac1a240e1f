package ledger

import (
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// BlockKind is by what a limit permits no start.
type BlockKind uint8

// The kinds of blocks. Those from BlockKeySlots on are of one key.
const (
	BlockPaused  BlockKind = iota // the limit is paused
	BlockCircuit                  // its circuit is open
	BlockSlots                    // as many jobs run as Total permits
	BlockRate                     // Rate permits no start yet
	BlockKeySlots
	BlockKeyRate
)

// OfKey reports whether the block concerns one key only.
func (k BlockKind) OfKey() bool { return k >= BlockKeySlots }

// LimitBlock is why a limit permits no start of a job.
type LimitBlock struct {
	Kind    BlockKind
	Limit   LimitView // without Waiting
	Key     string    // under which the job uses the limit
	Running int       // active jobs that count: of the limit or, in a block of a key, of the key
	NextAt  time.Time // when it may end by itself: the next start of a rate, the first probe; zero: it depends on jobs
	Holders []ActiveDispatch
}

// maxBlockHolders is how many of the jobs that hold slots a [LimitBlock] has.
const maxBlockHolders = 10

// LimitBlocks returns why limits permit no start of a waiting or delayed job at a time. It must
// not be called on a copy.
func (j *jobs) LimitBlocks(id job.ID, at time.Time) (blocks []LimitBlock) {
	stored := j.find(id)
	if stored == nil || stored.state != job.Waiting && stored.state != job.Delayed {
		return nil
	}
	for _, m := range stored.waitlist.bounds {
		blocks = append(blocks, j.blocksOf(m, stored.keyFor(m.Name), at)...)
	}
	return blocks
}

// QueueLimitBlocks returns why the limits that a queue names permit no start of its jobs, whatever
// their keys are. It must not be called on a copy.
func (j *jobs) QueueLimitBlocks(queue string, at time.Time) (blocks []LimitBlock) {
	q := j.queues.get(queue)
	if q == nil {
		return nil
	}
	for _, name := range q.config.Limits {
		if m := j.limits.get(name); m != nil {
			blocks = append(blocks, j.blocksOf(m, "", at)...)
		}
	}
	return slices.DeleteFunc(blocks, func(b LimitBlock) bool { return b.Kind.OfKey() })
}

// blocksOf returns why a limit permits no start of a job under a key.
func (j *jobs) blocksOf(m *limit, key string, at time.Time) (blocks []LimitBlock) {
	c := &j.limits.clocks
	now := c.elapsedAt(at)
	add := func(kind BlockKind, running int, nextAt int64) {
		b := LimitBlock{Kind: kind, Limit: m.view(c, at), Key: key, Running: running, NextAt: c.shownOrZero(nextAt)}
		switch {
		case kind == BlockSlots, kind == BlockCircuit && nextAt == 0: // of a circuit, those that probe
			b.Holders = j.LimitHolders(m.Name, nil, maxBlockHolders)
		case kind == BlockKeySlots:
			b.Holders = j.LimitHolders(m.Name, &key, maxBlockHolders)
		}
		blocks = append(blocks, b)
	}
	if m.Paused {
		add(BlockPaused, m.running, 0)
	}
	if probeAt := m.circuit.startsAt(m); probeAt > now {
		if probeAt == never { // a probe runs
			probeAt = 0
		}
		add(BlockCircuit, m.running, probeAt)
	}
	if m.Total >= 0 && m.running >= int(m.Total) {
		add(BlockSlots, m.running, 0)
	}
	if m.Rate.IsSet() {
		burst, _ := m.Bursts()
		if next := m.bucket.Next(m.Rate, burst); next > now {
			add(BlockRate, m.running, next)
		}
	}
	k := m.find(key)
	if k == nil {
		k = &limitKey{limit: m, key: key}
	}
	if blocked, wakeAt := m.keyBlocked(k, now); blocked {
		kind := BlockKeyRate
		if wakeAt == 0 {
			kind = BlockKeySlots
		}
		add(kind, k.running, wakeAt)
	}
	return blocks
}

// KeyOrder is the place of a waiting job among the keys of its queue.
type KeyOrder struct {
	Fair    bool // the queue shares its starts among keys
	Key     string
	Weight  int // jobs of the key that start in a round
	Ahead   int // waiting jobs of the key that start before it
	Keys    int // keys, with the limits that their jobs name, that have waiting jobs in its list
	Blocked int // those of which no job may start, because of bounds of keys
}

// KeyOrder returns the place of a waiting job among the keys of its queue; ok is false if the job
// does not wait. Its cost does not grow with the number of jobs or keys.
func (j *jobs) KeyOrder(id job.ID) (order KeyOrder, ok bool) {
	stored := j.find(id)
	if stored == nil || stored.state != job.Waiting {
		return KeyOrder{}, false
	}
	q := stored.queue
	wl := stored.waitlist
	order = KeyOrder{Fair: q.config.Fair, Key: stored.key, Weight: q.config.Weight(stored.key), Keys: 1}
	if wl.keyed {
		order.Keys, order.Blocked = wl.waiting, wl.waiting-wl.ready.Len()
	}
	order.Ahead = q.rank(stored.group.jobs, stored.order())
	return order, true
}

// KeyCounts are how many keys of a queue have waiting jobs.
type KeyCounts struct {
	Keys    int // with the limits that their jobs name
	Blocked int // of which no job may start, because of bounds of keys
	Unkeyed int // waiting jobs without a key
}

// KeyCounts returns how many keys of a queue have waiting jobs. It must not be called on a copy.
func (j *jobs) KeyCounts(queue string) (counts KeyCounts) {
	q := j.queues.get(queue)
	if q == nil {
		return counts
	}
	for _, wl := range q.waitlists.Scan {
		if !wl.keyed {
			counts.Unkeyed += wl.jobs.Len()
			continue
		}
		counts.Keys += wl.waiting
		counts.Blocked += wl.waiting - wl.ready.Len()
	}
	return counts
}
