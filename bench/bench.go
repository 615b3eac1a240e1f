package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"yardmaster/drill/yard"
)

// Options say what to measure.
type Options struct {
	Only    []string      // names of figures, or what they begin with; none: all
	Round   time.Duration // about how long a round is; 0: 3 s
	Rounds  int           // 0: 3
	Binary  string        // the program to start; "": this one
	Profile bool          // nodes write where they can be profiled to Progress
	Out     io.Writer     // a line of JSON for each figure
	// Progress gets words for people.
	Progress io.Writer
}

// ErrNothing: no figure has such a name.
var ErrNothing = errors.New("no figure has that name")

const defaultRound = 3 * time.Second

// bench is one run.
type bench struct {
	Options
	dir     string
	figures []Figure
	needed  []string // floors of what is wanted
}

// experiment measures one figure.
type experiment struct {
	name, unit string
	target     target
	note       string
	once       bool // no further rounds: it hardly varies
	run        func(context.Context) (round, error)
}

// suite is the experiments that need the same processes.
type suite struct {
	name  string
	names []experiment
	// open starts what they need and puts it where run finds it.
	open func(ctx context.Context, dir string) (closer func(), err error)
}

// Run measures and gives the figures in order. It leaves no process behind. An
// error means that something could not be measured or, worse, that a job was
// accepted and not settled.
func Run(ctx context.Context, o Options) ([]Figure, error) {
	if o.Round == 0 {
		o.Round = defaultRound
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the program itself: %w", err)
		}
		o.Binary = self
	}
	b := &bench{Options: o}
	suites := b.suites()
	b.needed = floorsOf(suites, b.Only)
	if !slices.ContainsFunc(suites, func(s suite) bool { return len(b.wanted(s)) > 0 }) {
		return nil, fmt.Errorf("%s: %w; there are %s", strings.Join(o.Only, ", "), ErrNothing, strings.Join(Names(), ", "))
	}
	dir, err := os.MkdirTemp("", "yardmaster-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	b.dir = dir
	for _, s := range suites {
		if err := b.runSuite(ctx, s); err != nil {
			return b.figures, fmt.Errorf("%w; everything is left in %s", err, dir)
		}
	}
	return b.figures, os.RemoveAll(dir)
}

// Names lists all figures.
func Names() []string {
	var names []string
	for _, s := range (&bench{}).suites() {
		for _, e := range s.names {
			names = append(names, e.name)
		}
	}
	return names
}

// floorsOf names the floors under what is wanted: they are measured with it, or
// the ratio would be missing.
func floorsOf(suites []suite, only []string) (floors []string) {
	for _, s := range suites {
		for _, e := range s.names {
			if begins(e.name, only) && strings.HasPrefix(e.target.floor, "floor.") {
				floors = append(floors, e.target.floor)
			}
		}
	}
	return floors
}

func begins(name string, with []string) bool {
	return slices.ContainsFunc(with, func(w string) bool { return strings.HasPrefix(name, w) })
}

func (b *bench) wanted(s suite) []experiment {
	if len(b.Only) == 0 {
		return s.names
	}
	return slices.DeleteFunc(slices.Clone(s.names), func(e experiment) bool {
		return !begins(e.name, b.Only) && !slices.Contains(b.needed, e.name)
	})
}

func (b *bench) runSuite(ctx context.Context, s suite) error {
	wanted := b.wanted(s)
	if len(wanted) == 0 {
		return nil
	}
	dir := filepath.Join(b.dir, s.name)
	if err := os.Mkdir(dir, 0o750); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	b.say("%s: starting", s.name)
	closer, err := s.open(ctx, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	defer closer()
	for _, e := range wanted {
		if err := b.measure(ctx, e); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context, e experiment) error {
	f := Figure{Name: e.name, Unit: e.unit, Note: e.note}
	rounds := b.Rounds
	if e.once {
		rounds = 1
	}
	for range rounds {
		r, err := e.run(ctx)
		if skipped := (*skippedError)(nil); errors.As(err, &skipped) {
			f.Skipped = skipped.why
			break
		}
		if err != nil {
			return err
		}
		f.Rounds = append(f.Rounds, r.value)
		if r.p99 > 0 {
			f.P99Rounds = append(f.P99Rounds, r.p99)
		}
		f.Jobs += r.jobs
		f.Settled += r.settled
		f.Repeated += r.repeated
		f.Accepted += r.accepted / float64(rounds)
		f.Cores += r.cores / float64(rounds)
		f.Load += r.load / float64(rounds)
		f.Machine += r.machine / float64(rounds)
	}
	f.Value, f.P99 = median(f.Rounds), median(f.P99Rounds)
	f.compare(e.target, b.figures)
	b.figures = append(b.figures, f)
	b.say("  %-22s %s", f.Name, f.value())
	if b.Out == nil {
		return nil
	}
	return f.WriteLine(b.Out)
}

func (b *bench) say(format string, v ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, format+"\n", v...)
	}
}

// Machine says in a line what was measured on.
func Machine() string {
	return fmt.Sprintf("%d processors, %s, %s/%s", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (b *bench) suites() []suite {
	return []suite{
		b.floorSuite(), b.echoSuite(), b.rrqFloorSuite(), b.threeSuite(), b.singleSuite(),
		b.overhopSuite(), b.idleSuite(), b.rejoinSuite(),
		b.rrqSuite(1), b.rrqSuite(3), b.rrqLifeSuite(), b.ledgerSuite(),
	}
}

// asyncJobs is how many jobs fill about a round.
func (b *bench) asyncJobs() int { return int(b.Round.Seconds() * 15_000) }

// The three shapes of load.
func (b *bench) async(ctx context.Context, l *load) error { return l.async(ctx, b.asyncJobs(), window) }
func (b *bench) sync(ctx context.Context, l *load) error  { return l.sync(ctx, b.Round) }
func (b *bench) open(rate int) func(context.Context, *load) error {
	return func(ctx context.Context, l *load) error { return l.open(ctx, rate, b.Round) }
}

const (
	jobsPerSecond = "jobs/s"
	milliseconds  = "ms"
)

func (b *bench) floorSuite() suite {
	var p *peers
	queue := func(latency bool, hand func(context.Context, *load) error) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) { return p.workQueue(ctx, latency, hand) }
	}
	return suite{
		name: "floors",
		open: func(ctx context.Context, dir string) (closer func(), err error) {
			if p, err = startPeers(ctx, b.Binary, dir); err != nil {
				return nil, err
			}
			return p.stop, nil
		},
		names: []experiment{
			{name: "floor.stream.async", unit: "messages/s", run: func(ctx context.Context) (round, error) {
				return p.publish(ctx, func(ctx context.Context, l *load) error { return l.async(ctx, 3*b.asyncJobs(), window) })
			}},
			{name: "floor.stream.sync64", unit: "messages/s", run: func(ctx context.Context) (round, error) { return p.publish(ctx, b.sync) }},
			{name: "floor.stream.flight2048", unit: "messages/s", run: func(ctx context.Context) (round, error) { return p.publish(ctx, b.piped) }},
			{name: "floor.raft16k.alone", unit: "entries/s", run: func(context.Context) (round, error) { return p.commit(1, b.Round/2) }},
			{name: "floor.raft16k.flight16", unit: "entries/s", run: func(context.Context) (round, error) { return p.commit(16, b.Round/2) }},
			{name: "floor.queue.async", unit: jobsPerSecond, run: queue(false, b.async)},
			{name: "floor.queue.sync64", unit: jobsPerSecond, run: queue(false, b.sync)},
			{name: "floor.queue.start200", unit: milliseconds, run: queue(true, b.open(200))},
			{name: "floor.queue.start500", unit: milliseconds, run: queue(true, b.open(500))},
			{name: "floor.queue.start1000", unit: milliseconds, run: queue(true, b.open(1000))},
			{name: "floor.queue.start2000", unit: milliseconds, run: queue(true, b.open(2000))},
		},
	}
}

// openYard starts nodes for a suite.
func (b *bench) openYard(o yard.Options, y **yards) func(context.Context, string) (func(), error) {
	return func(ctx context.Context, dir string) (closer func(), err error) {
		o.Dir, o.Binary, o.Profile = dir, b.Binary, b.Profile
		started, err := startYard(ctx, o)
		if err != nil {
			return nil, err
		}
		*y = started
		for _, n := range started.Nodes {
			if b.Profile {
				b.say("  profile of %s: http://%s/debug/pprof/", n.Name, n.Profile)
			}
		}
		return started.close, nil
	}
}

func (b *bench) threeSuite() suite {
	var y *yards
	jobs := func(queue string, w way, latency bool, hand func(context.Context, *load) error) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) { return y.overhop(ctx, queue, w, latency, hand) }
	}
	return suite{
		name: "yard3", open: b.openYard(yard.Options{Nodes: 3}, &y),
		names: []experiment{
			{name: "yard3.plain", unit: jobsPerSecond, run: jobs(queuePlain, plain(queuePlain), false, b.async),
				target: target{floor: "floor.queue.async", atLeast: 15_000, ratio: 0.8}},
			{name: "yard3.limit", unit: jobsPerSecond, run: jobs(queueLimited, plain(queueLimited), false, b.async),
				target: target{floor: "yard3.plain", ratio: 0.95}, note: fmt.Sprintf("concurrency_limit %d", strictLimit)},
			{name: "yard3.enqueue", unit: jobsPerSecond, run: jobs(queuePlain, enqueued(queuePlain), false, b.async),
				target: target{floor: "floor.queue.async", atLeast: 15_000, ratio: 0.8}},
			{name: "yard3.sync64", unit: jobsPerSecond, run: jobs(queuePlain, enqueued(queuePlain), false, b.sync),
				target: target{floor: "floor.queue.sync64", ratio: 1}},
			{name: "yard3.start500", unit: milliseconds, run: jobs(queuePlain, enqueued(queuePlain), true, b.open(500)),
				target: target{floor: "floor.queue.start500", atMost: 4, p99: 10}},
			{name: "yard3.start2000", unit: milliseconds, run: jobs(queuePlain, enqueued(queuePlain), true, b.open(2000)),
				target: target{floor: "floor.queue.start2000", atMost: 10, p99: 25, maxRatio: 1}},
			{name: "yard3.rrq", unit: jobsPerSecond, run: func(ctx context.Context) (round, error) {
				return y.rrq(ctx, plain(queueRRQ), functionRRQ, b.asyncJobs()/3)
			},
				note: "a pool of one process with 32 slots on each node"},
			{name: "yard3.history", unit: "bytes/job", once: true, target: target{atMost: 150},
				run: func(ctx context.Context) (round, error) { return y.history(ctx, b.sync) }},
			{name: "yard3.trip.overhop", unit: milliseconds, note: "one job at a time: enqueue call to news of its end",
				run: func(ctx context.Context) (round, error) { return y.trip(ctx, queuePlain, "") }},
			{name: "yard3.trip.rrq", unit: milliseconds, target: target{floor: "yard3.trip.overhop"}, note: "the same by a runner",
				run: func(ctx context.Context) (round, error) { return y.trip(ctx, queueRRQ, functionRRQ) }},
		},
	}
}

func (b *bench) singleSuite() suite {
	var y *yards
	jobs := func(w way, latency bool, hand func(context.Context, *load) error) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) { return y.overhop(ctx, queuePlain, w, latency, hand) }
	}
	return suite{
		name: "yard1", open: b.openYard(yard.Options{Nodes: 1}, &y),
		names: []experiment{
			{name: "yard1.plain", unit: jobsPerSecond, run: jobs(plain(queuePlain), false, b.async), target: target{floor: "yard3.plain"}},
			{name: "yard1.enqueue", unit: jobsPerSecond, run: jobs(enqueued(queuePlain), false, b.async), target: target{floor: "yard3.enqueue"}},
			{name: "yard1.sync64", unit: jobsPerSecond, run: jobs(enqueued(queuePlain), false, b.sync), target: target{floor: "yard3.sync64"}},
			{name: "yard1.start500", unit: milliseconds, run: jobs(enqueued(queuePlain), true, b.open(500)), target: target{floor: "yard3.start500"}},
			{name: "yard1.start2000", unit: milliseconds, run: jobs(enqueued(queuePlain), true, b.open(2000)), target: target{floor: "yard3.start2000"}},
		},
	}
}

func (b *bench) ledgerSuite() suite {
	apply := func(waiting int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) { return measureApply(ctx, waiting) }
	}
	return suite{
		name: "ledger", open: func(context.Context, string) (func(), error) { return func() {}, nil },
		names: []experiment{
			{name: "ledger.apply.1k", unit: "ns/command", run: apply(1000)},
			{name: "ledger.apply.1m", unit: "ns/command", run: apply(million), once: true, target: target{floor: "ledger.apply.1k", maxRatio: 1.1}},
			{name: "ledger.bytes.1m", unit: "bytes/job", run: measureSize, once: true, target: target{atMost: 250}},
			{name: "ledger.copy.1m", unit: milliseconds, run: measureCopy, once: true, target: target{atMost: 10}},
		},
	}
}
