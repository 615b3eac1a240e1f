package ledger

import "strings"

// traits are what many jobs have in common, and where those of them wait that have not ended.
type traits struct {
	traitsID
	number     uint32    // in jobs.traits; 0: no job has them
	jobs       int       // that have them
	unfinished int       // waiting, delayed and active ones
	waitlist   *waitlist // of the unfinished ones; nil: there are none
	grouped    int       // waiting and active ones
	group      *group    // of these; nil: there are none
}

// traitsID is what identifies traits.
type traitsID struct {
	queue *queue // in a copy of the ledger only its name may be read
	class string
	groupKey
}

// traitsTable has the traits of all jobs. Copies share them, and read nothing of them but the id,
// which does not change.
type traitsTable struct {
	byID    map[traitsID]*traits // nil in a copy
	numbers table[*traits]
}

func newTraitsTable() traitsTable { return traitsTable{byID: make(map[traitsID]*traits)} }

func (s *traitsTable) copy() traitsTable { return traitsTable{numbers: s.numbers.copy()} }

// get returns the traits with a number.
func (s *traitsTable) get(number uint32) *traits { return *s.numbers.get(number) }

// of returns the traits with an id. If no job has them yet, they are new, and get their number
// when a job that has them is stored.
func (s *traitsTable) of(id traitsID) *traits {
	if known := s.byID[id]; known != nil {
		return known
	}
	return &traits{traitsID: id}
}

// replace counts a job that has next instead of old, and returns the number of next. nil stands
// for no job.
func (s *traitsTable) replace(old, next *traits) (number uint32) {
	if next != nil && next != old {
		if next.number == 0 {
			next.class, next.key, next.limits = strings.Clone(next.class), strings.Clone(next.key), strings.Clone(next.limits)
			next.number = s.numbers.add(next)
			s.byID[next.traitsID] = next
		}
		next.jobs++
	}
	if old != nil && next != old {
		if old.jobs--; old.jobs == 0 {
			delete(s.byID, old.traitsID)
			s.numbers.remove(old.number)
			old.number = 0
		}
	}
	if next == nil {
		return 0
	}
	return next.number
}
