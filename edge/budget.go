package edge

import (
	"net"
	"slices"
	"sync"
	"time"
)

// honestPace is how slowly a client may send a large frame, in bytes a second,
// beside its read timeout: 2 Mbit/s.
const honestPace = 256 << 10

// budget is the memory, in bytes, that the large frames of all connections may
// take: from the moment each is let in until its answer is formed.
//
// A frame gets all it announced at once or waits, first come, first served. So
// nobody who has begun waits for another who waits for him; and who dawdles
// with what he has got is cut off ([conn.Begun]).
type budget struct {
	mu      sync.Mutex
	free    int
	waiting []*claim
}

// claim is a frame that waits.
type claim struct {
	size    int
	granted chan struct{} // closed with the claim granted
}

// take waits for size bytes, at most all there are. It is false if ended came
// first; nothing is taken then.
func (b *budget) take(size int, ended <-chan struct{}) bool {
	b.mu.Lock()
	c := &claim{size, make(chan struct{})}
	b.waiting = append(b.waiting, c)
	b.grantLocked()
	b.mu.Unlock()
	select {
	case <-c.granted:
		return true
	case <-ended:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, c); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else {
		b.free += size // granted at the same moment
	}
	b.grantLocked()
	return false
}

// give takes size bytes back.
func (b *budget) give(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += size
	b.grantLocked()
}

func (b *budget) grantLocked() {
	for len(b.waiting) > 0 && b.waiting[0].size <= b.free {
		b.free -= b.waiting[0].size
		close(b.waiting[0].granted)
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

// Begun gives the rest of a frame that has begun its time: it must not hold
// what it has got for ever.
func (c *conn) Begun(size int) {
	c.hurried = true
	pace := time.Duration(size) * time.Second / honestPace
	c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.Limits.ReadTimeout + pace))
}

// Hold waits for the budget of a large frame. The client's time stands still
// meanwhile: it is not its fault.
func (c *conn) Hold(size int) error {
	c.busy.start()
	taken := c.s.frames.take(size, c.mute)
	c.busy.stop()
	if !taken {
		return net.ErrClosed
	}
	c.large = size
	c.Begun(size)
	return nil
}

// rest gives a client between two frames all the time it is allowed.
func (c *conn) rest() {
	switch idle := c.s.cfg.Limits.IdleTimeout; {
	case idle > 0 && c.wid != "":
		c.nc.SetReadDeadline(time.Now().Add(idle))
	case c.hurried:
		c.nc.SetReadDeadline(time.Time{})
	}
	c.hurried = false
}

// dropFrame gives back what the frame in hand took, unless somebody carries it.
func (c *conn) dropFrame() {
	if c.large > 0 {
		c.s.frames.give(c.large)
		c.large = 0
	}
}

// carry lets what the frame in hand took outlive its handling, for an answer to
// come; drop gives it back and must be called once.
func (c *conn) carry() (drop func()) {
	size := c.large
	if size == 0 {
		return func() {}
	}
	c.large = 0
	return func() { c.s.frames.give(size) }
}
