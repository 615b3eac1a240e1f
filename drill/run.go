package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Options say how drills are run.
type Options struct {
	Binary  string    // the program whose nodes and workers are broken
	Version string    // its
	Dir     string    // holds what the drills leave; of one that kept its promises, nothing is
	Seed    uint64    // of all schedules
	Quick   bool      // fewer repetitions
	Out     io.Writer // what happens, line by line; nil: nowhere
}

// Run plays drills one after the other. Its error means that it could not go
// on; what came of each is in the summary.
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

// Play plays one drill.
func Play(ctx context.Context, o Options, d Drill) (r Report) {
	r = Report{Number: d.Number, Drill: d.Name, Breaks: d.Breaks, Promises: d.Promises, Seed: o.Seed, Quick: o.Quick}
	s := &Stage{Seed: o.Seed, Dice: rand.New(rand.NewPCG(o.Seed, uint64(d.Number))), Quick: o.Quick,
		out: o.Out, began: time.Now(), report: &r, within: make(map[string]Limits), calm: func() {}}
	if o.Out != nil {
		fmt.Fprintf(o.Out, "\n%d %s (seed %d): %s\n", d.Number, d.Name, o.Seed, d.Breaks)
	}
	if r.Skipped = d.missing(); r.Skipped != "" {
		r.Ended = Skipped
		s.Say("skipped: %s", r.Skipped)
		return r
	}
	inner, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	err := s.play(inner, o, d)
	r.Seconds = time.Since(s.began).Seconds()
	switch {
	case err != nil:
		r.Ended, r.Unplayed = Unplayed, err.Error()
	case len(r.Broken) > 0:
		r.Ended = Broken
	default:
		r.Ended = Kept
	}
	s.Say("%s %s", r.Ended, r.Unplayed)
	if r.Ended == Kept && r.Kept != "" {
		if err := os.RemoveAll(r.Kept); err == nil {
			r.Kept = ""
		}
	} else if r.Kept != "" {
		s.Say("logs, data and witnesses are in %s", r.Kept)
	}
	return r
}

func (s *Stage) play(ctx context.Context, o Options, d Drill) (err error) {
	dir := filepath.Join(o.Dir, fmt.Sprintf("%02d-%s", d.Number, d.Name))
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	if dir, err = os.MkdirTemp(o.Dir, filepath.Base(dir)+"-"); err != nil {
		return err
	}
	s.report.Kept = dir
	if s.Yard, err = Lay(dir, o.Binary, d.Plan); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// A drill that ends early must not leave publishers behind.
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); _ = s.end() }()
	if !d.Closed {
		if err := s.Open(ctx); err != nil {
			return err
		}
		s.Say("%d nodes are ready", len(s.Nodes))
		s.baseline()
	}
	if err := d.Run(ctx, s); err != nil {
		return err
	}
	if err := s.Heal(ctx); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	s.Say("healed; %d jobs are acknowledged", s.Acked())
	if err := s.end(); err != nil {
		s.Promise(false, "%v", err)
	}
	return s.check(ctx)
}

// machine says in a line what the drills ran on.
func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // "" where there is none
	return fmt.Sprintf("%d processors for nodes, load and checks, one disk, %s %s, %s", runtime.NumCPU(), runtime.GOOS, strings.TrimSpace(string(kernel)), runtime.Version())
}
