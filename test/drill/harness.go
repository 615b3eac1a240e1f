package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Harness is the environment of one drill: a cluster, loads for it, and the report.
// Its methods end the drill if they fail, as [must.Do] does, and must be called from the
// goroutine of the drill, except Logf, Require, Target and Figure, which are safe for
// concurrent use. Where a failure is an answer, use the methods of Cluster and Node.
type Harness struct {
	*Cluster
	Ctx   context.Context // ends with the time limit of the drill
	Seed  uint64
	Rand  *rand.Rand // determines the schedule of faults, from Seed
	Quick bool       // repeat each fault only as often as needed to show it

	progress        io.Writer
	began           time.Time
	loads           []*Load
	loadGroup       sync.WaitGroup
	loadsEndedAt    int64 // when the loads were stopped, by the host's clock
	faults          []fault
	targets         map[string]Limits
	authorityLimits []authorityLimit
	ignorable       func(refusal string) bool // nil if publishes may fail and runs be repeated

	limits        namedLimits
	observer      observer
	contention    contention
	orphans       orphans
	stopObservers context.CancelFunc // stops the observer and the contending writers
	baselines     map[string]usage

	mu        sync.Mutex
	report    *Report
	loadError error
}

// fault is the time at which a fault was injected, or healed.
type fault struct {
	what string
	at   int64 // by the host's clock
}

// authorityLimit limits the changes of authority in a period.
type authorityLimit struct {
	name     string
	from, to int64 // by the host's clock
	max      int   // changes of authority
}

// Limits are the targets for one kind of fault; 0 means none.
type Limits struct {
	Dispatch time.Duration // 99th percentile of the times in which no job begins
	Ack      time.Duration // 99th percentile of the times in which no job is acknowledged
}

// Logf adds a line to the timeline of the report.
func (h *Harness) Logf(format string, v ...any) {
	line := fmt.Sprintf("%7.2fs  %s", time.Since(h.began).Seconds(), fmt.Sprintf(format, v...))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report.Timeline = append(h.report.Timeline, line)
	if h.progress != nil {
		fmt.Fprintln(h.progress, line)
	}
}

// Require records a broken promise unless kept is true.
func (h *Harness) Require(kept bool, format string, v ...any) {
	if !kept {
		h.note(&h.report.Broken, "BROKEN", fmt.Sprintf(format, v...))
	}
}

// RequireTried records, unless tried is true, that the drill did not inject its fault: the moment
// for the fault did not come, for example because the machine is busy. No promise was broken then,
// but none was shown to be kept either.
func (h *Harness) RequireTried(tried bool, format string, v ...any) {
	if !tried {
		h.note(&h.report.Untried, "not tried", fmt.Sprintf(format, v...))
	}
}

// note adds what to a list of the report, and to the timeline under a label.
func (h *Harness) note(list *[]string, label, what string) {
	h.Logf("%s: %s", label, what)
	h.mu.Lock()
	defer h.mu.Unlock()
	*list = append(*list, what)
}

// Figure adds a figure to the report.
func (h *Harness) Figure(name string, value any) {
	if d, ok := value.(time.Duration); ok {
		value = d.Round(time.Millisecond).String()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report.Figures = append(h.report.Figures, Figure{name, fmt.Sprint(value)})
}

// Target adds a figure that should be at most limit. A missed target is reported
// separately. It does not break a promise, because the machine may be busy.
func (h *Harness) Target(name string, got, limit time.Duration) {
	h.Figure(name, got)
	if got > limit {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.report.Missed = append(h.report.Missed, fmt.Sprintf("%s %s, target %s", name, got.Round(time.Millisecond), limit))
	}
}

// SetTargets sets the targets for the gaps around faults of one kind.
func (h *Harness) SetTargets(what string, l Limits) { h.targets[what] = l }

// Fault records that a fault is injected now. Gaps after it, up to the next fault,
// are attributed to it.
func (h *Harness) Fault(what, detail string) {
	h.faults = append(h.faults, fault{what, HostClock()})
	h.Logf("%s: %s", what, detail)
}

// Recover records the healing as an event to which gaps are attributed, and calls
// [Harness.Heal].
func (h *Harness) Recover() {
	h.faults = append(h.faults, fault{recovered, HostClock()})
	h.Heal()
}

// recovered is the name of the fault to which gaps after healing are attributed.
const recovered = "healed"

// Repeats returns how often to repeat a fault: n times, or at most twice in a quick
// run.
func (h *Harness) Repeats(n int) int {
	if h.Quick {
		return min(n, 2)
	}
	return n
}

// RandDuration returns a random duration between minimum and maximum.
func (h *Harness) RandDuration(minimum, maximum time.Duration) time.Duration {
	return minimum + time.Duration(h.Rand.Int64N(int64(maximum-minimum)+1))
}

// RequireNoRetries makes repeated runs and failed publishes break the promises of
// the drill. Publishes that fail for an ignorable reason do not count.
func (h *Harness) RequireNoRetries(ignorable func(refusal string) bool) { h.ignorable = ignorable }

// checkNoRetries checks the promise made by [Harness.RequireNoRetries].
func (h *Harness) checkNoRetries(v *Verdict) {
	if h.ignorable == nil {
		return
	}
	failed := 0
	for reason, times := range v.Refusals {
		if !h.ignorable(reason) {
			h.Logf("%d publishes failed: %s", times, reason)
			failed += times
		}
	}
	h.Figure("failed publishes, and those repeated at another node", fmt.Sprintf("%d, %d", failed, v.Retried-failed))
	h.Figure("repeated runs", v.Reruns)
	h.Require(failed == 0, "%d publishes failed", failed)
	h.Require(v.Reruns == 0, "%d jobs ran again", v.Reruns)
}

// LimitAuthorityChanges makes it break a promise if the authority has changed more
// than limit times from since, by the host's clock, until now.
func (h *Harness) LimitAuthorityChanges(name string, since int64, limit int) {
	h.authorityLimits = append(h.authorityLimits, authorityLimit{name, since, HostClock(), limit})
}

// HostClock returns the host's monotonic clock in nanoseconds. It is the same for
// all processes of the host.
func HostClock() int64 {
	now, _ := readHostClock() // cannot fail
	return now
}

// Sleep waits for d.
func (h *Harness) Sleep(d time.Duration) { must.Do(backoff.Sleep(h.Ctx, d)) }

// Pause waits for a random time between minimum and maximum.
func (h *Harness) Pause(minimum, maximum time.Duration) { h.Sleep(h.RandDuration(minimum, maximum)) }

// Until waits until fact returns nil.
func (h *Harness) Until(what string, fact func() error) { must.Do(until(h.Ctx, what, fact)) }

// Within polls fact until it returns true or the limit has passed, and reports
// whether it did.
func (h *Harness) Within(limit time.Duration, fact func() bool) bool {
	for end := time.Now().Add(limit); h.Ctx.Err() == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if fact() {
			return true
		}
	}
	return false
}

// StartLoads starts to publish loads. They are stopped when the drill ends.
func (h *Harness) StartLoads(loads ...*Load) {
	for _, l := range loads {
		h.loads = append(h.loads, l)
		h.loadGroup.Go(func() {
			if err := l.Run(h.Ctx, h.Cluster); err != nil {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.loadError = errors.Join(h.loadError, err)
			}
		})
	}
}

// The queues of [Harness.StartSteadyLoad].
const (
	FreeQueue    = "free"
	LimitedQueue = "limited" // concurrency limit Strict
	RunnerQueue  = "rrq"
	Strict       = 3
)

// StartSteadyLoad creates the queues, starts workers, and publishes several hundred
// jobs per second of all kinds over all transports until the drill ends. It returns
// when jobs run.
func (h *Harness) StartSteadyLoad() { h.StartSteadyLoadAt(20 * time.Millisecond) }

// StartSteadyLoadAt is StartSteadyLoad with another pause of each publisher between two
// jobs.
func (h *Harness) StartSteadyLoadAt(interval time.Duration) {
	h.StartWorkers(3, 16, 2*time.Millisecond)
	loads := []*Load{
		{Queue: LimitedQueue, Parallel: 1, Pace: interval},
		{Queue: RunnerQueue, Function: "demo#echo", Parallel: 1, Pace: interval},
	}
	for _, t := range Transports {
		loads = append(loads, &Load{Queue: FreeQueue, Transport: t, Parallel: 2, Pace: interval})
	}
	loads = append(loads, CustomerLoads(func(string) *Load { return &Load{Parallel: 1, Pace: interval} })...)
	h.StartLoads(loads...)
	h.startObservers()
	h.AwaitAcked(10, h.loads...)
}

// AwaitAcked waits until n jobs of each load are acknowledged.
func (h *Harness) AwaitAcked(n int, loads ...*Load) {
	h.Until("jobs are acknowledged", func() error {
		for _, l := range loads {
			if l.Acked() < n {
				return fmt.Errorf("%d of %d jobs like %s are acknowledged; refusals: %v", l.Acked(), n, l.Key(0), l.Refusals())
			}
		}
		return nil
	})
}

// startObservers starts the observers and the contending writers, one of each per
// node. They stop with the loads.
func (h *Harness) startObservers() {
	ctx, stop := context.WithCancel(h.Ctx)
	h.stopObservers = stop
	for i, n := range h.Nodes {
		rnd := rand.New(rand.NewPCG(h.Seed, uint64(1000+i)))
		h.contention.runWriter(ctx, i, n, rnd.IntN)
		h.observer.observe(ctx, n)
	}
}

// StartWorkers creates the queues and starts workers: as many for FreeQueue, with
// these credits, as for LimitedQueue and KeyedQueue. hold is how long they take over a job.
func (h *Harness) StartWorkers(workers int, credits uint32, hold time.Duration) {
	h.AddQueue(FreeQueue, 0)
	h.AddQueue(LimitedQueue, Strict)
	h.AddQueue(RunnerQueue, 0)
	h.addKeyedQueue()
	for range workers {
		h.AddWorker(Task{Queue: FreeQueue, Credits: credits, Hold: hold})
		h.AddWorker(Task{Queue: LimitedQueue, Credits: 4, Hold: 2 * hold})
		h.AddWorker(Task{Queue: KeyedQueue, Credits: 4, Hold: 2 * hold})
	}
}

// AddQueues creates queues without a limit.
func (h *Harness) AddQueues(names ...string) {
	for _, name := range names {
		h.AddQueue(name, 0)
	}
}

// AddQueue creates a queue, without a limit if limit is 0.
func (h *Harness) AddQueue(name string, limit int) { must.Do(h.Cluster.AddQueue(h.Ctx, name, limit)) }

// AddWorker starts a worker process that uses all nodes.
func (h *Harness) AddWorker(t Task) *procs.Process {
	t.Nodes = h.Edges()
	return must.Get(h.Cluster.AddWorker(t))
}

// Ask sends an API request, named by noun and verb, to one running node after the
// other until one answers, and decodes the answer into answer unless that is nil. A
// conflict means that an earlier request was executed.
func (h *Harness) Ask(verb string, request, answer any) {
	if answer == nil {
		answer = new(any)
	}
	h.Until(verb, func() error {
		err := errors.New("no node is running")
		for _, n := range h.Running() {
			err = n.Ask(h.Ctx, api.SubjectAPI+"."+verb, request, answer)
			if refused := (*api.Error)(nil); err == nil || errors.As(err, &refused) && refused.Code == "409" {
				return nil
			}
		}
		return err
	})
}

// Acked returns the number of jobs acknowledged so far.
func (h *Harness) Acked() (n int) {
	for _, l := range h.loads {
		n += l.Acked()
	}
	return n
}

// RequireAcks requires that n more jobs are acknowledged within a time. when says when
// they should be.
func (h *Harness) RequireAcks(n int, limit time.Duration, when string) {
	acked := h.Acked()
	h.Require(h.Within(limit, func() bool { return h.Acked() > acked+n }), "no jobs are acknowledged %s", when)
}

// AwaitAuthority waits until a node holds the authority, and returns it.
func (h *Harness) AwaitAuthority() (n *Node) {
	h.Until("there is an authority", func() (err error) { n, err = h.Authority(h.Ctx); return err })
	return n
}

// AwaitOtherAuthority waits until a node other than except holds the authority,
// without asking except. It returns nil if there is none within the limit.
func (h *Harness) AwaitOtherAuthority(limit time.Duration, except *Node) (n *Node) {
	rest := Cluster{Nodes: slices.DeleteFunc(slices.Clone(h.Nodes), func(n *Node) bool { return n == except })}
	h.Within(limit, func() bool { n, _ = rest.Authority(h.Ctx); return n != nil })
	return n
}

// WaitReady waits until every running node is ready and sees all running nodes.
func (h *Harness) WaitReady() { must.Do(h.Cluster.WaitReady(h.Ctx)) }

// StartNodes starts all nodes and returns when they are ready.
func (h *Harness) StartNodes() { must.Do(h.Start(h.Ctx)) }

// Heal undoes all faults of links and disks, resumes stopped nodes and starts those
// that have exited. It returns when all nodes are ready.
func (h *Harness) Heal() {
	if h.Net != nil {
		must.Do(h.Net.Heal())
	}
	began := time.Now()
	for _, n := range h.Nodes {
		if n.Disk != nil {
			must.Do(n.Disk.Repair())
		}
		if n.Running() {
			must.Do(n.Signal(syscall.SIGCONT))
		} else {
			must.Do(n.Start())
		}
	}
	h.WaitReady()
	h.Logf("all nodes are ready after %s", time.Since(began).Round(time.Millisecond))
}

// StopLoads stops the loads, the observers and the contending writers. It is called
// when Run has returned; a drill may call it before.
func (h *Harness) StopLoads() error {
	if h.loadsEndedAt == 0 {
		h.loadsEndedAt = HostClock()
	}
	for _, l := range h.loads {
		l.Stop()
	}
	h.loadGroup.Wait()
	h.stopObservers()
	h.observer.done.Wait()
	h.contention.done.Wait()
	return h.loadError
}
