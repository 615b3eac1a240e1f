package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"yardmaster/edge/overhop"
	"yardmaster/examples/worker/worker"
)

// WorkVerb is the program's verb, below "drill", that makes it a worker. Its
// argument is a [Task] in JSON.
const WorkVerb = "work"

// Task is what a worker process does.
type Task struct {
	Nodes   []string
	Queue   string
	Credits uint32
	Hold    time.Duration // how long it takes over a job
	Witness string        // file
}

// Work runs jobs until ctx ends. The witness gets a line when a job begins and
// one when it ends, on disk before anything follows:
//
//	<begin|end> <jid> <attempt> <fence> <nanoseconds of the host's monotonic clock>
func Work(ctx context.Context, t Task) (err error) {
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
		rest := time.NewTimer(t.Hold)
		defer rest.Stop()
		var ended error
		select {
		case <-rest.C:
		case <-ctx.Done():
			ended = context.Cause(ctx)
		}
		return nil, errors.Join(ended, note(witness, "end", q))
	})
	return w.Run(ctx)
}

func note(w *worker.Witness, what string, q *overhop.Quest) error {
	at, err := hostClock()
	if err != nil {
		return err
	}
	return w.Note(fmt.Sprintf("%s %s %d %d %d", what, q.JID, q.Attempt, q.Fence, at))
}

// hostClock is the same for all processes of a host and never steps.
func hostClock() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the host's clock: %w", err)
	}
	return t.Nano(), nil
}

// AddWorker starts a worker process.
func (y *Yard) AddWorker(t Task) (*Process, error) {
	name := fmt.Sprintf("w%d", len(y.workers)+1)
	t.Witness = filepath.Join(y.Dir, name+".witness")
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	p := &Process{name: name, args: []string{y.Binary, "drill", WorkVerb, string(text)}, log: filepath.Join(y.Dir, name+".log")}
	y.workers = append(y.workers, p)
	return p, p.Start()
}
