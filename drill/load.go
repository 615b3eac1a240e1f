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

	"yardmaster/job"
)

// Load is jobs to be published by programs that know nothing of drills.
type Load struct {
	Queue    string
	Road     Road          // "": plain JetStream
	Function string        // "": none
	Params   string        // JSON of every job; "": its number
	Fields   string        // what else every job says, as JSON without its braces; "": nothing
	Jobs     int           // 0: until Stop
	Prefix   string        // of every job's key; "": the queue and the road
	Parallel int           // publishers at once, each waiting for its acknowledgement; 0: one
	Pace     time.Duration // between two jobs of a publisher
	// At acknowledged jobs, Then is called once, while publishing goes on.
	At   int
	Then func()

	stopped atomic.Bool
	acked   atomic.Int64
	then    sync.WaitGroup
	mu      sync.Mutex
	acks    []int64        // when, by the host's clock
	refused map[string]int // why, and how often
}

// Run publishes every job until it is acknowledged or ctx ends, and returns
// when Then has.
func (l *Load) Run(ctx context.Context, y *Yard) error {
	out, err := newCarrier(l, y)
	if err != nil {
		return err
	}
	defer out.close()
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
				errs[i] = l.publish(ctx, out, n)
			}
		})
	}
	work.Wait()
	l.then.Wait()
	if l.Jobs == 0 { // whoever took a number saw it acknowledged
		l.Jobs = int(next.Load())
	}
	return errors.Join(errs...)
}

// Stop ends a load without a number of jobs. What a publisher has begun is
// still repeated until it is acknowledged.
func (l *Load) Stop() { l.stopped.Store(true) }

// Acked is how many jobs are acknowledged so far.
func (l *Load) Acked() int { return int(l.acked.Load()) }

// Key names job n.
func (l *Load) Key(n int) string {
	return fmt.Sprintf("%s-%d", cmp.Or(l.Prefix, l.Queue+string(l.Road)), n)
}

// publish repeats one job under its key until it is acknowledged.
func (l *Load) publish(ctx context.Context, out carrier, n int) error {
	params := l.Params
	if params == "" {
		params = fmt.Sprintf(`{"n":%d}`, n)
	}
	for {
		one, cancel := context.WithTimeout(ctx, publishPatience)
		err := out.carry(one, l.Key(n), params)
		cancel()
		if err == nil {
			break
		}
		l.refuse(err)
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("job %s is not acknowledged: %w", l.Key(n), err)
		}
	}
	l.noteAck()
	if acked := int(l.acked.Add(1)); acked == l.At && l.Then != nil {
		l.then.Go(l.Then)
	}
	return pause(ctx, l.Pace)
}

// publishPatience is how long a publisher waits for one acknowledgement.
const publishPatience = time.Second

func (l *Load) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused = make(map[string]int)
	}
	l.refused[err.Error()]++
}

// Refused is why publishes had to be repeated, and how often.
func (l *Load) Refused() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.refused)
}

func (l *Load) noteAck() {
	at := Clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = append(l.acks, at)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ids are the jobs that were acknowledged once Run has returned nil.
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
