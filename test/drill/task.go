package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/examples/worker/worker"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// WorkVerb is the command line argument with which a process runs [Work]; the next
// argument is that of Work.
const WorkVerb = "work"

// Task configures a worker process.
type Task struct {
	Nodes   []string
	Queue   string
	Credits uint32
	Hold    time.Duration // how long it takes over a job
	Witness string        // path of its witness file
}

// Work runs jobs until ctx ends. Its argument is a [Task] in JSON. It appends a line to the witness file when a job
// begins and when it ends, each synced before Work continues:
//
//	<begin|end> <jid> <attempt> <fence> <nanoseconds of the host's monotonic clock>
func Work(ctx context.Context, task string) (err error) {
	var t Task
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return fmt.Errorf("task of a worker: %w", err)
	}
	witness, err := worker.OpenWitness(t.Witness)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, witness.Close()) }()
	w := overhop.Worker{Nodes: t.Nodes, Name: "drill"}
	w.Handle(t.Queue, t.Credits, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if err := note(witness, "begin", q); err != nil {
			return nil, err
		}
		hold := time.NewTimer(t.Hold)
		defer hold.Stop()
		var ended error
		select {
		case <-hold.C:
		case <-ctx.Done():
			ended = context.Cause(ctx)
		}
		return nil, errors.Join(ended, note(witness, "end", q))
	})
	return w.Run(ctx)
}

// note appends a line about a quest to the witness file.
func note(w *worker.Witness, what string, q *overhop.Quest) error {
	at, err := readHostClock()
	if err != nil {
		return err
	}
	return w.Append(fmt.Sprintf("%s %s %d %d %d", what, q.JID, q.Attempt, q.Fence, at))
}

// readHostClock reads the host's monotonic clock, in nanoseconds.
func readHostClock() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the host's clock: %w", err)
	}
	return t.Nano(), nil
}

// AddWorker starts a worker process: this program again, with WorkVerb.
func (c *Cluster) AddWorker(t Task) (*procs.Process, error) {
	name := fmt.Sprintf("w%d", len(c.workers)+1)
	t.Witness = filepath.Join(c.Dir, name+".witness")
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this process: %w", err)
	}
	p := &procs.Process{Name: name, Args: []string{self, WorkVerb, string(text)}, LogFile: filepath.Join(c.Dir, name+".log")}
	c.workers = append(c.workers, p)
	return p, p.Start()
}
