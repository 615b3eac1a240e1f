package runnerpool

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// markerEnv is set in the environment of every process to "<random>/<number>".
// Processes that a runner forks inherit it, even if they leave its process
// group.
const markerEnv = "YARD_RUNNER"

// groupFile records this node's process groups in a file, so that the node can,
// after it was killed, end at its next start what has survived. Runners die
// with the node; processes that they forked may not.
type groupFile struct {
	path   string // "": nothing is kept
	marker string // "YARD_RUNNER=<random>/", to be followed by a number

	mu          crash.Mutex
	markerCount int // number of markers created
	groups      map[int]group
}

// group is one line of the file: a process group, identified by the start time
// of its leader and its marker.
type group struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // ticks since boot
	Marker string `json:"marker"`
	Worker string `json:"worker"`
	// The node that wrote the line, likewise. If the data directory was copied
	// while that node ran, its processes are not orphans.
	Node      int    `json:"node"`
	NodeStart uint64 `json:"node_start"`
}

// ownerAlive reports whether the group belongs to another node process that is
// running.
func (g *group) ownerAlive() bool {
	s, ok := readStat(g.Node)
	return ok && g.Node != os.Getpid() && s.state != 'Z' && s.start == g.NodeStart
}

func newGroupFile(dir string) *groupFile {
	f := &groupFile{marker: markerEnv + "=" + rand.Text() + "/", groups: make(map[int]group)}
	if dir != "" {
		f.path = filepath.Join(dir, "runners.json")
	}
	return f
}

// reap kills the processes that belong to the groups in the file, which a
// previous process of this node has left behind. It removes the file and
// returns the number of processes killed.
func (f *groupFile) reap() (int, error) {
	if f.path == "" {
		return 0, nil
	}
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the record of previous runners: %w", err)
	}
	startOfLeader, markers := make(map[int]uint64), make(map[string]bool)
	for line := range bytes.Lines(b) {
		var g group
		// A line cut short by a power loss can be ignored: nothing has
		// survived.
		if json.Unmarshal(line, &g) == nil && g.PID > 1 && g.Marker != "" && !g.ownerAlive() {
			startOfLeader[g.PID] = g.Start
			markers[g.Marker] = true
		}
	}
	reaped := killProcesses(func(pid int, s procStat) bool {
		// The pid may have been reused since: the start time of the leader must
		// match.
		start, isLeader := startOfLeader[pid]
		return isLeader && start == s.start || markers[markerOf(pid)]
	})
	if err := os.Remove(f.path); err != nil {
		return reaped, fmt.Errorf("remove the record of previous runners: %w", err)
	}
	return reaped, nil
}

// newMarker returns the marker of one more process.
func (f *groupFile) newMarker() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.markerCount++
	return f.marker + strconv.Itoa(f.markerCount)
}

// killMarked kills the processes with the given marker, which have left their
// group, and returns their number.
func killMarked(marker string) int {
	return killProcesses(func(pid int, _ procStat) bool { return markerOf(pid) == marker })
}

// killProcesses kills the processes for which choose returns true, except this
// one, and returns their number.
func killProcesses(choose func(pid int, s procStat) bool) int {
	killed := 0
	for pid, s := range processes() {
		if pid != os.Getpid() && s.state != 'Z' && choose(pid, s) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// markerOf returns the marker in a process's environment, "" if it has
// none or the environment cannot be read.
func markerOf(pid int) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(v, []byte(markerEnv+"=")) {
			return string(v)
		}
	}
	return ""
}

// add records a process that was just started.
func (f *groupFile) add(pid int, marker, worker string) error {
	s, _ := readStat(pid)
	node, _ := readStat(os.Getpid())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[pid] = group{PID: pid, Start: s.start, Marker: marker, Worker: worker, Node: os.Getpid(), NodeStart: node.start}
	return f.write()
}

// remove removes the record of a process whose group has ended.
func (f *groupFile) remove(pid int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.groups, pid)
	return f.write()
}

// write replaces the file. It is not synced, because after a power loss the
// processes do not exist either.
func (f *groupFile) write() error {
	if f.path == "" {
		return nil
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for _, g := range f.groups {
		if err := lines.Encode(g); err != nil {
			return err
		}
	}
	next := f.path + ".next"
	err := os.WriteFile(next, b.Bytes(), 0o600)
	if err == nil {
		err = os.Rename(next, f.path)
	}
	if err != nil {
		return fmt.Errorf("write the record of runners: %w", err)
	}
	return nil
}

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
			hasMarker := strings.HasPrefix(markerOf(pid), prefix)
			if hasMarker {
				found[pid] = true
			}
			return hasMarker
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
