package bench

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// sdkJob is a job of the benchmark as users of the Go SDK write it.
type sdkJob struct {
	Due int64  `json:"due"` // in nanoseconds after the begin of the load
	Pad string `json:"pad"`
}

func (sdkJob) Kind() string  { return "bench" }
func (sdkJob) Queue() string { return queuePlain }

// sdkConn enqueues jobs by the Go SDK.
type sdkConn struct{ *client.Client }

// submit enqueues job i in a goroutine, as a program does that enqueues many at once.
func (c sdkConn) submit(l *load, _ int, due time.Duration, done func(error)) {
	j := newJob(due)
	go func() {
		_, err := client.Enqueue(context.Background(), c.Client, sdkJob{Due: j.Due, Pad: j.Pad})
		done(err)
	}()
}

// repeat does nothing: the SDK repeats requests itself.
func (c sdkConn) repeat(time.Duration) int { return 0 }

// sdk measures jobs that are enqueued and run by the Go SDK, with the same numbers of
// connections, workers and credits as the wire has with [manyWorkers]. A job ends when its
// handler returns, a moment before that is committed.
func (cl *overhopCluster) sdk(t *task, generate generator) round {
	running, stop := context.WithCancel(t)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	l := &load{}
	var conns []sdkConn
	for i := range overhopClients {
		c := must.Get(client.Open(t, client.Options{
			Nodes: []string{cl.Nodes[i%len(cl.Nodes)].Edge}, Name: "bench", Log: slog.New(slog.DiscardHandler),
		}))
		defer c.Close()
		conns = append(conns, sdkConn{c})
		w := c.Worker()
		w.Concurrency = creditsEach
		client.Handle(w, func(_ context.Context, job *client.Job[sdkJob]) (any, error) {
			l.started(job.Args.Due)
			l.ended(job.Args.Due)
			return nil, nil
		})
		workers.Go(func() {
			if err := w.Run(running); err != nil {
				l.fail(err)
			}
		})
	}
	l.transports = asTransports(conns)
	cl.awaitCapacity(t, manyWorkers(queuePlain).capacity())
	before := cl.delivered(t)
	r := l.measure(t, cl.cpu, false, generate)
	cl.verify(t, before, l)
	return r
}
