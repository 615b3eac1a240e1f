package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/drill/yard"
	"yardmaster/internal/backoff"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
)

// Sizes of the load.
const (
	bodySize  = 256  // bytes of a job
	window    = 4000 // calls under way, of an asynchronous load
	syncCalls = 64   // callers who wait for each answer
	patience  = 30 * time.Second
)

// jobBody writes the body of a job that was due at so many nanoseconds after
// the load's begin: 256 bytes of JSON.
func jobBody(function string, due int64) []byte {
	b := make([]byte, 0, bodySize)
	b = append(strconv.AppendInt(append(b, `{"params":{"due":`...), due, 10), `,"pad":"`...)
	tail := `"},"function":"` + function + `"}`
	if function == "" {
		tail = `"}}`
	}
	for len(b) < bodySize-len(tail) {
		b = append(b, 'x')
	}
	return append(b, tail...)
}

// entry is a connection through which jobs are handed in.
type entry interface {
	// handIn makes the call of job i; done is called once and must not block.
	handIn(l *load, i int, due time.Duration, done func(error))
	// repeat makes the calls again that have had no answer for a time, if that
	// is what they need, and counts them.
	repeat(after time.Duration) int
}

// load is one round: jobs handed in one way, and what became of them.
type load struct {
	entries  []entry
	subject  string // of a message; at a door, the queue
	function string // of every job; "": none
	key      string // begins every job's idempotency key; "": none is given
	began    time.Time

	accepted atomic.Int64
	refused  atomic.Int64
	settled  atomic.Int64
	repeated atomic.Int64

	mu        sync.Mutex
	allIn     time.Time // when the last call was answered
	lastEnd   time.Time
	latencies []float64 // from due to started, in ms
	trouble   error     // the first
	// Where a job may run more than once: which have ended, by their due time,
	// with false for those that have only started. Each counts once.
	seen map[int64]bool
}

// begin must be called before the first job is handed in.
func (l *load) begin() { l.began = time.Now() }

// repeatAfter is how long a publisher with a key waits for an answer.
const repeatAfter = 2 * time.Second

// run hands jobs in as hand says, and repeats those with keys that nobody
// answers.
func (l *load) run(ctx context.Context, hand func(context.Context, *load) error) error {
	handing, stop := context.WithCancel(ctx)
	var repeater sync.WaitGroup
	repeater.Go(func() {
		for l.key != "" && backoff.Sleep(handing, repeatAfter/4) == nil {
			for _, e := range l.entries {
				l.repeated.Add(int64(e.repeat(repeatAfter)))
			}
		}
	})
	err := hand(ctx, l)
	stop()
	repeater.Wait()
	return err
}

func (l *load) message(i int, due time.Duration) *nats.Msg {
	m := &nats.Msg{Subject: l.subject, Data: jobBody(l.function, int64(due))}
	if l.key != "" {
		m.Header = nats.Header{"Nats-Msg-Id": []string{l.key + strconv.Itoa(i)}}
	}
	return m
}

// handIn makes the call of job i through entry at, counted round.
func (l *load) handIn(at, i int, due time.Duration, done func()) {
	l.entries[at%len(l.entries)].handIn(l, i, due, func(err error) {
		if err != nil {
			l.refused.Add(1)
			l.fail(err)
		} else {
			l.accepted.Add(1)
		}
		done()
	})
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble == nil {
		l.trouble = err
	}
}

// failure is the first thing that went wrong.
func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// started notes that a job runs, by its body's due time.
func (l *load) started(due int64) {
	took := time.Since(l.began) - time.Duration(due)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil {
		if _, again := l.seen[due]; again {
			return
		}
		l.seen[due] = false
	}
	l.latencies = append(l.latencies, float64(took)/1e6)
}

// ended notes that a job is settled, likewise.
func (l *load) ended(due int64) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil {
		if l.seen[due] {
			return
		}
		l.seen[due] = true
	}
	l.settled.Add(1)
	l.lastEnd = now
}

// mayRunAgain tells that nodes die under this load, so that a job may run more
// than once.
func (l *load) mayRunAgain() bool { return l.seen != nil }

// async hands in n jobs, so many calls under way.
func (l *load) async(ctx context.Context, n, flight int) error {
	slots := make(chan struct{}, flight)
	for i := range n {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.handIn(i, i, time.Since(l.began), func() { <-slots })
	}
	return l.awaitAnswers(ctx, n)
}

// sync has 64 callers hand in one job after the other for a time.
func (l *load) sync(ctx context.Context, d time.Duration) error {
	var next atomic.Int64
	var callers sync.WaitGroup
	for at := range syncCalls {
		callers.Go(func() {
			answered := make(chan struct{}, 1)
			late := time.NewTimer(patience)
			defer late.Stop()
			for time.Since(l.began) < d && ctx.Err() == nil {
				l.handIn(at, int(next.Add(1)-1), time.Since(l.began), func() { answered <- struct{}{} })
				select {
				case <-answered:
				case <-late.C:
					l.fail(fmt.Errorf("a call was not answered within %v", patience))
					return
				}
			}
		})
	}
	callers.Wait()
	return l.awaitAnswers(ctx, int(next.Load()))
}

// open hands in so many jobs a second for a time, each when it is due.
func (l *load) open(ctx context.Context, rate int, d time.Duration) error {
	return l.openWhile(ctx, rate, func(due time.Duration) bool { return due < d })
}

// openWhile goes on while more says so of the next job's due time.
func (l *load) openWhile(ctx context.Context, rate int, more func(due time.Duration) bool) error {
	step := time.Second / time.Duration(rate)
	tick := time.NewTimer(0)
	defer tick.Stop()
	i := 0
	for {
		due := time.Duration(i) * step
		if !more(due) {
			return l.awaitAnswers(ctx, i)
		}
		if early := due - time.Since(l.began); early > 0 {
			tick.Reset(early)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		l.handIn(i, i, due, func() {})
		i++
	}
}

func (l *load) awaitAnswers(ctx context.Context, n int) error {
	err := until(ctx, patience, func() bool { return l.accepted.Load()+l.refused.Load() >= int64(n) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allIn = time.Now()
	if l.trouble != nil {
		return fmt.Errorf("%d of %d jobs were refused: %w", l.refused.Load(), n, l.trouble)
	}
	if err != nil {
		return fmt.Errorf("%d of %d calls were answered: %w", l.accepted.Load(), n, err)
	}
	return nil
}

// awaitEnds waits until everything that was accepted is settled.
func (l *load) awaitEnds(ctx context.Context) error {
	err := until(ctx, patience, func() bool { return l.settled.Load() >= l.accepted.Load() })
	if accepted, settled := l.accepted.Load(), l.settled.Load(); err != nil || accepted != settled {
		return fmt.Errorf("accepted %d, settled %d: they must be equal", accepted, settled)
	}
	return nil
}

// endedAt is when the last job was settled.
func (l *load) endedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastEnd
}

// rate is settled jobs a second, from the begin to the last end.
func (l *load) rate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.settled.Load()) / l.lastEnd.Sub(l.began).Seconds()
}

// acceptRate is accepted jobs a second, from the begin to the last answer.
func (l *load) acceptRate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.accepted.Load()) / l.allIn.Sub(l.began).Seconds()
}

// latency is p50 and p99 from due to started, in ms.
func (l *load) latency() (p50, p99 float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	values := slices.Clone(l.latencies)
	return quantile(values, 0.5), quantile(values, 0.99)
}

// until looks at a fact each millisecond.
func until(ctx context.Context, within time.Duration, fact func() bool) error {
	late := time.NewTimer(within)
	defer late.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !fact() {
		select {
		case <-tick.C:
		case <-late.C:
			return fmt.Errorf("not within %v", within)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// dueOf reads the due time from a job's body.
func dueOf(body []byte) int64 {
	digits := body[len(`{"params":{"due":`):]
	var due int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			break
		}
		due = due*10 + int64(c-'0')
	}
	return due
}

// round is what one round came to.
type round struct {
	value, p99    float64
	accepted      float64 // a second; 0 where value says it
	jobs, settled int
	repeated      int
	// Processors kept busy: by nodes or peers, by this process, and by all
	// that runs on the machine.
	cores, load, machine float64
}

// round sums the load up: as a latency, or as a rate.
func (l *load) round(latency bool) round {
	r := round{jobs: int(l.accepted.Load()), settled: int(l.settled.Load()), repeated: int(l.repeated.Load())}
	if latency {
		r.value, r.p99 = l.latency()
	} else {
		r.value, r.accepted = l.rate(), l.acceptRate()
	}
	return r
}

// meter tells how busy processors were.
type meter struct {
	others      func() time.Duration
	began       time.Time
	mine, spent time.Duration
	all         time.Duration
}

func startMeter(others func() time.Duration) meter {
	return meter{others: others, began: time.Now(), mine: ownCPU(), spent: others(), all: yard.MachineCPU()}
}

func (m meter) end(r round) round {
	took := time.Since(m.began).Seconds()
	r.cores, r.load = (m.others()-m.spent).Seconds()/took, (ownCPU()-m.mine).Seconds()/took
	r.machine = (yard.MachineCPU() - m.all).Seconds() / took
	return r
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
