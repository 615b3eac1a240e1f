package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/cronspec"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// tenure is one tenure: an event loop and the parts that share it. A part uses only
// parts above it in this list. The tenure builds entries from what the parts want to
// commit, passes messages to the parts, and answers questions about all of them. The
// pointers to the parts do not change; the fields of the second group belong to the
// loop's goroutine.
type tenure struct {
	loop       *eventLoop
	lease      *lease
	operator   operatorTopics
	streams    *streamVerifier
	lanes      *lanes    // what is accepted
	capacity   *capacity // what the members could run
	clocks     memberClocks
	placer     *placer     // what they are to run
	dispatches *dispatches // what they run
	orphans    *orphans
	crons      *crons
	outbox     *outbox.Outbox // what is over
	replayer   *replayer
	reclaimer  *laneReclaimer
	retention  *retention
	blockers   *blockers

	restoring            string          // id of the restore in progress, during which nothing is scheduled; "": none
	submitted            chan submission // to awaitCommits
	entriesInFlight      int             // submitted and not applied yet
	ended                error           // why the tenure must end; nil while it may continue
	unpublished          [3]error        // by [outbox.Stream]: why it is not published; nil: it is
	nextDue              ledger.Due      // when the next delayed job is due; zero: not known, or there is none
	consistencyCheckedAt time.Time       // when a consistency check was last queued; zero: not yet
}

// newTenure returns a tenure of s with no state of the ledger yet. trusted is the time
// until which its lease can be relied on.
func newTenure(s *Scheduler, clock stampClock, trusted time.Time) *tenure {
	loop := newEventLoop(s.cfg, s.ledger, s.log, clock)
	t := &tenure{loop: loop, lease: newLease(loop, trusted), operator: operatorTopics{}, submitted: make(chan submission, maxInFlight)}
	t.streams = &streamVerifier{loop: loop, lanes: s.lanes, operator: t.operator, ready: make(chan struct{})}
	t.lanes = newLanes(loop, s.lanes, &s.counters, t.operator)
	t.capacity = newCapacity(loop, s.cfg.Members)
	t.placer = newPlacer(loop, t.lanes, t.capacity)
	t.dispatches = &dispatches{
		loop: loop, lease: t.lease, capacity: t.capacity, placer: t.placer, bodies: &t.lanes.bodies, fleet: s.fleet, counters: &s.counters,
		running: map[job.DispatchID]*dispatch{},
	}
	t.orphans = &orphans{loop: loop, capacity: t.capacity}
	t.crons = &crons{
		loop: loop, client: s.lanes, lanes: t.lanes, capacity: t.capacity, dirty: true,
		inFlight: map[string]bool{}, published: map[job.ID]time.Time{}, schedules: map[[2]string]cronspec.Schedule{},
	}
	t.outbox = outbox.New(outbox.Config{
		Ledger: s.ledger, Streams: s.streams, Log: s.log, Post: loop.post,
		AwaitStreams: t.streams.await, LoadBody: t.lanes.loadBody, LoadError: s.lanes.AttemptError, SetProblem: t.setUnpublished,
	})
	t.replayer = &replayer{loop: loop, client: s.lanes, wake: make(chan struct{}, 1)}
	t.reclaimer = newLaneReclaimer(loop, s.lanes, s.log)
	t.retention = &retention{loop: loop, lanes: s.lanes, await: t.streams.await, wake: make(chan struct{}, 1)}
	t.blockers = &blockers{loop: loop, byTopic: map[string]*blocker{}}
	return t
}

// setUnpublished records why a stream of the outbox is not published; nil: it is.
func (t *tenure) setUnpublished(s outbox.Stream, err error) {
	t.unpublished[s] = err
	t.operator.note(s.String(), err)
}

// loadLedger initializes the tenure from the ledger: members, lane cursors and
// running dispatches.
func (t *tenure) loadLedger(l *ledger.Ledger) {
	t.capacity.updateMembership(l)
	t.reclaimer.load(l)
	t.lanes.load(l)
	t.dispatches.load(l)
	t.loop.placeDirty = true
	t.nextDue = l.NextDue()
}

// flush submits entries while one is due and fewer than maxInFlight are in flight. Then
// it sets the timer to when the loop has to act next. It returns an error if the tenure
// must end.
func (t *tenure) flush() error {
	for t.ended == nil && t.entriesInFlight < maxInFlight {
		wait := t.doDueWork(time.Now())
		if wait == 0 {
			sent, err := t.submitEntry()
			if err != nil {
				return err
			}
			if sent {
				continue
			}
			wait = max(t.doDueWork(time.Now()), time.Millisecond) // never spin on an entry that stays empty
		}
		t.loop.timer.Reset(wait)
		return nil
	}
	return t.ended
}

const (
	idleWait = time.Hour        // how long the loop sleeps when nothing is pending
	minWake  = time.Millisecond // the shortest sleep until a limit may permit a start
)

// doDueWork does what is due apart from submitting an entry: it places waiting jobs,
// submits and publishes cron ticks, and requests missing records. It returns how long
// the loop may sleep until something is due again; 0 if an entry is to be submitted at
// once. now is the local monotonic time, for timeouts. Jobs are due by the times of the
// next entry, which t.loop.clock shows.
func (t *tenure) doDueWork(now time.Time) (wait time.Duration) {
	at := t.loop.clock.times()
	if wakeAt := t.placer.wakeAt; t.loop.placeDirty || !wakeAt.IsZero() && !wakeAt.After(at.Elapsed) {
		t.loop.ledger.View(func(l *ledger.Ledger) { t.placer.place(l, at.Elapsed) })
		t.loop.placeDirty = false
	}
	untilWake := idleWait
	if !t.placer.wakeAt.IsZero() {
		untilWake = t.placer.wakeAt.Sub(at.Elapsed)
	}
	untilDue := idleWait
	if wait, ok := t.nextDue.Wait(at); ok {
		if untilDue = wait; wait <= 0 {
			t.loop.markUrgent()
		}
	}
	untilCron := idleWait
	if t.restoring == "" {
		untilCron = t.crons.fireDue()
	}
	untilGap := t.lanes.readGaps(now)
	return max(0, min(untilDue, untilCron, untilGap, max(untilWake, minWake), t.entryWait(now)))
}

// entryWait returns how long the next entry may still wait for further commands; 0 or less
// if it must be submitted now. Without pending commands an entry is due only to remove
// published items from the outbox. If there are none either, entryWait returns idleWait.
func (t *tenure) entryWait(now time.Time) time.Duration {
	e := &t.loop.entry
	urgent, lazy := !e.urgentSince.IsZero(), !e.lazySince.IsZero() // both may be set: urgent prevails
	publishedSince := t.outbox.PublishedSince()
	switch {
	case !urgent && !lazy && publishedSince.IsZero():
		return idleWait
	case !urgent && !lazy:
		return trimMaxWait - now.Sub(publishedSince)
	case e.size >= fullEntrySize:
		return 0
	case !urgent:
		return settleMaxWait - now.Sub(e.lazySince)
	case t.entriesInFlight == 0:
		return 0
	}
	return entryMaxWait - now.Sub(e.urgentSince)
}

// submitEntry builds the next entry and submits it. It reports false if the entry
// would be empty.
func (t *tenure) submitEntry() (bool, error) {
	b := &entryBuilder{at: t.loop.clock.times()}
	t.loop.ledger.View(func(l *ledger.Ledger) {
		if !t.clocks.elapsedKnown { // the elapsed time still lacks what has passed: a relative time that began now would end early
			t.loop.addCommands(b)
			return
		}
		t.lanes.addIngests(l, b)
		t.dispatches.addOutcomes(l, b)
		t.loop.addCommands(b)
		t.placer.place(l, b.at.Elapsed)
		t.placer.addPlacements(b, t.dispatches.finishPlacements)
	})
	if c := t.outbox.TakePublished(); c != nil {
		b.add(c, nil)
	}
	if wait, ok := t.nextDue.Wait(b.at); ok && wait <= 0 && len(b.commands) == 0 {
		b.add(&ledger.Observe{}, nil) // an empty command: the entry's stamp promotes the due jobs
	}
	t.loop.entry = pendingEntry{commands: t.loop.entry.commands} // those that did not fit
	t.carryOver()
	if len(b.commands) == 0 {
		return false, nil
	}
	t.nextDue = ledger.Due{} // set again once this entry is applied
	wait, err := t.loop.ledger.Submit(Proposal{At: b.at.Now, Offsets: b.at.Offsets(), Epoch: t.loop.epoch, Commands: b.commands})
	if err != nil {
		return false, err
	}
	t.entriesInFlight++
	t.submitted <- submission{wait, b.done, time.Now()}
	return true, nil
}

// carryOver sets the size of the next entry to that of everything that did not fit into
// the last one, and makes the next one urgent if there is something.
func (t *tenure) carryOver() {
	e := &t.loop.entry
	e.size += t.lanes.pendingSize() + t.dispatches.pendingSize()
	for _, c := range e.commands {
		e.size += sizeOf(c.command)
	}
	if len(e.commands) > 0 || t.clocks.elapsedKnown && (len(t.dispatches.outcomes) > 0 || t.lanes.ingestible()) {
		t.loop.markUrgent()
	}
}

// sweep runs every sweepInterval. It renews the lease, detects silent nodes, ends or
// resends dispatches that are not healthy, and publishes lasting conditions.
func (t *tenure) sweep() {
	now := time.Now()
	if now.Sub(t.lease.renewedAt) >= renewInterval {
		t.lease.renew(t.phase())
		t.lanes.markIngested()
		t.submitConsistencyCheck(now)
	}
	t.endOnRestore()
	t.capacity.sweep(now)
	t.dispatches.sweep(now)
	t.orphans.sweep(now)
	t.pruneFinished()
	t.blockers.publish(t.conditions(now), now)
	t.crons.dirty = true // the clock may have been adjusted, and a lane may answer again
}

// pruneFinished submits an empty command if records of finished jobs are to be removed
// and no entry is in flight: each entry removes a number of them.
func (t *tenure) pruneFinished() {
	if t.entriesInFlight > 0 {
		return
	}
	due := false
	t.loop.ledger.View(func(l *ledger.Ledger) { due = l.PruneDue() })
	if due {
		t.loop.submit(&ledger.Observe{}, nil)
	}
}

// awaitCommits waits for the entries in flight, in order, and posts their results
// to the loop. It returns an error if an entry cannot be committed.
func (t *tenure) awaitCommits(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-t.submitted:
			c, err := s.wait(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			t.loop.post(func() { t.committed(s, c) })
		}
	}
}

// committed calls the functions that wait for the results of an applied entry, and
// updates what the tenure derives from the ledger. It ends the tenure if the ledger
// has refused a command because of its epoch.
func (t *tenure) committed(s submission, c Commit) {
	t.entriesInFlight--
	t.loop.noteCommit(time.Since(s.at))
	for i := range c.Results {
		if errors.Is(c.Results[i].Err, ledger.ErrStaleEpoch) {
			t.ended = c.Results[i].Err
			return
		}
	}
	for i, done := range s.done {
		if done != nil {
			done(c.Results[i], c.Index)
		}
	}
	t.loop.placeDirty = true
	t.crons.dirty = t.crons.dirty || len(t.crons.published) > 0 // a tick's job may have been ingested
	t.loop.ledger.View(func(l *ledger.Ledger) {
		t.lanes.updateBlocked(l)
		t.capacity.updateMembership(l)
		if t.entriesInFlight > 0 {
			return
		}
		t.nextDue = l.NextDue()
	})
	if t.lanes.ingestible() {
		t.loop.markUrgent() // ingests that were held back may continue
	}
	t.outbox.Wake()
}

// followCommand updates the parts of the tenure after a caller's command with result r
// was applied: it recalls a cancelled dispatch, follows a moved one, and wakes the
// replayer or the crons.
func (t *tenure) followCommand(c ledger.Command, r ledger.Result, index uint64) {
	switch c := c.(type) {
	case *ledger.SetCron, *ledger.RemoveCron, *ledger.PauseCron:
		t.crons.dirty = true
	case *ledger.RequestReplay:
		wakeup.Send(t.replayer.wake)
	case *ledger.SetRetention:
		t.retention.changed()
	case *ledger.AddQueue:
		if len(c.Config.Retention) > 0 {
			t.retention.changed()
		}
	case *ledger.ChangeQueue:
		if len(c.Change.Retention) > 0 {
			t.retention.changed()
		}
	case *ledger.StepOperation:
		for _, id := range r.Recalled {
			t.dispatches.recall(id, job.RecallCancelled)
		}
	}
	if r.Err != nil || r.State != job.Active {
		return
	}
	switch c := c.(type) {
	case *ledger.CancelJob:
		reason := job.RecallCancelled
		if c.QueueGone {
			reason = job.RecallQueueGone
		}
		t.dispatches.recall(c.Job, reason)
	case *ledger.MoveDispatch:
		t.dispatches.followMove(c, index)
	}
}
