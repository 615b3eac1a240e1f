package ledger

// FairTurn is whose turn it is in a fair queue: the key of the job that was placed last, and
// how many more jobs of it come before those of the next key.
type FairTurn struct {
	Key  string
	Left int
}

// After returns the turn after a job with a key was placed, whose weight is that of
// [queues.KeyWeight].
func (t FairTurn) After(key string, weight int) FairTurn {
	if key == t.Key && t.Left > 0 {
		return FairTurn{key, t.Left - 1}
	}
	return FairTurn{key, weight - 1}
}

// KeyWeight returns how many jobs of a key a fair queue starts in each round.
func (qs *queues) KeyWeight(queue, key string) int {
	if q := qs.get(queue); q != nil {
		return q.config.Weight(key)
	}
	return 1
}

// PlaceableFairly yields the jobs of waitlists of a fair queue that may start, as
// [jobs.Placeable] does, in rounds: in each round as many jobs of each key as is its weight, in
// the order of the queue. The first round begins where turn is. A round costs as much as the
// keys and jobs that are visited.
func (j *jobs) PlaceableFairly(ids []WaitlistID, turn FairTurn, inFlight InFlight, yield func(WaitingJob) bool) {
	r := fairRound{jobs: j, inFlight: inFlight, yield: yield}
	for i := range ids {
		if wl := j.waitlist(&ids[i]); wl != nil {
			r.queue, r.waitlists = wl.queue, append(r.waitlists, wl)
		}
	}
	if len(r.waitlists) == 0 {
		return
	}
	if turn.Left > 0 && !r.open(turn.Key, turn.Left) {
		return
	}
	for key, ok := r.nextKey(turn.Key, false); ok; key, ok = r.nextKey(key, false) {
		if !r.open(key, r.queue.config.Weight(key)) {
			return
		}
	}
	for key, ok := r.nextKey("", true); ok && key <= turn.Key; key, ok = r.nextKey(key, false) {
		if key == turn.Key && turn.Left > 0 {
			break // it was first
		}
		if !r.open(key, r.queue.config.Weight(key)) {
			return
		}
	}
	for len(r.turns) > 0 { // further rounds
		turns := r.turns
		r.turns = nil
		for _, t := range turns {
			if !r.serve(t, r.queue.config.Weight(t.key)) {
				return
			}
		}
	}
}

// fairRound visits the keys of a fair queue in turn.
type fairRound struct {
	jobs      *jobs
	queue     *queue
	waitlists []*waitlist
	inFlight  InFlight
	yield     func(WaitingJob) bool
	turns     []*keyTurn // keys with more jobs, for the next round
	spare     *keyTurn   // to be used for the next key
	probe     group      // see from
}

// keyTurn is the jobs of a key that may start.
type keyTurn struct {
	key string
	groupMerge
}

// nextKey returns the first key after a key, or from it on if inclusive is set, that has jobs
// which may start; ok is false if there is none.
func (r *fairRound) nextKey(after string, inclusive bool) (next string, ok bool) {
	consider := func(key string) {
		if !ok || key < next {
			next, ok = key, true
		}
	}
	for _, wl := range r.waitlists {
		if r.inFlight.Full(wl.id()) {
			continue
		}
		if !wl.keyed {
			if inclusive && after == "" && wl.jobs.Len() > 0 {
				consider("")
			}
			continue
		}
		wl.ready.Ascend(r.from(after), func(g readyGroup) bool {
			if g.key == after && !inclusive {
				return true
			}
			consider(g.key)
			return false
		})
	}
	return next, ok
}

// from returns what is before all groups of a key.
func (r *fairRound) from(key string) readyGroup {
	r.probe.key = key
	return readyGroup{group: &r.probe}
}

// open begins the turn of a key with up to n jobs. It returns false if yield does.
func (r *fairRound) open(key string, n int) bool {
	if r.spare == nil {
		r.spare = &keyTurn{groupMerge: groupMerge{jobs: r.jobs, inFlight: r.inFlight}}
	}
	t := r.spare
	t.key = key
	for _, wl := range r.waitlists {
		if r.inFlight.Full(wl.id()) {
			continue
		}
		if !wl.keyed {
			if key == "" {
				t.add(&group{waitlist: wl, jobs: wl.jobs})
			}
			continue
		}
		wl.ready.Ascend(r.from(key), func(g readyGroup) bool {
			if g.key != key {
				return false
			}
			t.add(g.group)
			return true
		})
	}
	return r.serve(t, n)
}

// serve yields up to n jobs of a key. It returns false if yield does.
func (r *fairRound) serve(t *keyTurn, n int) bool {
	for n > 0 && len(t.groupMerge.open) > 0 {
		yielded, ok := t.next(r.yield)
		if !ok {
			return false
		}
		if yielded {
			n--
		}
	}
	if len(t.groupMerge.open) > 0 {
		r.turns = append(r.turns, t)
		if t == r.spare {
			r.spare = nil
		}
	}
	return true
}
