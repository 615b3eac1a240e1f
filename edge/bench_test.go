package edge

import (
	"context"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// benchServer runs a server on a real socket. Its executor starts a job for
// every offered credit until left reaches 0.
func benchServer(b *testing.B, left *atomic.Int64) (addr string, stop func()) {
	h := &instantExecutor{left: left, offers: make(chan job.Offer, 1<<16)}
	s, err := New(Config{Server: ServerConfig{Port: -1}}, newMemCluster(), h, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	h.server = s
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := s.Serve(ctx, ln); err != nil {
			b.Error(err)
		}
	})
	served.Go(func() { h.place(ctx) })
	return ln.Addr().String(), func() { cancel(); served.Wait() }
}

// instantExecutor starts a job for every free credit and settles outcomes at
// once.
type instantExecutor struct {
	server *Server
	left   *atomic.Int64
	next   uint32
	offers chan job.Offer
}

func (e *instantExecutor) Adopt(job.Assignment) bool             { return true }
func (e *instantExecutor) WorkerLease(until time.Time) time.Time { return until }

func (e *instantExecutor) Stalled(string, string)   {}
func (e *instantExecutor) Recovered(string, string) {}
func (e *instantExecutor) Log(job.LogLine)          {}

func (e *instantExecutor) Offer(o job.Offer) { e.offers <- o }

// place starts jobs one after another. An offer is absolute, so only the newest
// counts, and Start itself causes the next one.
func (e *instantExecutor) place(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-e.offers:
			if o.Free == 0 || e.left.Load() <= 0 {
				continue
			}
			e.next++
			a := job.Assignment{Job: job.ID{1, 15: byte(e.next)}, N: e.next, Attempt: 1, Queue: "jobs", Key: o.Key, Worker: o.Worker, Accepted: time.Now(), RunAt: time.Now()}
			if e.server.Start(a, job.Spec{Params: []byte(`{"to":"someone@example.org","n":1234567}`)}) {
				e.left.Add(-1)
			}
		}
	}
}

func (e *instantExecutor) Report(_ job.Outcome, done func(job.Settled)) {
	go done(job.Settled{State: job.Completed})
}

// BenchmarkQuestToDone measures QUEST, ACK, DONE and their answers over TCP,
// including the worker's side.
func BenchmarkQuestToDone(b *testing.B) {
	var left atomic.Int64
	left.Store(int64(b.N))
	addr, stop := benchServer(b, &left)
	defer stop()
	var done atomic.Int64
	finished := make(chan struct{})
	ctx, leave := context.WithCancel(b.Context())
	var workers sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range 16 {
		w := &overhop.Worker{Nodes: []string{addr}, Log: slog.New(slog.DiscardHandler)}
		w.Handle("jobs", 32, func(context.Context, *overhop.Quest) (overhop.Raw, error) {
			if done.Add(1) == int64(b.N) {
				close(finished)
			}
			return nil, nil
		})
		workers.Go(func() {
			if err := w.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	<-finished
	b.StopTimer()
	leave()
	workers.Wait()
}

// BenchmarkEnqueue measures ENQUEUE over one connection with 256 requests
// pending.
func BenchmarkEnqueue(b *testing.B) {
	var none atomic.Int64
	addr, stop := benchServer(b, &none)
	defer stop()
	c, err := overhop.Dial(b.Context(), addr, overhop.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, leave := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	payload := overhop.Raw(overhop.AppendValue(nil, overhop.Fields{"to": "someone@example.org", "n": 1234567}))
	slots := make(chan struct{}, 256)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		slots <- struct{}{}
		c.GoEnqueue(overhop.Enqueue{Queue: "jobs", Payload: payload}, func(_ string, err error) {
			if err != nil {
				b.Error(err)
			}
			<-slots
		})
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	b.StopTimer()
	leave()
	running.Wait()
}

// BenchmarkIdleWorkers reports the memory of an idle registered worker, heap
// and stacks of both sides.
func BenchmarkIdleWorkers(b *testing.B) {
	const workers = 1000
	var none atomic.Int64
	for b.Loop() {
		addr, stop := benchServer(b, &none)
		before := heapInUse()
		conns := make([]net.Conn, workers)
		for i := range conns {
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			conns[i] = nc
			c, err := overhop.Connect(b.Context(), nc, overhop.Options{})
			if err != nil {
				b.Fatal(err)
			}
			sub, _ := overhop.AppendFields(nil, overhop.TSubscribe, "s", overhop.Fields{"q": "jobs", "credits": 1})
			nc.Write(sub)
			nc.Read(make([]byte, 256))
			_ = c
		}
		b.ReportMetric(float64(heapInUse()-before)/workers, "bytes/worker")
		for _, nc := range conns {
			nc.Close()
		}
		stop()
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
