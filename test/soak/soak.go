package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// FullLength is the length of a run in which every bound must be passed several times.
const FullLength = 30 * time.Minute

// Options configures a run.
type Options struct {
	Binary   string        // path of the program
	Version  string        // of the program
	Dir      string        // where the nodes keep their files; removed after a run without failures
	Report   string        // directory for the report
	Duration time.Duration // of the load
	Rate     int           // jobs per second
	Queues   int           // more than ownQueues
	Keys     int           // unique keys
	Seed     uint64
	Out      io.Writer // receives the progress
}

// run is a run in progress.
type run struct {
	o        Options
	cluster  *drill.Cluster
	mix      *mix
	table    *jobTable
	refusals *refusalLog
	load     *load
	work     *jobWork
	history  *history
	sampler  *sampler
	out      *recorder
	failures []string
	length   time.Duration // of the load
	open     int           // jobs that had not ended when the run was over
}

// nodeConfig makes the bounds of all nodes small.
const nodeConfig = `[raft]
snapshot_bytes = 4194304

[retention]
finished = { count = 50000 }
failed = { count = 2000 }
`

// keptFinished is the number of records of finished jobs that nodeConfig keeps.
const keptFinished = 50_000

// maxStore is the smallest store of a node, of which its streams take shares.
const maxStore = "YARD_NATS_MAX_STORE_BYTES=268435456"

// ownQueues is the number of queues of the yard that are not for all jobs: the paused one,
// that of the runners, and that of the system.
const ownQueues = 3

// Run runs a cluster under load and returns what it has seen. Promises that were broken
// are in the report; the error is why a run could not be completed. If ctx ends, the load
// ends early and the report says so.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	m := &mix{seed: o.Seed, rate: o.Rate, duration: o.Duration, queues: o.Queues - ownQueues, keys: o.Keys}
	r := &run{o: o, mix: m, table: newJobTable(o.Seed), refusals: newRefusalLog(), out: newRecorder()}
	r.table.witnessed = func(n int) bool { return m.kind(n) != runnerJob }
	r.cluster, err = drill.New(o.Dir, o.Binary, drill.Layout{Config: nodeConfig, Env: []string{maxStore}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cluster.Close()) }()
	began := time.Now()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "three nodes, %d queues after %s; %d jobs/s for %s\n", o.Queues, time.Since(began).Round(time.Second), o.Rate, o.Duration)
	if err := r.soak(ctx); err != nil {
		return nil, err
	}
	return r.report(ctx.Err() != nil), nil
}

// fail records a broken promise.
func (r *run) fail(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	fmt.Fprintln(r.o.Out, "FAILED:", text)
	r.failures = append(r.failures, text)
}

// prepare starts the nodes, creates the queues and pauses one.
func (r *run) prepare(ctx context.Context) error {
	if err := r.cluster.Start(ctx); err != nil {
		return err
	}
	client, err := cluster.Dial(ctx, r.cluster.URLs(), cluster.DialOptions{Name: "soak"})
	if err != nil {
		return err
	}
	defer client.Close()
	names := make(chan string)
	const parallel = 32
	errs := make([]error, parallel)
	var adding sync.WaitGroup
	for i := range parallel {
		adding.Go(func() {
			for name := range names {
				errs[i] = errors.Join(errs[i], addQueue(ctx, client, name))
			}
		})
	}
	names <- pausedQueue
	names <- runnerQueue
	for q := range r.mix.queues {
		names <- queueName(q)
	}
	close(names)
	adding.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.queueCommand(ctx, "pause")
}

// addQueue creates a queue, unless it exists.
func addQueue(ctx context.Context, client *cluster.Client, name string) error {
	request := fmt.Appendf(nil, `{"name":%q}`, name)
	for {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := client.Request(one, api.SubjectAPI+".queue.add", request)
		cancel()
		if refused, ok := errors.AsType[*api.Error](err); err == nil || ok && refused.Code == api.CodeConflict {
			return nil
		}
		if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("create queue %s: %w", name, err)
		}
	}
}

// queueCommand pauses or resumes the paused queue.
func (r *run) queueCommand(ctx context.Context, verb string) (err error) {
	for range 30 {
		for _, n := range r.cluster.Running() {
			if err = n.Ask(ctx, api.SubjectAPI+".queue."+verb, map[string]string{"name": pausedQueue}, new(any)); err == nil {
				return nil
			}
		}
		if backoff.Sleep(ctx, time.Second) != nil {
			break
		}
	}
	return fmt.Errorf("%s queue %s: %w", verb, pausedQueue, err)
}

// soak runs the load, the workers, the readers, the sampler and the faults, until every
// job has ended or none ends any more.
func (r *run) soak(ctx context.Context) error {
	nc, js, err := connect(r.cluster.URLs())
	if err != nil {
		return err
	}
	defer nc.Close()
	if r.load, err = newLoad(r.cluster, r.mix, r.table, r.refusals); err != nil {
		return err
	}
	defer r.load.close()
	logFile, err := os.Create(filepath.Join(r.o.Dir, "workers.log"))
	if err != nil {
		return err
	}
	defer logFile.Close()
	r.work = &jobWork{mix: r.mix, table: r.table, log: slog.New(slog.NewTextHandler(logFile, nil))}
	r.history = &history{table: r.table, expected: func(n int) bool { return r.mix.kind(n) == failingJob }}
	r.sampler = &sampler{cluster: r.cluster, js: js, load: r.load, work: r.work, table: r.table, refusals: r.refusals, bounds: newBoundCounter(), out: r.out}
	began := time.Now()
	r.load.began, r.work.began = began, began

	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	parts.Go(func() {
		if err := r.work.run(running, r.cluster.Edges()); err != nil {
			r.table.flaw("workers have ended: %v", err)
		}
	})
	for _, stream := range []string{subjects.StreamEvents, subjects.StreamDLQ} {
		parts.Go(func() { r.history.run(running, js, stream) })
	}
	for _, n := range r.cluster.Nodes {
		parts.Go(func() { r.sampler.watch(running, n) })
	}
	var loading sync.WaitGroup
	loading.Go(func() { r.load.run(ctx) })
	r.supervise(ctx, running)
	r.length = time.Since(began)
	loading.Wait()
	if sent := r.load.open.Load(); sent > 0 {
		r.fail("%d jobs were not acknowledged within %s after the load", sent, settleTimeout)
	}
	r.drain(ctx)
	return r.verify(running)
}

// supervise samples, and kills nodes now and then, until the load has ended.
func (r *run) supervise(ctx, running context.Context) {
	interval := min(max(r.o.Duration/180, 2*time.Second), 10*time.Second)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var killing sync.WaitGroup
	defer killing.Wait()
	faults, stop := context.WithCancel(ctx)
	defer stop()
	killing.Go(func() { r.killNodes(faults) })
	shown := time.Duration(0)
	for !r.load.ended.Load() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		at := time.Since(r.load.began)
		r.sampler.take(running, at)
		if at-shown >= 10*time.Second {
			shown = at
			fmt.Fprintln(r.o.Out, r.sampler.progress(at))
		}
	}
}

// killNodes kills a node ten times in a run, in turn the authority and any other, and
// starts it again.
func (r *run) killNodes(ctx context.Context) {
	const kills = 10
	random := rand.New(rand.NewPCG(r.o.Seed, 1))
	interval := max(r.o.Duration/kills, 20*time.Second)
	for i := 0; backoff.Sleep(ctx, time.Until(r.load.began.Add(time.Duration(i+1)*interval-interval/2))) == nil; i++ {
		victim := r.cluster.Nodes[random.IntN(len(r.cluster.Nodes))]
		what := "a node"
		if authority, err := r.cluster.Authority(ctx); err == nil && i%2 == 0 {
			victim, what = authority, "the authority"
		}
		at := time.Since(r.load.began)
		r.out.kills = append(r.out.kills, at)
		r.cluster.Kill(victim)
		down := time.Duration(1+random.IntN(8)) * time.Second
		fmt.Fprintf(r.o.Out, "%6s  %s, %s, killed for %s\n", at.Round(time.Second), victim.Name, what, down)
		_ = backoff.Sleep(ctx, down) // the node is started again in any case
		if err := victim.Start(); err != nil {
			r.table.flaw("start %s again: %v", victim.Name, err)
			return
		}
		limited, cancel := context.WithTimeout(ctx, interval/2)
		if err := r.cluster.WaitReady(limited); err != nil && ctx.Err() == nil {
			fmt.Fprintf(r.o.Out, "        not all nodes are ready %s later: %v\n", (interval / 2).Round(time.Second), err)
		}
		cancel()
	}
}

// drainPatience is how long to wait while no job ends.
const drainPatience = time.Minute

// drain waits until all jobs have ended: first those that may run, and then those of the
// paused queue, which it resumes. It gives up if no job ends for a while.
func (r *run) drain(ctx context.Context) {
	patience := drainPatience
	if ctx.Err() != nil {
		patience /= 4
	}
	ctx = context.WithoutCancel(ctx)
	r.awaitOpen(int(r.load.pausedIn.Load()), patience)
	before := r.table.totals().Open
	if err := r.queueCommand(ctx, "resume"); err != nil {
		r.fail("%v", err)
	}
	r.open = r.awaitOpen(0, patience)
	fmt.Fprintf(r.o.Out, "drained: %d jobs had not ended when queue %s was resumed, %d have not now\n", before, pausedQueue, r.open)
}

// awaitOpen waits until at most this many jobs have not ended, or none has ended for a
// time, and returns their number.
func (r *run) awaitOpen(most int, patience time.Duration) (open int) {
	open = r.table.totals().Open
	for progress := time.Now(); open > most && time.Since(progress) < patience; time.Sleep(100 * time.Millisecond) {
		if now := r.table.totals().Open; now < open {
			open, progress = now, time.Now()
		}
	}
	return open
}

// verify compares the accepted jobs with their ends, and the nodes with each other.
func (r *run) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if missing := r.history.missing.Load(); missing > 0 {
		r.fail("history has no events for %d numbers: they were removed before a consumer could read them, or never written", missing)
	}
	r.explainOpen(ctx)
	completed := make(map[string]bool)
	for _, n := range r.cluster.Nodes {
		if _, err := os.Stat(n.Witness); err != nil {
			continue
		}
		runs, err := drill.ReadWitness(n.Witness)
		if err != nil {
			return err
		}
		for _, run := range runs {
			completed[run.Job] = true
		}
	}
	for n := range r.table.totals().Submitted {
		if id := r.table.id(n); r.mix.kind(n) == runnerJob && r.table.stateOf(n)&stateCompleted != 0 && !completed[id.String()] {
			r.table.flaw("job %s is completed, and no runner has recorded it", id)
		}
	}
	if _, err := r.cluster.RequireSameLedger(ctx); err != nil {
		r.fail("ledgers differ: %v", err)
	}
	return nil
}

// explainOpen asks a node about jobs that have not ended according to history. At most
// maxFlaws are asked about.
func (r *run) explainOpen(ctx context.Context) {
	asked := 0
	var unended []job.ID
	r.table.open(func(n int, _ jobState) { unended = append(unended, r.table.id(n)) })
	for _, id := range unended {
		n, _ := r.table.number(id)
		if asked++; asked > maxFlaws {
			break
		}
		var shown api.Job
		text := "unknown to the cluster"
		err := r.cluster.Nodes[asked%len(r.cluster.Nodes)].Ask(ctx, api.SubjectAPI+".job.show", map[string]string{"id": id.String()}, &shown)
		if err == nil {
			text = fmt.Sprintf("%s, %d attempts, %d dispatches; %s %s", shown.State, shown.Attempts, shown.Dispatches, shown.Reason, shown.Because)
		} else if refused, ok := errors.AsType[*api.Error](err); ok {
			text = refused.Error()
		}
		fmt.Fprintf(r.o.Out, "not ended: job %s, %s, queue %s, due at %s: %s\n", id, kindNames[r.mix.kind(n)], r.mix.queue(n), (r.mix.due(n) + r.mix.delay(n)).Round(time.Second), text)
	}
}

// report judges the run, and writes the files of the report.
func (r *run) report(interrupted bool) *Report {
	r.out.finish()
	sums := r.table.totals()
	report := &Report{Options: r.o, Interrupted: interrupted, Length: r.length, Sums: sums, out: r.out,
		Levels: r.out.judge(r.length, ledger.DedupeHorizon), Passes: r.sampler.bounds.passes(r.length, sums.Completed+sums.Dead),
		Repeats: r.load.repeats.Load(), Pauses: r.load.pauses.Load(), Paused: r.load.pausedIn.Load(), Events: r.history.events.Load(), Letters: r.history.letters.Load()}
	report.Refusals, report.Shown = r.refusals.result()
	if r.open > 0 {
		r.fail("%d accepted jobs have not ended", r.open)
	}
	for _, flaw := range r.table.allFlaws().first {
		r.fail("%s", flaw)
	}
	if more := r.table.allFlaws().count - maxFlaws; more > 0 {
		r.fail("%d further flaws", more)
	}
	for _, l := range report.Levels {
		if l.Grows {
			r.fail("%s does not level off: it grows by %.0f %% after the warm-up", l.Series, 100*l.Growth)
		}
	}
	for _, p := range report.Passes {
		if r.o.Duration >= FullLength && !interrupted && p.Times < requiredPasses && p.Exempt == "" {
			r.fail("the bound of %s, %s, was passed %.1f times, want %d", p.What, p.Bound, p.Times, requiredPasses)
		}
	}
	for _, g := range report.Refusals {
		if g.Hidden > 0 && g.Code != unanswered {
			r.fail("%d jobs were refused while no node showed a reason: %s %s", g.Hidden, g.Code, g.Text)
		}
	}
	report.Failures = r.failures
	return report
}

// Clean removes the files of the nodes unless the run has failed.
func (o *Options) clean(failed bool) {
	if !failed {
		_ = os.RemoveAll(o.Dir)
	}
}

// path returns the path of a file of the report.
func (o *Options) path(name string) string { return filepath.Join(o.Report, name) }
