package lean

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

var errNoMember = errors.New("no such member")

// start starts the member's agent and workers, which run until ctx ends.
func (m *member) start(ctx context.Context) {
	m.incarnation++
	m.agent = agent.New(agent.Config{
		Node: m.name, Incarnation: m.incarnation, Runners: []string{Runner}, DrainTimeout: time.Millisecond, StopTimeout: time.Millisecond,
	}, transport{m}, slog.New(slog.DiscardHandler))
	m.assigned = make(chan func(), 4096)
	m.targets = nil
	group := &m.yard.group
	for _, k := range []job.Kind{job.Overhop, job.RRQ} {
		t := &target{member: m, kind: k, free: map[[2]string]int{}, wake: make(chan struct{}, 1)}
		m.targets = append(m.targets, t)
		m.agent.AddTarget(t)
		group.Go(func() { t.run(ctx) })
	}
	for _, o := range m.yard.Offers(m.name) {
		m.targets[o.Kind-1].release(o.Key, o.Worker, o.Free)
	}
	a := m.agent
	group.Go(func() { _ = a.Run(ctx) })
	assigned := m.assigned
	group.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case do := <-assigned:
				do()
			}
		}
	})
}

// stop ends the part that a replaced member has in the session: it drains.
func (m *member) stop() { m.agent.Drain() }

// Runner is the name of the RRQ runner of all members.
const Runner = "rr"

// target runs the jobs of one kind, each for a millisecond. It implements agent.Target.
type target struct {
	*member
	kind job.Kind
	wake chan struct{} // buffer of one: started is not empty

	mu      sync.Mutex
	free    map[[2]string]int // by key and worker
	started []finished
}

// finished is an attempt that has run.
type finished struct {
	key, worker string
	outcome     job.Outcome
}

// Kind implements agent.Target.
func (t *target) Kind() job.Kind { return t.kind }

// Start implements agent.Target.
func (t *target) Start(a job.Assignment, spec job.Spec) bool {
	if !t.take(a.Key, a.Worker) {
		return false
	}
	o := t.yard.Work(&a, &spec)
	o.Job, o.N, o.Started = a.Job, a.N, true
	t.mu.Lock()
	t.started = append(t.started, finished{a.Key, a.Worker, o})
	t.mu.Unlock()
	wakeup.Send(t.wake)
	return true
}

// Stop implements agent.Target. The work ends by itself.
func (t *target) Stop(job.Recall) {}

// run reports the attempts that have run until ctx ends.
func (t *target) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			time.Sleep(time.Millisecond)
			t.mu.Lock()
			started := t.started
			t.started = nil
			t.mu.Unlock()
			for i := range started {
				f := &started[i]
				t.agent.Report(f.outcome, nil)
				t.release(f.key, f.worker, 1)
			}
		}
	}
}

func (t *target) take(key, worker string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := [2]string{key, worker}
	if t.free[slot] == 0 {
		return false
	}
	t.free[slot]--
	t.agent.Offer(job.Offer{Kind: t.kind, Key: key, Worker: worker, Free: t.free[slot]})
	return true
}

func (t *target) release(key, worker string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := [2]string{key, worker}
	t.free[slot] += n
	t.agent.Offer(job.Offer{Kind: t.kind, Key: key, Worker: worker, Free: t.free[slot]})
}

// member returns the member with a name, or nil.
func (y *Yard) member(name string) *member {
	y.raft.mu.Lock()
	defer y.raft.mu.Unlock()
	for _, m := range y.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// fleetView implements scheduler.Fleet.
type fleetView struct{ *member }

// Assign implements scheduler.Fleet.
func (v fleetView) Assign(to string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	dst := v.yard.member(to)
	if dst == nil {
		v.yard.group.Go(func() { done(nil, errNoMember) })
		return
	}
	dst.post(func() { done(dst.agent.Assign(b), nil) })
}

// Recall implements scheduler.Fleet.
func (v fleetView) Recall(to string, r job.Recall) {
	if dst := v.yard.member(to); dst != nil {
		dst.post(func() { dst.agent.Recall(r) })
	}
}

// post has the member call do after what was posted before. At the end of a session, do
// may be dropped.
func (m *member) post(do func()) {
	select {
	case m.assigned <- do:
	case <-m.yard.ctx.Done():
	}
}

// transport implements agent.Transport.
type transport struct{ *member }

// Authority implements agent.Transport.
func (t transport) Authority() (string, uint64, bool) {
	w := &t.authority
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.epoch, w.owner != ""
}

// AuthorityChanged implements agent.Transport.
func (t transport) AuthorityChanged() <-chan struct{} {
	t.authority.mu.Lock()
	defer t.authority.mu.Unlock()
	return t.authority.next
}

// Report implements agent.Transport.
func (t transport) Report(ctx context.Context, to string, r job.Report) (job.ReportAck, error) {
	return request(ctx, t.yard.member(to), func(s *scheduler.Scheduler, reply func(job.ReportAck)) error { return s.Report(r, reply) })
}

// Heartbeat implements agent.Transport.
func (t transport) Heartbeat(ctx context.Context, to string, b job.Heartbeat) (job.HeartbeatAck, error) {
	return request(ctx, t.yard.member(to), func(s *scheduler.Scheduler, reply func(job.HeartbeatAck)) error { return s.Heartbeat(b, reply) })
}

// request calls serve with a member's scheduler and waits for the answer.
func request[T any](ctx context.Context, to *member, serve func(*scheduler.Scheduler, func(T)) error) (none T, err error) {
	if to == nil {
		return none, errNoMember
	}
	answered := make(chan T, 1)
	if err := serve(to.sched, func(answer T) { answered <- answer }); err != nil {
		return none, err
	}
	select {
	case answer := <-answered:
		return answer, nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// LoadBody implements agent.Transport.
func (t transport) LoadBody(_ context.Context, pos job.Position, id job.ID) ([]byte, error) {
	r, err := t.yard.Streams.load(pos, id)
	if err != nil {
		// The record was relocated after the assignment was made.
		t.View(func(l *ledger.Ledger) {
			if view, _, ok := l.Find(id); ok {
				pos = view.Position
			}
		})
		if r, err = t.yard.Streams.load(pos, id); err != nil {
			return nil, agent.ErrBodyLost
		}
	}
	return t.yard.Streams.body(&r)
}

// StoreResult implements agent.Transport. It keeps nothing.
func (t transport) StoreResult(_ context.Context, name string, data []byte) (job.Blob, error) {
	return job.Blob{Name: name, Chunks: 1, Size: int64(len(data))}, nil
}
