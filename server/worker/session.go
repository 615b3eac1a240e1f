package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// session records what its connection has written, so that later reads of the
// connection contain it. Enqueue answers from other goroutines.
type session struct {
	c     *Cluster
	actor ledger.Actor

	mu       sync.Mutex
	written  map[uint8]uint64 // highest sequence of its accepted records, by lane
	index    uint64           // of the entry of its latest command
	sawIndex uint64           // of the latest entry that ended one of its dispatches
}

// ObserveIndex makes later reads contain the entry at index.
func (s *session) ObserveIndex(index uint64) {
	s.mu.Lock()
	s.sawIndex = max(s.sawIndex, index)
	s.mu.Unlock()
}

// noteAccepted makes later reads contain the record at p.
func (s *session) noteAccepted(p job.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Seq == 0 {
		return
	}
	if s.written == nil {
		s.written = make(map[uint8]uint64)
	}
	// A job with guards may be answered after later ones.
	s.written[p.Lane] = max(s.written[p.Lane], p.Seq)
}

// awaitWrites waits until the local ledger contains what this session has written and
// observed.
func (s *session) awaitWrites(ctx context.Context) error {
	s.mu.Lock()
	written, index := maps.Clone(s.written), max(s.index, s.sawIndex)
	s.mu.Unlock()
	if err := s.c.Waiters.WaitIndex(ctx, index); err != nil || len(written) == 0 {
		return err
	}
	return s.c.Waiters.WaitRead(ctx, func(l *ledger.Ledger) bool { return ingestedAll(l, written) })
}

// ingestedAll reports whether all lanes have been ingested up to the given sequences.
func ingestedAll(l *ledger.Ledger, written map[uint8]uint64) bool {
	for lane, seq := range written {
		if !l.Ingested(job.Position{Lane: lane, Seq: seq}) {
			return false
		}
	}
	return true
}

// awaitCommands waits for this session's commands only. Enqueueing needs no more and
// must not wait until earlier records have been ingested.
func (s *session) awaitCommands(ctx context.Context) error {
	s.mu.Lock()
	index := s.index
	s.mu.Unlock()
	return s.c.Waiters.WaitIndex(ctx, index)
}

// propose commits a command after the session's earlier writes.
func (s *session) propose(ctx context.Context, c ledger.Command) (authority.Result, error) {
	if err := s.awaitWrites(ctx); err != nil {
		return authority.Result{}, err
	}
	if asked, ok := c.(ledger.Askable); ok {
		asked.SetActor(s.actor)
	}
	d, err := s.c.Authority.Propose(ctx, c)
	s.mu.Lock()
	s.index = max(s.index, d.Index)
	s.mu.Unlock()
	return d, err
}

// Queue returns a queue. ok is false if there is certainly none of this name.
func (s *session) Queue(ctx context.Context, name string) (q job.Queue, ok bool, err error) {
	if err := s.awaitWrites(ctx); err != nil {
		return q, false, err
	}
	view, err := s.c.Authority.Queue(ctx, name)
	if errors.Is(err, job.ErrQueueNotFound) {
		return q, false, nil
	}
	return view.Queue, err == nil, err
}

// HasQueue reports whether a queue exists. It asks the authority only if this node's
// ledger does not have the queue: a worker with a thousand queues would otherwise need a
// thousand answers of another node before it can work.
func (s *session) HasQueue(ctx context.Context, name string) (known bool, err error) {
	if err := s.awaitWrites(ctx); err != nil {
		return false, err
	}
	s.c.Ledger.View(func(l *ledger.Ledger) { _, known = l.Queue(name) })
	if known {
		return true, nil
	}
	_, known, err = s.Queue(ctx, name)
	return known, err
}

// Queues returns all queues.
func (s *session) Queues(ctx context.Context) ([]job.Queue, error) {
	if err := s.awaitWrites(ctx); err != nil {
		return nil, err
	}
	var queues []job.Queue
	s.c.Ledger.View(func(l *ledger.Ledger) {
		for _, v := range l.Queues() {
			queues = append(queues, v.Queue)
		}
	})
	return queues, nil
}

func (s *session) AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	id := job.ID(uuid.New())
	_, err := s.propose(ctx, &ledger.AddQueue{ID: id, Name: name, Config: cfg})
	return id, err
}

func (s *session) ChangeQueue(ctx context.Context, name string, change job.QueueChange) error {
	_, err := s.propose(ctx, &ledger.ChangeQueue{Name: name, Change: change})
	return err
}

func (s *session) RemoveQueue(ctx context.Context, name string) error {
	_, err := s.propose(ctx, &ledger.RemoveQueue{Name: name})
	return err
}

func (s *session) PauseQueue(ctx context.Context, name string, paused bool) error {
	_, err := s.propose(ctx, &ledger.PauseQueue{Name: name, Paused: paused})
	return err
}

// Enqueue accepts a job and calls then once. It rejects jobs for system queues.
func (s *session) Enqueue(ctx context.Context, queue string, spec job.Spec, key string, then func(job.ID, error)) {
	if err := s.checkUserQueue(ctx, queue); err != nil {
		then(job.ID{}, err)
		return
	}
	s.c.Intake.PublishAsync(intake.Job{Queue: queue, Spec: spec, Key: key, MustExist: true}, func(a intake.Ack, err error) {
		s.noteAccepted(a.Position)
		then(a.ID, workerError(err))
	})
}

// workerError maps errors of the cluster package to those that the Overhop protocol has
// codes for: an unknown result can be retried, a conflict cannot.
func workerError(err error) error {
	var refused *api.Error
	switch {
	case errors.Is(err, streams.ErrUnknown):
		return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &refused) && refused.Code == api.CodeConflict:
		return &job.InvalidError{Reason: refused.Text}
	}
	return err
}

// checkUserQueue returns an error unless the queue exists and is not a system queue.
func (s *session) checkUserQueue(ctx context.Context, name string) error {
	if err := s.awaitCommands(ctx); err != nil {
		return err
	}
	if _, err := s.c.Authority.Queue(ctx, name); err != nil {
		return err
	}
	if name[0] == '_' {
		return fmt.Errorf("queue %q: %w", name, job.ErrSystemQueue)
	}
	return nil
}

// Job returns a job with its body and its result.
func (s *session) Job(ctx context.Context, id job.ID) (job.View, bool, error) {
	return s.find(ctx, id, func(ctx context.Context, id job.ID) (job.View, error) {
		return s.c.Viewer.Full(ctx, id, job.MaxBody)
	})
}

// Peek returns a job from memory, without its body and its result.
func (s *session) Peek(ctx context.Context, id job.ID) (job.View, bool, error) {
	return s.find(ctx, id, s.c.Viewer.Summary)
}

// find returns the job that show returns. If show finds none, find calls it again once
// the local ledger has all jobs that have been accepted; false is therefore certain.
func (s *session) find(ctx context.Context, id job.ID, show func(context.Context, job.ID) (job.View, error)) (job.View, bool, error) {
	if err := s.awaitWrites(ctx); err != nil {
		return job.View{}, false, err
	}
	view, err := show(ctx, id)
	view = overhopView(view)
	if !errors.Is(err, job.ErrJobNotFound) {
		return view, err == nil, err
	}
	if err := s.c.Viewer.CatchUp(ctx); err != nil {
		return job.View{}, false, err
	}
	view, err = show(ctx, id)
	view = overhopView(view)
	if errors.Is(err, job.ErrJobNotFound) {
		return job.View{}, false, nil
	}
	return view, err == nil, err
}

// overhopView returns a job in the protocol's terms, in which a cancelled job has failed
// with an error of the type cancelled, however its worker ended it, and an expired job with one
// of the type expired.
func overhopView(view job.View) job.View {
	if view.State == job.Cancelled {
		fault := job.Fault{Message: view.Reason}
		if view.Fault != nil {
			fault = *view.Fault
		}
		fault.Type = job.FaultCancelled
		view.Fault = &fault
	}
	view.State = view.State.Overhop()
	return view
}

// statesOf returns the states that are the given one in the protocol's terms.
func statesOf(state job.State) []job.State {
	if state == job.Failed {
		return []job.State{job.Failed, job.Cancelled, job.Expired}
	}
	return []job.State{state}
}

// Await waits until a job has ended and returns it.
func (s *session) Await(ctx context.Context, id job.ID) (job.View, error) {
	if err := s.awaitWrites(ctx); err != nil {
		return job.View{}, err
	}
	if err := s.c.Waiters.JobEnd(ctx, id, job.Position{}); err != nil && !errors.Is(err, job.ErrJobNotFound) { // which the index may have
		return job.View{}, err
	}
	for {
		view, err := s.c.Viewer.Finished(ctx, id, job.MaxBody)
		incomplete, ok := errors.AsType[*jobview.IncompleteError](err)
		if !ok || backoff.Sleep(ctx, incomplete.RetryAfter()) != nil {
			return overhopView(view), err
		}
	}
}

// Content returns a part of a job's result or params.
func (s *session) Content(ctx context.Context, id job.ID, result bool, offset, size int64) (job.ValuePart, error) {
	open := s.c.Viewer.Params
	if result {
		open = s.c.Viewer.Result
	}
	if err := s.awaitWrites(ctx); err != nil {
		return job.ValuePart{}, err
	}
	content, err := open(ctx, id)
	if err != nil {
		return job.ValuePart{}, contentError(err)
	}
	data, err := content.Part(ctx, offset, size)
	return job.ValuePart{Data: data, Size: content.Size, Msgpack: content.Msgpack, Version: content.Version}, contentError(err)
}

// contentError maps the errors of a content to those that the Overhop protocol has codes
// for.
func contentError(err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return err
	case refused.Code == api.CodeGone:
		return fmt.Errorf("%s: %w", refused.Text, job.ErrContentGone)
	case refused.Code == api.CodeNotFound, refused.Code == api.CodeConflict:
		return fmt.Errorf("%s: %w", refused.Text, job.ErrNoContent)
	}
	return err
}

func (s *session) List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	if err := s.awaitWrites(ctx); err != nil {
		return nil, err
	}
	views, err := s.c.Viewer.List(ctx, queue, page, size, statesOf(state)...)
	for i := range views {
		views[i] = overhopView(views[i])
	}
	return views, err
}

// Stats returns the number of a queue's jobs by state.
func (s *session) Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error) {
	if err := s.awaitWrites(ctx); err != nil {
		return counts, err
	}
	view, err := s.c.Authority.Queue(ctx, queue)
	if err != nil {
		return counts, err
	}
	for state, n := range view.Counts {
		counts[job.State(state).Overhop()] += uint64(n)
	}
	return counts, nil
}

func (s *session) RemoveJob(ctx context.Context, id job.ID) error {
	_, err := s.propose(ctx, &ledger.RemoveJob{Job: id})
	return err
}

func (s *session) Cancel(ctx context.Context, id job.ID, reason string) (job.State, error) {
	d, err := s.propose(ctx, &ledger.CancelJob{Job: id, Reason: reason})
	return d.State.Overhop(), err
}

func (s *session) ChangeJob(ctx context.Context, id job.ID, priority *uint8, start edge.Start) (job.State, error) {
	d, err := s.propose(ctx, &ledger.ChangeJob{Job: id, Priority: priority, RunAt: start.At, Delay: start.Delay})
	return d.State, err
}

func (s *session) Retry(ctx context.Context, id job.ID) (job.State, error) {
	retrier := *s.c.Retrier
	retrier.Propose = s.propose
	d, err := retrier.Retry(ctx, &ledger.RetryJob{Job: id})
	return d.State, err
}
