package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Options configures a series of drills.
type Options struct {
	Binary  string    // path of the program
	Version string    // version of the program
	Dir     string    // where drills keep their files; those of drills that kept their promises are removed
	Seed    uint64    // of all schedules of faults
	Quick   bool      // fewer repetitions
	Out     io.Writer // receives the timelines; may be nil
}

// Run plays drills one after the other. It returns an error if ctx ends; the result
// of each drill is in the summary.
func Run(ctx context.Context, o Options, drills ...Drill) (Summary, error) {
	sum := Summary{Machine: machine(), Version: o.Version, Began: time.Now().UTC().Format(time.DateTime + " UTC"), Seed: o.Seed}
	for _, d := range drills {
		if ctx.Err() != nil {
			return sum, ctx.Err()
		}
		sum.Drills = append(sum.Drills, Play(ctx, o, d))
	}
	return sum, nil
}

// Play runs one drill and judges the result.
func Play(ctx context.Context, o Options, d Drill) (r Report) {
	r = Report{Number: d.Number, Drill: d.Name, Breaks: d.Breaks, Promises: d.Promises, Seed: o.Seed, Quick: o.Quick}
	h := &Harness{Seed: o.Seed, Rand: rand.New(rand.NewPCG(o.Seed, uint64(d.Number))), Quick: o.Quick,
		progress: o.Out, began: time.Now(), report: &r, targets: make(map[string]Limits), stopObservers: func() {}}
	if o.Out != nil {
		fmt.Fprintf(o.Out, "\n%d %s (seed %d): %s\n", d.Number, d.Name, o.Seed, d.Breaks)
	}
	if r.Skipped = d.missing(); r.Skipped != "" {
		r.Ended = Skipped
		h.Logf("skipped: %s", r.Skipped)
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, 5*time.Minute))
	defer cancel()
	err := h.play(ctx, o, d)
	r.Seconds = time.Since(h.began).Seconds()
	switch {
	case err != nil:
		r.Ended, r.Unplayed = NotRun, err.Error()
	case len(r.Broken) > 0:
		r.Ended = Broken
	default:
		r.Ended = Kept
	}
	h.Logf("%s %s", r.Ended, r.Unplayed)
	if r.Ended == Kept && r.Kept != "" {
		if err := os.RemoveAll(r.Kept); err == nil {
			r.Kept = ""
		}
	} else if r.Kept != "" {
		h.Logf("logs, data and witness files are in %s", r.Kept)
	}
	return r
}

// play prepares the cluster, runs the drill and removes the cluster.
func (h *Harness) play(ctx context.Context, o Options, d Drill) (err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.Dir, fmt.Sprintf("%02d-%s-", d.Number, d.Name))
	if err != nil {
		return err
	}
	h.report.Kept = dir
	if h.Cluster, err = New(dir, o.Binary, d.Plan); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	// A drill that ends early must not leave publishers running.
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); _ = h.StopLoads() }()
	h.Ctx = ctx
	return must.Try(func() { h.run(d) })
}

// run runs the drill, heals all faults and checks the result.
func (h *Harness) run(d Drill) {
	if !d.StartsStopped {
		h.StartNodes()
		h.Logf("%d nodes are ready", len(h.Nodes))
		h.recordUsage()
	}
	d.Run(h)
	h.Heal()
	h.Logf("healed; %d jobs acknowledged", h.Acked())
	if err := h.StopLoads(); err != nil {
		h.Require(false, "%v", err)
	}
	h.check()
}

// machine describes the machine in one line.
func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // "" where there is none
	return fmt.Sprintf("%d processors for nodes, load and checks, one disk, %s %s, %s", runtime.NumCPU(), runtime.GOOS, strings.TrimSpace(string(kernel)), runtime.Version())
}
