package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/waitlist"
)

// limitsInFlight counts the placements in flight by the limits that they use. The ledger does
// not count them yet.
type limitsInFlight struct {
	byLimit map[string]int
	byUse   map[job.LimitUse]int
	full    map[ledger.WaitlistID]bool // no job of these may start, as far as is known in this call of place
}

func newLimitsInFlight() limitsInFlight {
	return limitsInFlight{map[string]int{}, map[job.LimitUse]int{}, map[ledger.WaitlistID]bool{}}
}

// add adds n placements with the same uses.
func (f *limitsInFlight) add(uses []job.LimitUse, n int) {
	for _, use := range uses {
		if f.byLimit[use.Limit] += n; f.byLimit[use.Limit] == 0 {
			delete(f.byLimit, use.Limit)
		}
		if f.byUse[use] += n; f.byUse[use] == 0 {
			delete(f.byUse, use)
		}
	}
}

// Placed reports whether a placement of the dispatch is in flight.
func (pl *placer) Placed(d job.DispatchID) bool {
	_, placed := pl.inFlight[d]
	return placed
}

// Starts returns how many placements in flight use a limit under a key.
func (pl *placer) Starts(use job.LimitUse) int { return pl.limits.byUse[use] }

// Full reports whether no job of a waitlist may start.
func (pl *placer) Full(id ledger.WaitlistID) bool { return pl.limits.full[id] }

// wake notes a time at which a limit may permit a start; zero: it is not known.
func (pl *placer) wake(at time.Time) {
	if !at.IsZero() && (pl.wakeAt.IsZero() || at.Before(pl.wakeAt)) {
		pl.wakeAt = at
	}
}

// hasRoom reports whether the limits that all jobs of a waitlist use permit a start.
func (pl *placer) hasRoom(l *ledger.Ledger, id ledger.WaitlistID) bool {
	for _, use := range l.WaitlistUses(id) {
		room := l.Room(use, pl.at)
		blocked := room.All <= pl.limits.byLimit[use.Limit] || !id.Keyed() && room.OfKey <= pl.limits.byUse[use]
		if blocked {
			pl.wake(room.WakeAt)
			return false
		}
	}
	return true
}

// checkLimits reports whether the limits that a job uses permit its start, and sets pl.uses; if
// not, step is how the merge of the waitlists continues.
func (pl *placer) checkLimits(l *ledger.Ledger, w *ledger.WaitingJob) (step waitlist.Step, ok bool) {
	pl.uses = l.Uses(&w.Job)
	if len(pl.uses) == 0 {
		return waitlist.Next, true
	}
	id := ledger.WaitlistOf(&w.Job)
	for _, use := range pl.uses {
		room := l.Room(use, pl.at)
		all := room.All <= pl.limits.byLimit[use.Limit]
		if !all && room.OfKey > pl.limits.byUse[use] {
			continue
		}
		pl.wake(room.WakeAt)
		switch {
		case !all && id.Keyed():
			return waitlist.Next, false
		case l.IsFair(w.Queue):
			pl.limits.full[id] = true
			return waitlist.Next, false
		}
		return waitlist.SkipList, false
	}
	return waitlist.Next, true
}
