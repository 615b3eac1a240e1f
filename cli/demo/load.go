package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"

	"golang.org/x/sync/errgroup"
)

// producers is the number of concurrent enqueue calls.
const producers = 16

// jobKind is a kind of job and its expected outcome.
type jobKind struct {
	queue    string
	function string
	params   string
	delay    time.Duration // before it may start
	attempts int64         // maximum; 0 means the cluster's default
	fails    bool          // expected to fail
}

// jobKinds are used round robin.
var jobKinds = []jobKind{
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

// load enqueues the jobs and records which of them were accepted.
type load struct {
	c    *demoCluster
	jobs int

	next     atomic.Int64
	accepted atomic.Int64
	repeated atomic.Int64 // calls sent again after a failure
	began    time.Time

	mu   sync.Mutex
	took time.Duration      // from the first to the last acceptance
	ids  map[job.ID]jobKind // accepted
}

// enqueueAll enqueues the jobs at a steady rate and returns when every job has been
// accepted.
func (l *load) enqueueAll(ctx context.Context) error {
	l.began = time.Now()
	interval := l.c.opts.Spread / time.Duration(l.jobs)
	group, ctx := errgroup.WithContext(ctx)
	for range producers {
		group.Go(func() error {
			for {
				number := int(l.next.Add(1)) - 1
				if number >= l.jobs {
					return nil
				}
				if err := backoff.Sleep(ctx, time.Until(l.began.Add(time.Duration(number)*interval))); err != nil {
					return err
				}
				if err := l.enqueue(ctx, number); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// enqueue enqueues the job with this number, from 0, and records it as accepted. A
// request that fails is repeated at another node, which is safe because all requests
// with the same key make the same job.
func (l *load) enqueue(ctx context.Context, number int) error {
	kind := jobKinds[number%len(jobKinds)]
	key := fmt.Sprintf("demo-%d", number)
	id, err := job.KeyID(kind.queue, key)
	if err != nil {
		return err
	}
	body, err := kind.body(key)
	if err != nil {
		return err
	}
	for turn := number; ; turn++ {
		err := l.c.survivor(turn).enqueue(ctx, kind.queue, id, body)
		if err == nil {
			break
		}
		refused, ok := errors.AsType[*api.Error](err)
		if ok && refused.Code[0] == '4' { // as in HTTP, the fault is in the request: a retry is useless
			return fmt.Errorf("enqueue job %d: %w", number, err)
		}
		l.repeated.Add(1)
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}

	l.accepted.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids[id] = kind
	l.took = time.Since(l.began)
	return nil
}

// enqueue sends one enqueue request to the node and checks that the job has the
// expected id. A wrong id is an [api.Error].
func (m *member) enqueue(ctx context.Context, queue string, id job.ID, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := m.client.Request(ctx, api.Subject("enqueue", queue), body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", m.Name, err)
	}
	var reply api.EnqueueReply
	if err := json.Unmarshal(raw, &reply); err != nil {
		return err
	}
	if reply.ID != id {
		return &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("accepted as %s, but its id should be %s", reply.ID, id)}
	}
	return nil
}

// body returns the body of a request that enqueues a job of this kind under a key.
func (k *jobKind) body(key string) ([]byte, error) {
	spec := job.Spec{Function: k.function, Params: json.RawMessage(k.params)}
	if k.delay > 0 {
		spec.RunAt = new(time.Now().Add(k.delay).UTC())
	}
	if k.attempts > 0 {
		spec.MaxAttempts = &k.attempts
	}
	return json.Marshal(struct {
		ID string `json:"id"`
		job.Spec
	}{key, spec})
}
