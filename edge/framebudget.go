package edge

import (
	"net"
	"slices"
	"sync"
	"time"
)

// minSendRate is the lowest rate, in bytes per second, at which a client may
// send a large frame: 2 Mbit/s. The read timeout comes on top.
const minSendRate = 256 << 10

// budget is the memory, in bytes, that the large frames of all connections may
// take, each from its reservation until its answer is formed.
//
// A frame gets its whole announced size at once, or waits in order of arrival.
// So a frame that has begun never waits for another that waits for it; a client
// that sends its frame too slowly is cut off ([conn.Started]).
type budget struct {
	mu        sync.Mutex
	available int
	waiting   []*reservation
}

// reservation is a frame that waits for memory.
type reservation struct {
	size    int
	granted chan struct{} // closed when the memory is granted
}

// acquire waits until size bytes are available and takes them. size must not
// exceed the whole budget. It returns false, and takes nothing, if done is
// closed first.
func (b *budget) acquire(size int, done <-chan struct{}) bool {
	b.mu.Lock()
	r := &reservation{size, make(chan struct{})}
	b.waiting = append(b.waiting, r)
	b.grantLocked()
	b.mu.Unlock()
	select {
	case <-r.granted:
		return true
	case <-done:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, r); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else {
		b.available += size // granted at the same moment
	}
	b.grantLocked()
	return false
}

// release returns size bytes to the budget.
func (b *budget) release(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.available += size
	b.grantLocked()
}

func (b *budget) grantLocked() {
	for len(b.waiting) > 0 && b.waiting[0].size <= b.available {
		b.available -= b.waiting[0].size
		close(b.waiting[0].granted)
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

// Started sets the read deadline for the rest of a frame of size bytes that has
// begun, so that the frame cannot keep its memory for ever.
func (c *conn) Started(size int) {
	c.frameBegun = true
	sendTime := time.Duration(size) * time.Second / minSendRate
	c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.Limits.ReadTimeout + sendTime))
}

// Reserve waits for the memory of a large frame. The wait does not count as the
// client's silence.
func (c *conn) Reserve(size int) error {
	c.busy.start()
	taken := c.s.frameBudget.acquire(size, c.writerDone)
	c.busy.stop()
	if !taken {
		return net.ErrClosed
	}
	c.frameMemory = size
	c.Started(size)
	return nil
}

// setIdleDeadline sets the read deadline for the time between two frames.
func (c *conn) setIdleDeadline() {
	switch idle := c.s.cfg.Limits.IdleTimeout; {
	case idle > 0 && c.wid != "":
		c.nc.SetReadDeadline(time.Now().Add(idle))
	case c.frameBegun:
		c.nc.SetReadDeadline(time.Time{})
	}
	c.frameBegun = false
}

// releaseFrame returns the current frame's memory to the budget, unless
// detachFrame was called for it.
func (c *conn) releaseFrame() {
	if c.frameMemory > 0 {
		c.s.frameBudget.release(c.frameMemory)
		c.frameMemory = 0
	}
}

// detachFrame keeps the current frame's memory reserved after its handling,
// until its answer is formed. release must be called once.
func (c *conn) detachFrame() (release func()) {
	size := c.frameMemory
	if size == 0 {
		return func() {}
	}
	c.frameMemory = 0
	return func() { c.s.frameBudget.release(size) }
}
