package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Request sends a request to the member, a string as it is and any other value as
// JSON, and decodes the answer into answer unless that is nil.
func (m *Member) Request(subject string, request, answer any) error {
	body, raw := []byte(nil), json.RawMessage(nil)
	var err error
	if text, ok := request.(string); ok {
		body = []byte(text)
	} else if body, err = json.Marshal(request); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if raw, err = m.client.Request(ctx, subject, body); err != nil {
		return fmt.Errorf("request to %s, %s: %w", m.Name, subject, err)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(raw, answer)
}

// API sends an API request, named by noun and verb such as "job.show".
func (m *Member) API(verb string, request, answer any) error {
	return m.Request(api.SubjectAPI+"."+verb, request, answer)
}

// Status returns the member's status.
func (m *Member) Status() (s api.Status, err error) {
	return s, m.Request(api.SubjectStatus, "", &s)
}

// Enqueue enqueues a job at the member and returns its id. If it is not known whether a
// job with a key was accepted, because lanes change their leaders for example, Enqueue
// repeats the request, as producers must.
func (m *Member) Enqueue(t testing.TB, queue, spec string) job.ID {
	t.Helper()
	var accepted struct{ ID job.ID }
	var err error
	for deadline := time.Now().Add(waitTimeout); ; {
		err = m.Request(api.SubjectEnqueue+"."+queue, spec, &accepted)
		var refused *api.Error
		unknown := errors.As(err, &refused) && refused.Code == api.CodeUnknown
		if !unknown || !strings.Contains(spec, `"id":`) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return accepted.ID
}

// AddQueue creates a queue, without a limit if limit is 0, and waits until it is
// in every member's ledger.
func (m *Member) AddQueue(t testing.TB, name string, limit int) {
	t.Helper()
	request := api.QueueRequest{Name: name}
	if n := int64(limit); n > 0 {
		request.Limit = &n
	}
	repeated := false // an earlier request may have been executed and its answer lost
	m.cluster.Eventually("queue "+name+" is created", func() error {
		err := m.API("queue.add", request, nil)
		var refused *api.Error
		if errors.As(err, &refused) && refused.Code != api.CodeUnavailable { // final, unlike a change of authority
			if repeated && refused.Code == api.CodeConflict {
				return nil
			}
			t.Fatal(err)
		}
		repeated = true
		return err
	})
	m.cluster.Eventually("queue "+name+" is known everywhere", func() error {
		for _, other := range m.cluster.Running() {
			if _, ok := other.node.Ledger().Queue(name); !ok {
				return fmt.Errorf("the ledger of %s does not have it", other.Name)
			}
		}
		return nil
	})
}

// Job returns a job by id or key.
func (m *Member) Job(t testing.TB, id string) (j api.Job) {
	t.Helper()
	if err := m.API("job.show", api.JobRequest{ID: id}, &j); err != nil {
		t.Fatal(err)
	}
	return j
}

// WaitOutcome waits until a job has ended, and returns it. It repeats a request that is refused with
// 503: while the stream with the job's body has no leader, the job cannot be shown.
func (m *Member) WaitOutcome(t testing.TB, id string) (j api.Job) {
	t.Helper()
	m.cluster.Eventually("job "+id+" has ended", func() error {
		j = api.Job{}
		err := m.API("job.wait", api.JobRequest{ID: id, TimeoutMS: waitTimeout.Milliseconds() - 1000}, &j)
		if refused := new(api.Error); err == nil || errors.As(err, &refused) && refused.Code == "503" {
			return err
		}
		var now api.Job
		shown := m.API("job.show", api.JobRequest{ID: id}, &now)
		t.Fatalf("%v; the job is %+v (%v)", err, now, shown)
		return nil
	})
	return j
}

// WaitState waits until a job is in a state, and returns it.
func (m *Member) WaitState(t testing.TB, id, state string) (j api.Job) {
	t.Helper()
	m.cluster.Eventually("job "+id+" is "+state, func() error {
		j = api.Job{}
		if err := m.API("job.show", api.JobRequest{ID: id}, &j); err != nil || j.State == state {
			return err
		}
		return fmt.Errorf("the job is %s: %+v", j.State, j)
	})
	return j
}

// Worker runs a worker for one queue at this member until the test ends.
func (m *Member) Worker(t testing.TB, queue string, credits uint32, h overhop.Handler) {
	t.Helper()
	var w overhop.Worker
	w.Handle(queue, credits, h)
	m.RunWorker(t, &w)
}

// RunWorker runs w at this member, or at w.Nodes if set, until the test ends. It
// returns when the worker has dialled a node.
func (m *Member) RunWorker(t testing.TB, w *overhop.Worker) {
	t.Helper()
	if len(w.Nodes) == 0 {
		w.Nodes = []string{m.node.Addresses().Overhop}
	}
	if w.ShutdownGrace == 0 {
		w.ShutdownGrace = time.Second
	}
	dialled := make(chan struct{}, 64)
	w.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		select {
		case dialled <- struct{}{}:
		default:
		}
		return c, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("worker ended with: %v", err)
		}
	})
	select {
	case <-dialled:
	case err := <-ended:
		ended <- err
		t.Fatalf("worker ended during start: %v", err)
	}
}

// Overhop connects a client to this member until the test ends.
func (m *Member) Overhop(t testing.TB, o overhop.Options) *overhop.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	o.Plain = true
	c, err := overhop.Dial(ctx, m.node.Addresses().Overhop, o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(context.Background()) }()
	t.Cleanup(func() {
		c.Close()
		if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Logf("connection to %s ended with: %v", m.Name, err)
		}
	})
	return c
}

// Queue returns a queue.
func (m *Member) Queue(t testing.TB, name string) (q api.Queue) {
	t.Helper()
	if err := m.API("queue.show", api.QueueRequest{Name: name}, &q); err != nil {
		t.Fatal(err)
	}
	return q
}

// CheckCount returns an error unless n jobs of a queue are in a state.
func (m *Member) CheckCount(queue, state string, n int) error {
	var q api.Queue
	err := m.API("queue.show", api.QueueRequest{Name: queue}, &q)
	if err == nil && q.Counts[state] != n {
		err = fmt.Errorf("queue %s holds %v, want %d %s", queue, q.Counts, n, state)
	}
	return err
}
