package edge

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Limits on what waits for a client to read, in bytes.
const (
	readPause  = 256 << 10 // beyond it, no further request is read
	questLimit = 4 << 20   // beyond it, no further QUEST is sent
	pushLimit  = 8 << 20   // beyond it, the client is cut off
)

// maxPending is the number of answers of one connection that may be outstanding
// before no further request is read.
const maxPending = 1024

// outbox is the output of one connection: answers in the order of their
// requests, and pushes between them. An answer that takes time holds its place
// with a pendingReply. One goroutine executes [outbox.run]; any goroutine may
// append.
type outbox struct {
	wake      chan struct{} // capacity 1: run has something to do
	drained   func()        // called by run when congested becomes false
	congested atomic.Bool   // a push exceeded its limit and the output is not written yet; set with mu held

	mu         sync.Mutex
	changed    sync.Cond       // pending or ready became shorter, or finishing or closed was set
	ready      []byte          // frames to be written next
	pending    []*pendingReply // answers after the first outstanding one, oldest first
	pushesHeld bool            // by holdPushes, until the answer is written
	heldPushes []byte          // pushes since then
	writing    bool            // run has taken bytes that are not written yet
	finishing  bool            // run ends when ready is written
	closed     bool            // nothing is written any more
}

// pendingReply is the place of one answer. bytes is valid once done is set.
type pendingReply struct {
	bytes []byte
	done  bool
}

func newOutbox(drained func()) *outbox {
	o := &outbox{wake: make(chan struct{}, 1), drained: drained}
	o.changed.L = &o.mu
	return o
}

// buffers lends memory to outboxes with output, so that idle connections hold
// none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// borrowBuffer makes sure that ready has memory to append to.
func (o *outbox) borrowBuffer() {
	if o.ready == nil {
		o.ready = *buffers.Get().(*[]byte)
	}
}

// wakeWriter wakes run. reply does not: its caller wakes run once for many
// answers.
func (o *outbox) wakeWriter() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// reply appends an answer after those of all earlier requests.
func (o *outbox) reply(write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if len(o.pending) == 0 {
		o.borrowBuffer()
		o.ready = write(o.ready)
		return
	}
	o.pending = append(o.pending, &pendingReply{bytes: write(nil), done: true})
}

// reserve reserves the place of the next answer.
func (o *outbox) reserve() *pendingReply {
	s := new(pendingReply)
	o.mu.Lock()
	o.pending = append(o.pending, s)
	o.mu.Unlock()
	return s
}

// fill sets a reserved answer. It must be called once for each.
func (o *outbox) fill(s *pendingReply, write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if s == o.pending[0] {
		o.borrowBuffer()
		o.ready = write(o.ready)
		o.pending = o.pending[1:]
	} else {
		s.bytes = write(nil)
	}
	s.done = true
	for len(o.pending) > 0 && o.pending[0].done {
		o.ready = append(o.ready, o.pending[0].bytes...)
		o.pending = o.pending[1:]
	}
	if len(o.pending) == 0 {
		o.pending = nil
	}
	o.changed.Broadcast()
	o.wakeWriter()
}

// pushResult is the result of a push.
type pushResult uint8

const (
	pushOK     pushResult = iota
	pushFull              // too much output is unread; drained is called when it is written
	pushClosed            // the connection is ending
)

// push appends a message that is not an answer, unless more than limit bytes
// wait to be written. An error is that of write; nothing is appended then.
func (o *outbox) push(limit int, write func([]byte) ([]byte, error)) (pushResult, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.finishing {
		return pushClosed, nil
	}
	if len(o.ready)+len(o.heldPushes) > limit {
		o.congested.Store(true)
		return pushFull, nil
	}
	to := &o.ready
	if o.pushesHeld {
		to = &o.heldPushes
	} else {
		o.borrowBuffer()
	}
	out, err := write(*to)
	if err != nil {
		return pushOK, err
	}
	*to = out
	o.wakeWriter()
	return pushOK, nil
}

// holdPushes holds pushes back until releasePushes.
func (o *outbox) holdPushes() {
	o.mu.Lock()
	o.pushesHeld = true
	o.mu.Unlock()
}

// releasePushes appends the pushes held back and ends holdPushes.
func (o *outbox) releasePushes() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pushesHeld = false
	if len(o.heldPushes) > 0 {
		o.borrowBuffer()
		o.ready = append(o.ready, o.heldPushes...)
		o.heldPushes = nil
		o.wakeWriter()
	}
}

// waitPending blocks until at most limit answers are outstanding and the client
// has read most of what was sent. It returns false if the connection is ending.
func (o *outbox) waitPending(limit int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && !o.finishing && (len(o.pending) > limit || len(o.ready) > readPause) {
		o.wakeWriter()
		o.changed.Wait()
	}
	return !o.closed && !o.finishing
}

// finish makes run return once ready is written. Answers that are still
// outstanding are dropped.
func (o *outbox) finish() {
	o.mu.Lock()
	o.finishing = true
	o.changed.Broadcast()
	o.mu.Unlock()
	o.wakeWriter()
}

// run writes until finish is called. It returns false if a write fails or takes
// longer than writeTimeout. Everything that has accumulated is written at once.
func (o *outbox) run(nc net.Conn, writeTimeout time.Duration) bool {
	defer o.discard()
	for range o.wake {
		for {
			batch, finishing := o.takeReady()
			if len(batch) == 0 && finishing {
				return true
			}
			if len(batch) == 0 {
				break
			}
			nc.SetWriteDeadline(time.Now().Add(writeTimeout))
			_, err := nc.Write(batch)
			if cap(batch) <= 64<<10 {
				batch = batch[:0]
				buffers.Put(&batch)
			}
			if err != nil {
				return false
			}
			if o.clearCongested() {
				o.drained()
			}
		}
	}
	return true // not reached: wake is never closed
}

func (o *outbox) takeReady() (batch []byte, finishing bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch, o.ready = o.ready, nil
	o.writing = len(batch) > 0
	if len(batch) > readPause {
		o.changed.Broadcast()
	}
	return batch, o.finishing
}

// written reports whether everything that was appended has gone to the socket.
func (o *outbox) written() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.closed && !o.writing && len(o.ready)+len(o.heldPushes) == 0
}

// clearCongested reports, after a write, whether a congested outbox accepts
// QUESTs again.
func (o *outbox) clearCongested() bool {
	if !o.congested.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ready)+len(o.heldPushes) > questLimit {
		return false // another write follows
	}
	o.congested.Store(false)
	return true
}

func (o *outbox) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready, o.heldPushes, o.pending = nil, nil, nil
	o.changed.Broadcast()
}
