package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Options configures a run of benchmarks.
type Options struct {
	Only   []string      // names or prefixes of figures to measure; empty means all
	Round  time.Duration // approximate length of a round; 0 means 3 s
	Rounds int           // 0 means 3
	// Documents is the number of jobs in the index that is searched for pages; 0 means 200,000.
	Documents int
	Binary    string    // path of the program to measure
	Profile   bool      // nodes open profiling listeners and print their addresses to Progress
	Out       io.Writer // receives each figure as a line of JSON
	// Progress receives messages for people.
	Progress io.Writer
}

// ErrUnknownFigure is returned if no figure matches Options.Only.
var ErrUnknownFigure = errors.New("no figure has that name")

const defaultRound = 3 * time.Second

// bench is a run of benchmarks.
type bench struct {
	Options
	self    string // path of this process, which runs [Peer] if it is started with PeerVerb
	figures []Figure
	needed  []string // floors of the selected figures
}

// experiment measures one figure.
type experiment struct {
	name, unit string
	target     target
	note       string
	rounds     int // to measure; 0 means Options.Rounds. 1 is for a figure that hardly varies
	run        measurement
	check      func() error // of what all rounds together must have done; nil: nothing
}

// suite is a set of experiments that share the same processes.
type suite struct {
	name  string
	names []experiment
	open  func(t *task) // starts the processes that the experiments use; nil: none
	// interleaved has the experiments take turns, round by round, so that the speed of the
	// machine, which varies, is the same for a figure and its floor.
	interleaved bool
}

// measurement measures one round.
type measurement = func(t *task) round

// generator generates a load.
type generator = func(t *task, l *load)

// Run measures figures and returns them in order. It leaves no process behind. It
// returns an error if a figure could not be measured or a job was accepted and not
// settled.
func Run(ctx context.Context, o Options) ([]Figure, error) {
	if o.Round == 0 {
		o.Round = defaultRound
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Documents == 0 {
		o.Documents = 200_000
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this process: %w", err)
	}
	b := &bench{Options: o, self: self}
	suites := b.suites()
	b.needed = floorsOf(suites, b.Only)
	if !slices.ContainsFunc(suites, func(s suite) bool { return len(b.wanted(s)) > 0 }) {
		return nil, fmt.Errorf("%s: %w; there are %s", strings.Join(o.Only, ", "), ErrUnknownFigure, strings.Join(Names(), ", "))
	}
	dir, err := os.MkdirTemp("", "yardmaster-bench-")
	if err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	for _, s := range suites {
		if err := perform(ctx, filepath.Join(dir, s.name), func(t *task) { b.runSuite(t, s) }); err != nil {
			return b.figures, fmt.Errorf("%w; logs and data are in %s", err, dir)
		}
	}
	return b.figures, os.RemoveAll(dir)
}

// Names returns the names of all figures.
func Names() []string {
	var names []string
	for _, s := range (&bench{}).suites() {
		for _, e := range s.names {
			names = append(names, e.name)
		}
	}
	return names
}

// floorsOf returns the floors that the selected figures are compared with and that are
// measured as well: those without a yard, and those that take turns with their figures.
func floorsOf(suites []suite, only []string) (floors []string) {
	for _, s := range suites {
		for _, e := range s.names {
			if hasPrefix(e.name, only) && e.target.floor != "" && (s.interleaved || strings.HasPrefix(e.target.floor, "floor.")) {
				floors = append(floors, e.target.floor)
			}
		}
	}
	return floors
}

// hasPrefix reports whether name begins with one of the prefixes.
func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// wanted returns the experiments of a suite that are selected or needed as floors.
func (b *bench) wanted(s suite) []experiment {
	if len(b.Only) == 0 {
		return s.names
	}
	return slices.DeleteFunc(slices.Clone(s.names), func(e experiment) bool {
		return !hasPrefix(e.name, b.Only) && !slices.Contains(b.needed, e.name)
	})
}

// runSuite starts the processes of a suite and runs its selected experiments.
func (b *bench) runSuite(t *task, s suite) {
	wanted := b.wanted(s)
	if len(wanted) == 0 {
		return
	}
	must.Do(os.Mkdir(t.dir, 0o750))
	b.logf("%s: starting", s.name)
	if s.open != nil {
		s.open(t)
	}
	if s.interleaved {
		b.measure(t, wanted)
		return
	}
	for i := range wanted {
		b.measure(t, wanted[i:i+1])
	}
}

// measure runs all rounds of some experiments, which take turns, and records their figures.
func (b *bench) measure(t *task, experiments []experiment) {
	figures := make([]Figure, len(experiments))
	for n, left := 0, true; left; n++ {
		left = false
		for i := range experiments {
			rounds := cmp.Or(experiments[i].rounds, b.Rounds)
			if n < rounds && figures[i].Skipped == "" {
				b.measureRound(t, &experiments[i], &figures[i])
				left = left || n+1 < rounds
			}
		}
	}
	for i := range figures {
		e := &experiments[i]
		inTurn := slices.ContainsFunc(experiments, func(other experiment) bool { return other.name == e.target.floor })
		b.record(e, &figures[i], inTurn)
	}
}

// measureRound runs one round of an experiment and adds it to the figure.
func (b *bench) measureRound(t *task, e *experiment, f *Figure) {
	var r round
	err := perform(t, t.dir, func(t *task) { r = e.run(t) })
	if skipped := (*skippedError)(nil); errors.As(err, &skipped) {
		f.Skipped = skipped.reason
		return
	}
	if err != nil {
		must.Do(fmt.Errorf("%s: %w", e.name, err))
	}
	f.add(r)
}

// record completes a figure from its rounds and writes it.
func (b *bench) record(e *experiment, f *Figure, inTurn bool) {
	f.Name, f.Unit, f.Note = e.name, e.unit, e.note
	if e.check != nil && f.Skipped == "" {
		must.Do(e.check())
	}
	f.finish()
	f.compare(e.target, b.figures, inTurn)
	b.figures = append(b.figures, *f)
	b.logf("  %-22s %s", f.Name, f.value())
	if b.Out != nil {
		must.Do(json.NewEncoder(b.Out).Encode(f))
	}
}

// logf writes a line of progress.
func (b *bench) logf(format string, v ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, format+"\n", v...)
	}
}

// suites returns all suites in the order in which they run.
func (b *bench) suites() []suite {
	return []suite{
		b.floorSuite(), b.echoSuite(), b.rrqFloorSuite(), b.yardSuite(), b.sustainedSuite(),
		b.indexSuite(3), b.indexSuite(1), b.lagSuite(), b.pageSuite(), b.requeueSuite(),
		b.overhopSuite(), b.idleSuite(), b.rejoinSuite(),
		b.rrqSuite(1), b.rrqSuite(3), b.rrqLifeSuite(), b.ledgerSuite(),
	}
}

// asyncJobs returns the number of jobs that take about a round.
func (b *bench) asyncJobs() int { return int(b.Round.Seconds() * 15_000) }

// The three patterns of load: asynchronous, synchronous and open-loop.
func (b *bench) async(t *task, l *load) { l.async(t, b.asyncJobs(), window) }
func (b *bench) sync(t *task, l *load)  { l.sync(t, b.Round) }
func (b *bench) open(rate int) generator {
	return func(t *task, l *load) { l.openLoop(t, rate, during(b.Round)) }
}

const (
	jobsPerSecond = "jobs/s"
	milliseconds  = "ms"
)

// floorSuite measures JetStream, Raft and a simple work queue without Yardmaster.
func (b *bench) floorSuite() suite {
	var p *peers
	latency := func(rate int) measurement {
		return func(t *task) round { return p.workQueue(t, true, b.open(rate)) }
	}
	return suite{
		name: "floors",
		open: func(t *task) { p = startPeers(t, b.self) },
		names: []experiment{
			{name: "floor.stream.async", unit: "messages/s", run: func(t *task) round {
				return p.publish(t, func(t *task, l *load) { l.async(t, 3*b.asyncJobs(), window) })
			}},
			{name: "floor.stream.sync64", unit: "messages/s", run: func(t *task) round { return p.publish(t, b.sync) }},
			{name: "floor.stream.flight2048", unit: "messages/s", run: func(t *task) round { return p.publish(t, b.piped) }},
			{name: "floor.raft16k.alone", unit: "entries/s", run: func(*task) round { return p.commit(1, b.Round/2) }},
			{name: "floor.raft16k.flight16", unit: "entries/s", run: func(*task) round { return p.commit(16, b.Round/2) }},
			{name: "floor.queue.start200", unit: milliseconds, run: latency(200)},
			{name: "floor.queue.start1000", unit: milliseconds, run: latency(1000)},
		},
	}
}

// startCluster returns a function that starts a cluster, which is stopped at the end of the task.
func (b *bench) startCluster(o procs.Options, prepare ...func(*procs.Node)) func(*task) *benchCluster {
	return func(t *task) *benchCluster {
		o.Dir, o.Binary, o.Profile = t.dir, b.Binary, b.Profile
		cl := startCluster(t, o, prepare...)
		for _, n := range cl.Nodes {
			if b.Profile {
				b.logf("  profile of %s: http://%s/debug/pprof/", n.Name, n.Profile)
			}
		}
		return cl
	}
}

// Parameters of a sustained load: a million jobs, so that snapshots are taken and records of
// finished jobs removed meanwhile.
const (
	sustainedRounds = 10
	sustainedJobs   = million / sustainedRounds // of each round
)

// sustainedSuite measures a cluster under a load that lasts, in turn with a work queue.
func (b *bench) sustainedSuite() suite {
	var p *peers
	var cl *benchCluster
	open := b.startCluster(procs.Options{Nodes: 3})
	generate := func(t *task, l *load) { l.async(t, sustainedJobs, window) }
	snapshots := make(map[string]bool)
	return suite{
		name: "sustained", interleaved: true,
		open: func(t *task) {
			p = startPeers(t, b.self)
			cl = open(t)
		},
		names: []experiment{
			{name: "sustained.queue", unit: jobsPerSecond, rounds: sustainedRounds,
				run: func(t *task) round { return p.workQueue(t, false, generate) }},
			{name: "yard3.sustained", unit: jobsPerSecond, rounds: sustainedRounds, target: target{floor: "sustained.queue", ratio: 1.3},
				run: func(t *task) round {
					r := cl.overhop(t, queuePlain, plain(queuePlain), false, generate)
					cl.addSnapshots(snapshots)
					return r
				},
				check: func() error {
					if len(snapshots) < len(cl.Nodes) {
						return fmt.Errorf("only %d snapshots were taken, want one of each node", len(snapshots))
					}
					return nil
				}},
		},
	}
}

// ledgerSuite measures the ledger as a data structure.
func (b *bench) ledgerSuite() suite {
	apply := func(waiting int) measurement {
		return func(t *task) round { return measureApply(t, waiting) }
	}
	return suite{
		name: "ledger",
		names: []experiment{
			{name: "ledger.apply.1k", unit: "ns/command", run: apply(1000)},
			{name: "ledger.apply.1m", unit: "ns/command", run: apply(million), rounds: 1, target: target{floor: "ledger.apply.1k", maxRatio: 1.1}},
			{name: "ledger.bytes.1m", unit: "bytes/job", run: measureSize, rounds: 1, target: target{atMost: 250}},
			{name: "ledger.copy.1m", unit: milliseconds, run: measureCopy, rounds: 1, target: target{atMost: 10}},
		},
	}
}

// task is the context of a suite or of a round. Functions that take one end it with
// package must if they fail.
type task struct {
	context.Context
	dir      string // of the suite
	cleanups []func()
}

// cleanup has f called at the end of the task, before the functions registered earlier.
func (t *task) cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// close calls the functions that were registered, the last one first.
func (t *task) close() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// perform calls do with a task of its own, and returns the error that ended it.
func perform(ctx context.Context, dir string, do func(t *task)) error {
	t := &task{Context: ctx, dir: dir}
	defer t.close()
	return must.Try(func() { do(t) })
}

// newDir returns a new directory for a round.
func (t *task) newDir() string { return must.Get(os.MkdirTemp(t.dir, "round-")) }

// start starts a process that is stopped at the end of the task. Its log is in dir.
func (t *task) start(name, dir string, env, command []string) *procs.Process {
	p := must.Get(procs.StartProcess(name, filepath.Join(dir, name+".log"), env, command[0], command[1:]...))
	t.cleanup(func() { p.Stop(5 * time.Second) })
	return p
}

// await waits until fact returns nil, at most waitTimeout and while the processes run.
func (t *task) await(what string, fact func() error, running ...*procs.Process) {
	ctx, cancel := context.WithTimeout(t, waitTimeout)
	defer cancel()
	for {
		err := fact()
		if err == nil {
			return
		}
		for _, p := range running {
			must.Do(p.Ended())
		}
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			must.Do(fmt.Errorf("gave up waiting until %s: %w", what, err))
		}
	}
}
