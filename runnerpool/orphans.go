package runnerpool

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// markerEnv is set for every process, "<start of the node>/<number>": what a
// runner forks carries it too, however far it runs from its group.
const markerEnv = "YARD_RUNNER"

// roster is the list of this node's process groups, kept in a file so that the
// next start of a killed node finds what has survived it. Processes die with
// the node by themselves; what they forked may not.
type roster struct {
	path   string // "": nothing is kept
	marker string // "YARD_RUNNER=<random>/", to be followed by a number

	mu     sync.Mutex
	marked int // markers given away
	groups map[int]group
}

// group is one line of the file: a process group and who it is, by its
// leader's time of start and its marker.
type group struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // ticks since boot
	Marker string `json:"marker"`
	Worker string `json:"worker"`
	// The node that listed it, likewise. Its directory may have been copied
	// while it ran: what it still keeps is no orphan.
	Node      int    `json:"node"`
	NodeStart uint64 `json:"node_start"`
}

// kept tells of a group whose node is another process, and alive.
func (g *group) kept() bool {
	s, ok := stat(g.Node)
	return ok && g.Node != os.Getpid() && s.state != 'Z' && s.start == g.NodeStart
}

func newRoster(dir string) *roster {
	r := &roster{marker: markerEnv + "=" + rand.Text() + "/", groups: make(map[int]group)}
	if dir != "" {
		r.path = filepath.Join(dir, "runners.json")
	}
	return r
}

// reap ends what a former life of the node has left behind and returns how
// many processes that were.
func (r *roster) reap() (int, error) {
	if r.path == "" {
		return 0, nil
	}
	b, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the list of former runners: %w", err)
	}
	leaders, markers := make(map[int]uint64), make(map[string]bool)
	for line := range bytes.Lines(b) {
		var g group
		// A line cut short by a power loss names nobody who has survived it.
		if json.Unmarshal(line, &g) == nil && g.PID > 1 && g.Marker != "" && !g.kept() {
			leaders[g.PID] = g.Start
			markers[g.Marker] = true
		}
	}
	reaped := kill(func(pid int, s procStat) bool {
		// A pid may have been given to somebody else since it was written
		// down: a leader is known by its time of start as well.
		start, listed := leaders[pid]
		return listed && start == s.start || markers[markerOf(pid)]
	})
	if err := os.Remove(r.path); err != nil {
		return reaped, fmt.Errorf("remove the list of former runners: %w", err)
	}
	return reaped, nil
}

// mark gives away a marker for one more process.
func (r *roster) mark() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marked++
	return r.marker + strconv.Itoa(r.marked)
}

// sweep ends whatever carries a marker and returns how many processes that
// were: what had left its group, after the group has ended.
func sweep(marker string) int {
	return kill(func(pid int, _ procStat) bool { return markerOf(pid) == marker })
}

// kill ends the processes that are chosen, never this one.
func kill(choose func(pid int, s procStat) bool) int {
	killed := 0
	for pid, s := range processes() {
		if pid != os.Getpid() && s.state != 'Z' && choose(pid, s) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// markerOf reads the marker in a process's environment, "" if it has none or
// is not ours to look into.
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

// enter lists a process that has just been started.
func (r *roster) enter(pid int, marker, worker string) error {
	s, _ := stat(pid)
	node, _ := stat(os.Getpid())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[pid] = group{PID: pid, Start: s.start, Marker: marker, Worker: worker, Node: os.Getpid(), NodeStart: node.start}
	return r.write()
}

// leave strikes out a process whose whole group has ended.
func (r *roster) leave(pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.groups, pid)
	return r.write()
}

// write replaces the file. It need not survive a power loss: neither would the
// processes.
func (r *roster) write() error {
	if r.path == "" {
		return nil
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	for _, g := range r.groups {
		if err := lines.Encode(g); err != nil {
			return err
		}
	}
	next := r.path + ".next"
	if err := os.WriteFile(next, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write the list of runners: %w", err)
	}
	if err := os.Rename(next, r.path); err != nil {
		return fmt.Errorf("write the list of runners: %w", err)
	}
	return nil
}
