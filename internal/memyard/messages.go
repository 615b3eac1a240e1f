package memyard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// peer returns the running member with a name, as m reaches it; nil if either does not run.
func (m *Member) peer(name string) *Member {
	if !m.Running() {
		return nil
	}
	return m.yard.member(name)
}

// post has the member call do after what was posted before. A member that stops may drop
// do, or what was posted before.
func (m *Member) post(do func()) {
	select {
	case m.inbox <- do:
	case <-m.ctx.Done():
	}
}

// fleetView implements scheduler.Fleet.
type fleetView struct{ *Member }

// Assign implements scheduler.Fleet.
func (v fleetView) Assign(to string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	dst := v.peer(to)
	if dst == nil {
		v.loops.Go(func() { done(nil, unreachableError(to)) })
		return
	}
	dst.post(func() { done(dst.Agent.Assign(b), nil) })
}

// Recall implements scheduler.Fleet.
func (v fleetView) Recall(to string, r job.Recall) {
	if dst := v.peer(to); dst != nil {
		dst.post(func() { dst.Agent.Recall(r) })
	}
}

func unreachableError(node string) error {
	return fmt.Errorf("%s does not run: %w", node, cluster.ErrNodeUnreachable)
}

// errCutOff means that a member stopped while it handled a request.
var errCutOff = errors.New("the member was stopped before it answered")

// Request sends a request to another member and returns its answer. It must be called from
// a goroutine of the member.
func (m *Member) Request(ctx context.Context, to, verb string, payload []byte) ([]byte, error) {
	dst := m.peer(to)
	if dst == nil {
		return nil, unreachableError(to)
	}
	handle := dst.Handlers[verb]
	if handle == nil {
		return nil, fmt.Errorf("%s has no handler of %s", to, verb)
	}
	type answer struct {
		data []byte
		err  error
	}
	answered := make(chan answer, 1)
	handleCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.loops.Go(func() {
		data, err := handle(handleCtx, payload)
		answered <- answer{data, err}
	})
	select {
	case a := <-answered:
		return a.data, a.err
	case <-dst.ctx.Done():
		return nil, fmt.Errorf("%s: %w", to, errCutOff)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// RequestJSON is Request with a request and a reply as JSON.
func (m *Member) RequestJSON(ctx context.Context, to, verb string, request, reply any) error {
	text, err := json.Marshal(request)
	if err == nil {
		text, err = m.Request(ctx, to, verb, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

// Notify sends records that were just stored to the authority, so that it need not read
// them.
func (m *Member) Notify(records []job.Record) {
	if owner, known := m.Watch.Known(); known {
		if dst := m.peer(owner); dst != nil {
			dst.Scheduler.ReceiveRecords(records)
		}
	}
}

// transport implements agent.Transport.
type transport struct{ *Member }

// Authority implements agent.Transport.
func (t transport) Authority() (string, uint64, bool) { return t.Watch.Current() }

// AuthorityChanged implements agent.Transport.
func (t transport) AuthorityChanged() <-chan struct{} { return t.Watch.Changed() }

// Report implements agent.Transport.
func (t transport) Report(ctx context.Context, to string, r job.Report) (job.ReportAck, error) {
	return ask(ctx, t.Member, to, func(s *scheduler.Scheduler, reply func(job.ReportAck)) error { return s.Report(r, reply) })
}

// Heartbeat implements agent.Transport.
func (t transport) Heartbeat(ctx context.Context, to string, b job.Heartbeat) (job.HeartbeatAck, error) {
	return ask(ctx, t.Member, to, func(s *scheduler.Scheduler, reply func(job.HeartbeatAck)) error { return s.Heartbeat(b, reply) })
}

// ask calls serve with another member's scheduler and waits for the answer.
func ask[T any](ctx context.Context, from *Member, to string, serve func(*scheduler.Scheduler, func(T)) error) (none T, err error) {
	dst := from.peer(to)
	if dst == nil {
		return none, unreachableError(to)
	}
	answered := make(chan T, 1)
	if err := serve(dst.Scheduler, func(answer T) { answered <- answer }); err != nil {
		return none, err
	}
	select {
	case answer := <-answered:
		return answer, nil
	case <-dst.ctx.Done():
		return none, fmt.Errorf("%s: %w", to, errCutOff)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// LoadBody implements agent.Transport.
func (t transport) LoadBody(ctx context.Context, pos job.Position, id job.ID) ([]byte, error) {
	body, err := t.yard.Streams.loadBody(pos, id)
	if err == nil {
		return body, nil
	}
	// The record was relocated after the assignment was made.
	t.View(func(l *ledger.Ledger) {
		if view, _, ok := l.Find(id); ok {
			pos = view.Position
		}
	})
	if body, err = t.yard.Streams.loadBody(pos, id); err != nil {
		return nil, fmt.Errorf("%w: %w", agent.ErrBodyLost, err)
	}
	return body, nil
}

// StoreResult implements agent.Transport.
func (t transport) StoreResult(_ context.Context, name string, data []byte) (job.Blob, error) {
	return t.yard.Streams.storeResult(name, data), nil
}

// StoreError implements agent.Transport.
func (t transport) StoreError(_ context.Context, id job.ID, e *job.AttemptError) error {
	t.yard.Streams.storeError(id, e)
	return nil
}
