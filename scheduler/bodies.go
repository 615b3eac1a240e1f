package scheduler

import (
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of the body cache, in bytes.
const (
	maxCachedBody   = 4 << 10  // one body
	maxCachedBodies = 64 << 20 // all bodies with their overhead
	bodyOverhead    = 96       // estimated memory per body, in addition to its bytes
)

// bodyCache holds small bodies of jobs that are about to be placed, so that their
// assignments can carry them; nodes read other bodies from the lane. The key is the
// record's position, because two records may have the same job id.
type bodyCache struct {
	bodies map[job.Position][]byte // none shares memory with a message, see [pendingRecord.detach]
	order  []job.Position          // in the order of put; may contain positions that were taken
	bytes  int                     // memory that the bodies use
}

func newBodyCache() bodyCache { return bodyCache{bodies: map[job.Position][]byte{}} }

// put stores a body unless it is too large, and evicts the oldest bodies while the
// cache is too large.
func (c *bodyCache) put(pos job.Position, body []byte) {
	if _, have := c.bodies[pos]; have || len(body) == 0 || len(body) > maxCachedBody {
		return
	}
	c.bodies[pos] = body
	c.order = append(c.order, pos)
	c.bytes += bodyOverhead + cap(body)
	for c.bytes > maxCachedBodies {
		c.take(c.order[0])
		c.order = c.order[1:]
	}
	if len(c.order) > 2*len(c.bodies)+1024 {
		c.order = slices.DeleteFunc(c.order, func(pos job.Position) bool { return c.bodies[pos] == nil })
	}
}

func (c *bodyCache) has(pos job.Position) bool { return c.bodies[pos] != nil }

// take removes a body from the cache and returns it; nil if it is not cached.
func (c *bodyCache) take(pos job.Position) []byte {
	body, ok := c.bodies[pos]
	if ok {
		delete(c.bodies, pos)
		c.bytes -= bodyOverhead + cap(body)
	}
	return body
}
