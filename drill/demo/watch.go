package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"yardmaster/internal/backoff"
)

// killAuthority kills the node in charge once half of the jobs are accepted.
func (y *yard) killAuthority(ctx context.Context, l *load) error {
	for int(l.accepted.Load()) < l.jobs/2 {
		if err := backoff.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	victim, err := y.authority(ctx)
	if err != nil {
		return err
	}
	victim.dead.Store(true)
	victim.process.Load().kill()
	y.killed = time.Now()
	y.say("killed %s, the authority, with SIGKILL at %d accepted jobs", victim.name, l.accepted.Load())
	if len(y.members) > 1 {
		return nil
	}
	// Nobody is left to take over: the yard comes back from its disk.
	if err := y.startNode(victim); err != nil {
		return err
	}
	victim.dead.Store(false)
	return nil
}

// authority asks until some node names one that is alive.
func (y *yard) authority(ctx context.Context) (found *member, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	turn := 0
	err = y.until(ctx, "there is an authority", func() error {
		turn++
		s, err := y.status(ctx, y.survivor(turn))
		if err != nil {
			return err
		}
		for _, m := range y.members {
			if m.name == s.Authority.Owner && !s.Authority.Expired {
				found = m
				return nil
			}
		}
		return fmt.Errorf("the authority is %q", s.Authority.Owner)
	})
	return found, err
}

// narrate tells how it goes until ctx ends: on a terminal in one line that is
// written over, else in a line now and then.
func (y *yard) narrate(ctx context.Context, l *load) {
	pace := time.Second
	if y.terminal {
		pace = 250 * time.Millisecond
	}
	for turn := 0; backoff.Sleep(ctx, pace) == nil; turn++ {
		m := y.survivor(turn)
		t, err := y.tally(ctx, m)
		if ctx.Err() != nil {
			return
		}
		text := fmt.Sprintf("%5.1f s  accepted %d of %d", time.Since(l.began).Seconds(), l.accepted.Load(), l.jobs)
		if err != nil {
			y.line(text + "; " + m.name + " does not answer")
			continue
		}
		y.line(fmt.Sprintf("%s  completed %d  failed %d  open %d (running %d)  authority %s",
			text, t.completed, t.failed, t.open(), t.active, *y.inCharge.Load()))
	}
}

// watchAuthority keeps what narrate says of it. It goes its own pace: while
// the authority is gone, a node takes its time to say so.
func (y *yard) watchAuthority(ctx context.Context) {
	for turn := 0; ; turn++ {
		text := "nobody"
		s, err := y.status(ctx, y.survivor(turn))
		if err == nil && s.Authority.Owner != "" && !s.Authority.Expired {
			text = fmt.Sprintf("%s, epoch %d", s.Authority.Owner, s.Authority.Epoch)
		}
		y.inCharge.Store(&text)
		if backoff.Sleep(ctx, 250*time.Millisecond) != nil {
			return
		}
	}
}

// line writes a line of progress over the last one.
func (y *yard) line(text string) {
	if y.terminal {
		text = "\r" + text + strings.Repeat(" ", max(0, 100-len(text)))
	} else {
		text += "\n"
	}
	y.out.Lock()
	defer y.out.Unlock()
	fmt.Fprint(y.o.Out, text) // progress that nobody can see changes nothing
}

// say writes a line that stays.
func (y *yard) say(format string, args ...any) {
	y.out.Lock()
	defer y.out.Unlock()
	if y.terminal {
		fmt.Fprint(y.o.Out, "\r"+strings.Repeat(" ", 100)+"\r")
	}
	fmt.Fprintf(y.o.Out, format+"\n", args...)
}
