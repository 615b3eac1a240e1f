package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/examples/worker/worker"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Load is a set of jobs to publish to one queue.
type Load struct {
	Queue     string
	Transport Transport     // zero value: PlainPublish
	Function  string        // "" means none
	JobParams string        // params of every job as JSON; "" means its number and Customer
	Customer  string        // the key of every job, in its params; "" means none
	Fields    string        // further fields of every job as JSON without braces
	Jobs      int           // number of jobs; 0 means until Stop
	Prefix    string        // of every job's key; "" means queue and transport
	Parallel  int           // concurrent publishers, each waiting for acknowledgements; 0 means 1
	Pace      time.Duration // pause of a publisher between two jobs
	// When At jobs are acknowledged, Then is called once, while publishing goes on.
	At   int
	Then func()

	stopped  atomic.Bool
	then     sync.WaitGroup
	mu       sync.Mutex
	acks     []int64        // times of acknowledgements, by the host's clock
	refusals map[string]int // number of failed publishes by error
}

// Run publishes the jobs, each repeatedly until it is acknowledged, and returns
// after Then has returned. If ctx ends first, it returns an error.
func (l *Load) Run(ctx context.Context, c *Cluster) error {
	p, err := c.NewProducer(l.Transport, l.Parallel, l.noteRefusal)
	if err != nil {
		return err
	}
	defer p.Close()
	var next atomic.Int64
	var work sync.WaitGroup
	errs := make([]error, max(l.Parallel, 1))
	for i := range errs {
		work.Go(func() {
			for errs[i] == nil && !l.stopped.Load() {
				n := int(next.Add(1)) - 1
				if l.Jobs > 0 && n >= l.Jobs {
					return
				}
				errs[i] = l.publish(ctx, p, n)
			}
		})
	}
	work.Wait()
	l.then.Wait()
	if l.Jobs == 0 { // every number taken is acknowledged
		l.Jobs = int(next.Load())
	}
	return errors.Join(errs...)
}

// Stop ends a load without a fixed number of jobs. Publishers still repeat their
// current job until it is acknowledged.
func (l *Load) Stop() { l.stopped.Store(true) }

// Acked returns the number of jobs acknowledged so far.
func (l *Load) Acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// Key returns the key of job n.
func (l *Load) Key(n int) string {
	return fmt.Sprintf("%s-%d", cmp.Or(l.Prefix, l.Queue+string(l.Transport)), n)
}

// publish publishes one job under its key until it is acknowledged.
func (l *Load) publish(ctx context.Context, p Producer, n int) error {
	m := Message{Queue: l.Queue, Key: l.Key(n), Function: l.Function, Params: l.JobParams, Fields: l.Fields}
	switch {
	case m.Params != "":
	case l.Customer != "":
		m.Params = fmt.Sprintf(`{"n":%d,"customer":%q}`, n, l.Customer)
	default:
		m.Params = fmt.Sprintf(`{"n":%d}`, n)
	}
	for {
		one, cancel := context.WithTimeout(ctx, publishTimeout)
		_, err := p.Send(one, m)
		cancel()
		if err == nil {
			break
		}
		l.noteRefusal(err)
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("job %s is not acknowledged: %w", l.Key(n), err)
		}
	}
	if l.noteAck() == l.At && l.Then != nil {
		l.then.Go(l.Then)
	}
	return backoff.Sleep(ctx, l.Pace)
}

// publishTimeout limits the wait for one acknowledgement.
const publishTimeout = time.Second

func (l *Load) noteRefusal(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusals == nil {
		l.refusals = make(map[string]int)
	}
	l.refusals[err.Error()]++
}

// Refusals returns the number of failed publishes by error.
func (l *Load) Refusals() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refusals)
}

// noteAck records the time of an acknowledgement and returns the number of
// acknowledgements so far.
func (l *Load) noteAck() int {
	at := HostClock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, at)
	return len(l.acks)
}

// ids returns the ids of the acknowledged jobs. Call it after Run has returned nil.
func (l *Load) ids() (map[job.ID]bool, error) {
	ids := make(map[job.ID]bool, l.Jobs)
	for n := range l.Jobs {
		id, err := job.KeyID(l.Queue, l.Key(n))
		if err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

// WorkVerb is the command line argument with which a process runs [Work]; the next
// argument is that of Work.
const WorkVerb = "work"

// Task configures a worker process.
type Task struct {
	Nodes   []string
	Queue   string
	Credits uint32
	Hold    time.Duration // how long it takes over a job
	Witness string        // path of its witness file
}

// Work runs jobs until ctx ends. Its argument is a [Task] in JSON. It appends a line to the witness file when a job
// begins and when it ends, each synced before Work continues:
//
//	<begin|end> <jid> <attempt> <fence> <nanoseconds of the host's monotonic clock> [<customer in the params>]
func Work(ctx context.Context, task string) (err error) {
	var t Task
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return fmt.Errorf("task of a worker: %w", err)
	}
	witness, err := worker.OpenWitness(t.Witness)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, witness.Close()) }()
	w := overhop.Worker{Nodes: t.Nodes, Name: "drill"}
	w.Handle(t.Queue, t.Credits, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if err := note(witness, "begin", q); err != nil {
			return nil, err
		}
		hold := time.NewTimer(t.Hold)
		defer hold.Stop()
		var ended error
		select {
		case <-hold.C:
		case <-ctx.Done():
			ended = context.Cause(ctx)
		}
		return nil, errors.Join(ended, note(witness, "end", q))
	})
	return w.Run(ctx)
}

// note appends a line about a quest to the witness file.
func note(w *worker.Witness, what string, q *overhop.Quest) error {
	at, err := readHostClock()
	if err != nil {
		return err
	}
	var params struct {
		Customer string `json:"customer"`
	}
	_ = overhop.Unmarshal(q.Payload, &params) // params of other jobs are not objects
	return w.Append(strings.TrimSpace(fmt.Sprintf("%s %s %d %d %d %s", what, q.JID, q.Attempt, q.Fence, at, params.Customer)))
}

// readHostClock reads the host's monotonic clock, in nanoseconds.
func readHostClock() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the host's clock: %w", err)
	}
	return t.Nano(), nil
}

// AddWorker starts a worker process: this program again, with WorkVerb.
func (c *Cluster) AddWorker(t Task) (*procs.Process, error) {
	name := fmt.Sprintf("w%d", len(c.workers)+1)
	t.Witness = filepath.Join(c.Dir, name+".witness")
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this process: %w", err)
	}
	p := &procs.Process{Name: name, Args: []string{self, WorkVerb, string(text)}, LogFile: filepath.Join(c.Dir, name+".log")}
	c.workers = append(c.workers, p)
	return p, p.Start()
}
