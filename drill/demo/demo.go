// Package demo shows the yard at work, and breaks it on the way.
//
// It starts nodes, an RRQ pool on each, and Overhop workers, all as separate
// processes of the program itself, in a temporary directory. Then it enqueues
// jobs of every kind at a steady pace: some are delayed, some fail because
// they were asked to, some need a second attempt. Half-way it kills the node
// that holds the authority, with SIGKILL. At last it takes stock, and not by
// the yard's word alone: every attempt has left a line in a file of whoever
// ran it, and these witnesses must agree with what the yard says of each job
// and with its history.
//
//	start nodes ─▶ start workers ─▶ enqueue, watch ─▶ kill the authority ─▶ all ended? ─▶ take stock
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say what to show.
type Options struct {
	Nodes  int           // 1 or 3
	Jobs   int           // at least 20, for every kind to occur
	Kill   bool          // kill the authority half-way
	Spread time.Duration // over which the jobs are enqueued; 0: 8 s
	Binary string        // the program to start; "": this one
	Dir    string        // where everything is kept; "": a temporary directory, removed after a success
	Out    io.Writer     // progress
}

// Limits of [Options.Jobs].
const (
	MinJobs = 20
	MaxJobs = 100_000 // the yard keeps the records of twice as many
)

// OptionError refuses an option, by the name of its flag.
type OptionError struct{ Flag, Reason string }

func (e *OptionError) Error() string { return "--" + e.Flag + " " + e.Reason }

func (o Options) withDefaults() (Options, error) {
	if o.Nodes != 1 && o.Nodes != 3 {
		return o, &OptionError{"nodes", fmt.Sprintf("is %d: must be 1 or 3", o.Nodes)}
	}
	if o.Jobs < MinJobs || o.Jobs > MaxJobs {
		return o, &OptionError{"jobs", fmt.Sprintf("is %d: must be %d to %d", o.Jobs, MinJobs, MaxJobs)}
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

// Run shows it all and gives what came out. It leaves no process behind, also
// when ctx ends before it is done. An error means that the show could not go
// on; whether anything was lost is in the report.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if o, err = o.withDefaults(); err != nil {
		return Report{}, err
	}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "yardmaster-demo-"); err != nil {
			return Report{}, fmt.Errorf("make a directory for the demo: %w", err)
		}
		defer func() {
			if ctx.Err() != nil || err == nil && report.Good() {
				err = errors.Join(err, os.RemoveAll(dir))
			} else if err != nil {
				err = fmt.Errorf("%w; everything is left in %s", err, dir)
			} else {
				report.Kept = dir
			}
		}()
	}
	y, err := layOut(o, dir)
	if err != nil {
		return Report{}, err
	}
	defer y.stop()
	if err := y.open(ctx); err != nil {
		return Report{}, err
	}
	l := newLoad(y)
	if err := y.perform(ctx, l); err != nil {
		return Report{}, err
	}
	stock, err := y.takeStock(ctx, l)
	if err != nil {
		return Report{}, err
	}
	return y.judge(l, stock), nil
}

// open starts everything and returns when it is ready for work.
func (y *yard) open(ctx context.Context) error {
	began := time.Now()
	y.say("starting %s in %s", count(len(y.members), "node"), filepath.Base(y.dir))
	for _, m := range y.members {
		if err := y.startNode(m); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := y.awaitReady(ctx); err != nil {
		return err
	}
	if err := y.addQueues(ctx); err != nil {
		return err
	}
	if err := y.startWorkers(ctx); err != nil {
		return err
	}
	y.say("ready after %.1f s: %s, a pool of RRQ runners on each, %s", time.Since(began).Seconds(),
		count(len(y.members), "node"), count(len(y.workers), "Overhop worker"))
	return nil
}

// perform is the show itself: it returns when every job has ended, or when
// patience has.
func (y *yard) perform(ctx context.Context, l *load) error {
	y.say("enqueuing %d jobs over %s", l.jobs, y.o.Spread)
	group, ctx := errgroup.WithContext(ctx)
	watched, stopWatching := context.WithCancel(ctx)
	group.Go(func() error { return y.guard(watched) })
	group.Go(func() error { y.narrate(watched, l); return nil })
	group.Go(func() error { y.watchAuthority(watched); return nil })
	group.Go(func() error {
		defer stopWatching()
		var parts errgroup.Group
		parts.Go(func() error { return l.enqueueAll(ctx) })
		if y.o.Kill {
			parts.Go(func() error { return y.killAuthority(ctx, l) })
		}
		if err := parts.Wait(); err != nil {
			return err
		}
		return y.awaitEnds(ctx, l)
	})
	err := group.Wait()
	if y.terminal {
		fmt.Fprintln(y.o.Out)
	}
	return err
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
