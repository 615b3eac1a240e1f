package runnerscript

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Script is one scenario file.
type Script struct {
	Name string // of the file, without its extension
	Path string
	Text string
}

// Load reads every script of a directory.
func Load(dir string) ([]Script, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no scenarios in %s: %v", dir, err)
	}
	var scripts []Script
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, Script{strings.TrimSuffix(filepath.Base(path), ".txt"), path, string(text)})
	}
	return scripts, nil
}

// Env is the cluster that scripts run against.
type Env struct {
	// Request sends a request to any node that answers. A refusal is a
	// *api.Error.
	Request func(ctx context.Context, subject string, body []byte) ([]byte, error)
	// Witness is the path of the file that all runners append to.
	Witness string
	// Overhop returns the Overhop address of a running node.
	Overhop func() string
	// Attempts is the number of attempts of a job that does not set it.
	Attempts uint32
	// OnNow is called at a script's "now" command with the ids of its jobs.
	// It may be nil.
	OnNow func(ctx context.Context, jobs []job.ID) error
}

// Result is the outcome of one script.
type Result struct {
	Script
	Got string // the script with its actual output
	Err error  // why the script could not finish, or a violated rule

	Jobs   int    // enqueued by the script
	Losses uint32 // dispatches that lost their runner or node
}

// Run runs all scripts concurrently and returns their results in order.
func Run(ctx context.Context, w Env, scripts []Script) []Result {
	results := make([]Result, len(scripts))
	var pendingCancels, all sync.WaitGroup
	pendingCancels.Add(len(scripts))
	for i, s := range scripts {
		all.Go(func() {
			p := &scriptRun{ctx: ctx, env: w, script: s, jobs: map[string]*scriptJob{}}
			p.pendingCancels, p.cancelsDone = &pendingCancels, sync.OnceFunc(pendingCancels.Done)
			p.cancelsLeft = strings.Count(s.Text, "\n> cancel ")
			defer p.cancelsDone()
			results[i].Script = s
			results[i].Got, results[i].Err = p.run()
			results[i].Jobs = len(p.jobs)
			for _, e := range p.jobs {
				results[i].Losses += e.losses
			}
		})
	}
	all.Wait()
	return results
}

// Diff returns the first difference between the expected and the actual output,
// or "" if there is none. With faults, an attempt that was lost and repeated
// counts once.
func (p *Result) Diff(faults bool) string {
	want, got := strings.Split(p.Text, "\n"), strings.Split(p.Got, "\n")
	for i := range max(len(want), len(got)) {
		w, g := lineAt(want, i), lineAt(got, i)
		if faults {
			w, g = dedupAttempts(w), dedupAttempts(g)
		}
		if w != g {
			return fmt.Sprintf("%s:%d: %s\n\twant %s\n\tgot  %s", filepath.Base(p.Path), i+1, p.Name, w, g)
		}
	}
	return ""
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

var attemptsLine = regexp.MustCompile(`^ran: [0-9 ]+$`)

// dedupAttempts removes repetitions of the same attempt from a "ran:" line.
func dedupAttempts(line string) string {
	if !attemptsLine.MatchString(line) {
		return line
	}
	return strings.Join(slices.Compact(strings.Fields(line)), " ")
}
