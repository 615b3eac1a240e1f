package ledger

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// eventChecker follows the events of a ledger and checks what must hold after each
// entry, for any commands.
type eventChecker struct {
	events     uint64 // number of the last one seen
	dispatches map[string]EventKind
	counts     SnapshotBacklog // computed from events alone
	owner      string          // computed from events alone
	epoch      uint64
	stalled    map[string]bool // by worker; names are unique in these tests
}

func newEventChecker() *eventChecker {
	return &eventChecker{dispatches: make(map[string]EventKind), stalled: make(map[string]bool)}
}

// allowedBefore holds, for each event of a dispatch, the events that may precede it;
// 0: none.
var allowedBefore = map[EventKind][]EventKind{
	DispatchQueued:    {0},
	DispatchNotified:  {DispatchQueued},
	DispatchDelivered: {DispatchNotified},
	DispatchFailed:    {DispatchNotified},
}

// observe checks the events since its last call: they are numbered without gaps, each
// dispatch follows the contract's order, and they add up to the ledger's backlog and
// authority.
func (w *eventChecker) observe(l *Ledger) (err error) {
	l.EventsAfter(w.events, func(number uint64, _ time.Time, e *Event) bool {
		if number != w.events+1 {
			err = fmt.Errorf("event %d follows event %d", number, w.events)
			return false
		}
		w.events = number
		if err = w.apply(e); err != nil {
			err = fmt.Errorf("event %d, %s: %w", number, e.append(nil, 0, time.Time{}), err)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	a := l.Authority()
	switch {
	case w.events != l.LastEvent():
		return fmt.Errorf("%d events seen, %d counted", w.events, l.LastEvent())
	case w.counts != l.counts:
		return fmt.Errorf("events give %+v, the ledger counts %+v", w.counts, l.counts)
	case w.owner != a.Owner:
		return fmt.Errorf("events give authority %q, the ledger %q", w.owner, a.Owner)
	case a.Epoch < w.epoch:
		return fmt.Errorf("epoch %d after %d", a.Epoch, w.epoch)
	}
	w.epoch = a.Epoch
	return nil
}

func (w *eventChecker) apply(e *Event) error {
	switch e.Kind {
	case AuthorityAcquired:
		w.owner = e.A
	case AuthorityRenewed:
		if w.owner != e.A {
			return fmt.Errorf("renewed by %q, held by %q", e.A, w.owner)
		}
	case DispatchQueued:
		w.counts.Pending++
	case DispatchNotified:
		w.counts.Pending--
		w.counts.Notified++
	case DispatchDelivered:
		w.counts.Notified--
		w.counts.Delivered++
	case DispatchFailed:
		w.counts.Notified--
		w.counts.Failed++
	case WorkerStalled:
		if w.stalled[e.A] {
			return fmt.Errorf("%s stalls twice", e.A)
		}
		w.stalled[e.A] = true
	case WorkerRecovered:
		if !w.stalled[e.A] && e.B != job.RecoveredResumed {
			return fmt.Errorf("%s recovers and was not stalled", e.A)
		}
		delete(w.stalled, e.A)
	}
	allowed, isStep := allowedBefore[e.Kind]
	if !isStep {
		return nil
	}
	id := job.RequestID(e.Job, e.N)
	if e.Extra != nil && e.Extra.Request != "" {
		id = e.Extra.Request
	}
	before := w.dispatches[id]
	if e.N == 0 && e.Kind == DispatchQueued && (before == DispatchDelivered || before == DispatchFailed) {
		before = 0 // an external dispatch that ended and was forgotten
	}
	for _, from := range allowed {
		if before == from {
			w.dispatches[id] = e.Kind
			return nil
		}
	}
	return fmt.Errorf("%s comes after %d", id, before)
}

// checkInvariants compares all indexes and counters of the ledger with its records.
func checkInvariants(l *Ledger) error {
	for _, err := range []error{checkQueues(l), checkWaitlists(l), checkCrons(l), checkGuards(l), checkReplay(l), checkFinished(l), checkTables(l), checkExpiring(l), checkLimits(l), checkPlaceable(l), checkOperations(l)} {
		if err != nil {
			return err
		}
	}
	want := SnapshotBacklog{Delivered: l.counts.Delivered, Failed: l.counts.Failed}
	due, active := 0, 0
	var err error
	l.jobs.active.Scan(func(item fenceItem) bool {
		if r := l.jobs.at(item.number); !isStored(l, r) || r.state != job.Active || item != r.byFence() {
			err = fmt.Errorf("%s in the active index is not the stored job", item.id)
		}
		return err == nil
	})
	for _, wall := range []bool{false, true} {
		l.jobs.due.of(moment{wall: wall}).Scan(func(item timeItem) bool {
			if r := l.jobs.at(item.number); !isStored(l, r) || item != r.at(r.dueMoment()) || r.options.dueWall != wall {
				err = fmt.Errorf("%s in the index by time is not the stored job", item.id)
			}
			return err == nil
		})
	}
	if err != nil {
		return err
	}
	bodies, failed := make(map[job.ID]int), make(map[job.ID]int)
	for number := range l.jobs.records.all {
		r := l.jobs.at(number)
		id := r.id
		if owner := r.options.blobOwner; !owner.IsZero() && r.state == job.Failed {
			failed[owner]++
		} else if !owner.IsZero() && (!r.state.Ended() || r.state == job.Failed) {
			bodies[owner]++
		}
		switch {
		case !isStored(l, r) || l.queues.get(r.queue.name) != r.queue:
			return fmt.Errorf("job %s is not indexed, or its queue %s", id, r.queue.name)
		case r.state == job.Waiting && (r.n == 0 || r.due > l.now):
			return fmt.Errorf("waiting job %s has dispatch %d and is due in %s", id, r.n, time.Duration(r.due-l.now))
		case r.state == job.Active && (r.run == run{} || r.attempt == 0 || r.attempt > r.n):
			return fmt.Errorf("job %s is active: %+v", id, r)
		case r.state != job.Active && r.flags&moved != 0:
			return fmt.Errorf("job %s is %s, and its dispatch has moved", id, r.state)
		}
		switch r.state {
		case job.Waiting:
			want.Pending++
		case job.Active:
			want.Notified++
			active++
		case job.Delayed:
			due++
		}
	}
	if !maps.Equal(bodies, l.jobs.bodies) || !maps.Equal(failed, l.jobs.failed) {
		return fmt.Errorf("bodies are needed by %v and failed %v, counted %v and %v", bodies, failed, l.jobs.bodies, l.jobs.failed)
	}
	if indexed := l.jobs.due.elapsed.Len() + l.jobs.due.wall.Len(); due != indexed || active != l.jobs.active.Len() {
		return fmt.Errorf("indexes hold %d due, %d active; jobs are %d, %d", indexed, l.jobs.active.Len(), due, active)
	}
	l.external.byID.Scan(func(_ string, r *externalDispatch) bool {
		switch r.state {
		case externalPending:
			want.Pending++
		case externalNotified:
			want.Notified++
		}
		return true
	})
	if want != l.counts {
		return fmt.Errorf("recounted %+v, counted %+v", want, l.counts)
	}
	if err := checkStalls(l); err != nil {
		return err
	}
	return checkOutbox(l)
}

// checkFinished compares the indexes of finished jobs with the jobs, and what remains of
// them with the limits.
func checkFinished(l *Ledger) error {
	f := &l.finished
	want := newFinished()
	want.split = l.outbox.level > 0
	want.setLimits(l.retention)
	for class := range f.classes {
		if f.split != want.split || f.classes[class].limits != want.classes[class].limits {
			return fmt.Errorf("limits of finished jobs are %+v, want %+v", f.classes[class].limits, want.classes[class].limits)
		}
		if err := checkFinishedClass(l, &f.classes[class]); err != nil {
			return fmt.Errorf("class %d: %w", class, err)
		}
	}
	return nil
}

func checkFinishedClass(l *Ledger, f *finishedClass) error {
	ended := make(map[*queue]int)
	for number := range l.jobs.records.all {
		r := l.jobs.at(number)
		if !r.state.Ended() || l.finished.of(r.state) != f {
			continue
		}
		ended[r.queue]++
		list := r.queue.ended[f.class].jobs
		if at, ok := list.find(r.byEnd()); !ok || list.chunks[at.chunk].items[at.i].number != number {
			return fmt.Errorf("finished job %s is not indexed", r.id)
		}
	}
	shared, own, ordered := 0, 0, 0
	for q, n := range ended {
		limits, order := f.limits, f.shared
		if r := q.config.Retention; r.Get(job.KeptFinished, job.BoundAge)+r.Get(job.KeptFinished, job.BoundCount) > 0 {
			limits, order = limits.with(r), f.own
			own += n
			if n > limits.count {
				return fmt.Errorf("queue %s has %d finished jobs, more than %d", q.name, n, limits.count)
			}
		} else {
			shared += n
		}
		oldest := l.jobs.at(q.oldestFinished(f.class))
		if l.now-oldest.due >= limits.age {
			return fmt.Errorf("job %s of queue %s ended %s ago and is kept for %s", oldest.id, q.name, time.Duration(l.now-oldest.due), time.Duration(limits.age))
		}
		if _, ok := order.Get(removal{q.ended[f.class].removal, q}); !ok || q.ended[f.class].jobs.Len() != n {
			return fmt.Errorf("queue %s has no place, or %d of %d finished jobs", q.name, q.ended[f.class].jobs.Len(), n)
		}
	}
	for _, q := range l.queues.byName.Scan {
		if q.ended[f.class].removal != 0 {
			ordered++
		}
	}
	if ordered != len(ended) || f.shared.Len()+f.own.Len() != ordered {
		return fmt.Errorf("%d queues have finished jobs, %d and %d are ordered", len(ended), f.shared.Len(), f.own.Len())
	}
	if shared != f.sharedCount || own != f.ownCount || shared > f.limits.count {
		return fmt.Errorf("%d and %d finished jobs, counted %d and %d of at most %d", shared, own, f.sharedCount, f.ownCount, f.limits.count)
	}
	return nil
}

// checkStalls compares the indexes of stalled workers.
func checkStalls(l *Ledger) (err error) {
	s := &l.stalls
	if s.workers.Len() != s.byAge.Len() || s.byAge.Len() > MaxStalled {
		return fmt.Errorf("%d stalled workers, %d by age", s.workers.Len(), s.byAge.Len())
	}
	s.byAge.Scan(func(event uint64, w stall) bool {
		if known, _ := s.workers.Get(w); known != w || w.event != event || event > l.LastEvent() {
			err = fmt.Errorf("worker %s of %s stalled by event %d, or by %d", w.worker, w.node, event, known.event)
		}
		return err == nil
	})
	return err
}

// limitChecker checks the limits of queues, which entries may change. It holds the
// queues as they were after the last entry.
type limitChecker map[string]QueueView

// check returns an error if an entry with the commands cmds, the last that l has
// applied, started more jobs of a queue than a limit permits that the queue had before
// the entry or during it.
func (limits limitChecker) check(l *Ledger, cmds []Command) error {
	for _, q := range l.Queues() {
		previous := limits[q.Name]
		limits[q.Name] = q
		permitted := []uint32{previous.Config.Limit, q.Config.Limit}
		for _, c := range cmds {
			if c, ok := c.(*ChangeQueue); ok && c.Name == q.Name && c.Change.Limit != nil {
				permitted = append(permitted, *c.Change.Limit)
			}
		}
		most := max(previous.Counts[job.Active], int(slices.Max(permitted)))
		if active := q.Counts[job.Active]; previous.ID == q.ID && !slices.Contains(permitted, 0) && active > most {
			return fmt.Errorf("queue %s has %d active jobs, at most %d are permitted", q.Name, active, most)
		}
	}
	return nil
}

// checkQueues compares the indexes and counters of each queue with its jobs.
func checkQueues(l *Ledger) error {
	var err error
	busy := 0
	for _, view := range l.Queues() {
		q := l.queues.get(view.Name)
		var want [job.States]int
		q.waitlists.Scan(func(_ string, wl *waitlist) bool {
			if wl.jobs.Len() > 0 {
				busy++
			}
			wl.jobs.Scan(func(item orderItem) bool {
				want[job.Waiting]++
				if r := l.jobs.at(item.number); !isStored(l, r) || item != r.order() || Class(r.function) != wl.class {
					err = fmt.Errorf("queue %s: %s in a waitlist is not the stored job", q.name, r.id)
				}
				return true
			})
			return true
		})
		for state, list := range q.lists {
			if list == nil {
				continue
			}
			list.Scan(func(item timeItem) bool {
				want[state]++
				if r := l.jobs.at(item.number); !isStored(l, r) || item != r.byAcceptance() || r.state != job.State(state) {
					err = fmt.Errorf("queue %s: %s in the list of %s jobs is not the stored job", q.name, item.id, job.State(state))
				}
				return true
			})
		}
		want[job.Active] = len(l.jobs.activeInQueue(q.name))
		if want != q.counts {
			return fmt.Errorf("queue %s recounted %v, counted %v", q.name, want, q.counts)
		}
		if want[job.Completed] += int(q.completed); want != view.Counts {
			return fmt.Errorf("queue %s shows %v, has %v", q.name, view.Counts, want)
		}
		if err := checkReads(l, view); err != nil {
			return err
		}
	}
	if b := l.Balance(); b.Imbalance() != 0 {
		return fmt.Errorf("the balance of jobs is %+v", b)
	}
	if busy != l.jobs.waitlists.Len() {
		return fmt.Errorf("%d waitlists have jobs, %d are indexed", busy, l.jobs.waitlists.Len())
	}
	return err
}

// checkReads checks the results of the methods that read a queue.
func checkReads(l *Ledger, q QueueView) error {
	for state, count := range l.queues.get(q.Name).counts {
		views := l.List(q.Name, job.State(state), 0, 1<<30)
		if len(views) != count {
			return fmt.Errorf("queue %s lists %d of %d %s jobs", q.Name, len(views), count, job.State(state))
		}
		for i := 1; i < len(views); i++ {
			if views[i].Created.Before(views[i-1].Created) {
				return fmt.Errorf("queue %s lists %s before an older job", q.Name, views[i-1].ID)
			}
		}
		if page := l.List(q.Name, job.State(state), 1, 2); count > 1 && page[0].ID != views[1].ID {
			return fmt.Errorf("queue %s: a page starts with another job than the full list", q.Name)
		}
	}
	var err error
	l.Classes(func(class string) bool {
		var last *WaitingJob
		l.WaitlistsOfQueue(q.Name, class, func(id WaitlistID) bool {
			last = nil
			l.WaitingJobs(id, func(w WaitingJob) bool {
				if last != nil && !last.Before(&w) && q.Config.Age == 0 {
					err = fmt.Errorf("queue %s starts %s before %s", q.Name, last.ID, w.ID)
				}
				last = &w
				return err == nil
			})
			return err == nil
		})
		return err == nil
	})
	return err
}

func checkOutbox(l *Ledger) error {
	o := &l.outbox
	bytes, next := 0, o.next+1
	for i := len(o.entries) - 1; i >= 0; i-- {
		entry := &o.entries[i]
		if next -= uint64(len(entry.events)); entry.first != next {
			return fmt.Errorf("entry %d of the outbox begins at event %d, not %d", i, entry.first, next)
		}
		for k := range entry.events {
			bytes += entry.events[k].cost()
		}
	}
	for i := range o.results {
		bytes += o.results[i].cost()
	}
	for i := range o.deadLetters {
		bytes += o.deadLetters[i].cost()
	}
	if bytes != l.OutboxBytes() {
		return fmt.Errorf("outbox recounted %d bytes, counted %d", bytes, l.OutboxBytes())
	}
	return nil
}

// failer is a [testing.T] or a [rapid.T].
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// encoded returns the encoded state of l.
func encoded(t failer, l *Ledger) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := l.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestEventChecker_Fails checks that the checks above detect errors.
func TestEventChecker_Fails(t *testing.T) {
	fresh := func() *Ledger {
		s := newScript(t)
		s.run("> lead n1 until=100s\n> bootstrap L0\n> ingest 0 0-3 a:mail b:mail/x c:mail,at=9s,unique=k/9s\n> cron c1 x next=1s\n> cron c2 x next=1s\n> tick c1@1s rev=4 next=2s\n> place a#1@n1/1:overhop/w1\n")
		return s.ledger
	}
	if err := checkInvariants(fresh()); err != nil {
		t.Fatal(err)
	}
	for name, corrupt := range map[string]func(l *Ledger){
		"count":    func(l *Ledger) { l.counts.Pending++ },
		"queue":    func(l *Ledger) { l.queues.get("mail").counts[job.Active]++ },
		"outbox":   func(l *Ledger) { l.outbox.bytes++ },
		"accepted": func(l *Ledger) { l.jobs.accepted++ },
		"gap":      func(l *Ledger) { l.outbox.entries = l.outbox.entries[:1] },
		"key":      func(l *Ledger) { h, _ := l.guards.byTime.Min(); l.guards.byTime.Delete(h) },
		"holder":   func(l *Ledger) { h, _ := l.guards.byTime.Min(); l.guards.byJob.Delete(h) },
		"decision": func(l *Ledger) { l.decisions.list = l.decisions.list[:0] },
		"due": func(l *Ledger) {
			if _, ok := l.jobs.due.elapsed.PopMin(); !ok {
				l.jobs.due.wall.PopMin()
			}
		},
		"forgot":  func(l *Ledger) { l.jobs.forgotten.add(anyJob(l).id, 0, false) },
		"tick":    func(l *Ledger) { l.crons.byTime.PopMin() },
		"sent":    func(l *Ledger) { clear(l.crons.ticks) },
		"options": func(l *Ledger) { l.jobs.options.add(options{runAt: 1}) },
		"uses":    func(l *Ledger) { l.jobs.traits.replace(nil, l.jobs.traits.of(traitsID{class: "x"})) },
		"replaced": func(l *Ledger) {
			r := anyJob(l)
			l.jobs.byID.move(&r.id, r.number, l.jobs.records.add(r.record))
		},
	} {
		l := fresh()
		corrupt(l)
		if checkInvariants(l) == nil {
			t.Errorf("%s: not detected", name)
		}
	}
	limits, l := limitChecker{}, fresh()
	l.queues.get("mail").config.Limit = 1
	if err := limits.check(l, nil); err != nil {
		t.Fatal(err)
	}
	l.queues.get("mail").counts[job.Active] = 2
	if limits.check(l, nil) == nil {
		t.Error("a limit that is exceeded is not detected")
	}
	w := newEventChecker()
	if err := w.observe(fresh()); err != nil {
		t.Fatal(err)
	}
	id := job.ID{1}
	if w.apply(&Event{Kind: DispatchDelivered, Job: id, N: 1}) == nil {
		t.Error("a delivered dispatch that was never queued is not detected")
	}
	if w.apply(&Event{Kind: AuthorityRenewed, A: "other"}) == nil {
		t.Error("a renewal by another owner is not detected")
	}
}

// isStored reports whether the job is found by its id.
func isStored(l *Ledger, r *storedJob) bool {
	number, ok := l.jobs.byID.find(&l.jobs, &r.id)
	return ok && number == r.number
}

func anyJob(l *Ledger) *storedJob {
	for number := range l.jobs.records.all {
		return l.jobs.at(number)
	}
	panic("no job")
}

// checkReplay checks that a replay in progress has records left to read, and only
// ingested ones.
func checkReplay(l *Ledger) error {
	r := &l.replay
	if len(r.lanes) == 0 && r.last.IsZero() && len(r.damage) <= maxDamage {
		return nil
	}
	if len(r.lanes) != len(l.lanes) || r.remaining() == 0 || len(r.damage) > maxDamage {
		return fmt.Errorf("%d lanes, replay %+v", len(l.lanes), r)
	}
	for i, part := range r.lanes {
		if part.At > part.End || part.End > l.lanes[i].Cursor {
			return fmt.Errorf("lane %d is ingested to %d and replayed from %d to %d", i, l.lanes[i].Cursor, part.At, part.End)
		}
	}
	return nil
}
