// Package crash decides what a panic ends: the work for one peer, or the process.
//
// Three rules decide:
//
//   - A goroutine that works for one peer contains its panics with [Contain]: a connection of a
//     worker, a request, the answer of a runner. A message that the code cannot handle must not end
//     all nodes, one after the other, to which its sender connects.
//   - Peers share state under a [Mutex]. A panic while one is held ends the process before the lock
//     is released: a member that stops is replaced by the others, one that goes on with state that
//     is half changed may give two workers the same job.
//   - Nothing else contains panics: not the ledger's Apply, nor the loops of the node, nor a
//     callback that gets the reply to a request of the node itself.
//
// So a goroutine may contain its panics if all that it changes without a Mutex ends with the peer:
// its buffers, its session, the places that it has in counters, which it returns in deferred calls.
package crash

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// Where says what a goroutine served when it panicked. It is a label of a metric.
type Where int

// The places at which panics are contained.
const (
	Overhop Where = iota // a connection of a worker or producer
	HTTP                 // a request over HTTP, also of the console
	NATS                 // a request of a client over NATS
	Member               // a message of another member, also a connection to the Raft port
	Runner               // a dispatch at an RRQ runner, or a line that it printed
	Job                  // a job that is read or sent, whoever enqueued it
	places
)

var placeNames = [places]string{"overhop", "http", "nats", "member", "runner", "job"}

// String returns the value of the metric's label.
func (w Where) String() string { return placeNames[w] }

var (
	counts    [places]atomic.Uint64
	throttles [places]logthrottle.Throttle
	contained atomic.Bool // a panic was contained: its goroutine may have left a Mutex locked
)

// Counts calls emit with each place and the number of panics that were contained there since the
// process started.
func Counts(emit func(where string, panics uint64)) {
	for w := range places {
		emit(w.String(), counts[w].Load())
	}
}

// Contain ends a panic of its caller, which must defer it directly. It logs the panic with its
// stack, at most once a second for each place, counts it, and calls handle, unless that is nil,
// with an error for the peer. Without a panic, it has no effect. A panic with
// [http.ErrAbortHandler], by which a handler gives up its response, goes on.
//
//	defer crash.Contain(s.log, crash.HTTP, func(err error) { s.respondError(w, err) })
func Contain(log *slog.Logger, where Where, handle func(error)) {
	cause := recover()
	switch cause {
	case nil:
		return
	case http.ErrAbortHandler:
		panic(cause)
	}
	contained.Store(true)
	counts[where].Add(1)
	text := usercode.PanicText(cause)
	if n, ok := throttles[where].Allow(time.Now()); ok {
		log.Error("panic contained: only the peer that was served is affected", "where", where.String(), "err", text, "count", n, "stack", string(debug.Stack()))
	}
	if handle != nil {
		handle(fmt.Errorf("the node failed to handle this, and its log says where: panic: %s", text))
	}
}

// Mutex is a [sync.Mutex] for state that peers share. A panic while it is held ends the process, if
// Unlock was deferred, before it is released; else once another goroutine has waited for it in vain.
// It must not be held for long, as during input and output.
type Mutex struct{ mu sync.Mutex }

// Lock locks m. It blocks until m is available.
func (m *Mutex) Lock() {
	if !m.mu.TryLock() {
		m.lockSlow()
	}
}

// TryLock locks m if it is available, and reports whether it did.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// lockSlow blocks until m is available. If a goroutine whose panic was contained has left m locked,
// it ends the process.
func (m *Mutex) lockSlow() {
	if !contained.Load() {
		m.mu.Lock()
		return
	}
	locked := make(chan struct{})
	go func() {
		if isStuck(locked) {
			panic("a lock of shared state is held for too long after a panic was contained: the goroutine that panicked has left it locked")
		}
	}()
	m.mu.Lock()
	close(locked)
}

// stuckAfter is half of the time after which a Mutex counts as left locked.
const stuckAfter = 10 * time.Second

// isStuck reports whether locked is not closed within twice stuckAfter. It measures twice because the
// machine, or the process, may be suspended during one of the times.
func isStuck(locked <-chan struct{}) bool {
	for range 2 {
		select {
		case <-locked:
			return false
		case <-time.After(stuckAfter):
		}
	}
	return true
}

// Unlock unlocks m. If it is called because its caller, which has deferred it, panics, it ends the
// process instead.
func (m *Mutex) Unlock() {
	EndOn(recover())
	m.mu.Unlock()
}

// EndOn ends the process if cause, which recover has returned, is not nil: the caller was deferred to
// release a [Mutex]. It ends it whatever would recover the panic farther up, such as the HTTP server.
// The trace of the panic is on stderr.
func EndOn(cause any) {
	if cause == nil {
		return
	}
	text := fmt.Sprintf("%s, while a lock of shared state was held\n\n%s", usercode.PanicText(cause), debug.Stack())
	go func() { panic(text) }()
	select {} // with the lock held: nobody sees the state
}
