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
)

// Warden waits until in ends, as it does when the node that holds its other end
// has ended, however that came. Then it ends what carries a marker that begins
// with life, and returns how many processes that were: what the node's runners
// had forked and nobody else is left to end. It ignores the signals that ask a
// node to stop, because a node that stops still has its runners to look after.
func Warden(in io.Reader, life string) (int, error) {
	if len(life) < len(markerEnv+"=/") || !strings.HasPrefix(life, markerEnv+"=") || !strings.HasSuffix(life, "/") {
		return 0, fmt.Errorf("warden of runners: %q names no life of a node", life)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if _, err := io.Copy(io.Discard, in); err != nil {
		return 0, fmt.Errorf("warden of runners: wait for the node's end: %w", err)
	}
	ended := make(map[int]bool)
	for range wardenTries { // what forks while it is looked for is found the next time
		left := kill(func(pid int, _ procStat) bool {
			ours := strings.HasPrefix(markerOf(pid), life)
			if ours {
				ended[pid] = true
			}
			return ours
		})
		if left == 0 {
			break
		}
		time.Sleep(wardenPause)
	}
	return len(ended), nil
}

// wardenTries is how often it is looked for survivors, and wardenPause gives
// what has been killed the time to go.
const (
	wardenTries = 400
	wardenPause = 5 * time.Millisecond
)

// wardenAgain is the pause before a warden that has ended is replaced.
const wardenAgain = time.Second

// keepWarden has a warden run until ctx ends: a process of its own session, out
// of the reach of whatever ends the node.
func (p *Pools) keepWarden(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.warden(ctx)
		if ctx.Err() != nil {
			return
		}
		p.log.Warn("warden of runners ended", "err", err, "restart_in", wardenAgain)
		select {
		case <-time.After(wardenAgain):
		case <-ctx.Done():
		}
	}
}

// warden runs one. Its standard input is the pipe whose end tells it of ours.
func (p *Pools) warden(ctx context.Context) error {
	args := append(p.cfg.Warden[1:len(p.cfg.Warden):len(p.cfg.Warden)], p.roster.marker)
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
