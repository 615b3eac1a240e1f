package nodetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/edge/overhop"
	"yardmaster/job"
	"yardmaster/node"
)

// Job is a job as a node shows it.
type Job struct {
	ID          job.ID          `json:"id"`
	Queue       string          `json:"queue"`
	State       string          `json:"state"`
	Function    string          `json:"function"`
	Params      json.RawMessage `json:"params"`
	Payload     []byte          `json:"payload_msgpack"`
	PayloadGone bool            `json:"payload_gone"`

	PayloadBytes int `json:"payload_bytes"`

	RunAt      time.Time       `json:"run_at"`
	Started    time.Time       `json:"started_at"`
	Ended      time.Time       `json:"ended_at"`
	Attempts   uint32          `json:"attempts"`
	Dispatches uint32          `json:"dispatches"`
	Losses     uint32          `json:"losses"`
	Node       string          `json:"node"`
	Worker     string          `json:"worker"`
	Reason     string          `json:"reason"`
	Result     json.RawMessage `json:"result"`
	ResultPack []byte          `json:"result_msgpack"`
	ResultGone bool            `json:"result_gone"`

	Trace map[string]string `json:"trace_context"`
}

// Queue is a queue as a node shows it.
type Queue struct {
	Name   string         `json:"name"`
	State  string         `json:"state"`
	Counts map[string]int `json:"counts"`
}

// Ask sends a question to the member and reads the answer into answer, which
// may be nil.
func (m *Member) Ask(subject string, question, answer any) error {
	body, raw := []byte(nil), json.RawMessage(nil)
	var err error
	if text, ok := question.(string); ok {
		body = []byte(text)
	} else if body, err = json.Marshal(question); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if raw, err = m.client.Request(ctx, subject, body); err != nil {
		return fmt.Errorf("ask %s %s: %w", m.Name, subject, err)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(raw, answer)
}

// API asks by noun and verb: "job.show".
func (m *Member) API(verb string, question, answer any) error {
	return m.Ask(cluster.SubjectAPI+"."+verb, question, answer)
}

// Status is what the member says of itself and the yard.
func (m *Member) Status() (s node.Status, err error) {
	return s, m.Ask(cluster.SubjectStatus, "", &s)
}

// Enqueue hands a job to the member and gives its id.
func (m *Member) Enqueue(t testing.TB, queue, spec string) job.ID {
	t.Helper()
	var accepted struct{ ID job.ID }
	if err := m.Ask(cluster.SubjectEnqueue+"."+queue, spec, &accepted); err != nil {
		t.Fatal(err)
	}
	return accepted.ID
}

// AddQueue makes a queue, limit 0 is none, and waits until every member knows
// it: what one connection did, the next one elsewhere need not see at once.
func (m *Member) AddQueue(t testing.TB, name string, limit int) {
	t.Helper()
	question := map[string]any{"name": name}
	if limit > 0 {
		question["concurrency_limit"] = limit
	}
	if err := m.API("queue.add", question, nil); err != nil {
		t.Fatal(err)
	}
	m.yard.Eventually("queue "+name+" is known everywhere", func() error {
		for _, other := range m.yard.Running() {
			if _, ok := other.node.Ledger().Queue(name); !ok {
				return fmt.Errorf("%s does not know it", other.Name)
			}
		}
		return nil
	})
}

// Job looks a job up by id or key.
func (m *Member) Job(t testing.TB, id string) (j Job) {
	t.Helper()
	if err := m.API("job.show", map[string]any{"id": id}, &j); err != nil {
		t.Fatal(err)
	}
	return j
}

// WaitOutcome waits until a job has ended and shows it.
func (m *Member) WaitOutcome(t testing.TB, id string) (j Job) {
	t.Helper()
	if err := m.API("job.wait", map[string]any{"id": id, "timeout_ms": patience.Milliseconds() - 1000}, &j); err != nil {
		var now Job
		shown := m.API("job.show", map[string]any{"id": id}, &now)
		t.Fatalf("%v; it is %+v (%v)", err, now, shown)
	}
	return j
}

// WaitState waits until a job is in a state and shows it.
func (m *Member) WaitState(t testing.TB, id, state string) (j Job) {
	t.Helper()
	m.yard.Eventually("job "+id+" is "+state, func() error {
		j = Job{}
		if err := m.API("job.show", map[string]any{"id": id}, &j); err != nil || j.State == state {
			return err
		}
		return fmt.Errorf("it is %s: %+v", j.State, j)
	})
	return j
}

// Worker serves a queue at this member until the test ends.
func (m *Member) Worker(t testing.TB, queue string, credits uint32, h overhop.Handler) {
	t.Helper()
	var w overhop.Worker
	w.Handle(queue, credits, h)
	m.RunWorker(t, &w)
}

// RunWorker runs a worker at this member, or at the nodes it names, until the
// test ends. It returns when the worker is connected.
func (m *Member) RunWorker(t testing.TB, w *overhop.Worker) {
	t.Helper()
	if len(w.Nodes) == 0 {
		w.Nodes = []string{m.node.Addresses().Overhop}
	}
	if w.Grace == 0 {
		w.Grace = time.Second
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
		t.Fatalf("worker ended at once: %v", err)
	}
}

// Overhop connects a client to this member until the test ends.
func (m *Member) Overhop(t testing.TB, o overhop.Options) *overhop.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
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

// Queue looks a queue up.
func (m *Member) Queue(t testing.TB, name string) (q Queue) {
	t.Helper()
	if err := m.API("queue.show", map[string]any{"name": name}, &q); err != nil {
		t.Fatal(err)
	}
	return q
}

// Holds is nil when so many jobs of a queue are in a state.
func (m *Member) Holds(queue, state string, n int) error {
	var q Queue
	err := m.API("queue.show", map[string]any{"name": queue}, &q)
	if err == nil && q.Counts[state] != n {
		err = fmt.Errorf("queue %s holds %v, want %d %s", queue, q.Counts, n, state)
	}
	return err
}
