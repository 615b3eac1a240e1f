package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// queueLimit checks that the limit of a queue is never exceeded over all nodes, as counted
// by the workers.
func queueLimit(t *testing.T, cl *clustertest.Cluster) {
	const jobs, most = 60, 3
	a := cl.Members[0]
	a.AddQueue(t, "limited", most)
	var running, peak atomic.Int64
	full := make(chan struct{}) // closed once as many jobs run as may; none ends before
	var once sync.Once
	for _, m := range cl.Members {
		m.Worker(t, "limited", 8, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
			now := running.Add(1)
			defer running.Add(-1)
			for was := peak.Load(); now > was && !peak.CompareAndSwap(was, now); was = peak.Load() {
			}
			if now == most {
				once.Do(func() { close(full) })
			}
			select {
			case <-full:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			rest := time.NewTimer(10 * time.Millisecond)
			defer rest.Stop()
			select {
			case <-rest.C:
			case <-ctx.Done():
			}
			return nil, nil
		})
	}
	for i := range jobs {
		cl.Members[i%3].Enqueue(t, "limited", `{"params":{}}`)
	}
	cl.Eventually("all have run", func() error { return a.CheckCount("limited", "completed", jobs) })
	if peak.Load() != most {
		t.Errorf("%d jobs ran concurrently at most, want %d", peak.Load(), most)
	}
}

func pausedQueue(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "paused", 0)
	b.Worker(t, "paused", 4, echo)
	if err := b.API("queue.pause", map[string]any{"name": "paused"}, nil); err != nil {
		t.Fatal(err)
	}
	wantCode(t, a.API("queue.pause", map[string]any{"name": "paused"}, nil), "409")
	id := a.Enqueue(t, "paused", `{"params":{}}`).String()
	a.WaitState(t, id, "waiting")
	// A job accepted later in another queue runs, this one does not.
	a.AddQueue(t, "beside-paused", 0)
	b.Worker(t, "beside-paused", 1, echo)
	a.WaitOutcome(t, a.Enqueue(t, "beside-paused", `{"params":{}}`).String())
	if j := a.Job(t, id); j.State != "waiting" || j.Dispatches > 1 {
		t.Errorf("a job of a paused queue is %+v", j)
	}
	if err := a.API("queue.resume", map[string]any{"name": "paused"}, nil); err != nil {
		t.Fatal(err)
	}
	if j := a.WaitOutcome(t, id); j.State != "completed" {
		t.Errorf("%+v", j)
	}
}

// publishJob publishes a job directly, as any NATS client can; "" is no key.
func publishJob(t *testing.T, m *clustertest.Member, queue, key, body string) (duplicate bool, err error) {
	t.Helper()
	_, js := connect(t, m)
	var opts []jetstream.PublishOpt
	if key != "" {
		opts = append(opts, jetstream.WithMsgID(key))
	}
	ack, err := js.Publish(shortContext(t), "yard.jobs."+queue, []byte(body), opts...)
	return err == nil && ack.Duplicate, err
}

// connect connects like a plain NATS client.
func connect(t *testing.T, m *clustertest.Member) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(m.Node().Addresses().NATS, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// waitDeadLetter waits for the dead letter of a queue.
func waitDeadLetter(t *testing.T, cl *clustertest.Cluster, queue string) (dead api.DeadLetterMessage) {
	t.Helper()
	_, js := connect(t, cl.Members[2])
	stream, err := js.Stream(shortContext(t), "YARD_DLQ")
	if err != nil {
		t.Fatal(err)
	}
	cl.Eventually("a dead letter of "+queue, func() error {
		m, err := stream.GetLastMsgForSubject(shortContext(t), "yard.dlq."+queue)
		if err != nil {
			return err
		}
		return json.Unmarshal(m.Data, &dead)
	})
	return dead
}

func deadLetter(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "doomed", 0)
	var attempts atomic.Int64
	a.Worker(t, "doomed", 2, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		attempts.Add(1)
		return nil, &overhop.FailError{Message: fmt.Sprintf("no luck in attempt %d", q.Attempt), Type: "luck"}
	})
	id := a.Enqueue(t, "doomed", `{"params":{"card":"7"}}`)
	j := a.WaitOutcome(t, id.String())
	if j.State != "failed" || j.Attempts != 3 || attempts.Load() != 3 {
		t.Errorf("%+v after %d attempts", j, attempts.Load())
	}
	dead := waitDeadLetter(t, cl, "doomed")
	if dead.ID != id.String() || dead.Attempts != 3 || !strings.Contains(fmt.Sprint(dead.Reason, dead.Error), "no luck in attempt 3") {
		t.Errorf("dead letter %+v (%+v)", dead, dead.Error)
	}
	if !strings.Contains(string(dead.Job), `"card":"7"`) {
		t.Errorf("the dead letter's job is %s", dead.Job)
	}
	// A manual retry grants three more attempts.
	if err := cl.Members[1].API("job.retry", map[string]any{"id": id}, nil); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("it fails again", func() error {
		if j := a.Job(t, id.String()); j.State != "failed" || attempts.Load() < 4 {
			return fmt.Errorf("%+v, %d attempts", j, attempts.Load())
		}
		return nil
	})
}

// malformedRecord checks that a malformed record, published past all checks, becomes a
// dead letter, and that the jobs behind it run.
func malformedRecord(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "garbage", 0)
	a.Worker(t, "garbage", 1, echo)
	for i, body := range []string{"", "not JSON", `{"function":7}`, `{}`, `[]`, `{"params":{},"priority":10}`, "\x00\xff\xfe", `{"params":[1]}`} {
		key := fmt.Sprintf("garbage-%d", i)
		if _, err := publishJob(t, a, "garbage", key, body); err != nil {
			t.Fatal(err)
		}
		good := fmt.Sprintf("good-%d", i)
		if _, err := publishJob(t, a, "garbage", good, `{"params":{}}`); err != nil {
			t.Fatal(err)
		}
		if j := a.WaitOutcome(t, good); j.State != "completed" {
			t.Errorf("behind %q: %+v", body, j)
		}
		if j := a.WaitOutcome(t, key); j.State != "failed" || j.Reason == "" {
			t.Errorf("%q: %+v", body, j)
		}
	}
	dead := waitDeadLetter(t, cl, "garbage")
	if dead.Reason == "" || dead.Attempts != 0 {
		t.Errorf("%+v", dead)
	}
	// An invalid queue name.
	if _, err := publishJob(t, a, "_hidden", "", `{"params":{}}`); err != nil {
		t.Logf("refused at once: %v", err)
	}
	if j := a.WaitOutcome(t, a.Enqueue(t, "garbage", `{"params":{}}`).String()); j.State != "completed" {
		t.Errorf("%+v", j)
	}
}

func jobTimeout(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "slow", 0)
	stopped := make(chan error, 2)
	a.Worker(t, "slow", 1, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	// A timeout is final, whether the worker or the node reports it first.
	for range 5 {
		j := a.WaitOutcome(t, a.Enqueue(t, "slow", `{"params":{},"timeout_ms":100,"max_attempts":2}`).String())
		if took := j.Ended.Sub(*j.Started); j.State != "failed" || j.Attempts != 1 || took < 90*time.Millisecond {
			t.Errorf("after %s: %+v", took, j)
		}
		if err := <-stopped; err == nil {
			t.Error("the handler did not get the reason")
		}
	}
	// A handler that ignores the cancel is given up.
	deaf, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	a.AddQueue(t, "deaf", 0)
	a.Worker(t, "deaf", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) {
		close(deaf)
		<-end
		return nil, nil
	})
	// Longer than the acknowledgement takes, without which the job would wait for a worker again.
	id := a.Enqueue(t, "deaf", `{"params":{},"timeout_ms":2000}`).String()
	<-deaf
	if j := a.WaitOutcome(t, id); j.State != "failed" || !strings.Contains(j.Reason, "timed out") {
		t.Errorf("%+v", j)
	}
}

// cutConnection checks that a job of a lost worker runs elsewhere when its lease has
// expired, and not before.
func cutConnection(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "cut", 0)
	var quest overhop.Quest
	taken := make(chan struct{})
	c := a.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quest = q; close(taken) }})
	sid, err := c.Subscribe(shortContext(t), "cut", 1)
	if err != nil {
		t.Fatal(sid, err)
	}
	id := a.Enqueue(t, "cut", `{"params":{}}`).String()
	<-taken
	acked := make(chan error, 1)
	c.Ack(&quest, func(_ overhop.Raw, err error) { acked <- err })
	if err := <-acked; err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	c.Close()
	ran := make(chan overhop.Quest, 2)
	b.Worker(t, "cut", 1, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { ran <- *q; return nil, nil })
	j := a.WaitOutcome(t, id)
	again := <-ran
	if took := j.Started.Sub(gone); j.State != "completed" || took < 3*time.Second {
		t.Errorf("ran again after %s: %+v", took, j)
	}
	if !again.Redelivered || again.Fence <= quest.Fence {
		t.Errorf("the second run has fence %d after %d, redelivered %t", again.Fence, quest.Fence, again.Redelivered)
	}
	// A job that is lost before its ACK is dispatched again at once.
	taken = make(chan struct{})
	c = a.Overhop(t, overhop.Options{OnQuest: func(overhop.Quest) { close(taken) }})
	a.AddQueue(t, "cut-early", 0)
	if _, err := c.Subscribe(shortContext(t), "cut-early", 1); err != nil {
		t.Fatal(err)
	}
	id = a.Enqueue(t, "cut-early", `{"params":{}}`).String()
	<-taken
	gone = time.Now()
	c.Close()
	b.Worker(t, "cut-early", 1, echo)
	if j := a.WaitOutcome(t, id); j.State != "completed" || j.Attempts != 1 || j.Started.Sub(gone) > 3*time.Second {
		t.Errorf("ran again after %s: %+v", j.Started.Sub(gone), j)
	}
}

func runnerJob(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	run := func(spec string) api.Job {
		t.Helper()
		return a.WaitOutcome(t, a.Enqueue(t, "rrq", spec).String())
	}
	if j := run(`{"function":"demo#echo","params":{"n":9007199254740993}}`); j.State != "completed" || string(j.Result) != `{"n":9007199254740993}` {
		t.Errorf("echo: %+v", j)
	}
	if j := run(`{"function":"demo#fail","params":{"message":"broken"}}`); j.State != "failed" || j.Attempts != 3 || !strings.Contains(j.Reason, "broken") {
		t.Errorf("fail: %+v", j)
	}
	if j := run(`{"function":"demo#retry","params":{"times":2,"after":0.01}}`); j.State != "completed" || string(j.Result) != `{"attempt":3}` {
		t.Errorf("retry: %+v, result %s", j, j.Result)
	}
	if j := run(`{"function":"demo#nothing","params":{}}`); j.State != "failed" || j.Attempts != 1 {
		t.Errorf("an unknown handler: %+v", j)
	}
	if j := run(`{"function":"nobody#echo","params":{}}`); j.State != "failed" || !strings.Contains(strings.ToLower(j.Reason), "runner") {
		t.Errorf("an unknown runner: %+v", j)
	}
	if j := run(`{"function":"demo#hang","params":{},"timeout_ms":400,"max_attempts":1}`); j.State != "failed" {
		t.Errorf("hang: %+v", j)
	}
	if j := run(`{"function":"demo#crash","params":{},"max_attempts":1}`); j.State != "failed" || j.Losses == 0 {
		t.Errorf("crash: %+v", j)
	}
	if j := run(`{"function":"demo#big","params":{"bytes":500000}}`); j.State != "completed" || len(j.Result) != 500002 {
		t.Errorf("big: %s, %d bytes, %s", j.State, len(j.Result), j.Reason)
	}
	routed := a.WaitOutcome(t, a.Enqueue(t, "routed", `{"function":"echo","params":{"by":"route"}}`).String())
	if routed.State != "completed" || !strings.HasPrefix(routed.Worker, "rrq/demo/") {
		t.Errorf("a routed queue: %+v", routed)
	}
	cl.Eventually("all runners are back", func() error {
		for _, m := range cl.Members {
			s, err := m.Status()
			if err != nil || len(s.Pools) != 1 || s.Pools[0].Up != 1 {
				return errors.Join(err, fmt.Errorf("%s: %+v", m.Name, s.Pools))
			}
		}
		return nil
	})
}

func largeResults(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "wordy", 0)
	a.Worker(t, "wordy", 2, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		n, _ := q.Payload.Get("n").Int()
		return overhop.AppendStr(nil, strings.Repeat("z", int(n))), nil
	})
	for _, n := range []int{1000, 1100, 300 << 10} {
		id := b.Enqueue(t, "wordy", fmt.Sprintf(`{"params":{"n":%d}}`, n)).String()
		for _, m := range cl.Members {
			j := m.WaitState(t, id, "completed")
			if len(j.Result) != n+2 {
				t.Errorf("%s shows %d bytes of %d: %.60s", m.Name, len(j.Result), n+2, j.Result)
			}
		}
	}
	// A result that JSON cannot represent is returned unchanged.
	c := a.Overhop(t, overhop.Options{})
	payload := overhop.AppendBin(nil, []byte{0, 255, 1})
	a.AddQueue(t, "binary", 0)
	b.Worker(t, "binary", 1, echo)
	jid, err := c.Enqueue(shortContext(t), overhop.Enqueue{Queue: "binary", Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	a.WaitOutcome(t, overhopID(t, jid))
	record, err := c.Job(shortContext(t), jid)
	if result := record.Get("result"); err != nil || string(result) != string(payload) {
		t.Errorf("result % x, %v", result, err)
	}
}

func cancelJob(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "undone", 0)
	began, stopped := make(chan struct{}), make(chan error, 1)
	b.Worker(t, "undone", 1, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
		close(began)
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	id := a.Enqueue(t, "undone", `{"params":{}}`).String()
	<-began
	if err := a.API("job.cancel", map[string]any{"id": id, "reason": "not wanted"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err == nil {
		t.Error("the handler did not get the reason")
	}
	if j := a.WaitOutcome(t, id); j.State != "cancelled" || j.Attempts != 1 || !strings.Contains(strings.ToLower(j.Reason), "cancel") {
		t.Errorf("%+v", j)
	}
	// A cancelled waiting job never starts; an ended job cannot be cancelled.
	waiting := a.Enqueue(t, "nobody-serves", `{"params":{}}`).String()
	a.WaitState(t, waiting, "waiting")
	if err := b.API("job.cancel", map[string]any{"id": waiting}, nil); err != nil {
		t.Fatal(err)
	}
	if j := a.WaitOutcome(t, waiting); j.State != "cancelled" || j.Attempts != 0 {
		t.Errorf("%+v", j)
	}
	wantCode(t, b.API("job.cancel", map[string]any{"id": waiting}, nil), "409")
}
