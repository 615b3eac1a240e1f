package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// worker is a process that listens, with its slots. It is offered under one
// name.
type worker struct {
	m    *member
	name string // "<runner>/<port>"
	id   string // as sent to the runner: "yard_<node>_<port>"
	addr string
	proc *process // nil: external

	work      chan *dispatch // never full: every dispatch in it has reserved a slot
	closed    chan struct{}  // closed when no more dispatches are sent
	replaced  chan struct{}  // closed when the process is to be replaced
	onlyStuck chan struct{}  // signalled when all running requests are stuck

	// Guarded by Pools.mu.
	free, busy, stuck int
	retired           bool  // accepts no more dispatches
	drained           bool  // by an operator: accepts no dispatches until it is resumed
	replaceErr        error // why the process is to be replaced; nil: it is not
}

// errReplaced is the reason for replacing a process that does not stop a
// request.
var errReplaced = errors.New("replaced: a request did not stop")

// newWorker returns the worker of a member's process, which listens on addr and port.
// proc is nil for an external runner.
func newWorker(m *member, proc *process, addr string, port int) *worker {
	n, name := m.cfg.MaxInFlight, workerName(m.runner, port)
	return &worker{
		m:         m,
		name:      name,
		id:        WorkerID(m.pools.node, name),
		addr:      addr,
		proc:      proc,
		work:      make(chan *dispatch, n),
		closed:    make(chan struct{}),
		replaced:  make(chan struct{}),
		onlyStuck: make(chan struct{}, 1),
		free:      n,
	}
}

// WorkerID returns the id by which a node identifies itself to a runner. worker
// is the name in its offers, "<runner>/<port>".
func WorkerID(node, worker string) string {
	return "yard_" + node + "_" + worker[strings.LastIndexByte(worker, '/')+1:]
}

func workerName(runner string, port int) string { return fmt.Sprintf("%s/%d", runner, port) }

// serve offers the worker's slots until its process ends, is to be replaced, or
// ctx ends. It returns when every dispatch has its outcome and the process has
// ended. The error is why the process was replaced, or its exit status.
func (w *worker) serve(ctx context.Context) error {
	var slots sync.WaitGroup
	for i := range w.free {
		s := &slot{w: w}
		probes := w.proc == nil && i == 0
		slots.Go(func() { s.run(ctx, probes) })
	}
	w.m.pools.addWorker(w)
	select {
	case <-w.exited():
	case <-w.replaced:
	case <-ctx.Done():
	}
	err := w.m.pools.removeWorker(w)
	if err == nil && w.hasExited() {
		err = errors.New(w.proc.exitStatus)
	}
	if w.proc != nil && !w.hasExited() {
		w.awaitOnlyStuck()
		w.proc.terminate(seconds(*w.m.pools.cfg.TermGrace))
	}
	if w.proc != nil {
		// An answer that was written before the process ended counts.
		// Afterwards the sockets are closed, unless a process that left the
		// group holds them.
		w.m.pools.setDeadline(w, time.Now().Add(finalAnswerWait))
	}
	close(w.closed)
	slots.Wait()
	return err
}

// awaitOnlyStuck waits until all running requests are stuck, so that the end of
// the process interrupts no handler that could still finish. It waits at most
// for the term grace.
func (w *worker) awaitOnlyStuck() {
	limit := time.NewTimer(seconds(*w.m.pools.cfg.TermGrace))
	defer limit.Stop()
	for !w.isOnlyStuck() {
		select {
		case <-w.onlyStuck:
		case <-w.proc.exited:
			return
		case <-limit.C:
			return
		}
	}
}

func (w *worker) isOnlyStuck() bool {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	return w.busy == w.stuck
}

// hasSingleRequest reports whether the process runs exactly one request.
func (w *worker) hasSingleRequest() bool {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	return w.busy == 1
}

// signalOnlyStuck wakes awaitOnlyStuck. Pools.mu is held.
func (w *worker) signalOnlyStuck() {
	if w.busy != w.stuck {
		return
	}
	select {
	case w.onlyStuck <- struct{}{}:
	default: // it was signalled already
	}
}

// replace makes the member replace the process. The first cause is kept.
func (w *worker) replace(cause error) {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	if w.replaceErr == nil {
		w.replaceErr = cause
		close(w.replaced)
	}
}

// killFor replaces the process because of a dispatch that did not stop, and
// returns when the process has ended. cause is the reason to report. An
// external process is left alone: it can only notice the closed connection.
func (w *worker) killFor(d *dispatch, cause error) {
	if w.proc == nil {
		return
	}
	w.m.pools.mu.Lock()
	d.stuck = true
	w.stuck++
	w.signalOnlyStuck()
	w.m.pools.mu.Unlock()
	w.replace(cause)
	if d.leaseEnded() { // if the lease ends later, Pools.Stop finds d stuck
		w.proc.kill()
	}
	<-w.proc.exited
}

// exited returns a channel that is closed when the process has ended; nil for
// an external one.
func (w *worker) exited() <-chan struct{} {
	if w.proc == nil {
		return nil
	}
	return w.proc.exited
}

func (w *worker) hasExited() bool { return w.proc != nil && w.proc.hasExited() }

// exitsWithin waits until the worker's process has ended or limit has passed, and
// reports whether it has ended. It returns false at once for an external process, whose
// end is not known.
func (w *worker) exitsWithin(limit time.Duration) bool {
	if w.proc == nil {
		return false
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.proc.exited:
		return true
	case <-timer.C:
		return false
	}
}
