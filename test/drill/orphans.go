package drill

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// orphans finds processes that outlive the node that started them.
type orphans struct {
	done sync.WaitGroup
	mu   sync.Mutex
	left []string
}

// orphanGrace is how long processes may outlive a killed node.
const orphanGrace = 2 * time.Second

// expect records, after orphanGrace, which of these processes still exist. They must
// have been started by n.
func (o *orphans) expect(n *Node, tree []procstat.PID) {
	started := make(map[procstat.PID]string)
	for _, pid := range tree {
		started[pid] = pid.StartTime()
	}
	o.done.Go(func() {
		time.Sleep(orphanGrace)
		for pid, at := range started {
			if at == "" || pid.StartTime() != at {
				continue // exited; the pid may be in use again
			}
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // "" if it exits now
			o.mu.Lock()
			o.left = append(o.left, fmt.Sprintf("%d of %s: %s", pid, n.Name, bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			o.mu.Unlock()
		}
	})
}

// Kill kills nodes simultaneously with SIGKILL, and later checks that the processes
// they had started are gone.
func (h *Harness) Kill(nodes ...*Node) {
	trees := make([][]procstat.PID, len(nodes))
	for i, n := range nodes {
		trees[i] = n.Tree()
	}
	h.Cluster.Kill(nodes...)
	for i, n := range nodes {
		h.orphans.expect(n, trees[i])
	}
}

// Tree returns the node's process and all its descendants.
func (n *Node) Tree() []procstat.PID { return procstat.PID(n.PID()).Tree() }

// Exiting reports whether the node's process has exited, or is exiting while threads
// wait in the kernel for a disk.
func (n *Node) Exiting() bool { return !n.Running() || procstat.PID(n.PID()).Exiting() }

// CutPower is like [Cluster.CutPower], and ends the drill if it fails.
func (h *Harness) CutPower(nodes ...*Node) { must.Do(h.Cluster.CutPower(nodes...)) }
