package overhop

import (
	"context"
	"fmt"
	"time"
)

const (
	// defaultResponseTimeout is longer than the longest time for which a node
	// can be configured to delay an answer, one minute.
	defaultResponseTimeout = 65 * time.Second

	// probeAfter is the silence after which a node that owes an answer is
	// probed. With its default configuration a node always answers sooner.
	probeAfter = 6 * time.Second

	watchInterval = 500 * time.Millisecond
)

// watchSilence closes the connection and returns an error if the node owes
// answers and is dead or has been silent for too long. It returns nil if ctx
// ends first.
func (c *Client) watchSilence(ctx context.Context) error {
	if c.opts.ResponseTimeout < 0 {
		return nil
	}
	tick := time.NewTicker(min(watchInterval, max(c.opts.ResponseTimeout/4, time.Millisecond)))
	defer tick.Stop()
	var lastAlive time.Time // when the last successful probe ended
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		since, waiting := c.requests.unansweredSince()
		switch {
		case !waiting:
			continue
		case time.Since(since) > c.opts.ResponseTimeout:
		case c.opts.probe == nil || min(time.Since(since), time.Since(lastAlive)) <= probeAfter:
			continue
		case c.opts.probe(ctx):
			lastAlive = time.Now()
			continue
		default:
			if again, waiting := c.requests.unansweredSince(); !waiting || again.After(since) {
				continue // it has answered during the probe
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		c.nc.Close()
		return fmt.Errorf("node has sent nothing for %s", time.Since(since).Round(watchInterval))
	}
}
