package ledger

import (
	"math"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// WaitlistID identifies a waitlist: waiting jobs of a queue that the same executors may run, and
// that use the same limits.
type WaitlistID struct {
	Queue, Class string
	Own          string // which limits and keys of their own the jobs have; "": none
}

// WaitlistOf returns the waitlist that a job of a queue and function is in, or would be.
func WaitlistOf(j *job.Job) WaitlistID {
	class := Class(j.Function)
	if j.LimitKey == "" && len(j.Limits) == 0 {
		return WaitlistID{Queue: j.Queue, Class: class}
	}
	t := traitsID{class: class, groupKey: groupKey{j.LimitKey, joinUses(j.Limits)}}
	return WaitlistID{j.Queue, class, t.waitlistName()[len(class):]}
}

// Keyed reports whether the jobs of the waitlist have keys.
func (id *WaitlistID) Keyed() bool { return strings.HasSuffix(id.Own, "\x00k") }

func (wl *waitlist) id() WaitlistID {
	return WaitlistID{wl.queue.name, wl.class, wl.name[len(wl.class):]}
}

// waitlist returns the waitlist of an id, or nil.
func (j *jobs) waitlist(id *WaitlistID) *waitlist {
	q := j.queues.get(id.Queue)
	if q == nil {
		return nil
	}
	wl, _ := q.waitlists.Get(id.Class + id.Own)
	return wl
}

// WaitingJobs yields the jobs of a waitlist in the order of its queue, whether limits permit
// their start or not, until yield returns false.
func (j *jobs) WaitingJobs(id WaitlistID, yield func(WaitingJob) bool) {
	if wl := j.waitlist(&id); wl != nil {
		wl.queue.scan(wl.jobs, func(item orderItem) bool { return yield(j.at(item.number).waitingJob()) })
	}
}

// Classes yields the classes that have waiting jobs, in order.
func (j *jobs) Classes(yield func(class string) bool) {
	var previous *waitlist // the waitlists of a class are adjacent
	for _, wl := range j.waitlists.Scan {
		if previous != nil && previous.class == wl.class {
			continue
		}
		if !yield(wl.class) {
			return
		}
		previous = wl
	}
}

// WaitlistsOfClass yields the waitlists of a class that have jobs, in the order of their
// queues. It must not be called on a copy.
func (j *jobs) WaitlistsOfClass(class string, yield func(WaitlistID) bool) {
	prefix := class + "\x00"
	j.waitlists.Ascend(prefix, func(key string, wl *waitlist) bool {
		return strings.HasPrefix(key, prefix) && (wl.class != class || yield(wl.id()))
	})
}

// WaitlistsOfQueue yields the waitlists of a queue and class that have jobs.
func (j *jobs) WaitlistsOfQueue(queue, class string, yield func(WaitlistID) bool) {
	q := j.queues.get(queue)
	if q == nil {
		return
	}
	q.waitlists.Ascend(class, func(_ string, wl *waitlist) bool {
		return wl.class == class && (wl.jobs.Len() == 0 || yield(wl.id()))
	})
}

// FirstWaitingJob returns the job of a waitlist that is first by priority and acceptance among
// those of at most the given priority; ok is false if there is none. Its cost does not grow with
// the number of jobs.
func (j *jobs) FirstWaitingJob(id WaitlistID, priority uint8) (first WaitingJob, ok bool) {
	if wl := j.waitlist(&id); wl != nil {
		wl.jobs.Ascend(orderItem{key: orderKey(priority, 0)}, func(item orderItem) bool {
			first, ok = j.at(item.number).waitingJob(), true
			return false
		})
	}
	return first, ok
}

// NextWaitingJob returns the job that is next after another one of its waitlist, by priority and
// acceptance; ok is false if that one waits no longer, or is the last.
func (j *jobs) NextWaitingJob(w *WaitingJob) (next WaitingJob, ok bool) {
	stored := j.find(w.ID)
	if stored == nil || stored.state != job.Waiting {
		return WaitingJob{}, false
	}
	stored.waitlist.jobs.Ascend(stored.order(), func(item orderItem) bool {
		if item.number == stored.number {
			return true
		}
		next, ok = j.at(item.number).waitingJob(), true
		return false
	})
	return next, ok
}

// Headroom returns how many more jobs of a queue may become active by its own settings: 0 if the
// queue is paused or its limit is reached, math.MaxInt without a limit, also for a queue that
// does not exist yet.
func (qs *queues) Headroom(queue string) int {
	q := qs.get(queue)
	switch {
	case q == nil || q.config.Limit == 0 && !q.paused:
		return math.MaxInt
	case q.paused:
		return 0
	}
	return max(0, int(q.config.Limit)-q.counts[job.Active])
}

// IsFair reports whether a queue shares its starts among keys.
func (qs *queues) IsFair(queue string) bool {
	q := qs.get(queue)
	return q != nil && q.config.Fair
}

// Ages reports whether the jobs of a queue start in an order in which none is overtaken for
// ever by others of a higher priority.
func (qs *queues) Ages(queue string) bool {
	q := qs.get(queue)
	return q != nil && (q.config.Fair || q.config.Age > 0)
}

// WaitlistUses returns the limits that all jobs of a waitlist use: under all keys if it is keyed.
func (j *jobs) WaitlistUses(id WaitlistID) (uses []Use) {
	if wl := j.waitlist(&id); wl != nil {
		for _, m := range wl.bounds {
			uses = append(uses, m.unkeyedUse(!wl.keyed))
		}
	}
	return uses
}

// unkeyedUse returns the use of the limit by jobs without a key, or under all keys.
func (m *limit) unkeyedUse(unkeyed bool) Use {
	if unkeyed && m.BoundsKeys() {
		return Use{m, &m.unkeyed}
	}
	return Use{limit: m}
}

// Uses returns the limits that a waiting job uses. The job must have been read from the ledger as
// it is now, or not be in the ledger yet: then it uses those of its queue, without a key.
func (j *jobs) Uses(w *WaitingJob) (uses []Use) {
	if w.traits != nil {
		return w.traits.group.uses
	}
	if q := j.queues.get(w.Queue); q != nil {
		for _, name := range q.config.Limits {
			if m := j.limits.get(name); m != nil {
				uses = append(uses, m.unkeyedUse(true))
			}
		}
	}
	return uses
}

// Room is how many more jobs may start under a limit.
type Room struct {
	All    int       // of all keys, math.MaxInt without a bound
	OfKey  int       // of the key, likewise
	WakeAt time.Time // when the rate or the circuit will permit a start, if All is 0 because of it; zero: not known
}

// Room returns how many more jobs with the use may start at a time: those of the
// ledger's state, regardless of what is in flight.
func (u Use) Room(at time.Time) Room {
	room, m, now := Room{All: math.MaxInt, OfKey: math.MaxInt}, u.limit, at.UnixNano()
	if m.Total >= 0 {
		room.All = max(0, int(m.Total)-m.running)
	}
	if startsAt := m.startsAt(); startsAt > now {
		if startsAt != never && room.All > 0 {
			room.WakeAt = time.Unix(0, startsAt)
		}
		room.All = 0
	}
	if m.Rate.IsSet() {
		burst, _ := m.Bursts()
		room.All = min(room.All, m.bucket.Available(m.Rate, burst, now))
	}
	if m.circuit.openedAt != 0 {
		room.All = min(room.All, m.Circuit.Probes()-m.circuit.probes)
	}
	if u.key != nil {
		var wakeAt int64
		room.OfKey, wakeAt = m.keyRoom(u.key, now)
		if wakeAt != 0 && room.WakeAt.IsZero() {
			room.WakeAt = time.Unix(0, wakeAt)
		}
	}
	return room
}

// keyRoom returns how many more jobs may start under a key; wakeAt is as [limit.keyBlocked]
// returns it.
func (m *limit) keyRoom(k *limitKey, now int64) (room int, wakeAt int64) {
	blocked, wakeAt := m.keyBlocked(k, now)
	if blocked {
		return 0, wakeAt
	}
	room = math.MaxInt
	if m.PerKey >= 0 {
		room = int(m.PerKey) - k.running
	}
	if m.RatePerKey.IsSet() {
		_, burst := m.Bursts()
		room = min(room, m.bucketOf(k).Available(m.RatePerKey, burst, now))
	}
	return room, 0
}

// InFlight is what is decided but not in the ledger yet.
type InFlight interface {
	Placed(d job.DispatchID) bool // whether a placement of the dispatch is in flight
	Starts(use Use) int           // how many placements in flight have a use
	Full(id WaitlistID) bool      // whether no job of a waitlist may start, with what is in flight
}

// Placeable yields the jobs of a waitlist that may start as far as the bounds of keys permit and
// that are not in flight, in the order of the queue, until yield returns false. Each start of
// them may block others, by the bounds of keys no more than are yielded.
func (j *jobs) Placeable(id WaitlistID, inFlight InFlight, yield func(WaitingJob) bool) {
	wl := j.waitlist(&id)
	if wl == nil {
		return
	}
	if !wl.keyed {
		wl.queue.scan(wl.jobs, func(item orderItem) bool { return yield(j.at(item.number).waitingJob()) })
		return
	}
	m := groupMerge{jobs: j, inFlight: inFlight}
	next := place{}
	ready, more := wl.ready.at(next)
	for more || len(m.open) > 0 {
		for more && (len(m.open) == 0 || wl.queue.before(&ready.head, m.first())) {
			m.add(ready.group)
			next = wl.ready.after(next)
			ready, more = wl.ready.at(next)
		}
		if len(m.open) > 0 {
			if _, ok := m.next(yield); !ok {
				return
			}
		}
	}
}

// QueuesWaiting yields the queues that have waiting jobs of a class, in the order of their
// names. It must not be called on a copy.
func (j *jobs) QueuesWaiting(class string, yield func(queue string) bool) {
	previous := ""
	j.WaitlistsOfClass(class, func(id WaitlistID) bool {
		if id.Queue == previous {
			return true
		}
		previous = id.Queue
		return yield(id.Queue)
	})
}
