package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// System is a job system to compare with others. Its servers run as separate processes,
// its producers and workers in this process, through the Go client that its users have.
type System struct {
	Name       string // for Only
	Title      string // of its row
	Version    string // of the server and its Go client
	Durability string // what an acknowledged job survives
	Copies     string // how many servers hold a job when it is acknowledged
	// Start starts the servers with their data in dir, an empty directory. After an error
	// none of them runs.
	Start func(ctx context.Context, dir string) (Server, error)
}

// Server is a system that runs. Its methods are called by one goroutine at a time.
type Server interface {
	// Connect opens connections for producers.
	Connect(ctx context.Context, connections int) (Producer, error)
	// Work starts workers that run at most this number of jobs at once, and calls run for
	// each job. It returns a function that stops them.
	Work(ctx context.Context, slots int, run func(Job)) (stop func(), err error)
	// Unfinished returns the number of jobs whose end is not stored yet.
	Unfinished(ctx context.Context) (int, error)
	// CPU returns the processor time used by the servers.
	CPU() time.Duration
	// Stop stops the servers.
	Stop()
}

// Producer enqueues jobs.
type Producer interface {
	// Enqueue returns when the system has acknowledged the job. It is called
	// concurrently.
	Enqueue(ctx context.Context, j Job) error
	Close()
}

// Job is a job of the comparison. It is 256 bytes of JSON.
type Job struct {
	Due int64  `json:"due"` // in nanoseconds after the begin of the load
	Pad string `json:"pad"`
}

// newJob returns a job that is due at this time after the begin of the load.
func newJob(due time.Duration) Job {
	empty := len(`{"due":,"pad":""}`) + len(strconv.FormatInt(int64(due), 10))
	return Job{Due: int64(due), Pad: paddingText[:bodySize-empty]}
}

// SystemsOptions configures a comparison of systems.
type SystemsOptions struct {
	Only   []string // names of systems; empty means all
	Jobs   int      // of a round
	Slots  int      // jobs that the workers of a system run at once
	Rounds int
	Rate   int           // jobs per second while latencies are measured
	Open   time.Duration // for how long
	// Progress receives messages for people; nil: none.
	Progress io.Writer
}

// warmUp is the number of jobs that are run before a round is measured, so that every
// connection and every worker has been used.
const warmUp = 2000

// SystemFigures are the figures of one system, each the median of its rounds.
type SystemFigures struct {
	System             System
	Enqueued           float64 // jobs per second, from the first call until the last is acknowledged
	Done               float64 // jobs per second, from the first call until the last end is stored
	Ratio              float64 // of Done to that of the first system; 0 if that was not measured
	StartP50, StartP99 float64 // from when a job was due until a worker ran it, in ms
	Micros             float64 // processor time of servers, producers and workers per job, in µs

	DoneRounds, P50Rounds, P99Rounds []float64 // in order

	enqueuedRounds, microsRounds []float64
}

// RunSystems measures systems under the same load, in rounds in which they take turns. Only
// the servers of the system that is measured run meanwhile, on new data. It leaves no
// process and no data behind.
func RunSystems(ctx context.Context, o SystemsOptions, systems []System) (figures []SystemFigures, err error) {
	selected := slices.DeleteFunc(slices.Clone(systems), func(s System) bool {
		return len(o.Only) > 0 && !slices.Contains(o.Only, s.Name)
	})
	if len(selected) == 0 || len(selected) < len(o.Only) {
		return nil, fmt.Errorf("--only %s: unknown system; there are %s", strings.Join(o.Only, ", "), systemNames(systems))
	}
	dir, err := os.MkdirTemp("", "yardmaster-systems-")
	if err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // a server may run as another user
		return nil, err
	}
	figures = make([]SystemFigures, len(selected))
	for n := range o.Rounds {
		for i, s := range selected {
			below := filepath.Join(dir, fmt.Sprintf("%s-%d", s.Name, n+1))
			rate, start, err := o.round(ctx, below, s)
			if err == nil {
				err = os.RemoveAll(below)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
			figures[i].add(s, rate, start)
			o.logf("round %d: %-12s %6.0f jobs/s, start %s / %s ms; %.2f of %.2f busy cores", n+1, s.Name, rate.value,
				digits(start.value), digits(start.p99), rate.cores+rate.load, rate.machine)
		}
	}
	for i := range figures {
		figures[i].finish()
		if selected[0].Name == systems[0].Name {
			figures[i].Ratio = figures[i].Done / figures[0].Done
		}
	}
	return figures, nil
}

// systemNames returns the names of systems, for a message.
func systemNames(systems []System) string {
	var names []string
	for _, s := range systems {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// logf writes a line of progress.
func (o *SystemsOptions) logf(format string, v ...any) {
	if o.Progress != nil {
		fmt.Fprintf(o.Progress, format+"\n", v...)
	}
}

// round measures one round of a system: its rate and the latency of starts.
func (o *SystemsOptions) round(ctx context.Context, dir string, s System) (rate, start round, err error) {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return rate, start, err
	}
	err = perform(ctx, dir, func(t *task) {
		server := must.Get(s.Start(t, dir))
		t.cleanup(server.Stop)
		producer := must.Get(server.Connect(t, syncCalls))
		t.cleanup(producer.Close)
		c := &systemRound{server: server, producer: producer}
		t.cleanup(must.Get(server.Work(t, o.Slots, c.run)))
		c.measure(t, false, func(t *task, l *load) { l.fixed(t, min(warmUp, o.Jobs)) })
		rate = c.measure(t, false, func(t *task, l *load) { l.fixed(t, o.Jobs) })
		start = c.measure(t, true, func(t *task, l *load) { l.openLoop(t, o.Rate, during(o.Open)) })
	})
	return rate, start, err
}

// systemRound is one round of a system, whose workers run the jobs of one load after the
// other.
type systemRound struct {
	server   Server
	producer Producer
	current  atomic.Pointer[load]
}

// run is called by the workers for each job.
func (c *systemRound) run(j Job) {
	l := c.current.Load()
	l.started(j.Due)
	l.ended(j.Due)
}

// measure measures one load, until the system has stored the end of each job.
func (c *systemRound) measure(t *task, latency bool, generate generator) round {
	l := &load{transports: []transport{systemTransport{t, c.producer}}}
	m := startMeter(c.server.CPU)
	l.begin()
	c.current.Store(l)
	generate(t, l)
	must.Do(l.awaitEnds(t))
	must.Do(c.awaitFinished(t))
	if !latency {
		l.ranUntil(time.Now())
	}
	return m.end(l.round(latency))
}

// awaitFinished waits until the server has stored the end of every job.
func (c *systemRound) awaitFinished(ctx context.Context) error {
	var last error
	err := until(ctx, waitTimeout, func() bool {
		n, err := c.server.Unfinished(ctx)
		last = cmp.Or(err, fmt.Errorf("%d jobs are not finished", n))
		return err == nil && n == 0
	})
	if err != nil {
		return fmt.Errorf("wait until all jobs are finished: %w: %w", err, last)
	}
	return nil
}

// systemTransport enqueues jobs with a producer, each in a goroutine, because Enqueue blocks.
type systemTransport struct {
	ctx      context.Context
	producer Producer
}

func (s systemTransport) submit(_ *load, _ int, due time.Duration, done func(error)) {
	go func() { done(s.producer.Enqueue(s.ctx, newJob(due))) }()
}

func (systemTransport) repeat(time.Duration) int { return 0 }

// add adds a round.
func (f *SystemFigures) add(s System, rate, start round) {
	f.System = s
	f.enqueuedRounds = append(f.enqueuedRounds, rate.accepted)
	f.DoneRounds = append(f.DoneRounds, rate.value)
	f.microsRounds = append(f.microsRounds, float64(rate.cpu.Nanoseconds())/1e3/float64(rate.settled))
	f.P50Rounds = append(f.P50Rounds, start.value)
	f.P99Rounds = append(f.P99Rounds, start.p99)
}

// finish computes the figures from the rounds that were added.
func (f *SystemFigures) finish() {
	f.Enqueued, f.Done, f.Micros = median(f.enqueuedRounds), median(f.DoneRounds), median(f.microsRounds)
	f.StartP50, f.StartP99 = median(f.P50Rounds), median(f.P99Rounds)
}

// WriteSystems writes a comparison as a table for people, after a line that describes the
// machine.
func WriteSystems(w io.Writer, figures []SystemFigures) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "%d processors, %s, %s/%s\n\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintln(table, "SYSTEM\tVERSION\tDURABILITY\tCOPIES\tENQUEUED/S\tDONE/S\tROUNDS\tRATIO\tSTART P50 / P99 MS\tµS/JOB")
	for _, f := range figures {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s / %s\t%s\n",
			f.System.Title, f.System.Version, f.System.Durability, f.System.Copies, digits(f.Enqueued), digits(f.Done), spread(f.DoneRounds),
			orBlank("%.2f", f.Ratio), digits(f.StartP50), digits(f.StartP99), digits(f.Micros))
	}
	return table.Flush()
}
