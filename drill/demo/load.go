package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"

	"golang.org/x/sync/errgroup"
)

// producers is how many jobs are being enqueued at once.
const producers = 16

// errand is a kind of job and what should become of it.
type errand struct {
	queue    string
	function string
	params   string
	delay    time.Duration // before it may start
	attempts int64         // the most there may be; 0: the yard's default
	fails    bool          // as intended
}

// errands come round robin.
var errands = []errand{
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
	{queue: queueRRQ, function: "demo#echo", params: `{"kind":"plain"}`},
	{queue: queueOverhop, function: "sleep", params: `{"ms":400}`},
	{queue: queueRRQ, function: "demo#sleep", params: `{"ms":500}`},
	{queue: queueOverhop, function: "echo", params: `{"kind":"delayed"}`, delay: 2 * time.Second},
	{queue: queueRRQ, function: "demo#echo", params: `{"kind":"plain"}`},
	{queue: queueOverhop, function: "retry", params: `{"times":1}`, attempts: 3},
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
	{queue: queueRRQ, function: "demo#retry", params: `{"times":1,"after":0.2}`, attempts: 3},
	{queue: queueOverhop, function: "fail", params: `{"final":true}`, fails: true},
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
	{queue: queueRRQ, function: "demo#echo", params: `{"kind":"delayed"}`, delay: 3 * time.Second},
	{queue: queueOverhop, function: "sleep", params: `{"ms":300}`},
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
	{queue: queueRRQ, function: "demo#fail", params: `{}`, attempts: 2, fails: true},
	{queue: queueOverhop, function: "echo", params: `{"kind":"delayed"}`, delay: time.Second},
	{queue: queueOverhop, function: "retry", params: `{"times":2}`, attempts: 3},
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
	{queue: queueRRQ, function: "demo#echo", params: `{"kind":"plain"}`},
	{queue: queueOverhop, function: "echo", params: `{"kind":"plain"}`},
}

// load is the jobs, and which of them have been accepted.
type load struct {
	y    *yard
	jobs int

	next     atomic.Int64
	accepted atomic.Int64
	again    atomic.Int64 // calls that had to be repeated
	began    time.Time

	mu   sync.Mutex
	took time.Duration     // from the first to the last acceptance
	ids  map[job.ID]errand // accepted
}

func newLoad(y *yard) *load {
	return &load{y: y, jobs: y.o.Jobs, ids: make(map[job.ID]errand, y.o.Jobs)}
}

// enqueueAll returns when every job has been accepted.
func (l *load) enqueueAll(ctx context.Context) error {
	l.began = time.Now()
	pace := l.y.o.Spread / time.Duration(l.jobs)
	group, ctx := errgroup.WithContext(ctx)
	for range producers {
		group.Go(func() error {
			for {
				i := int(l.next.Add(1)) - 1
				if i >= l.jobs {
					return nil
				}
				if err := backoff.Sleep(ctx, time.Until(l.began.Add(time.Duration(i)*pace))); err != nil {
					return err
				}
				if err := l.enqueue(ctx, i); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// enqueue repeats a call until it is answered, at another node each time. The
// key makes that safe: whatever became of the earlier calls, it is one job.
func (l *load) enqueue(ctx context.Context, i int) error {
	e := errands[i%len(errands)]
	key := fmt.Sprintf("demo-%d", i)
	id, err := job.KeyID(e.queue, key)
	if err != nil {
		return err
	}
	body, err := e.body(key)
	if err != nil {
		return err
	}
	for turn := i; ; turn++ {
		err := l.call(ctx, l.y.survivor(turn), e.queue, id, body)
		if err == nil {
			break
		}
		var refused *cluster.APIError
		if errors.As(err, &refused) && refused.Code[0] == '4' {
			return fmt.Errorf("enqueue job %d: %w", i, err)
		}
		l.again.Add(1)
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	l.accepted.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids[id] = e
	l.took = time.Since(l.began)
	return nil
}

func (l *load) call(ctx context.Context, m *member, queue string, id job.ID, body json.RawMessage) error {
	var answer struct {
		ID job.ID `json:"id"`
	}
	if err := ask(ctx, m, cluster.SubjectEnqueue+"."+queue, body, &answer); err != nil {
		return err
	}
	if answer.ID != id {
		return &cluster.APIError{Code: "409", Text: fmt.Sprintf("accepted as %s, but its id should be %s", answer.ID, id)}
	}
	return nil
}

func (e *errand) body(key string) (json.RawMessage, error) {
	spec := job.Spec{Function: e.function, Params: json.RawMessage(e.params)}
	if e.delay > 0 {
		at := time.Now().Add(e.delay).UTC()
		spec.RunAt = &at
	}
	if e.attempts > 0 {
		spec.MaxAttempts = &e.attempts
	}
	return json.Marshal(struct {
		ID string `json:"id"`
		job.Spec
	}{key, spec})
}
