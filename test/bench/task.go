package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// task is the context of a suite or of a round. Functions that take one end it with
// package must if they fail.
type task struct {
	context.Context
	dir      string // of the suite
	cleanups []func()
}

// cleanup has f called at the end of the task, before the functions registered earlier.
func (t *task) cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// perform calls do with a task of its own, and returns the error that ended it.
func perform(ctx context.Context, dir string, do func(t *task)) error {
	t := &task{Context: ctx, dir: dir}
	defer func() {
		for _, f := range slices.Backward(t.cleanups) {
			f()
		}
	}()
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
