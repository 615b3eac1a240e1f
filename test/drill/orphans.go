package drill

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// orphans finds processes that outlive the node that started them.
type orphans struct {
	done sync.WaitGroup
	mu   sync.Mutex
	left []string
}

// orphanGrace is how long processes may outlive a killed node.
const orphanGrace = 2 * time.Second

// expect records, after orphanGrace, which of the processes with these pids still
// exist. They must have been started by n.
func (o *orphans) expect(n *Node, pids []int) {
	started := make(map[int]string)
	for _, pid := range pids {
		started[pid] = startTime(pid)
	}
	o.done.Go(func() {
		time.Sleep(orphanGrace)
		for pid, at := range started {
			if at == "" || startTime(pid) != at {
				continue // exited; the pid may be in use again
			}
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // "" if it exits now
			o.mu.Lock()
			o.left = append(o.left, fmt.Sprintf("%s of %s: %s", fmt.Sprint(pid), n.Name, bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			o.mu.Unlock()
		}
	})
}

// Kill kills nodes simultaneously with SIGKILL, and later checks that the processes
// they had started are gone.
func (h *Harness) Kill(nodes ...*Node) {
	trees := make([][]int, len(nodes))
	for i, n := range nodes {
		trees[i], _ = n.Tree() // nil if it has exited
	}
	h.Cluster.Kill(nodes...)
	for i, n := range nodes {
		h.orphans.expect(n, trees[i])
	}
}

// CutPower is like [Cluster.CutPower], and ends the drill if it fails.
func (h *Harness) CutPower(nodes ...*Node) { must.Do(h.Cluster.CutPower(nodes...)) }
