package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
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
	order    map[line]uint64 // last sequence that was started, of a line
	runs     map[runKey]*run
	fences   map[job.ID]uint64
	told     map[dispatch]job.Status // what hands said
	paused   map[string]bool         // queues
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
	ended   bool
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
		order: map[line]uint64{}, runs: map[runKey]*run{}, fences: map[job.ID]uint64{}, told: map[dispatch]job.Status{}, jobs: map[string]job.ID{},
		copied: map[job.ID]bool{}, records: map[string]int{}, paused: map[string]bool{},
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
		held := !other.over && other.life.up && other.life.agent.Lease().After(now)
		if held && other.Queue == r.Queue {
			beside++
		}
		if k.id == r.Job {
			copies++
			if held {
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
	y.tell("entry %d term %d epoch %d: %s", e.at.Index, e.at.Term, e.at.Epoch, describe(e.commands, results))
	for i, r := range results {
		if _, lead := e.commands[i].(*ledger.Lead); !lead && r.Err == nil && e.at.Epoch != j.epoch {
			y.fail("entry %d: a command of epoch %d took effect in epoch %d", e.at.Index, e.at.Epoch, j.epoch)
		}
		j.pauses(l, e.commands[i], r)
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
	j.compare(l, e)
}

// pauses looks that nothing starts in a queue that is paused.
func (j *judge) pauses(l *life, c ledger.Command, r ledger.Result) {
	switch c := c.(type) {
	case *ledger.PauseQueue:
		if r.Err == nil {
			j.paused[c.Name] = c.Paused
		}
	case *ledger.Place:
		for i, p := range c.Placements {
			if view, _, _ := l.ledger.Find(p.Job); i < len(r.Placed) && r.Placed[i] && j.paused[view.Queue] {
				j.y.fail("%s starts in a queue that is paused", job.RequestID(p.Job, p.N))
			}
		}
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
		}
		if results[i].Err != nil {
			b.WriteString(" refused")
		}
	}
	return b.String()
}

// event follows the contract: pending, notified, then delivered or failed.
func (j *judge) event(l *life, e *ledger.Event, ended map[dispatch]bool) {
	y := j.y
	if e.Kind == ledger.AuthorityAcquired {
		a := l.ledger.Authority()
		if a.Epoch <= j.epoch {
			y.fail("epoch %d follows %d", a.Epoch, j.epoch)
		}
		j.epoch, j.owner = a.Epoch, e.A
	}
	if e.Kind < ledger.DispatchQueued || e.Kind > ledger.DispatchFailed {
		return
	}
	d := dispatch{e.Job, e.N}
	t := j.tries[e.Job]
	if t == nil {
		t = &tries{}
		j.tries[e.Job] = t
	}
	if t.ended {
		y.fail("%s: %s after the job's end", e.RequestID(), e.Kind)
	}
	before := map[ledger.EventKind]ledger.EventKind{
		ledger.DispatchNotified: ledger.DispatchQueued, ledger.DispatchDelivered: ledger.DispatchNotified, ledger.DispatchFailed: ledger.DispatchNotified,
	}[e.Kind]
	if j.states[d] != before {
		y.fail("%s: %s follows %s", e.RequestID(), e.Kind, j.states[d])
	}
	j.states[d] = e.Kind
	switch e.Kind {
	case ledger.DispatchQueued:
		if e.N != t.n+1 {
			y.fail("%s follows dispatch %d", e.RequestID(), t.n)
		}
		t.n = e.N
		j.counts.Pending++
	case ledger.DispatchNotified:
		j.counts.Pending--
		j.counts.Notified++
		if e.A != "none" {
			t.counted++
			j.inOrder(l, e)
		}
	case ledger.DispatchDelivered:
		t.ended = true
		if j.told[d] != job.Success {
			y.fail("%s is delivered, and no worker has said so", e.RequestID())
		}
		j.counts.Notified--
		j.counts.Delivered++
		ended[d] = true
	case ledger.DispatchFailed:
		j.counts.Notified--
		j.counts.Failed++
		ended[d] = true
	}
}

// inOrder looks that jobs alike start in the order their lane took them in, the
// first time. Later dispatches do as it comes, and so do jobs that came late by
// their own wish, or that have two records: they stand where the first one is.
func (j *judge) inOrder(l *life, e *ledger.Event) {
	view, _, ok := l.ledger.Find(e.Job)
	if !ok || e.N != 1 || !view.RunAt.Equal(view.Created) || j.copied[e.Job] {
		return
	}
	at := line{view.Queue, ledger.Class(view.Function), view.Priority, view.Position.Lane}
	if last := j.order[at]; view.Position.Seq < last {
		j.y.fail("%s at %d@%d starts after %d@%d", e.RequestID(), at.lane, view.Position.Seq, at.lane, last)
	}
	j.order[at] = view.Position.Seq
}

// settled compares what the authority was told of ends with what has ended.
func (j *judge) settled(e *logged, results []ledger.Result, ended map[dispatch]bool) {
	for i, c := range e.commands {
		settle, ok := c.(*ledger.Settle)
		if !ok || results[i].Err != nil {
			continue
		}
		for n, end := range settle.Ends {
			v := results[i].Ended[n]
			switch t := j.tries[end.Job]; {
			case v.Stale:
				j.y.report.Stale++
			case v.Dup:
			case !ended[dispatch{end.Job, end.N}]:
				j.y.fail("entry %d: the end of %s was taken and is no end of it", e.at.Index, job.RequestID(end.Job, end.N))
			case end.Next == job.Back && v.State != job.Failed:
				t.counted--
			}
		}
	}
}

// compare looks at the ledger itself.
func (j *judge) compare(l *life, e *logged) {
	y := j.y
	if got := l.ledger.Counts(); got != j.counts {
		y.fail("entry %d: the backlog is %v, by the events it is %v", e.at.Index, got, j.counts)
	}
	if a := l.ledger.Authority(); a.Epoch != j.epoch || a.Owner != j.owner {
		y.fail("entry %d: the authority is %s under %d, by the events %s under %d", e.at.Index, a.Owner, a.Epoch, j.owner, j.epoch)
	}
	if q, ok := l.ledger.Queue("narrow"); ok && q.Counts[job.Active] > narrowLimit {
		y.fail("entry %d: %d jobs of a queue are active, its limit is %d", e.at.Index, q.Counts[job.Active], narrowLimit)
	}
	for id, t := range j.tries {
		view, _, ok := l.ledger.Find(id)
		if !ok {
			y.fail("entry %d: job %s is not known any more", e.at.Index, id)
			continue
		}
		t.ended = view.State.Ended()
		if int(view.Attempts) != t.counted {
			y.fail("entry %d: job %s counts %d attempts, by its ends there were %d", e.at.Index, id, view.Attempts, t.counted)
		}
		if view.Attempts > retries.MaxAttempts {
			y.fail("entry %d: job %s is at attempt %d of %d", e.at.Index, id, view.Attempts, retries.MaxAttempts)
		}
	}
	for i, c := range l.ledger.Lanes() {
		if c.Cursor < j.cursors[i] || c.Cursor > uint64(len(y.lanes.lanes[i].records)) {
			y.fail("entry %d: lane %d goes from %d to %d of %d", e.at.Index, i, j.cursors[i], c.Cursor, len(y.lanes.lanes[i].records))
			continue
		}
		for j.cursors[i] < c.Cursor {
			r := &y.lanes.lanes[i].records[j.cursors[i]]
			j.cursors[i]++
			id, _ := job.KeyID(r.Queue, r.Key)
			if _, known := l.ledger.Known(id); !known {
				y.fail("entry %d: record %d@%d is folded and its job is not known", e.at.Index, i, r.Seq)
			}
		}
	}
}

// unfinished tells what keeps the yard from being as it should be.
func (j *judge) unfinished() (why []string) {
	y := j.y
	l := y.raft.leader
	if l == nil {
		return []string{"nobody leads"}
	}
	var open []string
	for _, key := range j.keys {
		if state, ok := l.ledger.State(j.jobs[key]); !ok || !state.Ended() {
			open = append(open, fmt.Sprintf("%s %s", key, state))
		}
	}
	if len(j.keys) < jobsPerYard {
		why = append(why, fmt.Sprintf("%d of %d jobs are accepted", len(j.keys), jobsPerYard))
	}
	if len(open) > 0 {
		why = append(why, "not ended: "+strings.Join(open, ", "))
	}
	ctx, cancel := context.WithTimeout(y.ctx, time.Second)
	defer cancel()
	look, err := l.sched.Look(ctx)
	switch {
	case err != nil:
		why = append(why, err.Error())
	case look.Deferred || !look.Dispatching || look.Pending > 0:
		why = append(why, fmt.Sprintf("deferred %t, dispatching %t, pending %d", look.Deferred, look.Dispatching, look.Pending))
	}
	why = append(why, look.Reasons...)
	last := [3]uint64{j.lastLook, l.ledger.LastResult(), l.ledger.LastDead()}
	j.lastLook = l.ledger.LastEvent()
	for story, want := range last {
		if _, number := y.tales.ends(scheduler.Story(story)); number < want || want == 0 && story == 0 {
			why = append(why, fmt.Sprintf("%s is told to %d of %d", scheduler.Story(story), number, want))
		}
	}
	slices.Sort(why)
	return why
}

// close is the last judgement, over a yard that is well.
func (j *judge) close() {
	y := j.y
	for _, n := range y.nodes {
		n.life.catchUp(len(y.raft.log))
		j.same(n.life)
	}
	if told, want := y.tales.text(), j.history.String(); !strings.HasPrefix(want, told) {
		y.fail("history tells something else than what has happened")
	}
}
