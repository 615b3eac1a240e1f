package series

import (
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Bounds of happenings.
const (
	maxHappenings    = 500
	maxHappeningText = 160 // bytes of each text
)

// Happening is an act of an operator that is about more than one job, or a change of the authority.
type Happening struct {
	At     time.Time
	Action string // as in the event, such as "queue.pause"; [AuthorityAcquired] for a change of the authority
	Queue  string // that it is about, or ""
	Target string // what else it is about, or ""
	Actor  string // who acted, or ""
	Door   string // how
	Reason string // as the actor gave it
}

// AuthorityAcquired is the action of a node that has acquired the authority, which is the target.
const AuthorityAcquired = "authority.acquired"

// addHappening adds an event, if it is a happening.
func (s *Series) addHappening(e *ledger.Event) {
	h := Happening{At: time.Unix(0, s.now).UTC()}
	switch {
	case e.Kind == ledger.AuthorityAcquired:
		h.Action, h.Target = AuthorityAcquired, e.A
	case e.Kind == ledger.OperatorActed && e.Job.IsZero() && e.Extra != nil && e.Extra.By != nil:
		h.Action, h.Queue, h.Target = e.A, e.B, e.Extra.C
		h.Actor, h.Door, h.Reason = e.Extra.By.Name, string(e.Extra.By.Door), e.Extra.By.Reason
	default:
		return
	}
	for _, text := range h.texts() {
		*text = job.CutText(*text, maxHappeningText)
	}
	if len(s.happenings) >= maxHappenings {
		s.happenings = slices.Clone(s.happenings[1:])
	}
	s.happenings = append(s.happenings, h)
}

func (h *Happening) texts() [6]*string {
	return [...]*string{&h.Action, &h.Queue, &h.Target, &h.Actor, &h.Door, &h.Reason}
}

// dropHappenings drops those that are too old.
func (s *Series) dropHappenings() {
	oldest := time.Unix(0, s.now).Add(-Retention)
	recent := slices.IndexFunc(s.happenings, func(h Happening) bool { return h.At.After(oldest) })
	switch {
	case recent < 0:
		s.happenings = nil
	case recent > 0:
		s.happenings = slices.Clone(s.happenings[recent:])
	}
}
