package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Load is a set of jobs to publish to one queue.
type Load struct {
	Queue     string
	Transport Transport     // zero value: PlainPublish
	Function  string        // "" means none
	JobParams string        // params of every job as JSON; "" means its number
	Fields    string        // further fields of every job as JSON without braces
	Jobs      int           // number of jobs; 0 means until Stop
	Prefix    string        // of every job's key; "" means queue and transport
	Parallel  int           // concurrent publishers, each waiting for acknowledgements; 0 means 1
	Pace      time.Duration // pause of a publisher between two jobs
	// When At jobs are acknowledged, Then is called once, while publishing goes on.
	At   int
	Then func()

	stopped  atomic.Bool
	acked    atomic.Int64
	then     sync.WaitGroup
	mu       sync.Mutex
	acks     []int64        // times of acknowledgements, by the host's clock
	refusals map[string]int // number of failed publishes by error
}

// Run publishes the jobs, each repeatedly until it is acknowledged, and returns
// after Then has returned. If ctx ends first, it returns an error.
func (l *Load) Run(ctx context.Context, c *Cluster) error {
	p, err := newProducer(l, c)
	if err != nil {
		return err
	}
	defer p.close()
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
func (l *Load) Acked() int { return int(l.acked.Load()) }

// Key returns the key of job n.
func (l *Load) Key(n int) string {
	return fmt.Sprintf("%s-%d", cmp.Or(l.Prefix, l.Queue+string(l.Transport)), n)
}

// publish publishes one job under its key until it is acknowledged.
func (l *Load) publish(ctx context.Context, p producer, n int) error {
	params := l.JobParams
	if params == "" {
		params = fmt.Sprintf(`{"n":%d}`, n)
	}
	for {
		one, cancel := context.WithTimeout(ctx, publishTimeout)
		err := p.send(one, l.Key(n), params)
		cancel()
		if err == nil {
			break
		}
		l.noteRefusal(err)
		if sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("job %s is not acknowledged: %w", l.Key(n), err)
		}
	}
	l.noteAck()
	if acked := int(l.acked.Add(1)); acked == l.At && l.Then != nil {
		l.then.Go(l.Then)
	}
	return sleep(ctx, l.Pace)
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

func (l *Load) noteAck() {
	at := HostClock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, at)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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
