package ledger

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// noneInFlight is the [InFlight] without placements.
type noneInFlight struct{}

func (noneInFlight) Placed(job.DispatchID) bool { return false }
func (noneInFlight) Starts(Use) int             { return 0 }
func (noneInFlight) Full(WaitlistID) bool       { return false }

// waitlistIDs returns the waitlists of a queue that have jobs.
func waitlistIDs(l *Ledger, queue string) (ids []WaitlistID) {
	for class := range l.Classes {
		l.WaitlistsOfQueue(queue, class, func(id WaitlistID) bool {
			ids = append(ids, id)
			return true
		})
	}
	return ids
}

// checkPlaceable checks that the jobs that may start are those that the bounds of keys permit,
// in the order of their queue, and that a fair queue yields the same jobs.
func checkPlaceable(l *Ledger) error {
	for _, q := range l.queues.byName.Scan {
		ids := waitlistIDs(l, q.name)
		var all, fair []job.ID
		for _, id := range ids {
			yielded := make(map[groupKey]int)
			var last *orderItem
			var err error
			l.Placeable(id, noneInFlight{}, func(w WaitingJob) bool {
				stored := l.jobs.find(w.ID)
				item := stored.order()
				if last != nil && !q.config.Fair && q.before(&item, last) {
					err = fmt.Errorf("queue %s yields %s after a later job", q.name, w.ID)
				}
				last = &item
				yielded[groupKey{stored.key, stored.limits}]++
				all = append(all, w.ID)
				return true
			})
			if err != nil {
				return err
			}
			for k, want := range roomOfGroups(l, l.jobs.waitlist(&id)) {
				if yielded[k] != want {
					return fmt.Errorf("queue %s yields %d jobs of key %q, %d may start", q.name, yielded[k], k.key, want)
				}
			}
		}
		if !q.config.Fair {
			continue
		}
		for _, turn := range []FairTurn{{}, {"acme", 0}, {"acme", 2}, {"zz", 1}} {
			fair = fair[:0]
			l.PlaceableFairly(ids, turn, noneInFlight{}, func(w WaitingJob) bool {
				fair = append(fair, w.ID)
				return true
			})
			for _, id := range ids { // without keys, [jobs.Placeable] does not look at bounds
				if wl := l.jobs.waitlist(&id); !wl.keyed {
					all = slices.DeleteFunc(all, func(id job.ID) bool { return l.jobs.find(id).waitlistName() == wl.name })
					fair = slices.DeleteFunc(fair, func(id job.ID) bool { return l.jobs.find(id).waitlistName() == wl.name })
				}
			}
			compare := func(a, b job.ID) int { return strings.Compare(a.String(), b.String()) }
			if got, want := slices.SortedFunc(slices.Values(fair), compare), slices.SortedFunc(slices.Values(all), compare); !slices.Equal(got, want) {
				return fmt.Errorf("fair queue %s yields %v from %+v, %v may start", q.name, got, turn, want)
			}
		}
	}
	return nil
}

// roomOfGroups returns how many jobs of each key may start, without groups.
func roomOfGroups(l *Ledger, wl *waitlist) map[groupKey]int {
	room := make(map[groupKey]int)
	for item := range wl.jobs.Scan {
		stored := l.jobs.at(item.number)
		room[groupKey{stored.key, stored.limits}]++
	}
	if !wl.keyed {
		return room
	}
	for k := range room {
		for name, key := range usesOf(l, &storedJob{traits: &traits{traitsID: traitsID{queue: wl.queue, groupKey: k}}}) {
			m := l.jobs.limits.get(name)
			ofKey := math.MaxInt
			if m.BoundsKeys() {
				ofKey = Use{m, m.find(key)}.Room(l.Now()).OfKey
			}
			room[k] = min(room[k], ofKey)
		}
	}
	return room
}

// placeable returns the keys of the jobs of queue mail that may start, in order, at most n.
func (h *limitHarness) placeable(turn FairTurn, n int) string {
	var keys []string
	yield := func(w WaitingJob) bool {
		keys = append(keys, w.LimitKey)
		return len(keys) < n
	}
	ids := waitlistIDs(h.l, "mail")
	if h.l.IsFair("mail") {
		h.l.PlaceableFairly(ids, turn, noneInFlight{}, yield)
	} else {
		for _, id := range ids {
			h.l.Placeable(id, noneInFlight{}, yield)
		}
	}
	return strings.Join(keys, " ")
}

func TestPlaceableFairly(t *testing.T) {
	h := newLimitHarness(t)
	h.apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Fair: true, Weights: []job.KeyWeight{{Key: "b", Weight: 2}}}})
	h.add("a", "a", "a", "a", "b", "b", "b", "c", "", "")
	for _, test := range []struct {
		turn FairTurn
		want string
	}{
		{FairTurn{}, "a b b c  a b  a a"},
		{FairTurn{Key: "a"}, "b b c  a b  a a a"},
		{FairTurn{Key: "b", Left: 1}, "b c  a b b  a a a"},
		{FairTurn{Key: "c"}, " a b b c  a b a a"},
		{FairTurn{Key: "bb"}, "c  a b b  a b a a"},
	} {
		if got := h.placeable(test.turn, 100); got != test.want {
			t.Errorf("from %+v: %q, want %q", test.turn, got, test.want)
		}
	}
}

// TestPlaceableFairly_Shares checks that keys of very different backlogs get shares of the
// starts in proportion to their weights.
func TestPlaceableFairly_Shares(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newLimitHarness(t)
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-d][0-9]?`), 2, 6, rapid.ID[string]).Draw(rt, "keys")
		config := job.QueueConfig{Fair: true}
		for _, key := range slices.Sorted(slices.Values(keys)) {
			config.Weights = append(config.Weights, job.KeyWeight{Key: key, Weight: rapid.Uint32Range(1, 3).Draw(rt, "weight")})
		}
		h.apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: config})
		for _, key := range keys {
			h.add(slices.Repeat([]string{key}, rapid.IntRange(40, 60).Draw(rt, "backlog"))...)
		}
		started, turn := make(map[string]int), FairTurn{}
		for range 12 * len(keys) { // one slot, which is free again and again
			var first WaitingJob
			h.l.PlaceableFairly(waitlistIDs(h.l, "mail"), turn, noneInFlight{}, func(w WaitingJob) bool {
				first = w
				return false
			})
			turn = turn.After(first.LimitKey, h.l.KeyWeight("mail", first.LimitKey))
			started[first.LimitKey]++
			h.apply(&CancelJob{Job: first.ID})
		}
		for i, a := range config.Weights {
			for _, b := range config.Weights[i+1:] {
				rounds := [2]float64{float64(started[a.Key]) / float64(a.Weight), float64(started[b.Key]) / float64(b.Weight)}
				if diff := rounds[0] - rounds[1]; diff > 1 || diff < -1 {
					rt.Fatalf("keys %s and %s with weights %d and %d started %d and %d jobs", a.Key, b.Key, a.Weight, b.Weight, started[a.Key], started[b.Key])
				}
			}
		}
	})
}

// TestAge checks that a class of priority is worth the age of a queue.
func TestAge(t *testing.T) {
	h := newLimitHarness(t)
	h.apply(&AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Age: time.Minute}})
	add := func(key string, priority uint8) {
		ids := h.add(key)
		h.apply(&ChangeJob{Job: ids[0], Priority: &priority})
	}
	add("low", 4)
	h.at.At = h.at.At.Add(59 * time.Second)
	add("high", 5)
	if got := h.placeable(FairTurn{}, 9); got != "high low" {
		t.Errorf("59 s older: %s", got)
	}
	h.at.At = h.at.At.Add(2 * time.Second)
	add("later", 5)
	if got := h.placeable(FairTurn{}, 9); got != "high low later" {
		t.Errorf("61 s older: %s", got)
	}
	h.apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Age: new(time.Duration(0))}})
	if got := h.placeable(FairTurn{}, 9); got != "high later low" {
		t.Errorf("without an age: %s", got)
	}
}
