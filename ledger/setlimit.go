package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Errors of commands about limits.
var (
	ErrTooManyLimits  = fmt.Errorf("the yard already has the maximum of %d limits; remove one first, or use one limit with keys", MaxLimits)
	ErrLimitNotFound  = errors.New("there is no such limit")
	ErrLimitPaused    = errors.New("the limit is already paused")
	ErrLimitNotPaused = errors.New("the limit is not paused")
	ErrLimitInUse     = errors.New("the limit is in use") // wrapped by a [LimitInUseError]
	ErrNewLimitEmpty  = errors.New("there is no such limit; give a bound to create it, such as total or rate")
)

// LimitInUseError refuses to remove a limit that queues name, or unfinished jobs of queues.
type LimitInUseError struct{ Queues []string }

func (e *LimitInUseError) Error() string {
	return fmt.Sprintf("%v by %s; take it from the queues and let the jobs end first, or remove it with --force (force: true), which takes it from them", ErrLimitInUse, strings.Join(e.Queues, ", "))
}

func (e *LimitInUseError) Unwrap() error { return ErrLimitInUse }

// SetLimit creates a limit, or changes settings of it. A lowered bound stops no running job:
// none starts until as many as necessary have ended.
type SetLimit struct {
	Name   string
	Change job.LimitChange
	Asked
}

// RemoveLimit removes a limit: its jobs continue without it. It is refused while queues name the
// limit, or waiting or active jobs use it, unless Force is set: the limit is then taken from them.
type RemoveLimit struct {
	Name  string
	Force bool
	Asked
}

// PauseLimit pauses a limit, under which no job starts then, or resumes it. Resuming a limit that
// is not paused closes its circuit if that is open.
type PauseLimit struct {
	Name   string
	Paused bool
	Asked
}

func (*SetLimit) Kind() Kind    { return KindSetLimit }
func (*RemoveLimit) Kind() Kind { return KindRemoveLimit }
func (*PauseLimit) Kind() Kind  { return KindPauseLimit }

func (c *SetLimit) apply(l *Ledger) Result {
	ls := &l.jobs.limits
	old := ls.get(c.Name)
	settings := job.NewLimit(c.Name)
	if old != nil {
		settings = old.Limit
	}
	settings = settings.Changed(c.Change)
	if err := settings.Validate(); err != nil {
		return Result{Err: err}
	}
	affects := func(q *queue) bool { return q.uses(c.Name) }
	switch {
	case old == nil && c.Change.IsEmpty():
		return Result{Err: ErrNewLimitEmpty}
	case old == nil && ls.byName.Len() >= MaxLimits:
		return Result{Err: ErrTooManyLimits}
	case old == nil:
		l.rebind(affects, func() {
			added := &limit{}
			added.set(settings, &l.dispatches)
			ls.add(added)
		})
	case old.BoundsKeys() != settings.BoundsKeys():
		l.rebind(affects, func() { old.set(settings, &l.dispatches) })
	default:
		old.set(settings, &l.dispatches)
		ls.update(&old.unkeyed)
		for _, k := range old.keys {
			ls.update(k)
		}
	}
	l.act(c.By, "limit.set", Event{}, c.Name+" "+c.Change.Text(l.longDurations()), settingsOfLimit(&settings))
	return Result{}
}

// set changes the settings. What is still to be made up for of a rate is kept.
func (m *limit) set(settings job.Limit, d *dispatches) {
	now := d.elapsed
	m.bucket = m.bucket.Converted(m.Rate, settings.Rate, now)
	if m.RatePerKey != settings.RatePerKey {
		for _, b := range m.buckets.all {
			k := m.find(b.key)
			if bucket := b.bucket.Converted(m.RatePerKey, settings.RatePerKey, now); bucket != 0 {
				m.setBucket(k, bucket)
			} else {
				m.removeBucket(k)
			}
		}
		m.swept = m.buckets.count
	}
	switch c := &m.circuit; {
	case settings.Circuit.OpenAfter == 0:
		*c = circuit{}
	case c.openedAt != 0 && c.probeAt > now: // no probe has started yet
		c.probeAt = c.openedAt + int64(settings.Circuit.Pause())
		c.probesSince = d.probesSince(c.probeAt)
	}
	m.Limit, m.changed = settings, d.now
	m.noteFull(now)
}

func (c *RemoveLimit) apply(l *Ledger) Result {
	if l.jobs.limits.get(c.Name) == nil {
		return Result{Err: ErrLimitNotFound}
	}
	var using []*queue
	var users []string
	for _, q := range l.queues.byName.Scan {
		switch {
		case slices.Contains(q.config.Limits, c.Name):
			using = append(using, q)
			users = append(users, "queue "+q.name)
		case q.uses(c.Name):
			users = append(users, "jobs of queue "+q.name)
		}
	}
	if users = users[:min(len(users), 10)]; len(users) > 0 && !c.Force {
		return Result{Err: &LimitInUseError{users}}
	}
	l.rebind(func(q *queue) bool { return q.uses(c.Name) }, func() {
		l.jobs.limits.byName.Delete(c.Name)
		for _, q := range using {
			l.queues.touch(q)
			q.config.Limits = slices.DeleteFunc(slices.Clone(q.config.Limits), func(name string) bool { return name == c.Name })
		}
	})
	target := c.Name
	if len(users) > 0 {
		target += " taken from " + strings.Join(users, ", ")
	}
	l.act(c.By, "limit.remove", Event{}, target, nil)
	if l.outbox.level > 0 {
		for _, q := range using {
			l.act(c.By, "queue.set", Event{B: q.name}, "limits without "+c.Name, settingsOfQueue(&q.config))
		}
	}
	return Result{}
}

func (c *PauseLimit) apply(l *Ledger) Result {
	m := l.jobs.limits.get(c.Name)
	switch {
	case m == nil:
		return Result{Err: ErrLimitNotFound}
	case m.Paused && c.Paused:
		return Result{Err: ErrLimitPaused}
	case !m.Paused && !c.Paused && m.circuit.openedAt == 0:
		return Result{Err: ErrLimitNotPaused}
	case !m.Paused && !c.Paused:
		m.circuit = circuit{}
	}
	m.Paused = c.Paused
	action := "limit.resume"
	if c.Paused {
		action = "limit.pause"
	}
	l.act(c.By, action, Event{}, c.Name, nil)
	return Result{}
}

// limits encodes or decodes the limits, in the order of their names.
func (c *codec) limits(ls *limits, format uint64) {
	each(c, ls.byName.Len(), values(&ls.byName), func(m *limit) {
		c.fields(&m.Name, (*int64)(&m.Total), (*int64)(&m.PerKey), &m.Rate.Starts, &m.Rate.Per, &m.Burst,
			&m.RatePerKey.Starts, &m.RatePerKey.Per, &m.BurstPerKey, &m.Paused, &m.changed, &m.fullSince, &m.freeSince)
		s := &m.Circuit
		c.fields(&s.OpenAfter, &s.Within, &s.HalfOpen, &s.ProbeAfter)
		list(c, &s.On, func(name *string) { c.fields(name) })
		c.fields(&m.circuit.openedAt, &m.circuit.probeAt)
		if format >= level8Format {
			c.fields(&m.circuit.probesSince)
		} else if c.decoding() {
			m.circuit.probesSince = m.circuit.probeAt
		}
		list(c, &m.circuit.failures, func(at *int64) { c.fields(at) })
		bucket := max(int64(m.bucket), ls.elapsed)
		c.fields(&bucket)
		m.bucket = job.Bucket(bucket)
		c.buckets(m, ls.elapsed)
		if c.decoding() {
			ls.add(m)
		}
	})
}

// buckets encodes or decodes the buckets of keys that are not full, in the order of the keys.
func (c *codec) buckets(m *limit, now int64) {
	var owing []keyBucket
	for _, b := range m.buckets.all {
		if int64(b.bucket) > now {
			owing = append(owing, *b)
		}
	}
	slices.SortFunc(owing, func(a, b keyBucket) int { return strings.Compare(a.key, b.key) })
	list(c, &owing, func(b *keyBucket) { c.fields(&b.key, (*int64)(&b.bucket)) })
	if c.decoding() {
		for _, b := range owing {
			m.setBucket(m.known(b.key), b.bucket)
		}
		m.swept = len(owing)
	}
}

// rebind carries out a change after which limits bound other jobs of some queues, or these jobs start
// in another order. affects reports whether the change affects a queue.
func (j *jobs) rebind(affects func(*queue) bool, change func()) {
	var active []*storedJob
	for item := range j.active.Scan {
		if q := j.queueOf(item.number); affects(q) {
			active = append(active, j.at(item.number))
		}
	}
	var waitlists []*waitlist
	for _, q := range j.queues.byName.Scan {
		if affects(q) {
			for _, wl := range q.waitlists.Scan {
				waitlists = append(waitlists, wl)
			}
		}
	}
	for _, stored := range active {
		j.limits.release(stored)
	}
	for _, wl := range waitlists {
		j.limits.unlink(wl)
	}
	change()
	for _, wl := range waitlists {
		j.limits.link(wl)
	}
	for _, stored := range active {
		j.limits.take(stored)
	}
}

// uses reports whether jobs of the queue may use a limit.
func (q *queue) uses(limit string) bool {
	if slices.Contains(q.config.Limits, limit) {
		return true
	}
	for _, wl := range q.waitlists.Scan {
		if slices.Contains(wl.names(), limit) {
			return true
		}
	}
	return false
}
