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
	byUse map[ledger.Use]int         // also of each limit under all keys
	full  map[ledger.WaitlistID]bool // no job of these may start, as far as is known in this call of place
}

func newLimitsInFlight() limitsInFlight {
	return limitsInFlight{map[ledger.Use]int{}, map[ledger.WaitlistID]bool{}}
}

// add adds n placements with the same uses.
func (f *limitsInFlight) add(uses []ledger.Use, n int) {
	for _, use := range uses {
		f.addUse(use, n)
		if all := use.All(); all != use {
			f.addUse(all, n)
		}
	}
}

func (f *limitsInFlight) addUse(use ledger.Use, n int) {
	if f.byUse[use] += n; f.byUse[use] == 0 {
		delete(f.byUse, use)
	}
}

// Placed reports whether a placement of the dispatch is in flight.
func (pl *placer) Placed(d job.DispatchID) bool {
	_, placed := pl.inFlight[d]
	return placed
}

// Starts returns how many placements in flight have a use.
func (pl *placer) Starts(use ledger.Use) int { return pl.limits.byUse[use] }

// Full reports whether no job of a waitlist may start.
func (pl *placer) Full(id ledger.WaitlistID) bool {
	return len(pl.limits.full) > 0 && pl.limits.full[id]
}

// wake notes a time at which a limit may permit a start; zero: it is not known.
func (pl *placer) wake(at time.Time) {
	if !at.IsZero() && (pl.wakeAt.IsZero() || at.Before(pl.wakeAt)) {
		pl.wakeAt = at
	}
}

// hasRoom reports whether the limits that all jobs of a waitlist use permit a start.
func (pl *placer) hasRoom(l *ledger.Ledger, id ledger.WaitlistID) bool {
	for _, use := range l.WaitlistUses(id) {
		room := use.Room(pl.at)
		if room.All <= pl.limits.byUse[use.All()] || room.OfKey <= pl.limits.byUse[use] {
			pl.wake(room.WakeAt)
			return false
		}
	}
	return true
}

// checkLimits reports whether the limits that a job uses permit its start, and sets pl.uses; if
// not, step is how the merge of the waitlists continues.
func (pl *placer) checkLimits(l *ledger.Ledger, w *ledger.WaitingJob) (step waitlist.Step, ok bool) {
	pl.uses = l.Uses(w)
	if len(pl.uses) == 0 {
		return waitlist.Next, true
	}
	for _, use := range pl.uses {
		room := use.Room(pl.at)
		all := room.All <= pl.limits.byUse[use.All()]
		if !all && room.OfKey > pl.limits.byUse[use] {
			continue
		}
		pl.wake(room.WakeAt)
		id := ledger.WaitlistOf(&w.Job)
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
