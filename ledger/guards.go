package ledger

import (
	"bytes"
	"cmp"
	"math"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxHeldKeys is how many guard keys are held at once; a job that needs one
// more is rejected.
const MaxHeldKeys = 1_000_000

// heldKey is a held guard key. It is immutable.
type heldKey struct {
	key   job.GuardKey
	job   job.ID // the job that holds it; zero for a rate limit key
	queue string // of that job
	until int64  // Unix nanoseconds of elapsed time, untilStart or untilEnd
	rate  bool   // a rate limit key, which belongs to no job
}

// Expiries of keys that are not released after a time. Debounce keys have the first.
const (
	untilStart = math.MaxInt64 - iota // when the job starts or ends
	untilEnd                          // when the job ends
)

// guards are the held keys. Each is held by at most one job, and no job holds more
// than two. A key with a time may outlive the record of its job in the ledger.
type guards struct {
	byKey  map[job.GuardKey]*heldKey // nil in a copy
	byTime *btree.BTreeG[*heldKey]
	byJob  *btree.BTreeG[*heldKey] // without rate limit keys; nil in a copy
	max    int
}

func newGuards() guards {
	return guards{
		byKey:  make(map[job.GuardKey]*heldKey),
		byTime: btree.NewBTreeGOptions(keyByTime, treeOptions),
		byJob:  btree.NewBTreeGOptions(keyByJob, treeOptions),
		max:    MaxHeldKeys,
	}
}

func (g *guards) copy() guards { return guards{byTime: g.byTime.Copy()} }

func keyByTime(a, b *heldKey) bool {
	return cmp.Or(cmp.Compare(a.until, b.until), bytes.Compare(a.key[:], b.key[:])) < 0
}

func keyByJob(a, b *heldKey) bool {
	return cmp.Or(bytes.Compare(a.job[:], b.job[:]), bytes.Compare(a.key[:], b.key[:])) < 0
}

// holder returns the held key of a guard, or nil if it is not held. It ignores
// an expired key that [guards.expire] has not yet removed.
func (g *guards) holder(guard job.Guard, now int64) *heldKey {
	if !guard.IsSet() {
		return nil
	}
	if held := g.byKey[guard.Key]; held != nil && held.until > now {
		return held
	}
	return nil
}

// full reports whether there is no space for all keys of a job.
func (g *guards) full(keys *job.Guards) bool {
	added := 0
	for _, guard := range [...]job.Guard{keys.Unique, keys.Rate, keys.Debounce} {
		if guard.IsSet() && g.byKey[guard.Key] == nil {
			added++
		}
	}
	return len(g.byKey)+added > g.max
}

// hold adds a key; a key that is already held gets its new holder and expiry.
func (g *guards) hold(held *heldKey) {
	if previous := g.byKey[held.key]; previous != nil {
		g.drop(previous)
	}
	g.byKey[held.key] = held
	g.byTime.Set(held)
	if !held.rate {
		g.byJob.Set(held)
	}
}

func (g *guards) drop(held *heldKey) {
	delete(g.byKey, held.key)
	g.byTime.Delete(held)
	if !held.rate {
		g.byJob.Delete(held)
	}
}

// heldBy returns the unique and debounce keys that a job holds.
func (g *guards) heldBy(id job.ID) (keys []*heldKey) {
	g.byJob.Ascend(&heldKey{job: id}, func(held *heldKey) bool {
		if held.job != id {
			return false
		}
		keys = append(keys, held)
		return true
	})
	return keys
}

// expire removes expired keys, at most maxPruned at a time.
func (g *guards) expire(now int64) {
	for range maxPruned {
		first, ok := g.byTime.Min()
		if !ok || first.until > now {
			return
		}
		g.drop(first)
	}
}

// releaseUntil releases the keys of a job whose expiry is until or later: with
// untilStart those held until it starts, with untilEnd also those held until it ends,
// with 0 all.
func (g *guards) releaseUntil(stored *storedJob, until int64) {
	if stored.flags&guarded == 0 {
		return
	}
	for _, held := range g.heldBy(stored.id) {
		if held.until >= until {
			g.drop(held)
		}
	}
}

// holdFor holds the keys of a job that was created or replaced. A unique key
// is held at least until the job is due.
func (g *guards) holdFor(stored *storedJob, keys *job.Guards, c *clocks) {
	if keys.Unique.IsSet() {
		until := c.elapsed + int64(keys.Unique.TTL)
		if stored.state == job.Delayed {
			until = max(until, c.elapsedOf(stored.dueMoment()))
		}
		switch keys.Unique.Until {
		case job.UntilStart:
			until = untilStart
		case job.UntilEnd:
			until = untilEnd
		}
		g.hold(&heldKey{key: keys.Unique.Key, job: stored.id, queue: stored.queue.name, until: until})
	}
	if keys.Rate.IsSet() {
		g.hold(&heldKey{key: keys.Rate.Key, until: c.elapsed + int64(keys.Rate.TTL), rate: true})
	}
	if keys.Debounce.IsSet() {
		g.hold(&heldKey{key: keys.Debounce.Key, job: stored.id, queue: stored.queue.name, until: untilStart})
	}
}

// ingestGuarded ingests a record with guards, and keeps the decision for the
// client that waits for it.
func (in *ingestion) ingestGuarded(j *job.Job, identity string, createQueues bool) Ingested {
	alias, known := in.Alias(j.ID)
	var decision Decision
	if known {
		decision = in.decideAlias(j, identity, alias)
	} else {
		decision = in.decide(j, identity, createQueues)
		in.keepAlias(j.ID, &decision)
		in.keepRefusal(j, &decision)
	}
	in.decisions.add(decisionEntry{at: in.elapsed, position: j.Position, id: j.ID, accepted: j.Accepted.UnixNano(), Decision: decision})
	return decision.Ingested
}

// decide determines what a record with guards becomes, and carries that out. A
// record that holds the debounce key of a job that has not started replaces the
// content of that job.
func (in *ingestion) decide(j *job.Job, identity string, createQueues bool) Decision {
	if _, known := in.Known(j.ID); known {
		return in.decideUnguarded(j, identity, createQueues)
	}
	if decision, ok := in.forDuplicate(j); ok {
		return decision
	}
	if decision, ok := in.refused.forCopy(j); ok {
		return decision
	}

	var replaced *storedJob // the job whose content the record replaces, or nil
	if held := in.holder(j.Guards.Debounce, in.elapsed); held != nil {
		replaced = in.jobs.find(held.job)
	}
	if held := in.holder(j.Guards.Unique, in.elapsed); held != nil && (replaced == nil || held.job != replaced.id) {
		return Decision{Ingested: IngestedDuplicate, Job: held.job, Queue: held.queue}
	}
	if held := in.holder(j.Guards.Rate, in.elapsed); held != nil {
		in.emitRateLimited(j, identity)
		return Decision{Ingested: IngestedRateLimited, RetryAfter: time.Duration(held.until - in.elapsed)}
	}
	if in.full(j.Guards) {
		in.rejectJob(j, identity, ReasonKeysFull)
		return Decision{Ingested: IngestedKeysFull, Reason: ReasonKeysFull}
	}
	if replaced != nil {
		return in.debounce(replaced, j, identity)
	}

	decision := in.decideUnguarded(j, identity, createQueues)
	if added := in.jobs.find(j.ID); added != nil {
		in.holdFor(added, j.Guards, &in.clocks)
	}
	return decision
}

// decideUnguarded ingests a record regardless of its guards.
func (in *ingestion) decideUnguarded(j *job.Job, identity string, createQueues bool) Decision {
	ingested, reason := in.addJob(j, identity, createQueues)
	if reason != "" {
		return Decision{Ingested: ingested, Reason: reason}
	}
	return Decision{Ingested: ingested, Job: j.ID, Queue: j.Queue}
}

// debounce replaces the content of old, a job that has not started, by that of
// the newer record j. The job keeps its id and the time it was accepted. A
// record of another queue is rejected.
func (in *ingestion) debounce(old *storedJob, j *job.Job, identity string) Decision {
	if old.queue.name != j.Queue {
		reason := "debounce_conflict: the key is held by a job of queue " + old.queue.name
		in.rejectJob(j, identity, reason)
		return Decision{Ingested: IngestedRejected, Reason: reason}
	}
	if err := in.checkLimits(j); err != nil {
		in.rejectJob(j, identity, err.Error())
		return Decision{Ingested: IngestedRejected, Reason: err.Error()}
	}
	if err := in.checkRunnerLimit(old.queue, j.Function); err != nil {
		in.rejectJob(j, identity, err.Error())
		return Decision{Ingested: IngestedKeysFull, Reason: err.Error()}
	}
	next := in.newStoredJob(j, old.queue)
	next.id, next.accepted, next.n, next.state = old.id, old.accepted, old.n, job.Delayed
	if old.state == job.Waiting {
		in.emitUnstartedFailure(old, failedDispatch{reason: reasonDebounced, to: InState(job.Delayed), due: next.due})
	} else {
		in.emitChange(InState(job.Delayed), &next, InState(job.Delayed))
	}
	labels := cmp.Or(j.Labels, job.NoLabels)
	in.emitDetails(&next, labels)
	in.store(old, &next)
	if in.changes != nil {
		in.changes.label(next.number, labels)
	}
	in.releaseUntil(old, 0)
	in.holdFor(&next, j.Guards, &in.clocks)
	return Decision{Ingested: IngestedDebounced, Job: next.id, Queue: old.queue.name}
}

// Reasons of dispatches that never started, as written to history.
const (
	reasonDebounced   = "debounced: a newer job took its place"
	reasonRateLimited = "rate_limited: its rate limit key is held"
	ReasonKeysFull    = "keys_full: the maximum number of unique, rate limit and debounce keys is held; try again later"
)

// emitRateLimited emits the events of a record that a rate limit refused. They
// carry the id of the record's position, because its own id may still become a
// job.
func (in *ingestion) emitRateLimited(j *job.Job, identity string) {
	refused := &storedJob{
		record:   record{id: job.RecordID(identity, j.Position, j.Accepted), n: 1},
		function: j.Function, traits: &traits{traitsID: traitsID{queue: &queue{name: j.Queue}}},
	}
	in.emitQueued(refused, OutGone)
	in.emitUnstartedFailure(refused, failedDispatch{reason: reasonRateLimited, to: OutGone})
}

// HeldKeys returns how many guard keys are held, at most [MaxHeldKeys].
func (g *guards) HeldKeys() int { return g.byTime.Len() }

// GuardsBlock reports whether a job with these guards would be refused now, or
// would not start immediately.
func (d *dispatches) GuardsBlock(g *job.Guards) bool {
	return g.Debounce.IsSet() || d.holder(g.Unique, d.elapsed) != nil || d.holder(g.Rate, d.elapsed) != nil
}

// guards encodes or decodes the held keys. A key that is held twice, or until the start
// or end of a job that does not exist or holds no keys, fails with errCorrupt.
func (c *codec) guards(d *dispatches) {
	each(c, d.guards.byTime.Len(), d.guards.byTime.Scan, func(held *heldKey) {
		c.fields((*job.ID)(&held.key), &held.job, (*name)(&held.queue), &held.until, &held.rate)
		if !c.decoding() {
			return
		}
		holder := d.jobs.find(held.job)
		validHolder := held.rate || holder != nil && holder.flags&guarded != 0 || holder == nil && held.until < untilEnd
		if d.guards.byKey[held.key] != nil || !validHolder {
			c.fail(errCorrupt)
			return
		}
		d.hold(held)
	})
}
