package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

var (
	someLimits = rapid.SampledFrom([]string{"gpu", "stripe", "none"})
	someKeys   = rapid.SampledFrom([]string{"", "", "acme", "beta"})
	someSlots  = rapid.SampledFrom([]job.Slots{job.Unbounded, 0, 1, 2})
	someRates  = rapid.SampledFrom([]job.Rate{{}, {Starts: 1, Per: time.Second}, {Starts: 3, Per: time.Minute}})
)

// drawUses draws the key and the limits of a job.
func drawUses(t *rapid.T, j *job.Job) {
	if rapid.IntRange(0, 2).Draw(t, "limited") > 0 {
		return
	}
	j.LimitKey = someKeys.Draw(t, "key")
	for _, name := range []string{"gpu", "stripe"} {
		if rapid.IntRange(0, 3).Draw(t, name) == 0 {
			j.Limits = append(j.Limits, job.LimitUse{Limit: name, Key: someKeys.Draw(t, "own key")})
		}
	}
}

// limitCommand draws a command about limits, or one that changes the limits of a queue.
func limitCommand(t *rapid.T) Command {
	name := someLimits.Draw(t, "limit")
	switch rapid.IntRange(0, 9).Draw(t, "about a limit") {
	case 0:
		return &RemoveLimit{Name: name, Force: rapid.Bool().Draw(t, "force")}
	case 1:
		return &PauseLimit{Name: name, Paused: rapid.Bool().Draw(t, "paused")}
	case 2, 3, 4, 5:
		c := &ChangeQueue{Name: someQueues.Draw(t, "queue")}
		c.Change.Limits = &job.Names{Names: rapid.SliceOfN(someLimits, 0, 2).Draw(t, "limits")}
		if rapid.Bool().Draw(t, "retried") {
			c.Change.Retries = []job.RetryChange{drawRetry(t)}
			c.Change.DropRetries = rapid.IntRange(0, 4).Draw(t, "drop rules") == 0
		}
		if rapid.Bool().Draw(t, "ordered") {
			c.Change.Fair = new(rapid.Bool().Draw(t, "fair"))
			c.Change.Age = new(rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "age"))
			c.Change.Weights = []job.KeyWeight{{Key: someKeys.Draw(t, "of"), Weight: uint32(rapid.IntRange(0, 3).Draw(t, "weight"))}}
		}
		return c
	}
	c := &SetLimit{Name: name}
	if rapid.Bool().Draw(t, "slots") {
		c.Change.Total, c.Change.PerKey = new(someSlots.Draw(t, "total")), new(someSlots.Draw(t, "per key"))
	}
	if rapid.Bool().Draw(t, "rates") {
		c.Change.Rate, c.Change.RatePerKey = new(someRates.Draw(t, "rate")), new(someRates.Draw(t, "rate per key"))
	}
	switch rapid.IntRange(0, 3).Draw(t, "circuit") {
	case 0:
		c.Change.OpenAfter, c.Change.Within = new(uint32(1)), new(time.Minute)
	case 1:
		c.Change.OpenAfter = new(uint32(0))
	}
	return c
}

// drawRetry draws a change of a queue's retry rule, which may be out of range.
func drawRetry(t *rapid.T) (c job.RetryChange) {
	c.Function = rapid.SampledFrom([]string{"", "send", "other"}).Draw(t, "function")
	c.Remove = rapid.IntRange(0, 4).Draw(t, "remove rule") == 0
	if rapid.Bool().Draw(t, "attempts and delays") {
		c.MaxAttempts = new(rapid.Uint32Range(0, 3).Draw(t, "attempts"))
		c.Backoff = new(time.Duration(rapid.Int64Range(0, 3).Draw(t, "backoff")) * time.Second)
		c.Jitter = new(rapid.SampledFrom([]int16{-1, 0, 20, 101}).Draw(t, "jitter"))
	}
	if rapid.Bool().Draw(t, "errors") {
		c.RetryOn = &job.Names{Names: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "timeout"}), 0, 2).Draw(t, "retry on")}
		c.DiscardOn = &job.Names{Names: rapid.SliceOfN(rapid.SampledFrom([]string{"c", "d", "bad name"}), 0, 2).Draw(t, "discard on")}
	}
	return c
}

// usesOf returns the limits that exist and that a job uses, by name, with the keys under which
// it uses them.
func usesOf(l *Ledger, stored *storedJob) map[string]string {
	uses := make(map[string]string)
	for _, name := range l.queues.get(stored.queue.name).config.Limits {
		uses[name] = stored.key
	}
	for _, own := range splitUses(stored.limits) {
		uses[own.Limit] = stored.key
		if own.Key != "" {
			uses[own.Limit] = own.Key
		}
	}
	maps.DeleteFunc(uses, func(name, _ string) bool { return l.jobs.limits.get(name) == nil })
	return uses
}

// activeUses counts the active jobs by the limits and keys that they use.
func activeUses(l *Ledger) (byLimit map[string]int, byUse map[job.LimitUse]int) {
	byLimit, byUse = make(map[string]int), make(map[job.LimitUse]int)
	for item := range l.jobs.active.Scan {
		for name, key := range usesOf(l, l.jobs.at(item.number)) {
			byLimit[name]++
			byUse[job.LimitUse{Limit: name, Key: key}]++
		}
	}
	return byLimit, byUse
}

// startChecker checks that no entry starts jobs that limits forbid.
type startChecker struct {
	byLimit map[string]int
	byUse   map[job.LimitUse]int
}

func newStartChecker() *startChecker { return &startChecker{} }

// check returns an error if a job started that had expired, or if more jobs use a limit after an entry than it permits, and than
// before. An entry that changes limits is only taken note of.
func (s *startChecker) check(l *Ledger, cmds []Command, results []Result) (err error) {
	for i, c := range cmds {
		if c, isPlace := c.(*Place); isPlace && results[i].Err == nil {
			for k := range c.Placements {
				if stored := l.jobs.find(c.Placements[k].Job); results[i].Placed[k] && stored != nil && stored.n == c.Placements[k].N && stored.attempt == 1 && stored.options.expires != 0 && l.passed(stored.expiry()) {
					return fmt.Errorf("job %s started after it had expired", stored.id)
				}
			}
		}
	}
	before, beforeUse := s.byLimit, s.byUse
	s.byLimit, s.byUse = activeUses(l)
	for i, c := range cmds {
		switch c.(type) {
		case *SetLimit, *RemoveLimit, *ChangeQueue, *RemoveQueue:
			if results[i].Err == nil {
				return nil
			}
		}
	}
	for name, n := range s.byLimit {
		if m := l.jobs.limits.get(name); m.Total >= 0 && n > max(int(m.Total), before[name]) {
			err = fmt.Errorf("%d jobs use limit %s, at most %d may", n, name, m.Total)
		}
	}
	for use, n := range s.byUse {
		if m := l.jobs.limits.get(use.Limit); m.PerKey >= 0 && n > max(int(m.PerKey), beforeUse[use]) {
			err = fmt.Errorf("%d jobs use limit %s under key %q, at most %d may", n, use.Limit, use.Key, m.PerKey)
		}
	}
	return err
}

// checkLimits compares what the ledger counts of limits, and its index of groups, with its jobs.
func checkLimits(l *Ledger) error {
	byLimit, byUse := activeUses(l)
	wakes := 0
	users := make(map[*limitKey]int)
	for _, q := range l.queues.byName.Scan {
		for _, wl := range q.waitlists.Scan {
			for _, g := range wl.groups {
				for _, use := range g.uses {
					users[use.key]++
				}
			}
		}
	}
	for _, m := range l.jobs.limits.byName.Scan {
		if m.running != byLimit[m.Name] {
			return fmt.Errorf("limit %s counts %d active jobs, there are %d", m.Name, m.running, byLimit[m.Name])
		}
		if full := m.Total >= 0 && m.running >= int(m.Total); full != (m.fullSince != 0 && m.freeSince == 0) {
			return fmt.Errorf("limit %s with %d of %d jobs is full since %d", m.Name, m.running, m.Total, m.fullSince)
		}
		keys := map[string]*limitKey{"": &m.unkeyed}
		maps.Copy(keys, m.keys)
		for key, k := range keys {
			if k.limit != m || k.key != key || m.BoundsKeys() && k.running != byUse[job.LimitUse{Limit: m.Name, Key: key}] || k.users < len(k.groups) || k.users != users[k] || k.users == 0 && k.bucket == 0 && key != "" {
				return fmt.Errorf("limit %s counts %d active jobs of key %q, there are %d", m.Name, k.running, key, byUse[job.LimitUse{Limit: m.Name, Key: key}])
			}
			if blocked, wakeAt := m.keyBlocked(k, l.elapsed); len(k.groups) > 0 && (blocked != k.blocked || wakeAt != k.wakeAt) {
				return fmt.Errorf("limit %s, key %q: blocked %t until %d, want %t until %d", m.Name, key, k.blocked, k.wakeAt, blocked, wakeAt)
			}
			if k.wakeAt != 0 {
				wakes++
			}
		}
		for use := range byUse {
			if use.Limit == m.Name && m.BoundsKeys() && m.find(use.Key) == nil {
				return fmt.Errorf("limit %s lacks key %q", m.Name, use.Key)
			}
		}
	}
	if wakes != l.jobs.limits.wakes.Len() {
		return fmt.Errorf("%d keys are to be woken, %d are indexed", wakes, l.jobs.limits.wakes.Len())
	}
	for _, q := range l.queues.byName.Scan {
		for _, wl := range q.waitlists.Scan {
			if err := checkGroups(l, wl); err != nil {
				return fmt.Errorf("queue %s, waitlist %q: %w", q.name, wl.name, err)
			}
		}
	}
	return nil
}

func isBlocked(k *limitKey, now int64) bool {
	blocked, _ := k.limit.keyBlocked(k, now)
	return blocked
}

// checkGroups compares the groups of a waitlist with its jobs.
func checkGroups(l *Ledger, wl *waitlist) (err error) {
	var bounds []string
	for _, m := range wl.bounds {
		bounds = append(bounds, m.Name)
	}
	want := make(map[groupKey][]*storedJob)
	for item := range wl.jobs.Scan {
		stored := l.jobs.at(item.number)
		k := groupKey{stored.key, stored.limits}
		want[k] = append(want[k], stored)
		uses := usesOf(l, stored)
		if names := slices.Sorted(maps.Keys(uses)); !slices.Equal(names, slices.Sorted(slices.Values(bounds))) {
			return fmt.Errorf("job %s uses limits %v, its waitlist has %v", stored.id, names, bounds)
		}
		keyed := stored.key != "" || slices.ContainsFunc(splitUses(stored.limits), func(use job.LimitUse) bool { return use.Key != "" })
		if keyed != wl.keyed || stored.waitlistName() != wl.name {
			return fmt.Errorf("job %s is in it", stored.id)
		}
	}
	groups := make(map[groupKey]*group)
	for place, g := range wl.groups {
		k := g.groupKey
		groups[k] = g
		if g.place != place || len(g.uses) != len(bounds) {
			return fmt.Errorf("the group of key %q uses %d limits", k.key, len(g.uses))
		}
		for i, use := range g.uses {
			if m := wl.bounds[i]; use.limit != m || (use.key != nil) != m.BoundsKeys() || use.key != nil && use.key != m.find(g.keyFor(m.Name)) {
				return fmt.Errorf("the group of key %q uses limit %s under another key", k.key, m.Name)
			}
		}
	}
	if !wl.keyed {
		return nil
	}
	if len(want) != wl.waiting || len(groups) != len(wl.groups) {
		return fmt.Errorf("%d groups have waiting jobs, counted %d", len(want), wl.waiting)
	}
	ready := 0
	for k, jobs := range want {
		g := groups[k]
		if g == nil || g.jobs.Len() != len(jobs) {
			return fmt.Errorf("the group of key %q has not %d jobs", k.key, len(jobs))
		}
		permitted := true
		for name, key := range usesOf(l, jobs[0]) {
			m := l.jobs.limits.get(name)
			if k := m.find(key); m.BoundsKeys() && isBlocked(k, l.elapsed) {
				permitted = false
			}
		}
		first := jobs[0].order()
		for _, stored := range jobs {
			if item := stored.order(); wl.queue.before(&item, &first) {
				first = item
			}
		}
		at, found := wl.ready.find(readyGroup{g.head, g})
		if indexed, _ := wl.ready.at(at); found && indexed != (readyGroup{g.head, g}) {
			return fmt.Errorf("another group is indexed in place of that of key %q", k.key)
		}
		if g.head != first || found != permitted {
			return fmt.Errorf("the group of key %q is ready: %t, want %t; its first job is %v, want %v", k.key, found, permitted, g.head, first)
		}
		if permitted {
			ready++
		}
	}
	if wl.ready.Len() != ready {
		return fmt.Errorf("%d groups are ready, %d indexed", ready, wl.ready.Len())
	}
	return nil
}

// limitHarness is a ledger with limits, and the jobs of one queue.
type limitHarness struct {
	t   testing.TB
	l   *Ledger
	at  Stamp
	seq uint64
}

func newLimitHarness(t testing.TB) *limitHarness {
	h := &limitHarness{t: t, l: New(), at: Stamp{Index: 1, Term: 1, At: scriptStart}}
	h.apply(&Lead{Owner: "n1", Until: scriptStart.Add(1000 * time.Hour)})
	h.at.Epoch = h.l.Authority().Epoch
	h.apply(&Bootstrap{Secret: []byte{1}, Lanes: []string{"L0"}})
	return h
}

// maxCheckedJobs is how many jobs a ledger may have got to be checked after each entry, and not after some.
const maxCheckedJobs = 20

// apply applies an entry of commands, each of which must succeed.
func (h *limitHarness) apply(cmds ...Command) []Result {
	h.t.Helper()
	h.at.Index++
	results := h.l.Apply(h.at, cmds)
	for i := range results {
		if results[i].Err != nil {
			h.t.Fatalf("%T: %v", cmds[i], results[i].Err)
		}
	}
	if h.at.Index%10 == 0 || h.l.accepted <= maxCheckedJobs {
		if err := checkInvariants(h.l); err != nil {
			h.t.Fatal(err)
		}
	}
	return results
}

// add adds waiting jobs of queue mail with these keys, and returns their ids.
func (h *limitHarness) add(keys ...string) (ids []job.ID) {
	h.t.Helper()
	c := &Ingest{Identity: "L0", From: h.seq, CreateQueues: true}
	for _, key := range keys {
		h.seq++
		id := job.ID{8: byte(h.seq >> 16), 9: byte(h.seq >> 8), 10: byte(h.seq)}
		c.Jobs = append(c.Jobs, job.Job{
			ID: id, Queue: "mail", LimitKey: key, Accepted: h.at.At, Priority: job.DefaultPriority, Position: job.Position{Seq: h.seq},
		})
		ids = append(ids, id)
	}
	c.To = h.seq
	h.apply(c)
	return ids
}

// place tries to place jobs and reports which of them were.
func (h *limitHarness) place(ids ...job.ID) []bool {
	h.t.Helper()
	c := &Place{}
	for _, id := range ids {
		view, _, _ := h.l.Find(id)
		c.Placements = append(c.Placements, Placement{Job: id, N: view.Dispatches, Node: "n1", Incarnation: 1, Channel: "overhop/w"})
	}
	return h.apply(c)[0].Placed
}

// settle ends active jobs: without a fault successfully, else by a retry.
func (h *limitHarness) settle(fault *job.Fault, ids ...job.ID) {
	h.t.Helper()
	c := &Settle{}
	for _, id := range ids {
		view, _, _ := h.l.Find(id)
		s := Settlement{Job: id, N: view.Dispatches, Next: job.NextDone}
		if fault != nil {
			s.Next, s.Reason, s.Fault = job.NextRetry, fault.Message, fault
		}
		c.Settlements = append(c.Settlements, s)
	}
	h.apply(c)
}

func (h *limitHarness) want(what string, got, want []bool) {
	h.t.Helper()
	if !slices.Equal(got, want) {
		h.t.Fatalf("%s: placed %v, want %v", what, got, want)
	}
}

// limitQueue lets the jobs of queue mail use limit stripe with the given settings.
func (h *limitHarness) limitQueue(change job.LimitChange) {
	h.t.Helper()
	h.apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: job.DefaultQueueConfig}, &SetLimit{Name: "stripe", Change: change})
	h.apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Limits: &job.Names{Names: []string{"stripe"}}}})
}

func TestLimit_Slots(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{Total: new(job.Slots(3)), PerKey: new(job.Slots(2))})
	a := h.add("acme", "acme", "acme", "beta", "beta")
	h.want("two of a key, three of all", h.place(a...), []bool{true, true, false, true, false})

	h.settle(nil, a[0])
	h.want("a slot of the key is free", h.place(a[2], a[4]), []bool{true, false})

	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Slots(1))}})
	h.settle(nil, a[1], a[2])
	h.want("lowered below what runs", h.place(a[4]), []bool{false})
	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Unbounded)}})
	h.want("raised", h.place(a[4]), []bool{true})

	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Slots(0))}})
	b := h.add("gamma")
	h.want("none may run", h.place(b...), []bool{false})
	h.apply(&RemoveLimit{Name: "stripe", Force: true})
	h.want("removed", h.place(b...), []bool{true})
}

// TestLimit_CountsRunning checks that a limit counts the jobs that run when a queue begins to
// use it.
func TestLimit_CountsRunning(t *testing.T) {
	h := newLimitHarness(t)
	h.apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: job.DefaultQueueConfig})
	a := h.add("acme", "acme", "acme")
	h.want("without a limit", h.place(a[:2]...), []bool{true, true})
	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Slots(2))}})
	h.apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Limits: &job.Names{Names: []string{"stripe"}}}})
	h.want("two run already", h.place(a[2]), []bool{false})
	h.settle(nil, a[0])
	h.want("one has ended", h.place(a[2]), []bool{true})
}

func TestLimit_Rate(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{Rate: &job.Rate{Starts: 10, Per: time.Second}, Burst: new(uint32(3))})
	a := h.add("", "", "", "", "", "", "", "", "", "", "", "")
	h.want("a burst", h.place(a[:5]...), []bool{true, true, true, false, false})
	h.at.At = h.at.At.Add(99 * time.Millisecond)
	h.want("too early", h.place(a[3]), []bool{false})
	h.at.At = h.at.At.Add(time.Millisecond)
	h.want("the next token", h.place(a[3], a[4]), []bool{true, false})

	h.at.At = h.at.At.Add(time.Hour) // the clock jumps
	h.want("no more than a burst after a jump", h.place(a[4:9]...), []bool{true, true, true, false, false})
	h.at.At = h.at.At.Add(-time.Hour) // and back: the ledger's time stays
	h.want("and none after a jump back", h.place(a[7]), []bool{false})

	h.at.At = h.at.At.Add(time.Hour)
	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{Rate: &job.Rate{Starts: 1, Per: time.Second}}})
	h.at.At = h.at.At.Add(900 * time.Millisecond)
	h.want("the starts that are owed count at the new rate", h.place(a[7]), []bool{false})
	h.at.At = h.at.At.Add(100 * time.Millisecond)
	h.want("a second after the last", h.place(a[7], a[8]), []bool{true, false})
}

// TestLimit_RateWindows checks the starts under a rate against its definition: in any window
// of time t there are at most rate·t + burst of them.
func TestLimit_RateWindows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newLimitHarness(t)
		rate := job.Rate{Starts: rapid.Uint32Range(1, 20).Draw(rt, "starts"), Per: time.Second}
		burst := rapid.Uint32Range(1, 5).Draw(rt, "burst")
		h.limitQueue(job.LimitChange{RatePerKey: &rate, BurstPerKey: &burst})
		var starts []time.Time
		for range 60 {
			h.at.At = h.at.At.Add(time.Duration(rapid.IntRange(-50, 300).Draw(rt, "ms")) * time.Millisecond)
			ids := h.add("acme", "acme")
			for _, placed := range h.place(ids...) {
				if placed {
					starts = append(starts, h.l.Now())
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "restart") == 0 {
				h.l = roundTrip(rt, h.l)
			}
		}
		for i := range starts {
			for k := i; k < len(starts); k++ {
				window := starts[k].Sub(starts[i])
				if most := float64(rate.Starts)*window.Seconds() + float64(burst); float64(k-i+1) > most {
					rt.Fatalf("%d starts within %s, at most %.1f by %s and a burst of %d", k-i+1, window, most, rate, burst)
				}
			}
		}
	})
}

// TestLimit_Wakes checks that a key which only its rate blocks is due again.
func TestLimit_Wakes(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{RatePerKey: &job.Rate{Starts: 1, Per: time.Second}, BurstPerKey: new(uint32(1))})
	a := h.add("acme", "acme", "beta")
	h.want("one of each key", h.place(a...), []bool{true, false, true})
	if wait, _ := h.l.NextDue().Wait(SameClock(h.at.At)); wait != time.Second {
		t.Fatalf("next due in %s", wait)
	}
	h.at.At = h.at.At.Add(time.Second)
	h.apply()
	if due := h.l.NextDue(); !due.IsZero() {
		t.Fatalf("next due %s after the key was woken", due)
	}
	h.want("woken", h.place(a[1]), []bool{true})
}

func TestLimit_Circuit(t *testing.T) {
	unavailable := &job.Fault{Message: "503", Type: "http_503"}
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{OpenAfter: new(uint32(2)), Within: new(10 * time.Second), On: &job.Names{Names: []string{"http_503"}}})
	a := h.add("", "", "", "", "", "")
	h.want("closed", h.place(a[:3]...), []bool{true, true, true})
	h.settle(&job.Fault{Message: "bad", Type: "invalid_card"}, a[0])
	h.settle(unavailable, a[1])
	h.want("one failure that counts", h.place(a[0]), []bool{true})
	h.settle(unavailable, a[2])
	h.want("open", h.place(a[3]), []bool{false})

	h.at.At = h.at.At.Add(10 * time.Second)
	h.want("one probe", h.place(a[3], a[4]), []bool{true, false})
	h.settle(nil, a[0]) // it started before the circuit opened, and says nothing
	h.want("still one probe", h.place(a[4]), []bool{false})
	h.settle(unavailable, a[3])
	h.want("open again", h.place(a[4]), []bool{false})

	h.at.At = h.at.At.Add(10 * time.Second)
	h.want("the next probe", h.place(a[4], a[5]), []bool{true, false})
	h.l = roundTrip(t, h.l)
	h.want("also after a restart", h.place(a[5]), []bool{false})
	h.settle(nil, a[4])
	h.want("closed again", h.place(a[5], a[1]), []bool{true, true})
}

// TestLimit_OpenCircuitChanges checks that an open circuit follows a change of the time before the
// first probe, and that resuming the limit closes it.
func TestLimit_OpenCircuitChanges(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{OpenAfter: new(uint32(1)), Within: new(10 * time.Second), ProbeAfter: new(time.Hour)})
	a := h.add("", "", "", "")
	h.want("closed", h.place(a[0]), []bool{true})
	h.settle(&job.Fault{Message: "503"}, a[0])
	h.at.At = h.at.At.Add(5 * time.Second)
	h.want("open", h.place(a[1]), []bool{false})
	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{ProbeAfter: new(5 * time.Second)}})
	h.want("a probe, five seconds after it opened", h.place(a[1], a[2]), []bool{true, false})
	h.apply(&SetLimit{Name: "stripe", Change: job.LimitChange{ProbeAfter: new(time.Hour)}})
	h.want("the probe still counts", h.place(a[2]), []bool{false})
	h.apply(&PauseLimit{Name: "stripe"})
	h.want("closed by hand", h.place(a[2], a[3]), []bool{true, true})
	if r := h.l.Apply(h.at, []Command{&PauseLimit{Name: "stripe"}}); !errors.Is(r[0].Err, ErrLimitNotPaused) {
		t.Errorf("resuming a closed limit: %v", r[0].Err)
	}
}

// TestLimit_NewAndRemoved checks that a limit is not created without a bound, and not removed
// while queues or jobs use it, unless that is forced.
func TestLimit_NewAndRemoved(t *testing.T) {
	h := newLimitHarness(t)
	one := func(c Command) error {
		h.at.Index++
		return h.l.Apply(h.at, []Command{c})[0].Err
	}
	if err := one(&SetLimit{Name: "stripe"}); !errors.Is(err, ErrNewLimitEmpty) {
		t.Errorf("a limit without a bound: %v", err)
	}
	h.limitQueue(job.LimitChange{Total: new(job.Slots(0))})
	h.apply(&SetLimit{Name: "gpu", Change: job.LimitChange{Total: new(job.Slots(0))}})
	lane := h.l.Lanes()[0]
	h.apply(&Ingest{Identity: lane.Identity, CreateQueues: true, From: lane.Cursor, To: lane.Cursor + 1, Jobs: []job.Job{{
		ID: job.ID{9}, Queue: "maps", Position: job.Position{Seq: lane.Cursor + 1}, Accepted: h.at.At, Limits: []job.LimitUse{{Limit: "gpu"}},
	}}})
	for name, want := range map[string]string{"stripe": "by queue mail;", "gpu": "by jobs of queue maps;"} {
		if err := one(&RemoveLimit{Name: name}); !errors.Is(err, ErrLimitInUse) || !strings.Contains(err.Error(), want) {
			t.Errorf("removing limit %s: %v, want %q", name, err, want)
		}
		if err := one(&RemoveLimit{Name: name, Force: true}); err != nil {
			t.Errorf("removing limit %s by force: %v", name, err)
		}
	}
	if q, _ := h.l.Queue("mail"); len(q.Config.Limits) > 0 {
		t.Errorf("queue mail still names %q", q.Config.Limits)
	}
}

// TestLimit_FullSince checks that a limit is full although a slot is free for a moment between
// two jobs, and no longer is after a second.
func TestLimit_FullSince(t *testing.T) {
	h := newLimitHarness(t)
	h.limitQueue(job.LimitChange{Total: new(job.Slots(1))})
	fullSince := func() time.Time {
		v, _ := h.l.LimitUsage("stripe", h.at.At)
		return v.FullSince
	}
	a := h.add("", "", "", "")
	h.want("the slot", h.place(a[0]), []bool{true})
	began := h.at.At
	for i := range 2 {
		h.at.At = h.at.At.Add(time.Minute)
		h.settle(nil, a[i])
		h.at.At = h.at.At.Add(900 * time.Millisecond)
		if got := fullSince(); !got.Equal(began) {
			t.Fatalf("full since %s between two jobs, want %s", got, began)
		}
		h.want("the next job", h.place(a[i+1]), []bool{true})
		h.l = roundTrip(t, h.l)
		if got := fullSince(); !got.Equal(began) {
			t.Fatalf("full since %s, want %s", got, began)
		}
	}
	h.settle(nil, a[2])
	h.at.At = h.at.At.Add(2 * time.Second)
	if got := fullSince(); !got.IsZero() {
		t.Fatalf("full since %s with a free slot", got)
	}
	h.want("a later job", h.place(a[3]), []bool{true})
	if got := fullSince(); !got.Equal(h.at.At) {
		t.Fatalf("full since %s, want %s", got, h.at.At)
	}
}
