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
	key   job.GuardKey // the job that holds it; zero for a rate limit key
	job   job.ID
	until int64 // Unix nanoseconds; untilStart for a debounce key
	rate  bool  // a rate limit key, which belongs to no job
}

// untilStart is the expiry of a debounce key: it is released when its job
// starts or ends, not after a time.
const untilStart = math.MaxInt64

// guards are the held keys. Each is held by at most one job, which the ledger
// has, and no job holds more than two.
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
func (g *guards) holder(want job.Guard, now int64) *heldKey {
	if !want.IsSet() {
		return nil
	}
	if h := g.byKey[want.Key]; h != nil && h.until > now {
		return h
	}
	return nil
}

// full reports whether there is no space for all keys of a job.
func (g *guards) full(want *job.Guards) bool {
	more := 0
	for _, one := range [...]job.Guard{want.Unique, want.Rate, want.Debounce} {
		if one.IsSet() && g.byKey[one.Key] == nil {
			more++
		}
	}
	return len(g.byKey)+more > g.max
}

// hold adds a key; a key that is already held gets its new holder and expiry.
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

// release removes the keys of a job, or only its debounce key.
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

// releaseDebounce releases the debounce key of a job that starts or will never
// start.
func (g *guards) releaseDebounce(r *storedJob) {
	if r.flags&guarded != 0 {
		g.release(r.id, true)
	}
}

// holdFor holds the keys of a job that was created or replaced. A unique key
// is held at least until the job is due.
func (g *guards) holdFor(r *storedJob, want *job.Guards, now int64) {
	if want.Unique.IsSet() {
		g.hold(&heldKey{key: want.Unique.Key, job: r.id, until: max(now+int64(want.Unique.TTL), r.due)})
	}
	if want.Rate.IsSet() {
		g.hold(&heldKey{key: want.Rate.Key, until: now + int64(want.Rate.TTL), rate: true})
	}
	if want.Debounce.IsSet() {
		g.hold(&heldKey{key: want.Debounce.Key, job: r.id, until: untilStart})
	}
}

// ingestGuarded ingests a record with guards, and keeps the decision for the
// client that waits for it.
func (in *ingestion) ingestGuarded(j *job.Job, identity string, createQueues bool) Ingested {
	if window := j.Guards.Debounce.TTL; window > 0 {
		later := *j
		later.RunAt = in.Now().Add(window)
		j = &later
	}
	r := in.decide(j, identity, createQueues)
	in.decisions.add(decisionEntry{at: in.now, position: j.Position, id: j.ID, accepted: j.Accepted.UnixNano(), Decision: r})
	return r.Ingested
}

// decide determines what a record with guards becomes, and carries that out.
func (in *ingestion) decide(j *job.Job, identity string, createQueues bool) Decision {
	if known := in.jobs.byID[j.ID]; known != nil || in.jobs.forgotten.has(j.ID) {
		return in.decideUnguarded(j, identity, createQueues)
	}
	if r, ok := in.forDuplicate(j); ok {
		return r
	}
	var merge *storedJob // the job that the record replaces: one that has not started
	if h := in.holder(j.Guards.Debounce, in.now); h != nil {
		merge = in.jobs.byID[h.job]
	}
	if h := in.holder(j.Guards.Unique, in.now); h != nil && (merge == nil || h.job != merge.id) {
		return Decision{Ingested: IngestedDuplicate, Job: h.job, Queue: in.jobs.byID[h.job].queue.name}
	}
	if h := in.holder(j.Guards.Rate, in.now); h != nil {
		in.emitRateLimited(j, identity)
		return Decision{Ingested: IngestedRateLimited, RetryAfter: time.Duration(h.until - in.now)}
	}
	if in.full(j.Guards) {
		in.rejectJob(j, identity, ReasonKeysFull)
		return Decision{Ingested: IngestedKeysFull, Reason: ReasonKeysFull}
	}
	if merge != nil && merge.queue.name != j.Queue {
		reason := "debounce_conflict: the key is held by a job of queue " + merge.queue.name
		in.rejectJob(j, identity, reason)
		return Decision{Ingested: IngestedRejected, Reason: reason}
	}
	if merge != nil {
		if err := in.checkRunnerLimit(merge.queue, j.Function); err != nil {
			in.rejectJob(j, identity, err.Error())
			return Decision{Ingested: IngestedKeysFull, Reason: err.Error()}
		}
		in.debounceInto(merge, j)
		return Decision{Ingested: IngestedDebounced, Job: merge.id, Queue: j.Queue}
	}
	r := in.decideUnguarded(j, identity, createQueues)
	if made := in.jobs.byID[j.ID]; made != nil {
		in.holdFor(made, j.Guards, in.now)
	}
	return r
}

// decideUnguarded ingests a record regardless of its guards.
func (in *ingestion) decideUnguarded(j *job.Job, identity string, createQueues bool) Decision {
	ingested, reason := in.addJob(j, identity, createQueues)
	if reason != "" {
		return Decision{Ingested: ingested, Reason: reason}
	}
	return Decision{Ingested: ingested, Job: j.ID, Queue: j.Queue}
}

// debounceInto replaces what a job that has not started asks for by what a
// newer record asks for. The job keeps its id and the time it was accepted.
func (in *ingestion) debounceInto(old *storedJob, j *job.Job) {
	next := in.newStoredJob(j, old.queue)
	next.id, next.accepted, next.n, next.state = old.id, old.accepted, old.n, job.Delayed
	if old.state == job.Waiting {
		in.emitUnstartedFailure(old, reasonDebounced)
	}
	in.store(old, next)
	in.release(next.id, false)
	in.holdFor(next, j.Guards, in.now)
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
	r := &storedJob{
		id:    job.RecordID(identity, j.Position.Seq, j.Accepted),
		queue: &queue{name: j.Queue}, function: j.Function, n: 1,
	}
	in.emitDispatch(r, DispatchQueued, target(r))
	in.emitUnstartedFailure(r, reasonRateLimited)
}

// HeldKeys returns how many guard keys are held, at most [MaxHeldKeys].
func (g *guards) HeldKeys() int { return g.byTime.Len() }

// GuardsBlock reports whether a job with these guards would be refused now, or
// would not start immediately.
func (d *dispatches) GuardsBlock(g *job.Guards) bool {
	return g.Debounce.IsSet() || d.holder(g.Unique, d.now) != nil || d.holder(g.Rate, d.now) != nil
}

func (c *codec) guards(d *dispatches) {
	each(c, d.guards.byTime.Len(), d.guards.byTime.Scan, func(h *heldKey) {
		c.fields((*job.ID)(&h.key), &h.job, &h.until, &h.rate)
		if !c.decoding() {
			return
		}
		r := d.jobs.byID[h.job]
		if d.guards.byKey[h.key] != nil || !h.rate && (r == nil || r.flags&guarded == 0) {
			c.fail(errCorrupt)
			return
		}
		d.hold(h)
	})
}
