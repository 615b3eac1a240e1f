package streams

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// maxCachedMessages is how many messages a packedCache keeps, each of up to
// [job.MaxPackedBytes].
const maxCachedMessages = 64

// packedCache keeps the records of messages that hold several and were read last. Jobs start
// in the order in which they were accepted, so the other records of a message are needed soon.
// A message is read once if several of its records are needed at the same time.
type packedCache struct {
	mu       crash.Mutex
	messages map[job.Position]*cachedMessage
	order    []job.Position // of messages, in the order in which they were first read
}

// cachedMessage is a message that is being read, or was.
type cachedMessage struct {
	done    chan struct{} // closed once it was read
	records []job.Record
	err     error
}

func newPackedCache() *packedCache {
	return &packedCache{messages: map[job.Position]*cachedMessage{}}
}

// load returns the records of the message at a position, whose index must be 0, and calls read
// for them unless the cache has them or is being given them. Only a message with several
// records is kept. An error is that of the caller's own read.
func (c *packedCache) load(ctx context.Context, at job.Position, read func() ([]job.Record, error)) ([]job.Record, error) {
	for {
		c.mu.Lock()
		m, found := c.messages[at]
		if !found {
			m = &cachedMessage{done: make(chan struct{})}
			c.messages[at] = m
		}
		c.mu.Unlock()
		if !found {
			m.records, m.err = read()
			c.keep(at, m)
			close(m.done)
			return m.records, m.err
		}
		select {
		case <-m.done:
			if m.err == nil {
				return m.records, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// keep keeps a message that was read, or forgets it.
func (c *packedCache) keep(at job.Position, m *cachedMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(m.records) < 2 {
		delete(c.messages, at)
		return
	}
	c.order = append(c.order, at)
	if len(c.order) > maxCachedMessages {
		delete(c.messages, c.order[0])
		c.order = c.order[1:]
	}
}

// forget removes the message with the record at a position, and reports whether the cache
// had it.
func (c *packedCache) forget(at job.Position) bool {
	at.Index = 0
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.messages[at]
	delete(c.messages, at)
	return found
}
