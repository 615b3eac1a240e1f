package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// killAuthority kills the node that holds the authority once half of the jobs are
// accepted, and restarts it if it is the only node.
func (c *demoCluster) killAuthority(ctx context.Context, l *load) error {
	for int(l.accepted.Load()) < l.jobs/2 {
		if err := backoff.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	victim, err := c.findAuthority(ctx)
	if err != nil {
		return err
	}
	victim.Kill()
	c.killed = time.Now()
	c.logf("killed %s, the authority, with SIGKILL at %d accepted jobs", victim.Name, l.accepted.Load())
	if len(c.members) > 1 {
		return nil
	}
	return victim.Start() // a standalone node recovers from its disk
}

// findAuthority asks the surviving nodes until one reports an authority, and returns the
// node that holds it.
func (c *demoCluster) findAuthority(ctx context.Context) (holder *member, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = c.askSurvivors(ctx, "there is an authority", func(asked *member) error {
		s, err := asked.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range c.members {
			if m.Name == s.Authority.Owner && !s.Authority.Expired {
				holder = m
				return nil
			}
		}
		return fmt.Errorf("the authority is %q", s.Authority.Owner)
	})
	return holder, err
}

// awaitStates waits until all jobs have ended and returns their states. If they have not
// ended within the time limit, it returns those that they have then, and the report shows
// which jobs are late.
func (c *demoCluster) awaitStates(ctx context.Context, l *load) (states map[job.ID]jobState, err error) {
	limit := 20*time.Second + time.Duration(l.jobs)*time.Second/500
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = c.askSurvivors(limited, "all jobs have ended", func(m *member) (err error) {
		states, err = statesOnceEnded(limited, m.Ask, l.jobs)
		return err
	})
	if limited.Err() == nil || ctx.Err() != nil {
		return states, err
	}
	err = c.askSurvivors(ctx, "a node lists the jobs", func(m *member) (err error) {
		states, err = readStates(ctx, m.Ask)
		return err
	})
	return states, err
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
		numbers, err := tally(ctx, m.Ask)
		if ctx.Err() != nil {
			return
		}
		text := fmt.Sprintf("%5.1f s  accepted %d of %d", time.Since(l.began).Seconds(), l.accepted.Load(), l.jobs)
		if err != nil {
			c.printLine(text + "; " + m.Name + " does not answer")
			continue
		}
		c.printLine(fmt.Sprintf("%s  completed %d  failed %d  open %d (running %d)  authority %s",
			text, numbers["completed"], numbers["failed"], numbers["open"], numbers["active"], *c.currentAuthority.Load()))
	}
}

// watchAuthority updates c.currentAuthority until ctx ends. It runs separately from
// showProgress, because a node replies slowly while no member holds the authority.
func (c *demoCluster) watchAuthority(ctx context.Context) {
	for turn := 0; ; turn++ {
		text := "none"
		s, err := c.survivor(turn).Status(ctx)
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
