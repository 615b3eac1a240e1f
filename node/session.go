package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/edge"
	"yardmaster/job"
	"yardmaster/ledger"
)

// readTime is how long a read waits for the ledger to cover what its session
// wrote before.
const readTime = 2 * time.Second

// yard is the edge's view of this node.
type yard struct {
	n *Node
}

// Session begins one connection's memory.
func (y yard) Session() edge.Session { return &session{n: y.n} }

// Secret signs lease tokens.
func (y yard) Secret() (secret []byte) {
	y.n.raft.View(func(l *ledger.Ledger) { secret = l.Secret() })
	return secret
}

// Edges are where a worker of this node may go.
func (y yard) Edges() []string { return y.n.hands.Edges() }

// Resume moves a dispatch to a worker of this node.
func (y yard) Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	channel := job.Channel(job.Overhop, worker)
	moved, err := y.n.commander.do(ctx, &ledger.MoveDispatch{
		Job: id, N: n, Node: y.n.cfg.Node.Name, Incarnation: y.n.id.Incarnation, Channel: channel,
	})
	if err != nil {
		return job.Assignment{}, err
	}
	var found ledger.Active
	ok := false
	y.n.raft.View(func(l *ledger.Ledger) { found, ok = l.Dispatch(id, n) })
	if !ok {
		return job.Assignment{}, job.ErrLeaseLost
	}
	return job.Assignment{
		Job: id, N: n, Attempt: found.Attempt, MaxAttempts: found.MaxAttempts, Queue: found.Queue,
		Function: found.Function, Kind: job.Overhop, Key: found.Queue, Worker: worker, Epoch: found.Epoch,
		Fence: found.Fence, Timeout: cmp.Or(found.Timeout, y.n.cfg.Scheduler.DefaultTimeout), Accepted: found.Accepted, RunAt: found.Due,
		Redelivered: found.Redelivered, Position: found.Position, Started: found.Started, Moved: moved.Index,
	}, nil
}

// Status is what STATUS tells of the yard.
func (y yard) Status(context.Context) (edge.Status, error) { return y.n.edgeStatus(), nil }

// session remembers what its connection wrote, so that what it reads next
// shows it. Enqueue answers from other goroutines.
type session struct {
	n *Node

	mu    sync.Mutex
	wrote map[uint8]uint64 // by lane: the highest sequence of its accepted jobs
	index uint64           // of the newest command's entry
	saw   uint64           // of the newest entry that ended one of its dispatches
}

// Saw lets reads cover an entry that this session has heard of.
func (s *session) Saw(index uint64) {
	s.mu.Lock()
	s.saw = max(s.saw, index)
	s.mu.Unlock()
}

func (s *session) accepted(p job.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Seq == 0 {
		return
	}
	if s.wrote == nil {
		s.wrote = make(map[uint8]uint64)
	}
	// Jobs with guards are answered later than those that came after them.
	s.wrote[p.Lane] = max(s.wrote[p.Lane], p.Seq)
}

// settle waits until the local ledger covers what this session wrote.
func (s *session) settle(ctx context.Context) error {
	s.mu.Lock()
	wrote, index := maps.Clone(s.wrote), max(s.index, s.saw)
	s.mu.Unlock()
	if err := s.covers(ctx, index); err != nil || len(wrote) == 0 {
		return err
	}
	return waitFor(ctx, s.n.raft, func() (ok bool) {
		s.n.raft.View(func(l *ledger.Ledger) { ok = foldedAll(l, wrote) })
		return ok
	})
}

// foldedAll tells that every lane is folded up to a sequence.
func foldedAll(l *ledger.Ledger, wrote map[uint8]uint64) bool {
	for lane, seq := range wrote {
		if !l.Folded(job.Position{Lane: lane, Seq: seq}) {
			return false
		}
	}
	return true
}

// settleCommands covers this session's commands only. Taking jobs in needs no
// more, and must not wait for the folds of the jobs before.
func (s *session) settleCommands(ctx context.Context) error {
	s.mu.Lock()
	index := s.index
	s.mu.Unlock()
	return s.covers(ctx, index)
}

func (s *session) covers(ctx context.Context, index uint64) error {
	return waitFor(ctx, s.n.raft, func() bool {
		applied, _ := s.n.raft.Applied()
		return applied >= index
	})
}

// waitFor waits at most readTime for a fact about the local ledger.
func waitFor(ctx context.Context, raft *consensus.Node, fact func() bool) error {
	if fact() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	for {
		_, changed := raft.Applied()
		if fact() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &job.UnavailableError{Reason: "this node's ledger does not show your last write yet", RetryAfter: time.Second}
		}
	}
}

func (s *session) do(ctx context.Context, c ledger.Command) (done, error) {
	if err := s.settle(ctx); err != nil {
		return done{}, err
	}
	d, err := s.n.commander.do(ctx, c)
	s.mu.Lock()
	s.index = max(s.index, d.Index)
	s.mu.Unlock()
	return d, err
}

func (s *session) Queue(ctx context.Context, name string) (q job.Queue, ok bool, err error) {
	if err := s.settle(ctx); err != nil {
		return q, false, err
	}
	view, ok, err := s.n.commander.queue(ctx, name)
	return view.Queue, ok, err
}

func (s *session) Queues(ctx context.Context) ([]job.Queue, error) {
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	var queues []job.Queue
	s.n.raft.View(func(l *ledger.Ledger) {
		for _, v := range l.Queues() {
			queues = append(queues, v.Queue)
		}
	})
	return queues, nil
}

func (s *session) AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	id := job.ID(uuid.New())
	_, err := s.do(ctx, &ledger.AddQueue{ID: id, Name: name, Config: cfg})
	return id, err
}

func (s *session) RemoveQueue(ctx context.Context, name string) error {
	_, err := s.do(ctx, &ledger.RemoveQueue{Name: name})
	return err
}

func (s *session) PauseQueue(ctx context.Context, name string, paused bool) error {
	_, err := s.do(ctx, &ledger.PauseQueue{Name: name, Paused: paused})
	return err
}

// Enqueue accepts a job. A system queue that exists is refused as such.
func (s *session) Enqueue(ctx context.Context, queue string, spec job.Spec, key string, then func(job.ID, error)) {
	if err := s.usersQueue(ctx, queue); err != nil {
		then(job.ID{}, err)
		return
	}
	s.n.door.enqueue(queue, spec, nil, key, terms{mustExist: true}, func(a accepted, err error) {
		s.accepted(a.position)
		then(a.id, inWorkersWords(err))
	})
}

// inWorkersWords turns what only the messages room knows into what this wire has
// a code for: a doubt is a reason to ask again, a conflict is not.
func inWorkersWords(err error) error {
	var api *cluster.APIError
	switch {
	case errors.Is(err, cluster.ErrUnknown):
		return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &api) && api.Code == "409":
		return &job.InvalidError{Reason: api.Text}
	}
	return err
}

func (s *session) usersQueue(ctx context.Context, name string) error {
	if err := s.settleCommands(ctx); err != nil {
		return err
	}
	_, exists, err := s.n.commander.queue(ctx, name)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("queue %q: %w", name, job.ErrQueueNotFound)
	}
	if name[0] == '_' {
		return fmt.Errorf("queue %q: %w", name, job.ErrSystemQueue)
	}
	return nil
}

// Job shows a job with its body and its result.
func (s *session) Job(ctx context.Context, id job.ID) (job.View, bool, error) {
	return s.find(ctx, id, s.n.viewer.show)
}

// Look costs nothing but memory.
func (s *session) Look(ctx context.Context, id job.ID) (job.View, bool, error) {
	return s.find(ctx, id, s.n.viewer.look)
}

func (s *session) find(ctx context.Context, id job.ID, show func(context.Context, job.ID) (job.View, error)) (job.View, bool, error) {
	if err := s.settle(ctx); err != nil {
		return job.View{}, false, err
	}
	v, err := show(ctx, id)
	if errors.Is(err, job.ErrJobNotFound) {
		if err := s.n.viewer.catchUp(ctx); err != nil {
			return job.View{}, false, err
		}
		v, err = show(ctx, id)
	}
	if errors.Is(err, job.ErrJobNotFound) {
		return job.View{}, false, nil
	}
	return v, err == nil, err
}

// Await waits until a job has ended, and tells how.
func (s *session) Await(ctx context.Context, id job.ID) (job.View, error) {
	if err := s.settle(ctx); err != nil {
		return job.View{}, err
	}
	if err := s.n.ends.await(ctx, id, job.Position{}); err != nil {
		return job.View{}, err
	}
	return s.n.viewer.end(ctx, id)
}

func (s *session) List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	return s.n.viewer.list(ctx, queue, state, page, size)
}

func (s *session) Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error) {
	if err := s.settle(ctx); err != nil {
		return counts, err
	}
	v, ok, err := s.n.commander.queue(ctx, queue)
	if err != nil {
		return counts, err
	}
	if !ok {
		return counts, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
	}
	for state, n := range v.Counts {
		counts[state] = uint64(n)
	}
	return counts, nil
}

func (s *session) RemoveJob(ctx context.Context, id job.ID) error {
	_, err := s.do(ctx, &ledger.RemoveJob{Job: id})
	return err
}

func (s *session) Cancel(ctx context.Context, id job.ID, reason string) (job.State, error) {
	d, err := s.do(ctx, &ledger.CancelJob{Job: id, Reason: reason})
	return d.State, err
}

func (s *session) Retry(ctx context.Context, id job.ID) (job.State, error) {
	d, err := s.do(ctx, &ledger.RetryJob{Job: id})
	return d.State, err
}
