package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"yardmaster/job"
)

// worker is a process that listens, and its slots: what is offered under one
// name.
type worker struct {
	m    *member
	name string // "<runner>/<port>"
	id   string // as the runner is told: "yard_<node>_<port>"
	addr string
	proc *process // nil: external

	work      chan *dispatch // never full: a dispatch is sent with a slot taken
	closed    chan struct{}  // closed when no more dispatches come
	condemned chan struct{}  // closed when the process is to be replaced
	calm      chan struct{}  // told when nobody runs who could still finish

	// Under the pools' lock.
	free, busy, stuck int
	retired           bool  // takes no more dispatches
	sentence          error // why it was condemned; nil: it was not
}

// errReplaced ends a process that would not stop a request.
var errReplaced = errors.New("replaced: a request would not stop")

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
		condemned: make(chan struct{}),
		calm:      make(chan struct{}, 1),
		free:      n,
	}
}

// WorkerID is the name by which a runner at a node hears of itself; worker is
// the one that its offers have, "<runner>/<port>".
func WorkerID(node, worker string) string {
	return "yard_" + node + "_" + worker[strings.LastIndexByte(worker, '/')+1:]
}

func workerName(runner string, port int) string { return fmt.Sprintf("%s/%d", runner, port) }

// serve offers the worker's slots until its process ends, is condemned, or ctx
// ends, and sees to it that every dispatch has its outcome then and the
// process is no more.
func (w *worker) serve(ctx context.Context) error {
	var slots sync.WaitGroup
	for range w.free {
		s := &slot{w: w}
		slots.Go(s.run)
	}
	w.m.pools.open(w)
	select {
	case <-w.exited():
	case <-w.condemned:
	case <-ctx.Done():
	}
	err := w.m.pools.retire(w)
	if err == nil && w.hasExited() {
		err = errors.New(w.proc.how)
	}
	if w.proc != nil && !w.hasExited() {
		w.awaitCalm()
		w.proc.end(seconds(*w.m.pools.cfg.TermGrace))
	}
	if w.proc != nil {
		// An answer that came before the end counts; afterwards the sockets
		// are closed, unless somebody who left the group holds them.
		w.m.pools.interrupt(w, time.Now().Add(lastWords))
	}
	close(w.closed)
	slots.Wait()
	return err
}

// awaitCalm lets the neighbours of a stuck request finish, within the term
// grace.
func (w *worker) awaitCalm() {
	limit := time.NewTimer(seconds(*w.m.pools.cfg.TermGrace))
	defer limit.Stop()
	for !w.isCalm() {
		select {
		case <-w.calm:
		case <-w.proc.exited:
			return
		case <-limit.C:
			return
		}
	}
}

func (w *worker) isCalm() bool {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	return w.busy == w.stuck
}

// alone tells that one request has the process to itself.
func (w *worker) alone() bool {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	return w.busy == 1
}

// tellCalm wakes awaitCalm. The pools' lock is held.
func (w *worker) tellCalm() {
	if w.busy != w.stuck {
		return
	}
	select {
	case w.calm <- struct{}{}:
	default: // it has been told already
	}
}

// condemn has the process replaced.
func (w *worker) condemn(why error) {
	w.m.pools.mu.Lock()
	defer w.m.pools.mu.Unlock()
	if w.sentence == nil {
		w.sentence = why
		close(w.condemned)
	}
}

// endWith ends the process for the sake of a dispatch that would not stop, and
// returns when it has ended. A process that is not ours is left alone: the end
// of the connection is all it can be told. why is the process's sentence.
func (w *worker) endWith(d *dispatch, why error) {
	if w.proc == nil {
		return
	}
	w.m.pools.mu.Lock()
	d.stuck = true
	w.stuck++
	w.tellCalm()
	w.m.pools.mu.Unlock()
	w.condemn(why)
	if d.urgent() { // if it becomes so later, Pools.Stop sees that it is stuck
		w.proc.kill()
	}
	<-w.proc.exited
}

// finish gives the slot back and reports the outcome.
func (w *worker) finish(d *dispatch, o job.Outcome) { w.m.pools.finish(d, o) }

// exited is closed when the process has ended; for an external one, never.
func (w *worker) exited() <-chan struct{} {
	if w.proc == nil {
		return nil
	}
	return w.proc.exited
}

func (w *worker) hasExited() bool { return w.proc != nil && w.proc.hasExited() }

// exitsWithin waits for the end of a process whose connection has failed.
func (w *worker) exitsWithin(d time.Duration) bool {
	if w.proc == nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.proc.exited:
		return true
	case <-timer.C:
		return false
	}
}
