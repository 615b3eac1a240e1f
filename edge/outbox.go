package edge

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes of what may wait for a client to read, in bytes.
const (
	readPause  = 256 << 10 // more than this, and its next request is not read
	questLimit = 4 << 20   // more than this, and it gets no further QUEST
	pushLimit  = 8 << 20   // more than this, and it is cut off
)

// maxSlots is how many answers of one connection may be outstanding before its
// next request is not read.
const maxSlots = 1024

// outbox is all that is to be written to one client, in order: answers in the
// order of their requests, pushes between them. Answers that take time hold
// their place with a slot. One goroutine runs [outbox.run]; any may append.
type outbox struct {
	wake    chan struct{} // capacity 1: there is something to do for run
	drained func()        // called by run once stuffed is false again
	stuffed atomic.Bool   // a push found no room, and what was in its way is not written yet; set under mu

	mu      sync.Mutex
	changed sync.Cond // slots or ready shrank, or dead was set
	ready   []byte    // framed, to be written as it is
	slots   []*slot   // answers not yet ready, oldest first
	holding bool      // a PING has come and its PONG is not ready
	held    []byte    // pushes since then
	last    bool      // close when ready is written
	dead    bool      // nothing is written any more
}

// slot is the place of an answer. Its bytes count once done.
type slot struct {
	bytes []byte
	done  bool
}

func newOutbox(drained func()) *outbox {
	o := &outbox{wake: make(chan struct{}, 1), drained: drained}
	o.changed.L = &o.mu
	return o
}

// buffers lend memory to outboxes that have something to write, so that idle
// connections hold none.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

func (o *outbox) lend() {
	if o.ready == nil {
		o.ready = *buffers.Get().(*[]byte)
	}
}

// kick wakes run. Appending does not: whoever appends much kicks once.
func (o *outbox) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// answer appends an answer behind all that were asked for before.
func (o *outbox) answer(write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead {
		return
	}
	if len(o.slots) == 0 {
		o.lend()
		o.ready = write(o.ready)
		return
	}
	o.slots = append(o.slots, &slot{bytes: write(nil), done: true})
}

// reserve holds the place of an answer to come.
func (o *outbox) reserve() *slot {
	s := new(slot)
	o.mu.Lock()
	o.slots = append(o.slots, s)
	o.mu.Unlock()
	return s
}

// fill brings the answer of a slot, once.
func (o *outbox) fill(s *slot, write func([]byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead {
		return
	}
	if s == o.slots[0] {
		o.lend()
		o.ready = write(o.ready)
		o.slots = o.slots[1:]
	} else {
		s.bytes = write(nil)
	}
	s.done = true
	for len(o.slots) > 0 && o.slots[0].done {
		o.ready = append(o.ready, o.slots[0].bytes...)
		o.slots = o.slots[1:]
	}
	if len(o.slots) == 0 {
		o.slots = nil
	}
	o.changed.Broadcast()
	o.kick()
}

// sent tells what became of a push.
type sent uint8

const (
	sentWell sent = iota
	sentFull      // too much waits for the client; drained is called when it has read it
	sentLate      // the connection ends
)

// push appends what was not asked for, unless more than limit bytes wait. An
// error is write's own; nothing is appended then.
func (o *outbox) push(limit int, write func([]byte) ([]byte, error)) (sent, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead || o.last {
		return sentLate, nil
	}
	if len(o.ready)+len(o.held) > limit {
		o.stuffed.Store(true)
		return sentFull, nil
	}
	to := &o.ready
	if o.holding {
		to = &o.held
	} else {
		o.lend()
	}
	grown, err := write(*to)
	if err != nil {
		return sentWell, err
	}
	*to = grown
	o.kick()
	return sentWell, nil
}

// hold keeps pushes back until release.
func (o *outbox) hold() {
	o.mu.Lock()
	o.holding = true
	o.mu.Unlock()
}

// release lets pushes follow what is ready.
func (o *outbox) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holding = false
	if len(o.held) > 0 {
		o.lend()
		o.ready = append(o.ready, o.held...)
		o.held = nil
		o.kick()
	}
}

// await blocks until at most slots answers are outstanding and the client has
// read most of what it was sent. It is false if the connection has ended.
func (o *outbox) await(slots int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.dead && !o.last && (len(o.slots) > slots || len(o.ready) > readPause) {
		o.kick()
		o.changed.Wait()
	}
	return !o.dead && !o.last
}

// finish lets run end once what is ready is written. Answers that are still
// outstanding are not waited for.
func (o *outbox) finish() {
	o.mu.Lock()
	o.last = true
	o.changed.Broadcast()
	o.mu.Unlock()
	o.kick()
}

// run writes until finish is called or the client does not read for stuck; then
// it is false. All that waits goes in one write, which gathers what comes
// meanwhile.
func (o *outbox) run(nc net.Conn, stuck time.Duration) bool {
	defer o.die()
	for range o.wake {
		for {
			batch, last := o.take()
			if len(batch) == 0 && last {
				return true
			}
			if len(batch) == 0 {
				break
			}
			nc.SetWriteDeadline(time.Now().Add(stuck))
			_, err := nc.Write(batch)
			if cap(batch) <= 64<<10 {
				batch = batch[:0]
				buffers.Put(&batch)
			}
			if err != nil {
				return false
			}
			if o.relieved() {
				o.drained()
			}
		}
	}
	return true // never: nobody closes wake
}

func (o *outbox) take() (batch []byte, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch, o.ready = o.ready, nil
	if len(batch) > readPause {
		o.changed.Broadcast()
	}
	return batch, o.last
}

// relieved tells, after a write, that QUESTs have room again.
func (o *outbox) relieved() bool {
	if !o.stuffed.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ready)+len(o.held) > questLimit {
		return false // another write follows
	}
	o.stuffed.Store(false)
	return true
}

func (o *outbox) die() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dead = true
	o.ready, o.held, o.slots = nil, nil, nil
	o.changed.Broadcast()
}
