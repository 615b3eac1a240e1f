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
type sdkConn struct {
	*client.Client
	calls chan sdkCall
}

// sdkCall is a job to be enqueued.
type sdkCall struct {
	job  sdkJob
	done func(error)
}

// callers is how many goroutines enqueue over a connection, for a window of calls in flight.
const callers = window/overhopClients + 1

// openSDKConn opens a connection with its callers, as a program has them that enqueues in many
// goroutines. They return when calls is closed.
func openSDKConn(ctx context.Context, addr string) sdkConn {
	c := sdkConn{calls: make(chan sdkCall, window)}
	c.Client = must.Get(client.Open(ctx, client.Options{Nodes: []string{addr}, Name: "bench", Log: slog.New(slog.DiscardHandler)}))
	for range callers {
		go func() {
			for call := range c.calls {
				_, err := client.Enqueue(context.Background(), c.Client, call.job)
				call.done(err)
			}
		}()
	}
	return c
}

// submit has a caller enqueue job i.
func (c sdkConn) submit(_ *load, _ int, due time.Duration, done func(error)) {
	j := newJob(due)
	c.calls <- sdkCall{sdkJob{Due: j.Due, Pad: j.Pad}, done}
}

// close ends the callers, which must have nothing to do, and the connection.
func (c sdkConn) close() {
	close(c.calls)
	c.Close()
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
		c := openSDKConn(t, cl.Nodes[i%len(cl.Nodes)].Edge)
		defer c.close()
		conns = append(conns, c)
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

// sdkWire measures the wire alone with the requests of the Go SDK: every job names a function,
// and has a key, which a node looks for in the ledger and stores with the job.
func (cl *overhopCluster) sdkWire(t *task, generate generator) round {
	l := cl.enqueueLoad(queuePlain)
	l.function = sdkJob{}.Kind()
	l.key = cl.newKey()
	return cl.runBy(t, manyWorkers(queuePlain), l, false, generate)
}
