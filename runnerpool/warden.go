package runnerpool

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Warden blocks until in, a pipe from the node, ends, which it does when the
// node has exited for whatever reason. It then kills the processes whose marker
// begins with prefix, which the node's runners had forked, and returns their
// number. It ignores the signals that stop a node, because a node that is
// stopping still needs it.
func Warden(in io.Reader, prefix string) (int, error) {
	if len(prefix) < len(markerEnv+"=/") || !strings.HasPrefix(prefix, markerEnv+"=") || !strings.HasSuffix(prefix, "/") {
		return 0, fmt.Errorf("warden of runners: %q is not a marker prefix", prefix)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if _, err := io.Copy(io.Discard, in); err != nil {
		return 0, fmt.Errorf("warden of runners: wait for the node to exit: %w", err)
	}
	found := make(map[int]bool)
	for range wardenTries { // processes forked meanwhile are found in the next pass
		killed := killProcesses(func(pid int, _ procStat) bool {
			ours := strings.HasPrefix(markerOf(pid), prefix)
			if ours {
				found[pid] = true
			}
			return ours
		})
		if killed == 0 {
			break
		}
		time.Sleep(wardenInterval)
	}
	return len(found), nil
}

// wardenTries is the maximum number of passes, wardenInterval the time between
// them in which killed processes exit.
const (
	wardenTries    = 400
	wardenInterval = 5 * time.Millisecond
)

// wardenRestartDelay is the pause before a warden that has ended is replaced.
const wardenRestartDelay = time.Second

// superviseWarden keeps a warden running until ctx ends. It runs in its own
// session, so that signals to the node's group do not reach it.
func (p *Pools) superviseWarden(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.runWarden(ctx)
		if ctx.Err() != nil {
			return
		}
		p.log.Warn("warden ended, restarting", "err", err, "restart_in", wardenRestartDelay)
		_ = backoff.Sleep(ctx, wardenRestartDelay) // the loop checks ctx
	}
}

// runWarden runs a warden until it exits. Closing its standard input makes it
// exit.
func (p *Pools) runWarden(ctx context.Context) error {
	args := append(p.cfg.Warden[1:len(p.cfg.Warden):len(p.cfg.Warden)], p.groups.marker)
	cmd := exec.Command(p.cfg.Warden[0], args...)
	cmd.Env, cmd.Dir, cmd.Stderr = []string{}, "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = in.Close() })
	defer stop()
	return cmd.Wait()
}
