package scheduler

import "yardmaster/job"

// Bodies kept so that an assignment can carry its own.
const (
	maxBody   = 4 << 10
	maxBodies = 64 << 20
)

// bodyCache holds the bodies of jobs that are about to be placed. What it has
// not, nodes read from the lane.
type bodyCache struct {
	bodies map[job.ID][]byte
	order  []job.ID // as they came; taken ones are skipped
	bytes  int
}

func newBodyCache() bodyCache { return bodyCache{bodies: map[job.ID][]byte{}} }

func (c *bodyCache) put(id job.ID, body []byte) {
	if _, have := c.bodies[id]; have || len(body) > maxBody {
		return
	}
	c.bodies[id] = body
	c.order = append(c.order, id)
	c.bytes += len(body)
	for c.bytes > maxBodies {
		c.take(c.order[0])
		c.order = c.order[1:]
	}
	if len(c.order) > 2*len(c.bodies)+1024 {
		c.compact()
	}
}

// take gives a body and forgets it; nil if it is not here.
func (c *bodyCache) take(id job.ID) []byte {
	body := c.bodies[id]
	delete(c.bodies, id)
	c.bytes -= len(body)
	return body
}

func (c *bodyCache) compact() {
	keep := make([]job.ID, 0, len(c.bodies))
	for _, id := range c.order {
		if _, ok := c.bodies[id]; ok {
			keep = append(keep, id)
		}
	}
	c.order = keep
}
