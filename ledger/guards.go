package ledger

import (
	"bytes"
	"cmp"
	"math"
	"time"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// MaxHeldKeys is how many keys of guards are held at once; a job that needs
// one more is rejected.
const MaxHeldKeys = 1_000_000

// heldKey is a guard's key, and which job holds it. It is immutable.
type heldKey struct {
	key   job.GuardKey
	job   job.ID
	until int64 // unix nanoseconds; untilStart for a debounce key
	rate  bool  // a rate limit: no job holds it, it outlives them all
}

// untilStart is the end of a debounce key: it goes when its job starts or
// ends, not with time.
const untilStart = math.MaxInt64

// guards are the keys that are held. Each is held by at most one job, which
// the ledger knows, and no job holds more than two.
type guards struct {
	byKey  map[job.GuardKey]*heldKey // nil in a copy
	byTime *btree.BTreeG[*heldKey]
	byJob  *btree.BTreeG[*heldKey] // nil in a copy; without rate limits
	most   int
}

func newGuards() guards {
	return guards{
		byKey:  make(map[job.GuardKey]*heldKey),
		byTime: btree.NewBTreeGOptions(keyByTime, treeOptions),
		byJob:  btree.NewBTreeGOptions(keyByJob, treeOptions),
		most:   MaxHeldKeys,
	}
}

func (g *guards) copy() guards { return guards{byTime: g.byTime.Copy()} }

func keyByTime(a, b *heldKey) bool {
	return cmp.Or(cmp.Compare(a.until, b.until), bytes.Compare(a.key[:], b.key[:])) < 0
}

func keyByJob(a, b *heldKey) bool {
	return cmp.Or(bytes.Compare(a.job[:], b.job[:]), bytes.Compare(a.key[:], b.key[:])) < 0
}

// live gives who holds a key; nil if nobody does. What has run out counts for
// nothing even before [guards.expire] comes to it.
func (g *guards) live(want job.Guard, now int64) *heldKey {
	if !want.Given() {
		return nil
	}
	if h := g.byKey[want.Key]; h != nil && h.until > now {
		return h
	}
	return nil
}

// full tells that not all of a job's keys can be held.
func (g *guards) full(want *job.Guards) bool {
	more := 0
	for _, one := range [...]job.Guard{want.Unique, want.Rate, want.Debounce} {
		if one.Given() && g.byKey[one.Key] == nil {
			more++
		}
	}
	return len(g.byKey)+more > g.most
}

func (g *guards) hold(h *heldKey) {
	if old := g.byKey[h.key]; old != nil {
		g.drop(old)
	}
	g.byKey[h.key] = h
	g.byTime.Set(h)
	if !h.rate {
		g.byJob.Set(h)
	}
}

func (g *guards) drop(h *heldKey) {
	delete(g.byKey, h.key)
	g.byTime.Delete(h)
	if !h.rate {
		g.byJob.Delete(h)
	}
}

// release frees a job's keys, or only the one that it holds until it starts.
func (g *guards) release(id job.ID, onlyDebounce bool) {
	var mine []*heldKey
	g.byJob.Ascend(&heldKey{job: id}, func(h *heldKey) bool {
		if h.job == id && (!onlyDebounce || h.until == untilStart) {
			mine = append(mine, h)
		}
		return h.job == id
	})
	for _, h := range mine {
		g.drop(h)
	}
}

// expire frees keys whose time is over, a bounded number at a time.
func (g *guards) expire(now int64) {
	for range maxForgotten {
		first, ok := g.byTime.Min()
		if !ok || first.until > now {
			return
		}
		g.drop(first)
	}
}

// holdGuards gives a job that was made, or made anew, its keys. A unique key
// lives at least until the job is due.
func (l *Ledger) holdGuards(r *record, g *job.Guards) {
	if g.Unique.Given() {
		l.guards.hold(&heldKey{key: g.Unique.Key, job: r.id, until: max(l.now+int64(g.Unique.For), r.due)})
	}
	if g.Rate.Given() {
		l.guards.hold(&heldKey{key: g.Rate.Key, until: l.now + int64(g.Rate.For), rate: true})
	}
	if g.Debounce.Given() {
		l.guards.hold(&heldKey{key: g.Debounce.Key, job: r.id, until: untilStart})
	}
}

// foldGuarded takes in a record with guards, and keeps what became of it for
// whoever waits to hear.
func (l *Ledger) foldGuarded(j *job.Job, identity string, createQueues bool) Folded {
	if window := j.Guards.Debounce.For; window > 0 {
		later := *j
		later.RunAt = l.Now().Add(window)
		j = &later
	}
	r := l.rule(j, identity, createQueues)
	l.rulings.add(ruled{at: l.now, place: j.Position, id: j.ID, accepted: j.Accepted.UnixNano(), Ruling: r})
	return r.Folded
}

func (l *Ledger) rule(j *job.Job, identity string, createQueues bool) Ruling {
	if known := l.jobs.byID[j.ID]; known != nil || l.jobs.gone.has(j.ID) {
		return l.ruleAlone(j, identity, createQueues)
	}
	if r, ok := l.rulings.ofCopy(j); ok {
		return r
	}
	merge := l.debounced(j.Guards.Debounce)
	if h := l.guards.live(j.Guards.Unique, l.now); h != nil && (merge == nil || h.job != merge.id) {
		return Ruling{Folded: FoldedDuplicate, Job: h.job, Queue: l.jobs.byID[h.job].queue.name}
	}
	if h := l.guards.live(j.Guards.Rate, l.now); h != nil {
		l.limit(j, identity)
		return Ruling{Folded: FoldedLimited, RetryAfter: time.Duration(h.until - l.now)}
	}
	if l.guards.full(j.Guards) {
		l.rejectJob(j, identity, ReasonKeysFull)
		return Ruling{Folded: FoldedLater, Reason: ReasonKeysFull}
	}
	if merge != nil && merge.queue.name != j.Queue {
		reason := "debounce_conflict: the key is held by a job of queue " + merge.queue.name
		l.rejectJob(j, identity, reason)
		return Ruling{Folded: FoldedRejected, Reason: reason}
	}
	if merge != nil {
		l.remake(merge, j)
		return Ruling{Folded: FoldedDebounced, Job: merge.id, Queue: j.Queue}
	}
	r := l.ruleAlone(j, identity, createQueues)
	if made := l.jobs.byID[j.ID]; made != nil {
		l.holdGuards(made, j.Guards)
	}
	return r
}

// ruleAlone takes in a record that no other job stands in the way of.
func (l *Ledger) ruleAlone(j *job.Job, identity string, createQueues bool) Ruling {
	folded, reason := l.makeJob(j, identity, createQueues)
	if folded == FoldedRejected {
		return Ruling{Folded: folded, Reason: reason}
	}
	return Ruling{Folded: folded, Job: j.ID, Queue: j.Queue}
}

// debounced finds the job that a newer one takes the place of: it holds the
// key, and nobody was ever told to run it.
func (l *Ledger) debounced(g job.Guard) *record {
	if h := l.guards.live(g, l.now); h != nil {
		return l.jobs.byID[h.job]
	}
	return nil
}

// remake makes a job that has not started what a newer record asks for. It
// keeps its id and its age.
func (l *Ledger) remake(old *record, j *job.Job) {
	next := l.newRecord(j, old.queue)
	next.id, next.accepted, next.n, next.state = old.id, old.accepted, old.n, job.Delayed
	if old.state == job.Waiting {
		l.endUnstarted(old, reasonDebounced)
	}
	l.put(old, next)
	l.guards.release(next.id, false)
	l.holdGuards(next, j.Guards)
}

// Why a dispatch was never told, or never will be, as history says it.
const (
	reasonDebounced = "debounced: a newer job took its place"
	reasonLimited   = "rate_limited: its rate limit key is held"
	ReasonKeysFull  = "keys_full: the yard holds as many unique, rate limit and debounce keys as it can"
)

// limit tells history of a record that a rate limit keeps from being a job.
// It goes under the id of its place: its own may yet become a job.
func (l *Ledger) limit(j *job.Job, identity string) {
	r := &record{
		id:    job.RecordID(identity, j.Position.Seq, j.Accepted),
		queue: &queue{name: j.Queue}, function: j.Function, n: 1,
	}
	l.outbox.emit(Event{Kind: DispatchQueued, Job: r.id, N: 1, A: target(r), B: j.Queue})
	l.endUnstarted(r, reasonLimited)
}

// HeldKeys is how many keys of guards are held, of at most [MaxHeldKeys].
func (l *Ledger) HeldKeys() int { return l.guards.byTime.Len() }

// Hindered tells that a job with these guards would not be made as it is now,
// or not to be run at once.
func (l *Ledger) Hindered(g *job.Guards) bool {
	return g.Debounce.Given() || l.guards.live(g.Unique, l.now) != nil || l.guards.live(g.Rate, l.now) != nil
}
