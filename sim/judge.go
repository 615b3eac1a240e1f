package sim

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// judge sees everything and believes nothing: it follows the log and the hands
// by itself, and compares.
type judge struct {
	y        *yard
	index    int // of the last entry seen
	hashes   map[int][sha256.Size]byte
	events   uint64
	history  strings.Builder // as it should be told
	epoch    uint64
	owner    string
	counts   ledger.Counts
	cursors  [members]uint64
	states   map[dispatch]ledger.EventKind
	tries    map[job.ID]*tries
	order    map[line]started // of a line, who was started last
	runs     map[runKey]*run
	fences   map[job.ID]uint64
	told     map[dispatch]job.Status // what hands said
	paused   map[string]bool         // queues
	gone     map[job.ID]bool         // jobs that the ledger need not know
	waived   map[job.ID]bool         // jobs whose placement turned into nothing: others may start before them
	guards   *guardBook
	own      *ownBook
	crons    *cronBook
	now      time.Time // the ledger's time
	keys     []string
	copied   map[job.ID]bool   // jobs with more than one record
	records  map[string]int    // stored, by key
	jobs     map[string]job.ID // accepted, by key
	lastLook uint64            // events at the last look
}

type dispatch struct {
	id job.ID
	n  uint32
}

// runKey names a copy of a job.
type runKey struct {
	id   job.ID
	n    uint32
	life string
}

// tries is how far a job has come, by its events and ends.
type tries struct {
	n       uint32 // dispatches
	counted int
	most    int // attempts that it may have
	ended   bool
}

// started is where a job that was started stands in its lane.
type started struct {
	seq      uint64
	accepted time.Time
}

// line is where jobs start in the order they came in.
type line struct {
	queue, class string
	priority     uint8
	lane         uint8
}

func newJudge(y *yard) *judge {
	return &judge{
		y: y, hashes: map[int][sha256.Size]byte{}, states: map[dispatch]ledger.EventKind{}, tries: map[job.ID]*tries{},
		order: map[line]started{}, runs: map[runKey]*run{}, fences: map[job.ID]uint64{}, told: map[dispatch]job.Status{}, jobs: map[string]job.ID{},
		copied: map[job.ID]bool{}, records: map[string]int{}, paused: map[string]bool{}, waived: map[job.ID]bool{}, gone: map[job.ID]bool{},
		guards: newGuardBook(y), own: newOwnBook(y), crons: newCronBook(y),
	}
}

// stored hears of a record.
func (j *judge) stored(r *job.Record) {
	if j.records[r.Key]++; j.records[r.Key] > 1 {
		id, _ := job.KeyID(r.Queue, r.Key)
		j.copied[id] = true
	}
}

// accepted hears of a record whose producer was told that it is stored.
func (j *judge) accepted(key string, r *job.Record) {
	if _, known := j.jobs[key]; known {
		return
	}
	id, err := job.KeyID(r.Queue, r.Key)
	if err != nil {
		j.y.fail("key %s: %v", r.Key, err)
	}
	j.jobs[key] = id
	j.keys = append(j.keys, key)
	j.y.report.Accepted++
}

// ids gives the accepted jobs.
func (j *judge) ids() []job.ID {
	ids := make([]job.ID, len(j.keys))
	for i, key := range j.keys {
		ids[i] = j.jobs[key]
	}
	return ids
}

// reported hears what hands say of a dispatch: the first word counts, unless a
// success follows, which is as true.
func (j *judge) reported(o job.Outcome) {
	if d := (dispatch{o.Job, o.N}); j.told[d] != job.Success {
		j.told[d] = o.Status
	}
}

// started judges the start of a copy by those that run already.
func (j *judge) started(r *run) {
	now, copies, beside := time.Now(), 0, 0
	for k, other := range j.runs {
		held := other.held(now)
		if held && other.Queue == r.Queue {
			beside++
		}
		if k.id == r.Job {
			copies++
			if held { // also by a worker that is between two nodes
				j.y.fail("%s starts %s while %s runs %s, whose lease goes on", r.life.id, r.RequestID(), other.life.id, other.RequestID())
			}
		}
	}
	if copies > 0 {
		j.y.report.Copies++
	}
	if r.Queue == "narrow" && beside >= narrowLimit {
		j.y.fail("%s starts %s beside %d others of its queue, whose limit is %d", r.life.id, r.RequestID(), beside, narrowLimit)
	}
	if last := j.fences[r.Job]; r.Fence <= last {
		j.y.fail("%s starts %s with fence %d after %d", r.life.id, r.RequestID(), r.Fence, last)
	}
	j.fences[r.Job] = r.Fence
	j.runs[runKey{r.Job, r.N, r.life.id}] = r
}

// hashEvery is how many entries lie between two that replicas are compared at.
const hashEvery = 40

// see judges an entry as a node has applied it.
func (j *judge) see(l *life, e *logged, results []ledger.Result) {
	if at := l.applied; at > j.index {
		j.index = at
		j.first(l, e, results)
	}
	if l.applied%hashEvery == 0 {
		j.same(l)
	}
}

// same compares a node's ledger with the others' at the same entry.
func (j *judge) same(l *life) {
	hash, err := l.ledger.Hash()
	if err != nil {
		j.y.fail("%s: hash: %v", l.id, err)
	}
	if want, ok := j.hashes[l.applied]; !ok {
		j.hashes[l.applied] = hash
	} else if hash != want {
		j.y.fail("%s has another ledger than the others at entry %d", l.id, l.applied)
	}
}

// first judges an entry that nobody has applied before.
func (j *judge) first(l *life, e *logged, results []ledger.Result) {
	y := j.y
	if y.traces() {
		y.tell("entry %d term %d epoch %d: %s", e.at.Index, e.at.Term, e.at.Epoch, describe(e.commands, results))
	}
	j.time(l, e)
	for i, r := range results {
		if _, lead := e.commands[i].(*ledger.Lead); !lead && r.Err == nil && e.at.Epoch != j.epoch {
			y.fail("entry %d: a command of epoch %d took effect in epoch %d", e.at.Index, e.at.Epoch, j.epoch)
		}
		j.command(l, e.commands[i], r)
	}
	ended := map[dispatch]bool{}
	l.ledger.EventsAfter(j.events, func(number uint64, at time.Time, ev *ledger.Event) bool {
		if number != j.events+1 {
			y.fail("entry %d: event %d follows %d", e.at.Index, number, j.events)
		}
		j.events = number
		j.history.Write(ev.AppendLine(nil, number, at))
		j.event(l, ev, ended)
		return true
	})
	j.settled(e, results, ended)
	j.retried(e, results)
	j.compare(l, e)
	j.crons.look(l.ledger)
}

// time looks that no clock takes the yard's time with it: with one wrong clock of
// three, the ledger's time may fall behind and never runs ahead.
func (j *judge) time(l *life, e *logged) {
	j.now = l.ledger.Now()
	if ahead := e.at.At.Sub(time.Now()); ahead > stampSlack {
		j.y.fail("entry %d: its stamp is %s ahead of the time", e.at.Index, ahead)
	}
}

// stampSlack is what the members' clocks may move the yard's time forward by.
const stampSlack = 2 * time.Second

// command judges a command by what came of it.
func (j *judge) command(l *life, c ledger.Command, r ledger.Result) {
	if r.Err != nil {
		return
	}
	switch c := c.(type) {
	case *ledger.PauseQueue:
		j.paused[c.Name] = c.Paused
	case *ledger.Place:
		for i, p := range c.Placements {
			view, _, _ := l.ledger.Find(p.Job)
			switch {
			case !r.Placed[i]:
				j.waived[p.Job] = true // by a pause that may be over before the next entry
			case j.paused[view.Queue]:
				j.y.fail("%s starts in a queue that is paused", job.RequestID(p.Job, p.N))
			}
		}
	case *ledger.Fold:
		for i := range c.Jobs {
			j.guards.folded(j.now, &c.Jobs[i], r.Folded[i])
			if at := &c.Jobs[i]; r.Folded[i] == ledger.FoldedLimited { // history tells of it under an id of its own
				j.gone[job.RecordID(c.Identity, at.Position.Seq, at.Accepted)] = true
			}
		}
	case *ledger.RetryJob:
		if t := j.tries[c.Job]; t != nil {
			t.ended = false
		}
	case *ledger.RemoveJob:
		j.gone[c.Job] = true
		j.guards.removed(c.Job)
	case *ledger.MoveDispatch:
		j.y.report.Moves++
	}
}

// describe names an entry's commands.
func describe(commands []ledger.Command, results []ledger.Result) string {
	var b strings.Builder
	for i, c := range commands {
		name := strings.TrimPrefix(fmt.Sprintf("%T", c), "*ledger.")
		fmt.Fprintf(&b, " %s", name)
		switch c := c.(type) {
		case *ledger.Fold:
			fmt.Fprintf(&b, "(%d@%d-%d)", c.Lane, c.From, c.To)
		case *ledger.Place:
			for _, p := range c.Placements {
				fmt.Fprintf(&b, " %s %s/%d,", job.RequestID(p.Job, p.N), p.Node, p.Incarnation)
			}
		case *ledger.Settle:
			for _, end := range c.Ends {
				fmt.Fprintf(&b, " %s %d,", job.RequestID(end.Job, end.N), end.Next)
			}
		case *ledger.CancelJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.RetryJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.RemoveJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.MoveDispatch:
			fmt.Fprintf(&b, "(%s %s)", job.RequestID(c.Job, c.N), c.Node)
		case *ledger.PauseQueue:
			fmt.Fprintf(&b, "(%s %t)", c.Name, c.Paused)
		}
		if results[i].Err != nil {
			b.WriteString(" refused")
		}
	}
	return b.String()
}
