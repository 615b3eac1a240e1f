package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"

	"github.com/nats-io/nats.go"
)

// The parameters of loads.
const (
	bodySize    = 256  // size of a job in bytes
	window      = 4000 // concurrent calls of an asynchronous load
	syncCalls   = 64   // callers that wait for each answer
	waitTimeout = 30 * time.Second
)

// jobBody returns the record of a job, 256 bytes of JSON, with the time at which it
// was due, in nanoseconds after the begin of the load. fields is "" or more fields of the record, as
// JSON, which begin with a comma.
func jobBody(function, fields string, due int64) []byte {
	b := make([]byte, 0, bodySize)
	b = append(strconv.AppendInt(append(b, `{"params":{"due":`...), due, 10), `,"pad":"`...)
	tail := `"}`
	if function != "" {
		tail += `,"function":"` + function + `"`
	}
	tail += fields + "}"
	b = append(b, padding[:max(bodySize-len(tail)-len(b), 0)]...)
	return append(b, tail...)
}

// transport is a connection over which jobs are enqueued.
type transport interface {
	// submit enqueues job i. done is called once and must not block.
	submit(l *load, i int, due time.Duration, done func(error))
	// repeat sends calls again that were not answered within after, if the
	// transport needs that, and returns their number.
	repeat(after time.Duration) int
}

// asTransports returns connections of one kind as transports.
func asTransports[T transport](conns []T) (transports []transport) {
	for _, c := range conns {
		transports = append(transports, c)
	}
	return transports
}

// load is the load of one round and its progress.
type load struct {
	transports []transport
	subject    string             // NATS subject, or name of the queue over Overhop
	subjects   []string           // if not empty, these instead of subject, in turn; NATS only
	function   string             // of every job; "" means none
	key        string             // prefix of every job's key; "" means no keys
	fields     func(i int) string // more fields of the record of job i, see jobBody; nil means none; NATS only
	failEvery  int                // of how many jobs a worker fails one for good; 0 means none
	began      time.Time

	accepted atomic.Int64
	refused  atomic.Int64
	settled  atomic.Int64
	repeated atomic.Int64

	mu          sync.Mutex
	allAccepted time.Time // when the last call was answered
	lastEnd     time.Time
	latencies   []float64 // from due to started, in ms
	err         error     // the first
	// seen is set if a job may run more than once. It holds the due times of
	// the jobs that have started, true for those that have ended.
	seen map[int64]bool
}

// begin sets the begin of the load. It must be called before the first submit.
func (l *load) begin() { l.began = time.Now() }

// repeatAfter is how long to wait for an answer before a call with a key is repeated.
const repeatAfter = 2 * time.Second

// run calls generate to enqueue jobs, and meanwhile repeats calls with keys that are
// not answered.
func (l *load) run(t *task, generate generator) {
	generating, stop := context.WithCancel(t)
	var repeater sync.WaitGroup
	defer repeater.Wait()
	defer stop()
	repeater.Go(func() {
		for l.key != "" && backoff.Sleep(generating, repeatAfter/4) == nil {
			for _, t := range l.transports {
				l.repeated.Add(int64(t.repeat(repeatAfter)))
			}
		}
	})
	generate(t, l)
}

func (l *load) message(i int, due time.Duration) *nats.Msg {
	subject := l.subject
	if len(l.subjects) > 0 {
		subject = l.subjects[i%len(l.subjects)]
	}
	fields := ""
	if l.fields != nil {
		fields = l.fields(i)
	}
	m := &nats.Msg{Subject: subject, Data: jobBody(l.function, fields, int64(due))}
	if l.key != "" {
		m.Header = nats.Header{"Nats-Msg-Id": []string{l.key + strconv.Itoa(i)}}
	}
	return m
}

// submit enqueues job i over the transport with this index, modulo their number.
func (l *load) submit(transport, i int, due time.Duration, done func()) {
	l.transports[transport%len(l.transports)].submit(l, i, due, func(err error) {
		if err != nil {
			l.refused.Add(1)
			l.fail(err)
		} else {
			l.accepted.Add(1)
		}
		done()
	})
}

// fail records an error, if it is the first.
func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure returns the first error.
func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// started records the start of the job with this due time, unless that is notMeasured.
func (l *load) started(due int64) {
	if due == notMeasured {
		return
	}
	took := time.Since(l.began) - time.Duration(due)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen != nil {
		if _, found := l.seen[due]; found {
			return
		}
		l.seen[due] = false
	}
	l.latencies = append(l.latencies, float64(took)/1e6)
}

// takeLatencies returns the latencies since it was last called, and forgets them.
func (l *load) takeLatencies() []float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.latencies
	l.latencies = nil
	return took
}

// ended records that the job with this due time is settled.
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

// mayRerun reports whether a job of this load may run more than once, because nodes
// are killed.
func (l *load) mayRerun() bool { return l.seen != nil }

// async enqueues n jobs with at most limit concurrent calls, and waits for all
// answers.
func (l *load) async(t *task, n, limit int) {
	slots := make(chan struct{}, limit)
	for i := range n {
		select {
		case slots <- struct{}{}:
		case <-t.Done():
			must.Do(t.Err())
		}
		l.submit(i, i, time.Since(l.began), func() { <-slots })
	}
	l.awaitAnswers(t, n)
}

// sync has 64 callers enqueue one job after the other for d.
func (l *load) sync(t *task, d time.Duration) {
	l.callers(t, func(int) bool { return time.Since(l.began) < d })
}

// fixed has 64 callers enqueue one job after the other, n in all.
func (l *load) fixed(t *task, n int) { l.callers(t, func(i int) bool { return i < n }) }

// callers has 64 callers enqueue one job after the other, until more returns false for the
// number of the next job.
func (l *load) callers(t *task, more func(i int) bool) {
	var next, submitted atomic.Int64
	var callers sync.WaitGroup
	for caller := range syncCalls {
		callers.Go(func() {
			answered := make(chan struct{}, 1)
			timer := time.NewTimer(waitTimeout)
			defer timer.Stop()
			for t.Err() == nil {
				i := int(next.Add(1) - 1)
				if !more(i) {
					return
				}
				submitted.Add(1)
				timer.Reset(waitTimeout)
				l.submit(caller, i, time.Since(l.began), func() { answered <- struct{}{} })
				select {
				case <-answered:
				case <-timer.C:
					l.fail(fmt.Errorf("a call was not answered within %v", waitTimeout))
					return
				}
			}
		})
	}
	callers.Wait()
	l.awaitAnswers(t, int(submitted.Load()))
}

// openLoop enqueues rate jobs per second, each when it is due, until more returns false
// for the due time of the next job.
func (l *load) openLoop(t *task, rate int, more func(due time.Duration) bool) {
	earlier, first := time.Since(l.began), l.submitted()
	n := paced(t, time.Now(), rate, more, func(i int, due time.Duration) { l.submit(i, first+i, earlier+due, func() {}) })
	l.awaitAnswers(t, first+n)
}

// submitted returns the number of jobs whose enqueueing was answered.
func (l *load) submitted() int { return int(l.accepted.Load() + l.refused.Load()) }

// saturate enqueues jobs, of which at most limit are not settled yet, until more returns false for
// the number of the next job, and waits for all answers.
func (l *load) saturate(t *task, limit int, more func(i int) bool) {
	i := l.submitted()
	for more(i) {
		if i-int(l.settled.Load()) >= limit {
			must.Do(backoff.Sleep(t, time.Millisecond))
			continue
		}
		l.submit(i, i, time.Since(l.began), func() {})
		i++
	}
	l.awaitAnswers(t, i)
}

// forTime returns a condition for saturate: that less than d has passed since now.
func forTime(d time.Duration) func(int) bool {
	end := time.Now().Add(d)
	return func(int) bool { return time.Now().Before(end) }
}

// paced calls do rate times per second, never before the call is due, until more returns
// false for the due time of the next call. Due times count from began. It returns the
// number of calls.
func paced(t *task, began time.Time, rate int, more func(due time.Duration) bool, do func(i int, due time.Duration)) int {
	step := time.Second / time.Duration(rate)
	for i := 0; ; i++ {
		due := time.Duration(i) * step
		if !more(due) {
			return i
		}
		must.Do(backoff.Sleep(t, time.Until(began.Add(due))))
		do(i, due)
	}
}

// during returns a condition of due times: that they are before d.
func during(d time.Duration) func(due time.Duration) bool {
	return func(due time.Duration) bool { return due < d }
}

// awaitAnswers waits until n calls have been answered. Refused jobs are an error.
func (l *load) awaitAnswers(t *task, n int) {
	err := until(t, waitTimeout, func() bool { return l.accepted.Load()+l.refused.Load() >= int64(n) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allAccepted = time.Now()
	if l.err != nil {
		must.Do(fmt.Errorf("%d of %d jobs were refused: %w", l.refused.Load(), n, l.err))
	}
	if err != nil {
		must.Do(fmt.Errorf("%d of %d calls were answered: %w", l.accepted.Load(), n, err))
	}
}

// awaitEnds waits until all accepted jobs are settled: as long as any are, those that
// remain are late, and if none is for waitTimeout, they are lost.
func (l *load) awaitEnds(ctx context.Context) error {
	for {
		before := l.settled.Load()
		err := until(ctx, waitTimeout, func() bool { return l.settled.Load() >= l.accepted.Load() })
		switch accepted, settled := l.accepted.Load(), l.settled.Load(); {
		case settled > accepted:
			return fmt.Errorf("accepted %d, settled %d: %d ended twice", accepted, settled, settled-accepted)
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("accepted %d, settled %d when the time was up: %d are late or lost", accepted, settled, accepted-settled)
		case settled == before:
			return fmt.Errorf("accepted %d, settled %d, and none for %v: %d are lost", accepted, settled, waitTimeout, accepted-settled)
		}
	}
}

// ranUntil sets when the last job was settled.
func (l *load) ranUntil(end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastEnd = end
}

// endedAt returns when the last job was settled.
func (l *load) endedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastEnd
}

// rate returns settled jobs per second, from the begin to the last end.
func (l *load) rate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.settled.Load()) / l.lastEnd.Sub(l.began).Seconds()
}

// acceptRate returns accepted jobs per second, from the begin to the last answer.
func (l *load) acceptRate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.accepted.Load()) / l.allAccepted.Sub(l.began).Seconds()
}

// until polls fact every millisecond until it is true, limited to within.
func until(ctx context.Context, within time.Duration, fact func() bool) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for !fact() {
		if err := backoff.Sleep(limited, time.Millisecond); err != nil {
			return fmt.Errorf("not within %v: %w", within, err)
		}
	}
	return nil
}

// dueOf reads the due time from the record of a job.
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

// round is the result of one round.
type round struct {
	value, p99    float64
	accepted      float64 // accepted jobs per second; 0 if value is that or a latency
	jobs, settled int
	repeated      int
	// Processors used by nodes or peers, by this process, and by everything on
	// the machine.
	cores, load, machine float64
	cpu                  time.Duration // of nodes or peers and of this process
}

// latencyRound summarizes the latencies of a round, one of each job.
func latencyRound(took []float64) round {
	return round{value: quantile(took, 0.5), p99: quantile(took, 0.99), jobs: len(took), settled: len(took)}
}

// round summarizes the load as a latency or a rate.
func (l *load) round(latency bool) round {
	r := round{jobs: int(l.accepted.Load()), settled: int(l.settled.Load()), repeated: int(l.repeated.Load())}
	if latency {
		l.mu.Lock()
		defer l.mu.Unlock()
		r.value, r.p99 = quantile(l.latencies, 0.5), quantile(l.latencies, 0.99)
	} else {
		r.value, r.accepted = l.rate(), l.acceptRate()
	}
	return r
}

// cpuMeter measures how many processors were used.
type cpuMeter struct {
	others      func() time.Duration // processor time of nodes or peers
	began       time.Time
	mine, spent time.Duration // of this process and of others, at the begin
	all         time.Duration // of the machine, at the begin
}

// measure generates the load, waits until all of its jobs have ended, and returns the
// round. others returns the processor time used by the programs that are measured.
func (l *load) measure(t *task, others func() time.Duration, latency bool, generate generator) round {
	m := startMeter(others)
	l.begin()
	l.run(t, generate)
	must.Do(l.awaitEnds(t))
	return m.end(l.round(latency))
}

// startMeter returns a meter that begins now.
func startMeter(others func() time.Duration) cpuMeter {
	return cpuMeter{others: others, began: time.Now(), mine: procstat.Self().CPU(), spent: others(), all: procstat.MachineCPU()}
}

func (m cpuMeter) end(r round) round {
	took := time.Since(m.began).Seconds()
	others, mine := m.others()-m.spent, procstat.Self().CPU()-m.mine
	r.cores, r.load, r.cpu = others.Seconds()/took, mine.Seconds()/took, others+mine
	r.machine = (procstat.MachineCPU() - m.all).Seconds() / took
	return r
}

// cpuOf returns the processor time used by processes; nil ones were never started.
func cpuOf(processes ...*procs.Process) (sum time.Duration) {
	for _, p := range processes {
		if p != nil {
			sum += procstat.PID(p.PID()).CPU()
		}
	}
	return sum
}
