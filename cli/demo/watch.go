package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// killAuthority kills the node that holds the authority once half of the jobs are
// accepted, and restarts it if it is the only node.
func (c *demoCluster) killAuthority(ctx context.Context, l *load) error {
	for int(l.accepted.Load()) < l.jobs/2 {
		if err := backoff.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	victim, err := c.authority(ctx)
	if err != nil {
		return err
	}
	victim.dead.Store(true)
	victim.Kill()
	c.killed = time.Now()
	c.logf("killed %s, the authority, with SIGKILL at %d accepted jobs", victim.Name, l.accepted.Load())
	if len(c.members) > 1 {
		return nil
	}
	// A standalone node recovers from its disk.
	if err := victim.Start(); err != nil {
		return err
	}
	victim.dead.Store(false)
	return nil
}

// authority asks the surviving nodes until one reports an authority.
func (c *demoCluster) authority(ctx context.Context) (found *member, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	turn := 0
	err = c.Until(ctx, "there is an authority", func() error {
		turn++
		s, err := askStatus(ctx, c.survivor(turn))
		if err != nil {
			return err
		}
		for _, m := range c.members {
			if m.Name == s.Authority.Owner && !s.Authority.Expired {
				found = m
				return nil
			}
		}
		return fmt.Errorf("the authority is %q", s.Authority.Owner)
	})
	return found, err
}

// showProgress prints progress until ctx ends: on a terminal in one line that is
// overwritten, otherwise as a line per second.
func (c *demoCluster) showProgress(ctx context.Context, l *load) {
	interval := time.Second
	if c.terminal {
		interval = 250 * time.Millisecond
	}
	for turn := 0; backoff.Sleep(ctx, interval) == nil; turn++ {
		m := c.survivor(turn)
		t, err := tally(ctx, m)
		if ctx.Err() != nil {
			return
		}
		text := fmt.Sprintf("%5.1f s  accepted %d of %d", time.Since(l.began).Seconds(), l.accepted.Load(), l.jobs)
		if err != nil {
			c.printLine(text + "; " + m.Name + " does not answer")
			continue
		}
		c.printLine(fmt.Sprintf("%s  completed %d  failed %d  open %d (running %d)  authority %s",
			text, t["completed"], t["failed"], t["open"], t["active"], *c.currentAuthority.Load()))
	}
}

// watchAuthority keeps currentAuthority up to date. It runs separately from
// showProgress, because a node answers slowly while there is no authority.
func (c *demoCluster) watchAuthority(ctx context.Context) {
	for turn := 0; ; turn++ {
		text := "none"
		s, err := askStatus(ctx, c.survivor(turn))
		if err == nil && s.Authority.Owner != "" && !s.Authority.Expired {
			text = fmt.Sprintf("%s, epoch %d", s.Authority.Owner, s.Authority.Epoch)
		}
		c.currentAuthority.Store(&text)
		if backoff.Sleep(ctx, 250*time.Millisecond) != nil {
			return
		}
	}
}

// printLine writes a line of progress. On a terminal it overwrites the last one.
func (c *demoCluster) printLine(text string) {
	if c.terminal {
		text = "\r" + text + strings.Repeat(" ", max(0, 100-len(text)))
	} else {
		text += "\n"
	}
	c.out.Lock()
	defer c.out.Unlock()
	fmt.Fprint(c.opts.Out, text) // an error does not matter: it is only progress
}

// logf writes a line that is not overwritten.
func (c *demoCluster) logf(format string, args ...any) {
	c.out.Lock()
	defer c.out.Unlock()
	if c.terminal {
		fmt.Fprint(c.opts.Out, "\r"+strings.Repeat(" ", 100)+"\r")
	}
	fmt.Fprintf(c.opts.Out, format+"\n", args...)
}
