// Package demo shows a cluster at work while a node is killed.
//
// It starts nodes, an RRQ pool on each, and Overhop workers, all as separate
// processes of the program itself, in a temporary directory. Then it enqueues
// jobs of several kinds at a steady rate: some are delayed, some fail on purpose,
// some need a second attempt. After half of them it kills the node that holds the
// authority, with SIGKILL. Finally it checks the result against independent
// evidence: every worker and runner has recorded each attempt in a witness file,
// and these must agree with the state of each job and with history.
//
//	start nodes ─▶ start workers ─▶ enqueue, watch ─▶ kill the authority ─▶ await ends ─▶ judge
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"

	"golang.org/x/sync/errgroup"
)

// Options configures a demo.
type Options struct {
	Nodes  int           // 1 or 3
	Jobs   int           // 20 to 100,000
	Kill   bool          // kill the authority half-way
	Spread time.Duration // time over which the jobs are enqueued; 0 means 8 s
	Binary string        // the program to start; "" means this one
	Dir    string        // working directory; "" means a temporary one, removed after a success
	Out    io.Writer     // receives progress
}

// Limits of [Options.Jobs]. With fewer than 20 jobs some kinds would not occur.
const (
	minJobs = 20
	maxJobs = 100_000 // half of the job records a cluster keeps
)

// OptionError reports an invalid option by the name of its flag.
type OptionError struct{ Flag, Reason string }

func (e *OptionError) Error() string { return "--" + e.Flag + " " + e.Reason }

// withDefaults returns o with defaults for the fields that are not set, or an
// [OptionError].
func (o Options) withDefaults() (Options, error) {
	if o.Nodes != 1 && o.Nodes != 3 {
		return o, &OptionError{"nodes", fmt.Sprintf("is %d: must be 1 or 3", o.Nodes)}
	}
	if o.Jobs < minJobs || o.Jobs > maxJobs {
		return o, &OptionError{"jobs", fmt.Sprintf("is %d: must be %d to %d", o.Jobs, minJobs, maxJobs)}
	}
	if o.Spread == 0 {
		o.Spread = 8 * time.Second
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find the program itself: %w", err)
		}
		o.Binary = self
	}
	return o, nil
}

// Run runs a demo and returns its report. It leaves no process behind, even if ctx
// ends early. An error means that the demo could not be completed; whether jobs
// were lost is in the report.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if o, err = o.withDefaults(); err != nil {
		return Report{}, err
	}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "yardmaster-demo-"); err != nil {
			return Report{}, fmt.Errorf("create a directory for the demo: %w", err)
		}
		defer func() {
			if ctx.Err() != nil || err == nil && report.Good() {
				err = errors.Join(err, os.RemoveAll(dir))
			} else if err != nil {
				err = fmt.Errorf("%w; logs and data are in %s", err, dir)
			} else {
				report.Kept = dir
			}
		}()
	}

	c, err := layOut(o, dir)
	if err != nil {
		return Report{}, err
	}
	defer c.stop()
	if err := c.open(ctx); err != nil {
		return Report{}, err
	}
	l := &load{c: c, jobs: o.Jobs, ids: make(map[job.ID]jobKind, o.Jobs)}
	states, err := c.runDemo(ctx, l)
	if err != nil {
		return Report{}, err
	}
	evidence, err := c.collectEvidence(ctx, states)
	if err != nil {
		return Report{}, err
	}
	return c.judge(l, evidence), nil
}

// open starts the nodes and the workers, and returns when they are ready for work.
func (c *demoCluster) open(ctx context.Context) error {
	began := time.Now()
	c.logf("starting %s in %s", count(len(c.members), "node"), filepath.Base(c.dir))
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	for _, queue := range []string{queueOverhop, queueRRQ} { // before workers subscribe to them
		if err := c.AddQueue(ctx, queue, 0); err != nil {
			return err
		}
	}
	if err := c.startWorkers(ctx); err != nil {
		return err
	}
	c.logf("ready after %.1f s: %s, a pool of RRQ runners on each, %s", time.Since(began).Seconds(),
		count(len(c.members), "node"), count(len(c.Workers), "Overhop worker"))
	return nil
}

// runDemo enqueues the jobs, kills the authority and returns the jobs' states when every
// job has ended or the time limit for that has passed.
func (c *demoCluster) runDemo(ctx context.Context, l *load) (states map[job.ID]jobState, err error) {
	c.logf("enqueuing %d jobs over %s", l.jobs, c.opts.Spread)
	group, ctx := errgroup.WithContext(ctx)
	watchCtx, stopWatching := context.WithCancel(ctx)
	group.Go(func() error { return c.watchProcesses(watchCtx) })
	group.Go(func() error { c.showProgress(watchCtx, l); return nil })
	group.Go(func() error { c.watchAuthority(watchCtx); return nil })
	group.Go(func() (err error) {
		defer stopWatching()
		var parts errgroup.Group
		parts.Go(func() error { return l.enqueueAll(ctx) })
		if c.opts.Kill {
			parts.Go(func() error { return c.killAuthority(ctx, l) })
		}
		if err := parts.Wait(); err != nil {
			return err
		}
		states, err = c.awaitStates(ctx, l)
		return err
	})
	err = group.Wait()
	if c.terminal {
		fmt.Fprintln(c.opts.Out)
	}
	return states, err
}

// count returns "1 noun" or "n nouns".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
