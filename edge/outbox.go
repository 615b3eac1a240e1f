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
	congested atomic.Bool   // a push was refused and the output is not written yet; set with mu held

	mu         sync.Mutex
	changed    sync.Cond        // pending or ready became shorter, or finishing or closed was set
	ready      []byte           // frames to be written next
	pending    []*pendingReply  // answers after the first outstanding one, oldest first
	few        [4]*pendingReply // memory of pending, while it is short
	pushesHeld bool             // by holdPushes, until the answer is written
	heldPushes []byte           // pushes since then
	writing    bool             // run has taken bytes that are not written yet
	finishing  bool             // run ends when ready is written
	closed     bool             // nothing is written any more
}

// pendingReply is the place of one answer, which is outstanding while bytes is
// nil.
type pendingReply struct{ bytes []byte }

// newOutbox returns an empty outbox. run calls drained when an outbox that was
// congested accepts QUESTs again.
func newOutbox(drained func()) *outbox {
	o := &outbox{wake: make(chan struct{}, 1), drained: drained}
	o.changed.L = &o.mu
	return o
}

// buffers lends memory to outboxes with output, so that idle connections hold
// none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxPooledBuffer is the capacity, in bytes, of the largest buffer that is lent
// again. A batch of some hundred QUESTs fits into it.
const maxPooledBuffer = 256 << 10

// answerSize is the capacity, in bytes, of an answer that has to wait: most are smaller.
const answerSize = 128

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

// reply appends an answer after those of all earlier requests. write appends it
// to its argument.
func (o *outbox) reply(write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
	case len(o.pending) == 0:
		o.borrowBuffer()
		o.ready = write(o.ready)
	default:
		o.pending = append(o.pending, &pendingReply{bytes: write(make([]byte, 0, answerSize))})
	}
}

// reserve reserves the place of the next answer.
func (o *outbox) reserve() *pendingReply {
	place := new(pendingReply)
	o.mu.Lock()
	o.pending = append(o.pending, place)
	o.mu.Unlock()
	return place
}

// fill sets a reserved answer, which write appends to its argument. It must be
// called once for each. The answers up to the next outstanding one become ready
// to be written.
func (o *outbox) fill(place *pendingReply, write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if place == o.pending[0] {
		o.borrowBuffer()
		o.ready = write(o.ready)
		o.pending = o.pending[1:]
	} else {
		place.bytes = write(make([]byte, 0, answerSize))
	}
	for len(o.pending) > 0 && o.pending[0].bytes != nil {
		o.ready = append(o.ready, o.pending[0].bytes...)
		o.pending = o.pending[1:]
	}
	if len(o.pending) == 0 {
		o.few = [len(o.few)]*pendingReply{}
		o.pending = o.few[:0]
	}
	o.changed.Broadcast()
	o.wakeWriter()
}

// push appends a message that is not an answer: write appends it to its
// argument. full reports that more than limit bytes wait to be written: the
// message is dropped, and run calls drained when the client has read enough. If
// the connection is ending, the message is dropped, too.
func (o *outbox) push(limit int, write func([]byte) []byte) (full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.finishing {
		return false
	}
	if o.unwritten() > limit {
		o.congested.Store(true)
		return true
	}
	if o.pushesHeld {
		o.heldPushes = write(o.heldPushes)
	} else {
		o.borrowBuffer()
		o.ready = write(o.ready)
	}
	o.wakeWriter()
	return false
}

// unwritten returns the number of bytes that run has not taken. mu is held.
func (o *outbox) unwritten() int { return len(o.ready) + len(o.heldPushes) }

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
func (o *outbox) run(netConn net.Conn, writeTimeout time.Duration) bool {
	defer o.discard()
	for {
		batch, finishing := o.takeReady()
		if len(batch) == 0 {
			if finishing {
				return true
			}
			<-o.wake
			continue
		}
		netConn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := netConn.Write(batch); err != nil {
			return false
		}
		if cap(batch) <= maxPooledBuffer {
			batch = batch[:0]
			buffers.Put(&batch)
		}
		if o.clearCongested() {
			o.drained()
		}
	}
}

// takeReady returns the frames to be written next, and whether run must end
// after them. It wakes a read loop that waits because too much was unwritten.
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

// written reports whether everything that was appended has gone to the socket. It
// returns false while the outbox is locked, because it is called with
// deliveries.mu held, which [Server.Start] locks while the outbox is locked.
func (o *outbox) written() bool {
	if !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	return !o.closed && !o.writing && o.unwritten() == 0
}

// clearCongested reports, after a write, whether a congested outbox accepts
// QUESTs again.
func (o *outbox) clearCongested() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.congested.Load() || o.unwritten() > questLimit {
		return false
	}
	o.congested.Store(false)
	return true
}

// discard drops all output. Nothing is appended any more.
func (o *outbox) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready, o.heldPushes, o.pending = nil, nil, nil
	o.changed.Broadcast()
}
