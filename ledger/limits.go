package ledger

import (
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxLimits is the number of limits that a cluster may have.
const MaxLimits = 1000

// limit is a named limit, and what the active jobs use of it. How many jobs are active is not
// encoded: it follows from the active jobs, so that no slot can be lost.
type limit struct {
	job.Limit
	changed   int64            // when it was set last, in Unix nanoseconds
	bucket    job.Bucket       // of Rate
	buckets   table[keyBucket] // of RatePerKey; those that are full may be missing
	circuit   circuit
	fullSince int64 // since when Total jobs have been active, apart from gaps of at most fullGap; 0: never
	freeSince int64 // since when fewer are; 0: as many are

	running int                  // active jobs that use it
	unkeyed limitKey             // of jobs without a key, if it bounds keys; zero in a copy
	keys    map[string]*limitKey // those with active or waiting jobs or a bucket, if it bounds keys; nil in a copy
	swept   int                  // number of buckets after those that are full were removed last
}

// keyBucket is the bucket of a key.
type keyBucket struct {
	key    string
	bucket job.Bucket
}

// limitKey is a key of a limit that bounds keys.
type limitKey struct {
	limit   *limit
	key     string
	bucket  uint32    // number of its bucket; 0: it has none, and so a full one
	running int       // active jobs
	users   int       // groups that use the limit under the key
	groups  []*group  // those of them with waiting jobs that are in keyed waitlists
	first   [1]*group // memory of the first of groups
	blocked bool      // none of them may start
	wakeAt  int64     // when it may stop being blocked, its place in limits.wakes; 0: it has none
}

// Use is a limit that jobs use and, if the limit bounds keys, the key under which they do.
type Use struct {
	limit *limit
	key   *limitKey // nil: the limit does not bound keys
}

// All returns the use of the limit under all keys.
func (u Use) All() Use { return Use{limit: u.limit} }

// limits are the limits of the cluster.
type limits struct {
	byName btree.Map[string, *limit]
	wakes  *btree.BTreeG[*limitKey] // blocked by a rate only, by wakeAt; nil in a copy
	clocks                          // of the ledger; rates and circuits go by elapsed time
}

func newLimits() limits {
	return limits{wakes: btree.NewBTreeGOptions(func(a, b *limitKey) bool {
		if a.wakeAt != b.wakeAt {
			return a.wakeAt < b.wakeAt
		}
		if c := strings.Compare(a.limit.Name, b.limit.Name); c != 0 {
			return c < 0
		}
		return a.key < b.key
	}, treeOptions)}
}

// copy returns a copy with what is encoded.
func (ls *limits) copy() limits {
	c := limits{clocks: ls.clocks}
	for name, original := range ls.byName.Scan {
		copied := *original
		copied.buckets = original.buckets.copy()
		copied.circuit.failures = slices.Clone(original.circuit.failures)
		copied.unkeyed, copied.keys = limitKey{}, nil
		c.byName.Set(name, &copied)
	}
	return c
}

// get returns the limit of a name, or nil.
func (ls *limits) get(name string) *limit {
	found, _ := ls.byName.Get(name)
	return found
}

// add adds a limit.
func (ls *limits) add(m *limit) {
	m.unkeyed.limit = m
	ls.byName.Set(m.Name, m)
}

// HasLimits reports whether there are named limits.
func (j *jobs) HasLimits() bool { return j.limits.byName.Len() > 0 }

// joinUses returns the limits that a job names as one text, in the order of their names, "" if
// it names none. Neither a name nor a key has a byte 0 or a name '='.
func joinUses(uses []job.LimitUse) string {
	if len(uses) == 0 {
		return ""
	}
	sorted := slices.SortedFunc(slices.Values(uses), func(a, b job.LimitUse) int { return strings.Compare(a.Limit, b.Limit) })
	var b strings.Builder
	for _, use := range sorted {
		b.WriteString(use.Limit + "=" + use.Key + "\x00")
	}
	return b.String()
}

// splitUses returns the uses in a text of [joinUses].
func splitUses(text string) (uses []job.LimitUse) {
	for use := range strings.SplitSeq(text, "\x00") {
		if name, key, found := strings.Cut(use, "="); found {
			uses = append(uses, job.LimitUse{Limit: name, Key: key})
		}
	}
	return uses
}

// keyFor returns the key under which a job uses a limit.
func (t *groupKey) keyFor(limit string) string {
	if t.limits != "" {
		for _, use := range splitUses(t.limits) {
			if use.Limit == limit && use.Key != "" {
				return use.Key
			}
		}
	}
	return t.key
}

// startsAt returns the earliest time, in Unix nanoseconds, at which the rate, the circuit and the
// pause of the limit permit a start, [never] if no time does; now or earlier means at once.
func (m *limit) startsAt() int64 {
	switch {
	case m.Paused:
		return never
	case m.Rate.IsSet():
		burst, _ := m.Bursts()
		return max(m.bucket.Next(m.Rate, burst), m.circuit.startsAt(m))
	}
	return m.circuit.startsAt(m)
}

// never is after every time.
const never = 1<<63 - 1

// permits reports whether a job with the use may start.
func (u Use) permits(now int64) bool {
	m := u.limit
	if m.Total >= 0 && m.running >= int(m.Total) || m.startsAt() > now {
		return false
	}
	if u.key == nil {
		return true
	}
	blocked, _ := m.keyBlocked(u.key, now)
	return !blocked
}

// find returns a key of a limit that bounds keys, or nil if no waiting or active job has it and it
// has no bucket.
func (m *limit) find(key string) *limitKey {
	if key == "" {
		return &m.unkeyed
	}
	return m.keys[key]
}

// bucketOf returns the bucket of a key.
func (m *limit) bucketOf(k *limitKey) job.Bucket {
	if k.bucket == 0 {
		return 0
	}
	return m.buckets.get(k.bucket).bucket
}

// keyBlocked reports whether no job of a key may start. If only the rate blocks it, wakeAt is when
// it no longer does.
func (m *limit) keyBlocked(k *limitKey, now int64) (blocked bool, wakeAt int64) {
	if m.PerKey >= 0 && k.running >= int(m.PerKey) {
		return true, 0
	}
	if m.RatePerKey.IsSet() {
		_, burst := m.Bursts()
		if next := m.bucketOf(k).Next(m.RatePerKey, burst); next > now {
			return true, next
		}
	}
	return false, 0
}

// start takes a start from the rates of a limit.
func (ls *limits) start(u Use) {
	m := u.limit
	if m.Rate.IsSet() {
		m.bucket = m.bucket.Start(m.Rate, ls.elapsed)
	}
	if m.RatePerKey.IsSet() {
		m.setBucket(u.key, m.bucketOf(u.key).Start(m.RatePerKey, ls.elapsed))
		m.sweep(ls.elapsed)
	}
}

// setBucket changes the bucket of a key.
func (m *limit) setBucket(k *limitKey, bucket job.Bucket) {
	if k.bucket == 0 {
		k.bucket = m.buckets.add(keyBucket{key: k.key})
	}
	m.buckets.change(k.bucket).bucket = bucket
}

// removeBucket removes the bucket of a key, which is full, and the key if no group uses it.
func (m *limit) removeBucket(k *limitKey) {
	m.buckets.remove(k.bucket)
	k.bucket = 0
	m.removeUnused(k)
}

// removeUnused removes a key that no group uses and that has no bucket.
func (m *limit) removeUnused(k *limitKey) {
	if k.users == 0 && k.bucket == 0 && k != &m.unkeyed {
		delete(m.keys, k.key)
	}
}

// sweep removes buckets that are full, once there may be more of them than of others.
func (m *limit) sweep(now int64) {
	const fewest = 1024
	if m.buckets.count < 2*m.swept+fewest {
		return
	}
	for _, b := range m.buckets.all {
		if int64(b.bucket) <= now {
			m.removeBucket(m.find(b.key))
		}
	}
	m.swept = m.buckets.count
}

// limitsPermit reports whether the limits of a waiting job permit that it starts now.
func (j *jobs) limitsPermit(stored *storedJob) bool {
	for _, use := range stored.group.uses {
		if !use.permits(j.limits.elapsed) {
			return false
		}
	}
	return true
}

// startLimits takes a start of a waiting job from the rates of its limits.
func (j *jobs) startLimits(stored *storedJob) {
	for _, use := range stored.group.uses {
		j.limits.start(use)
	}
}

// fullGap is how long a slot of a full limit may be free until the limit no longer counts as full:
// the time in which another job takes it.
const fullGap = time.Second

// noteFull records since when as many jobs are active as the limit permits.
func (m *limit) noteFull(now int64) {
	full := m.Total >= 0 && m.running >= int(m.Total)
	switch {
	case !full && m.freeSince == 0:
		m.freeSince = now
	case full && (m.fullSince == 0 || m.freeSince != 0 && now-m.freeSince > int64(fullGap)):
		m.fullSince, m.freeSince = now, 0
	case full:
		m.freeSince = 0
	}
}

// isFull reports whether the limit counts as full at a time.
func (m *limit) isFull(now int64) bool {
	return m.fullSince != 0 && (m.freeSince == 0 || now-m.freeSince <= int64(fullGap))
}

// take counts an active job in the limits that it uses.
func (ls *limits) take(stored *storedJob) {
	for _, use := range stored.group.uses {
		m := use.limit
		m.running++
		m.noteFull(ls.elapsed)
		if m.circuit.isProbe(stored) {
			m.circuit.probes++
		}
		if k := use.key; k != nil {
			k.running++
			ls.update(k)
		}
	}
}

// release undoes take.
func (ls *limits) release(stored *storedJob) {
	for _, use := range stored.group.uses {
		m := use.limit
		m.running--
		m.noteFull(ls.elapsed)
		if m.circuit.isProbe(stored) {
			m.circuit.probes--
		}
		if k := use.key; k != nil {
			k.running--
			ls.update(k)
		}
	}
}

// obtain returns a key of a limit that bounds keys for one more group.
func (m *limit) obtain(key string) *limitKey {
	k := m.known(key)
	k.users++
	return k
}

// known returns a key of a limit that bounds keys, which it adds if needed.
func (m *limit) known(key string) *limitKey {
	k := m.find(key)
	if k == nil {
		if m.keys == nil {
			m.keys = make(map[string]*limitKey)
		}
		k = &limitKey{limit: m, key: key}
		k.groups = k.first[:0]
		m.keys[key] = k
	}
	return k
}

// release undoes obtain.
func (m *limit) release(k *limitKey) {
	if k == nil {
		return
	}
	k.users--
	m.removeUnused(k)
}

// update blocks or frees the groups of a key as its limit demands now.
func (ls *limits) update(k *limitKey) {
	blocked, wakeAt := k.limit.keyBlocked(k, ls.elapsed)
	if len(k.groups) == 0 {
		wakeAt = 0
	}
	if wakeAt != k.wakeAt {
		if k.wakeAt != 0 {
			ls.wakes.Delete(k)
		}
		if k.wakeAt = wakeAt; wakeAt != 0 {
			ls.wakes.Set(k)
		}
	}
	if blocked != k.blocked {
		k.blocked = blocked
		for _, g := range k.groups {
			g.block(blocked)
		}
	}
}

// wake frees the keys that a rate no longer blocks, at most maxPromotions at a time.
func (ls *limits) wake() {
	for range maxPromotions {
		first, ok := ls.wakes.Min()
		if !ok || first.wakeAt > ls.elapsed {
			return
		}
		ls.update(first)
	}
}

// nextWake returns when the next key is to be freed, in Unix nanoseconds; 0: none is.
func (ls *limits) nextWake() int64 {
	first, ok := ls.wakes.Min()
	if !ok {
		return 0
	}
	return first.wakeAt
}
