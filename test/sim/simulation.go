package sim

import (
	"container/heap"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Report is the result of one run.
type Report struct {
	Plan
	TraceHash      uint64   // hash of the trace; 0 unless Plan.Trace or Plan.Verbose is set
	Log            []string // the trace, if Plan.Verbose is set
	Failures       []string // violated invariants; empty if the run succeeded
	Untried        string   // why the steps of the plan could not be taken; "" if they were
	Accepted       int      // jobs
	Entries        int      // Raft entries
	Tenures        int
	Crashes        int
	Restarts       int // starts of jobs after their first start
	StaleOutcomes  int // outcomes that came too late and were ignored
	Moves          int // dispatches that moved to another node
	Ticks          int // cron ticks that made a job
	Faults         int // faults of the plan, also those left out
	Composed       int // composed faults
	LongRuns       int // runs of the long shape
	TruncatedLanes int // truncations of lanes that the authority has reported
	Relocated      int // records stored in the stream of relocated records
	Operations     int // operations that were carried out to their end
	Operated       int // changes of jobs by operations
	Inherited      int // operations that went on under another authority
	Packed         int // records stored in one message with others, apart from its first
	Clocks         clockCounts
	Duration       time.Duration // simulated time
}

// add adds o's counts to r's.
func (r *Report) add(o *Report) {
	r.Accepted += o.Accepted
	r.Entries += o.Entries
	r.Tenures += o.Tenures
	r.Crashes += o.Crashes
	r.Restarts += o.Restarts
	r.StaleOutcomes += o.StaleOutcomes
	r.Moves += o.Moves
	r.Ticks += o.Ticks
	r.Faults += o.Faults
	r.Composed += o.Composed
	r.LongRuns += o.LongRuns
	r.TruncatedLanes += o.TruncatedLanes
	r.Relocated += o.Relocated
	r.Operations += o.Operations
	r.Operated += o.Operated
	r.Inherited += o.Inherited
	r.Packed, r.Duration = r.Packed+o.Packed, r.Duration+o.Duration
	r.Clocks.add(&o.Clocks)
}

// summary returns r's counts as text.
func (r *Report) summary() string {
	return fmt.Sprintf("%d jobs, %d entries, %d faults (%d composed), %d long runs, %d leaders, %d crashes, %d truncated lanes, %d records packed, %d relocated, %d operations done (%d by several authorities), %d jobs changed by them, %d jobs restarted, %d moved, %d ticks, %d stale outcomes, %s, %s",
		r.Accepted, r.Entries, r.Faults, r.Composed, r.LongRuns, r.Tenures, r.Crashes, r.TruncatedLanes, r.Packed, r.Relocated, r.Operations, r.Inherited, r.Operated, r.Restarts, r.Moves, r.Ticks, r.StaleOutcomes, r.Clocks.summary(), r.Duration.Round(time.Second))
}

// Durations of a run, in simulated time.
const (
	warmup        = time.Second // before the first fault
	checkInterval = 200 * time.Millisecond
)

// shape is how long the parts of a run last, in simulated time.
type shape struct {
	faults     time.Duration // the time of faults
	recovery   time.Duration // after the fault phase, within which all jobs must end
	longJob    time.Duration // the longest first attempt of a job
	longJobs   int           // how many first attempts run for longer than 1.5 s, of a thousand
	jobTimeout time.Duration // hard limit of an attempt
	faultPause time.Duration // the longest time between two faults
}

// The two shapes. In a long run jobs outlast several leases and authorities.
var (
	usualShape = shape{12 * time.Second, 90 * time.Second, 9 * time.Second, 120, 11 * time.Second, 2500 * time.Millisecond}
	longShape  = shape{40 * time.Second, 200 * time.Second, 30 * time.Second, 300, 35 * time.Second, 5 * time.Second}
)

// longRuns is how many runs have the long shape, of a thousand.
const longRuns = 60

// simulation is the state of one run. Apart from the fields below mu, it is used only
// by the function that run currently calls.
type simulation struct {
	plan       Plan
	shape      shape
	started    time.Time
	log        *slog.Logger
	ctx        context.Context
	cancel     context.CancelFunc
	group      sync.WaitGroup
	wake       chan struct{} // buffer of one: the first event of queue has changed
	disks      string        // a directory for the indexes of nodes
	nodes      []*node
	raft       *raft
	lanes      *lanes
	history    *historyStreams
	net        *network
	clocks     *clocks
	producers  *producers
	callers    *callers
	checker    *checker
	brokenNode *node // stays broken after heal; nil: none
	report     Report

	mu    sync.Mutex // guards the fields below and report; never held during a call into another part
	queue eventQueue
	hash  hash.Hash64
}

// Run simulates one plan and returns the result. It must be called in a bubble of
// testing/synctest.
func Run(p Plan) Report {
	sim := &simulation{plan: p, started: time.Now(), wake: make(chan struct{}, 1), hash: fnv.New64a(), log: slog.New(slog.DiscardHandler)}
	sim.report.Plan = p
	sim.shape = usualShape
	if p.Steps == nil && sim.chance("long run", longRuns) {
		sim.shape = longShape
		sim.report.LongRuns++
	}
	sim.disks = makeDisks()
	defer func() { _ = os.RemoveAll(sim.disks) }()
	sim.ctx, sim.cancel = context.WithCancel(context.Background())
	sim.checker = newChecker(sim)
	sim.net = &network{sim: sim, cut: map[[2]string]bool{}, frozen: map[string]time.Time{}, late: map[string]lateness{}, diskBlocked: map[string]time.Time{}}
	sim.clocks = newClocks(sim)
	sim.lanes, sim.history, sim.raft = newLanes(sim), &historyStreams{sim: sim}, &raft{sim: sim}
	for i := range members {
		n := &node{sim: sim, name: nodeName(i)}
		n.process = &process{node: n}
		sim.nodes = append(sim.nodes, n)
	}
	for _, n := range sim.nodes {
		n.start()
	}
	sim.raft.ensureLeader()
	sim.producers, sim.callers = &producers{sim}, &callers{simulation: sim}
	sim.producers.start()
	if p.Steps == nil {
		sim.callers.start()
		sim.after(warmup, "storm", sim.startFaults)
	} else {
		p.begin(sim)
	}
	sim.after(warmup+sim.shape.faults, "heal", sim.heal)
	sim.run()
	sim.cancel()
	sim.noteUntriedClocks()
	for _, n := range sim.nodes {
		n.process.stop()
	}
	sim.group.Wait()
	sim.report.TraceHash, sim.report.Duration = sim.hash.Sum64(), time.Since(sim.started)
	return sim.report
}

// makeDisks returns a new directory, in memory if the system has such a place: the simulation loses no files of
// the indexes that were not synced.
func makeDisks() string {
	dir, err := os.MkdirTemp("/dev/shm", "sim")
	if err != nil {
		if dir, err = os.MkdirTemp("", "sim"); err != nil {
			panic(err)
		}
	}
	return dir
}

// members is the number of nodes.
const members = 3

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// heal ends all faults, in some runs all but those of one node, and starts to check
// whether the cluster recovers.
func (sim *simulation) heal() {
	sim.net.heal()
	sim.clocks.heal()
	sim.lanes.heal()
	if sim.plan.Steps == nil {
		sim.keepOneBroken()
	}
	for _, n := range sim.nodes {
		sim.restart(n)
	}
	sim.raft.ensureLeader()
	sim.callers.cleanUp()
	sim.after(checkInterval, "look", func() { sim.checkRecovery(time.Now().Add(sim.shape.recovery)) })
}

// checkRecovery ends the run when all work has ended, or as a failure when it has not
// by the given time.
func (sim *simulation) checkRecovery(until time.Time) {
	problems := sim.checker.unfinished()
	if lane := sim.lanes.truncated(); lane != nil && sim.checker.lossReported(problems) {
		sim.trace("truncated lane restored")
		lane.truncatedTo = 0
		sim.report.TruncatedLanes++
	}
	switch {
	case len(problems) == 0:
		sim.checker.checkFinal()
		sim.cancel()
	case time.Now().After(until):
		sim.fail("not recovered %s after all was healed: %s", sim.shape.recovery, strings.Join(problems, "; "))
		sim.cancel()
	default:
		sim.after(checkInterval, "look", func() { sim.checkRecovery(until) })
	}
}

// fail records a violated invariant and ends the run: later violations would only
// follow from this one.
func (sim *simulation) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	sim.trace("FAILED %s", text)
	sim.mu.Lock()
	sim.report.Failures = append(sim.report.Failures, text)
	sim.mu.Unlock()
	sim.cancel()
}

// tracing reports whether the run is traced.
func (sim *simulation) tracing() bool { return sim.plan.Verbose || sim.plan.Trace }

// trace adds a line to the trace: to its hash and, if Plan.Verbose is set, to the
// log.
func (sim *simulation) trace(format string, args ...any) {
	if !sim.tracing() {
		return
	}
	line := fmt.Sprintf("%11.6f ", time.Since(sim.started).Seconds()) + fmt.Sprintf(format, args...)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if sim.ctx.Err() != nil {
		return // after the end goroutines stop in any order
	}
	sim.hash.Write([]byte(line))
	if sim.plan.Verbose {
		sim.report.Log = append(sim.report.Log, line)
	}
}

// timedEvent is a function to be called at a time. Events at the same time are
// ordered by key.
type timedEvent struct {
	at  time.Time
	key string
	do  func()
}

// after schedules an event: run calls do after d, while all other goroutines are
// blocked.
func (sim *simulation) after(d time.Duration, key string, do func()) {
	sim.schedule(time.Now().Add(d), key, do)
}

// schedule is after with an absolute time.
func (sim *simulation) schedule(at time.Time, key string, do func()) {
	sim.mu.Lock()
	heap.Push(&sim.queue, &timedEvent{at, key, do})
	first := sim.queue[0].at
	sim.mu.Unlock()
	if !first.Before(at) {
		select {
		case sim.wake <- struct{}{}:
		default:
		}
	}
}

// run calls the scheduled events in order until the run ends.
func (sim *simulation) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		synctest.Wait()
		if sim.ctx.Err() != nil {
			return
		}
		sim.mu.Lock()
		var next *timedEvent
		wait := time.Hour
		if len(sim.queue) > 0 {
			if wait = time.Until(sim.queue[0].at); wait <= 0 {
				next = heap.Pop(&sim.queue).(*timedEvent)
			}
		}
		sim.mu.Unlock()
		if next != nil {
			next.do()
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-sim.wake:
		case <-sim.ctx.Done():
		}
	}
}

type eventQueue []*timedEvent

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].key < q[j].key
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(*timedEvent)) }
func (q *eventQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}

// random returns a number that depends on the seed, the key and the time, and so not
// on the order of calls at the same time.
func (sim *simulation) random(key string) uint64 {
	hash := sim.plan.Seed ^ 0x9e3779b97f4a7c15*uint64(time.Since(sim.started))
	for i := range len(key) {
		hash = (hash ^ uint64(key[i])) * 0x100000001b3
	}
	hash ^= hash >> 30
	hash *= 0xbf58476d1ce4e5b9
	hash ^= hash >> 27
	hash *= 0x94d049bb133111eb
	return hash ^ hash>>31
}

// intn returns a random number in [0, n).
func (sim *simulation) intn(key string, n int) int { return int(sim.random(key) % uint64(n)) }

// chance returns true with a probability of perMille/1000.
func (sim *simulation) chance(key string, perMille int) bool {
	return sim.intn(key, 1000) < perMille
}

// duration returns a random duration in [from, to), in nanoseconds, so that two
// events hardly ever happen at the same time.
func (sim *simulation) duration(key string, from, to time.Duration) time.Duration {
	return from + time.Duration(sim.random(key)%uint64(to-from))
}

// faultsActive reports whether the run is in its fault phase. It depends on the time
// only, because any goroutine may call it.
func (sim *simulation) faultsActive() bool {
	since := time.Since(sim.started)
	return since >= warmup && since < warmup+sim.shape.faults
}

// minorFaultsActive reports whether single messages and operations may fail or be
// late.
func (sim *simulation) minorFaultsActive() bool { return !sim.plan.MajorOnly && sim.faultsActive() }

// delay returns how long an operation takes: mostly usual/8 to usual and, while minor
// faults are active, in 3 % of cases up to worst.
func (sim *simulation) delay(key string, usual, worst time.Duration) time.Duration {
	if sim.minorFaultsActive() && sim.chance(key+"?", 30) {
		return sim.duration(key, usual, worst)
	}
	return sim.duration(key, usual/8, usual)
}

// Plan is a seed and what is left out of its run, by default nothing.
type Plan struct {
	Seed       uint64
	Verbose    bool         // return the trace in Report.Log
	Trace      bool         // compute Report.TraceHash
	Jobs       int          // number of jobs that producers enqueue; 0: jobsPerYard
	SkipFaults map[int]bool // faults to leave out, by their number in the run
	MajorOnly  bool         // no minor faults: no message is lost, no answer is late
	NoCallers  bool         // no commands from callers

	Steps []Step                   // events that replace the random ones; nil: none
	Lasts map[job.ID]time.Duration // how long the first attempts of the Steps' jobs run; 0: random
}

// jobs returns how many jobs are enqueued.
func (p Plan) jobs() int {
	if p.Jobs > 0 {
		return p.Jobs
	}
	return jobsPerYard
}

// drawn returns how many jobs are enqueued at random times.
func (p Plan) drawn() int {
	if p.Steps != nil {
		return 0
	}
	return p.jobs()
}

// Command returns the shell command that repeats the plan.
func (p Plan) Command() string {
	if len(p.SkipFaults) == 0 && p.Jobs == 0 && !p.MajorOnly && !p.NoCallers {
		return fmt.Sprintf("make sim FIRST=%d SEEDS=1", p.Seed)
	}
	line := fmt.Sprintf("go test ./test/sim -run 'TestSeed$' -v -seed=%d", p.Seed)
	if p.Jobs > 0 {
		line += fmt.Sprintf(" -jobs=%d", p.Jobs)
	}
	if len(p.SkipFaults) > 0 {
		line += " -without=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Sorted(maps.Keys(p.SkipFaults))), " ", ","), "[]")
	}
	if p.MajorOnly {
		line += " -quiet"
	}
	if p.NoCallers {
		line += " -alone"
	}
	return line
}

// nextFaultEnabled counts the next fault and reports whether the plan includes it.
// Faults that are left out are counted, so that the others keep their numbers while
// the run is otherwise the same.
func (sim *simulation) nextFaultEnabled() bool {
	sim.report.Faults++
	return !sim.plan.SkipFaults[sim.report.Faults]
}

// shrinkAttempts is the maximum number of plans that Shrink tries.
const shrinkAttempts = 120

// Shrink reduces a failing plan to what it needs to fail with the same kind of
// failure: it leaves out callers, minor faults, jobs and faults. play runs a plan.
func Shrink(failed Report, play func(Plan) Report) (Plan, Report) {
	least, report := failed.Plan, failed
	kind := failureKind(failed)
	tries := 0
	try := func(change func(*Plan)) bool {
		if tries++; tries > shrinkAttempts {
			return false
		}
		p := least
		p.SkipFaults = maps.Clone(least.SkipFaults)
		if p.SkipFaults == nil {
			p.SkipFaults = map[int]bool{}
		}
		change(&p)
		r := play(p)
		if len(r.Failures) == 0 || failureKind(r) != kind {
			return false
		}
		least, report = p, r
		return true
	}
	try(func(p *Plan) { p.NoCallers = true })
	try(func(p *Plan) { p.MajorOnly = true })
	for jobs := jobsPerYard / 2; jobs > 0 && try(func(p *Plan) { p.Jobs = jobs }); jobs /= 2 {
	}
	for _, width := range []int{8, 3, 1} { // groups of faults first
		for from := report.Faults - width + 1; from > 0; from -= width {
			try(func(p *Plan) {
				for n := from; n < from+width; n++ {
					p.SkipFaults[n] = true
				}
			})
		}
	}
	return least, report
}

var variableParts = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]+|[0-9]+|after all was healed: .*`)

// failureKind returns a report's first failure without ids and numbers.
func failureKind(r Report) string {
	if len(r.Failures) == 0 {
		return ""
	}
	return variableParts.ReplaceAllString(r.Failures[0], "·")
}
