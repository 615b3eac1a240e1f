package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"yardmaster/job"
)

// lazily is how long a lowered offer may wait for company: the authority has
// counted what it placed itself, and a worker that is gone says so by "no room".
const lazily = 10 * time.Millisecond

// seat names one worker's room for one key.
type seat struct {
	kind        job.Kind
	key, worker string
}

// compare orders seats, so that the authority hears of the same room in the same
// order.
func (s seat) compare(o seat) int {
	return cmp.Or(cmp.Compare(s.kind, o.kind), cmp.Compare(s.key, o.key), cmp.Compare(s.worker, o.worker))
}

func seatOf(o *job.Assignment) seat { return seat{o.Kind, o.Key, o.Worker} }

// offer is a seat's room.
type offer struct {
	free    int // as its target said last
	loading int // taken by orders that wait for their bodies
	dirty   bool
}

func (o *offer) open() int { return max(o.free-o.loading, 0) }

// room is what this node offers, and what the authority knows of it. It is
// guarded by the agent's mu.
type room struct {
	offers map[seat]*offer
	dirty  []seat // to be told, in the order of their changes
	full   bool   // the authority knows nothing: tell all
	urgent bool   // somebody could start at once
	lazyAt time.Time
	flying bool // a report with offers is on its way

	rev  uint64 // of the last report with offers that was sent
	told uint64 // of the last one that was answered

	seenEpoch, seen uint64 // last batch of assignments, and whose
}

func newRoom() room { return room{offers: map[seat]*offer{}} }

// Offer announces the room of one worker for one key; 0 withdraws it. The last
// value counts.
func (a *Agent) Offer(o job.Offer) {
	a.mu.Lock()
	wake := a.room.set(seat{o.Kind, o.Key, o.Worker}, o.Free, time.Now())
	a.mu.Unlock()
	if wake {
		notice(a.wake)
	}
}

// set notes a seat's room; true if the reporter should look.
func (r *room) set(s seat, free int, now time.Time) bool {
	o := r.offers[s]
	if o == nil {
		if free <= 0 {
			return false
		}
		o = &offer{}
		r.offers[s] = o
	}
	before := o.open()
	if o.free = max(free, 0); o.open() == before {
		return false
	}
	return r.changed(s, o, before, now)
}

// changed notes that a seat has another room than before. Places that came
// free are told at once, others lazily.
func (r *room) changed(s seat, o *offer, before int, now time.Time) bool {
	r.mark(s, o)
	if o.open() > before {
		r.urgent = true
		return true
	}
	return r.later(now)
}

func (r *room) mark(s seat, o *offer) {
	if !o.dirty {
		o.dirty = true
		r.dirty = append(r.dirty, s)
	}
}

// later sets the time by which lowered offers are told.
func (r *room) later(now time.Time) bool {
	if !r.lazyAt.IsZero() {
		return false
	}
	r.lazyAt = now.Add(lazily)
	return true
}

// reserve takes places for orders that wait for their bodies, or gives them
// back.
func (r *room) reserve(s seat, n int, now time.Time) {
	o := r.offers[s]
	if o == nil {
		return // the worker is gone; Start will say so
	}
	before := o.open()
	o.loading = max(o.loading+n, 0)
	r.changed(s, o, before, now)
}

// saw notes that a batch was carried out: offers told from now on hold with
// it. All seats it named are told again, also those that did not change,
// because the authority takes the batch off until then.
func (r *room) saw(b job.Batch, now time.Time) {
	r.seenEpoch, r.seen = b.Epoch, max(b.Number, r.seenBy(b.Epoch))
	for i := range b.Assignments {
		s := seatOf(&b.Assignments[i])
		if o := r.offers[s]; o != nil {
			r.mark(s, o)
		}
	}
	r.later(now)
}

// seenBy is the last batch carried out for an authority.
func (r *room) seenBy(epoch uint64) uint64 {
	if r.seenEpoch != epoch {
		return 0
	}
	return r.seen
}

// forgotten: the authority has to be told everything.
func (r *room) forgotten() { r.full, r.urgent = true, true }

// due tells whether offers should be told now, and if not, when.
func (r *room) due(now time.Time) (bool, time.Time) {
	switch {
	case r.flying:
		return false, time.Time{} // looked at again when it is answered
	case r.full, r.urgent && len(r.dirty) > 0:
		return true, time.Time{}
	case r.lazyAt.IsZero():
		return false, time.Time{}
	}
	return !now.Before(r.lazyAt), r.lazyAt
}

// fill puts what is to be told into a report. One such report flies at a time,
// so that they arrive in order.
func (r *room) fill(report *job.Report, epoch uint64) {
	r.rev++
	report.Rev, report.Full, report.Seen = r.rev, r.full, r.seenBy(epoch)
	if r.full {
		for _, s := range slices.SortedFunc(maps.Keys(r.offers), seat.compare) {
			if o := r.offers[s]; o.open() > 0 {
				report.Offers = append(report.Offers, job.Offer{Kind: s.kind, Key: s.key, Worker: s.worker, Free: o.open()})
			}
		}
	}
	for _, s := range r.dirty {
		o := r.offers[s]
		o.dirty = false
		if !r.full {
			report.Offers = append(report.Offers, job.Offer{Kind: s.kind, Key: s.key, Worker: s.worker, Free: o.open()})
		}
		if o.free == 0 && o.loading == 0 {
			delete(r.offers, s) // if this report is lost, the next is full
		}
	}
	r.dirty = r.dirty[:0]
	r.full, r.urgent, r.lazyAt, r.flying = false, false, time.Time{}, true
}

// landed notes how a report with offers went.
func (r *room) landed(rev uint64, err error) {
	r.flying = false
	if err != nil {
		r.forgotten() // it may have arrived or not
		return
	}
	r.told = rev
}
