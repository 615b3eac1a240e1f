package edge

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// faultyCluster is a cluster whose code panics for the queue "bad", and while it waits for a job.
type faultyCluster struct{ *memCluster }

func (c *faultyCluster) Session(string) Session { return c }

func (c *faultyCluster) Queue(ctx context.Context, name string) (job.Queue, bool, error) {
	if name == "bad" {
		panic("queue")
	}
	return c.memCluster.Queue(ctx, name)
}

func (c *faultyCluster) Enqueue(ctx context.Context, queue string, spec job.Spec, key string, done func(job.ID, error)) {
	if queue == "bad" {
		panic("enqueue")
	}
	c.memCluster.Enqueue(ctx, queue, spec, key, done)
}

func (c *faultyCluster) Await(context.Context, job.ID) (job.View, error) { panic("await") }

// TestPanic_EndsTheConnection checks that a request whose handling panics ends its connection and
// nothing else, and that what the connection held is free again.
func TestPanic_EndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := overhopPanics()
		r := newHarnessOn(t, Config{}, &faultyCluster{newMemCluster()})
		other, _ := r.startWorker(1)
		large := overhop.Fields{"q": "bad", "payload": overhop.Fields{"x": strings.Repeat("x", 1<<20)}}
		for _, request := range []struct {
			t int64
			f overhop.Fields
		}{
			{overhop.TQueue, overhop.Fields{"q": "bad"}},
			{overhop.TEnqueue, large},
			{overhop.TEnqueue, overhop.Fields{"q": "bad", "payload": nil, "notify": true}},
			{overhop.TEnqueue, overhop.Fields{"q": "jobs", "payload": nil, "notify": true}},
		} {
			p := r.register(true)
			p.send(request.t, "r", request.f)
			synctest.Wait()
			if request.f["q"] == "jobs" { // the job waits first, and its answer may have been sent
				p.received()
				continue
			}
			p.expectClosed()
		}
		other.ask(overhop.TPing, nil, overhop.TPong)
		if n := overhopPanics() - before; n != 4 {
			t.Errorf("%d panics counted, want 4", n)
		}
		if s := r.server; !s.frames.TryAcquire(int64(s.cfg.Limits.FrameMemory)) {
			t.Error("the memory of the large frame is not free")
		}
		r.stop()
		if err := <-r.served; err != nil {
			t.Error(err)
		}
		if n := len(r.server.conns) + len(r.server.deliveries.workers) + len(r.server.connsByHost); n > 0 {
			t.Errorf("%d connections are kept after the end", n)
		}
	})
}

// TestPanic_Session checks that a connection whose session has panicked does not block those who go
// through all connections.
func TestPanic_Session(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		var c *conn
		for c = range r.server.conns {
		}
		func() {
			defer crash.Contain(r.server.log, crash.Overhop, nil)
			c.advance(func() overhop.Step { panic("step") })
		}()
		c.tick(time.Now())
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

func overhopPanics() (n uint64) {
	crash.Counts(func(where string, panics uint64) {
		if where == crash.Overhop.String() {
			n = panics
		}
	})
	return n
}
