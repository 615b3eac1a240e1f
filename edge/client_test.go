package edge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The library's worker against the server: jobs run, fail, survive a cut
// connection, and are finished before it leaves.
func TestClientWorker(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		conns := make(chan *cuttable, 10)
		block := make(chan struct{})
		w := &overhop.Worker{
			Nodes: []string{"n1"}, Log: r.server.log,
			Dial: func(context.Context, string) (nc netConn, err error) {
				c := &cuttable{r.ln.dial()}
				conns <- c
				return c, nil
			},
		}
		w.Handle("jobs", 3, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
			switch n, _ := q.Payload.Get("n").Int(); n {
			case 1:
				return q.Payload, nil
			case 2:
				return nil, &overhop.FailError{Message: "no", Type: "t", Final: true}
			case 3:
				panic("oh")
			}
			<-block
			return nil, ctx.Err()
		})
		ctx, stop := context.WithCancel(r.t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		first := <-conns
		synctest.Wait()
		start := func(n uint32, params string) {
			t.Helper()
			a := job.Assignment{Job: job.ID{15: byte(n)}, N: n, Attempt: 1, Queue: "jobs", Key: "jobs", Worker: r.onlyWorker()}
			if !r.server.Start(a, job.Spec{Params: []byte(params)}) {
				t.Fatal("Start refused the job")
			}
		}
		start(1, `{"n":1}`)
		if o := r.executor.onlyOutcome(t); o.Status != job.Success || string(o.Result.Data) != `{"n":1}` {
			t.Errorf("outcome is %+v", o)
		}
		start(2, `{"n":2}`)
		if o := r.executor.onlyOutcome(t); o.Status != job.Error || !o.Final || o.Fault.Type != "t" {
			t.Errorf("outcome is %+v", o)
		}
		start(3, `{"n":3}`)
		if o := r.executor.onlyOutcome(t); o.Status != job.Error || o.Final || o.Fault.Type != "panic" {
			t.Errorf("outcome is %+v", o)
		}
		if got := r.executor.offered("jobs", r.onlyWorker()); got != 3 {
			t.Errorf("offer is %d, want 3", got)
		}
		start(4, `{"n":4}`)
		time.Sleep(30 * time.Second) // kept alive by BEATs
		if got := r.executor.takeOutcomes(); len(got) > 0 {
			t.Fatalf("outcomes of a running job: %+v", got)
		}
		first.Close()
		<-conns
		synctest.Wait()
		if got := r.executor.offered("jobs", r.onlyWorker()); got != 2 {
			t.Errorf("offer next to a running job is %d, want 2", got)
		}
		time.Sleep(30 * time.Second) // the token goes on over the new connection
		if got := r.executor.takeOutcomes(); len(got) > 0 {
			t.Fatalf("outcomes after a cut: %+v", got)
		}
		stop()
		time.Sleep(time.Second)
		close(block)
		if err := <-ended; err != nil {
			t.Errorf("worker: %v", err)
		}
		if o := r.executor.onlyOutcome(t); o.Status != job.Success || o.N != 4 {
			t.Errorf("outcome is %+v", o)
		}
	})
}

// The library's client as a producer.
func TestClientProducer(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		c, err := overhop.Connect(r.t.Context(), r.ln.dial(), overhop.Options{Name: "p"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(r.t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		if c.Node() != "n1" {
			t.Errorf("node is %q", c.Node())
		}
		if _, err := c.AddQueue(ctx, overhop.AddQueue{Name: "mail", Limit: 2, AllowOverrides: true}); err != nil {
			t.Error(err)
		}
		if _, err := c.AddQueue(ctx, overhop.AddQueue{Name: "mail"}); overhop.ErrorCode(err) != overhop.CodeDuplicateQueue {
			t.Errorf("second AddQueue: %v", err)
		}
		got := make(chan string, 100)
		for range 100 {
			c.GoEnqueue(overhop.Enqueue{Queue: "mail", Payload: overhop.EmptyMap}, func(jid string, err error) { got <- jid })
		}
		seen := map[string]bool{}
		for range 100 {
			seen[<-got] = true
		}
		if len(seen) != 100 {
			t.Errorf("%d different jobs of 100", len(seen))
		}
		jid, err := c.Enqueue(ctx, overhop.Enqueue{Queue: "mail", Function: "f", Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		if record, err := c.Job(ctx, jid); err != nil || str(record.Get("fn")) != "f" {
			t.Errorf("record is %s, %v", text(record), err)
		}
		if _, ended, err := c.Await(ctx, jid, time.Second); err != nil || ended {
			t.Errorf("await: %t, %v", ended, err)
		}
		if pong, err := c.Call(ctx, overhop.TPing, overhop.EmptyMap); err != nil || str(pong.Get("server_time")) == "" {
			t.Errorf("ping: %s, %v", text(pong), err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		if _, err := c.Call(r.t.Context(), overhop.TPing, overhop.EmptyMap); err == nil {
			t.Error("a closed client answers")
		}
	})
}
