package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/job"
)

// Load is jobs to be published by a plain NATS program.
type Load struct {
	Queue    string
	Function string // "": none
	Params   string // JSON of every job; "": its number
	Jobs     int
	Prefix   string        // of every job's key; "": the queue
	Parallel int           // publishers at once, each waiting for its acknowledgement
	Pace     time.Duration // between two jobs of a publisher
	// At acknowledged jobs, Then is called once, while publishing goes on.
	At   int
	Then func()

	acked   atomic.Int64
	then    sync.WaitGroup
	mu      sync.Mutex
	lastAck time.Time
	gap     time.Duration  // longest time between two acknowledgements
	refused map[string]int // why, and how often
}

// Run publishes every job until it is acknowledged or ctx ends, and returns
// when Then has.
func (l *Load) Run(ctx context.Context, urls string) error {
	nc, err := nats.Connect(urls, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.Timeout(time.Second), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2))
	if err != nil {
		return fmt.Errorf("connect to the yard: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	var next atomic.Int64
	var work sync.WaitGroup
	errs := make([]error, l.Parallel)
	for i := range l.Parallel {
		work.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= l.Jobs || errs[i] != nil {
					return
				}
				errs[i] = l.publish(ctx, js, n)
			}
		})
	}
	work.Wait()
	l.then.Wait()
	return errors.Join(errs...)
}

// Acked is how many jobs are acknowledged so far.
func (l *Load) Acked() int { return int(l.acked.Load()) }

// Key names job n.
func (l *Load) Key(n int) string { return fmt.Sprintf("%s-%d", cmp.Or(l.Prefix, l.Queue), n) }

// publish repeats one job under its key until it is acknowledged.
func (l *Load) publish(ctx context.Context, js jetstream.JetStream, n int) error {
	m := &nats.Msg{Subject: "yard.jobs." + l.Queue, Header: nats.Header{"Nats-Msg-Id": []string{l.Key(n)}}}
	params := l.Params
	if params == "" {
		params = fmt.Sprintf(`{"n":%d}`, n)
	}
	m.Data = fmt.Appendf(nil, `{"params":%s}`, params)
	if l.Function != "" {
		m.Data = fmt.Appendf(nil, `{"function":%q,"params":%s}`, l.Function, params)
	}
	for try := 0; ; try++ {
		one, cancel := context.WithTimeout(ctx, time.Second)
		_, err := js.PublishMsg(one, m, jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			break
		}
		l.mu.Lock()
		if l.refused == nil {
			l.refused = make(map[string]int)
		}
		l.refused[err.Error()]++
		l.mu.Unlock()
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

func (l *Load) noteAck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.lastAck.IsZero() {
		l.gap = max(l.gap, now.Sub(l.lastAck))
	}
	l.lastAck = now
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
