package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// handedOverJob is a job that runs at a library's worker at a member that is about to stop.
type handedOverJob struct {
	producer *overhop.Producer
	jid      string
	release  chan struct{}
	runs     chan uint32 // attempts of its runs
	stop     context.CancelFunc
	ended    chan error
}

// startHandover starts such a job. The first connection of the worker goes to m, later ones
// to the other members.
func startHandover(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member) *handedOverJob {
	t.Helper()
	m.AddQueue(t, "moving", 0)
	v := &handedOverJob{release: make(chan struct{}), runs: make(chan uint32, 10), ended: make(chan error, 1)}
	first := make(chan string, 1)
	first <- m.Node().Addresses().Overhop
	var rest []string
	for _, other := range cl.Members {
		if other != m {
			rest = append(rest, other.Node().Addresses().Overhop)
		}
	}
	w := overhop.Worker{Nodes: rest, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		select {
		case addr = <-first:
		default:
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}}
	w.Handle("moving", 2, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		v.runs <- q.Attempt
		select {
		case <-v.release:
			return overhop.Marshal(q.Fence)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	var ctx context.Context
	ctx, v.stop = context.WithCancel(context.Background())
	go func() { v.ended <- w.Run(ctx) }()
	v.producer = &overhop.Producer{Nodes: []string{m.Node().Addresses().Overhop, rest[0], rest[1]}}
	var err error
	if v.jid, err = v.producer.Enqueue(shortContext(t), overhop.Enqueue{Queue: "moving"}); err != nil {
		t.Fatal(err)
	}
	if attempt := <-v.runs; attempt != 1 {
		t.Errorf("attempt %d", attempt)
	}
	return v
}

// finish completes the job after its first node has stopped: it must end once, in its first
// attempt, without another run.
func (v *handedOverJob) finish(t *testing.T) {
	t.Helper()
	close(v.release)
	end, err := v.producer.Wait(shortContext(t), v.jid)
	var fence int64
	if err = errors.Join(err, overhop.Unmarshal(end.Result, &fence)); err != nil || end.Attempts != 1 || fence == 0 || len(v.runs) > 0 {
		t.Errorf("the job ended as %+v, %v, and ran %d more times", end, err, len(v.runs))
	}
	v.stop()
	if err := errors.Join(<-v.ended, v.producer.Close()); err != nil {
		t.Error(err)
	}
}

// returnedJob checks that a worker that stops during a job returns it, so that another runs
// it at once, without using up its only attempt.
func returnedJob(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "given-back", 0)
	runs := make(chan *overhop.Quest, 4)
	leaving := overhop.Worker{Nodes: []string{a.Node().Addresses().Overhop}, ShutdownGrace: time.Nanosecond}
	leaving.Handle("given-back", 1, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		runs <- q
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- leaving.Run(ctx) }()
	id := a.Enqueue(t, "given-back", `{"params":{},"max_attempts":1}`).String()
	first := <-runs
	// Acknowledged, so it counts as an attempt unless it is returned.
	b.WaitState(t, id, "active")
	cl.Eventually("the job has begun", func() error {
		if j := a.Job(t, id); j.Started == nil {
			return fmt.Errorf("the job is %+v", j)
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	b.Worker(t, "given-back", 1, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { runs <- q; return nil, nil })
	j := a.WaitOutcome(t, id)
	if j.State != "completed" || j.Attempts != 1 || len(runs) == 0 {
		t.Fatalf("the job ended as %+v, and ran %d more times", j, len(runs))
	}
	if second := <-runs; second.Attempt != first.Attempt || !second.Redelivered || second.Fence <= first.Fence {
		t.Errorf("first as %+v, then as %+v", first, second)
	}
}
