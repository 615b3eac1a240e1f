package overhop

import (
	"context"
	"fmt"
	"time"
)

const (
	// patience is longer than the longest time for which a node may be set to
	// hold an answer back, a minute: who lives answers sooner.
	patience = 65 * time.Second

	// doubt is the silence after which a node that owes an answer is asked
	// whether it lives. A node that is set as usual never keeps still so long.
	doubt = 6 * time.Second

	watchPace = 500 * time.Millisecond
)

// watch closes the connection of a node that owes answers and is dead, or
// silent for too long, and says so. It gives nil if ctx ends first.
func (c *Client) watch(ctx context.Context) error {
	if c.o.Silence < 0 {
		return nil
	}
	tick := time.NewTicker(min(watchPace, max(c.o.Silence/4, time.Millisecond)))
	defer tick.Stop()
	var lived time.Time // when it was last asked, and did
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		since, owes := c.silentSince()
		switch {
		case !owes:
			continue
		case time.Since(since) > c.o.Silence:
		case c.o.alive == nil || time.Since(later(since, lived)) <= doubt:
			continue
		case c.o.alive(ctx):
			lived = time.Now()
			continue
		default:
			if again, owes := c.silentSince(); !owes || again.After(since) {
				continue // it has spoken while it was asked
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		c.nc.Close()
		return fmt.Errorf("node has said nothing for %s", time.Since(since).Round(watchPace))
	}
}

// silentSince is when the node last said something, or was first asked for
// what it owes.
func (c *Client) silentSince() (since time.Time, owes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, len(c.pending) > 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
