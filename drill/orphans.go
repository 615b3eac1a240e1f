package drill

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// orphans looks for processes that outlive the node that started them.
type orphans struct {
	done sync.WaitGroup
	mu   sync.Mutex
	left []string
}

// orphanTime is how long what a killed node had started may still be there.
const orphanTime = 2 * time.Second

// expect looks, when the time is over, for the processes that were a node's.
func (o *orphans) expect(n *Node, family []int) {
	began := make(map[int]string)
	for _, pid := range family {
		began[pid] = startOf(pid)
	}
	o.done.Go(func() {
		time.Sleep(orphanTime)
		for pid, at := range began {
			if at == "" || startOf(pid) != at {
				continue // gone; the number may be another's by now
			}
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // "" if it ends now
			o.mu.Lock()
			o.left = append(o.left, fmt.Sprintf("%s of %s: %s", fmt.Sprint(pid), n.Name, bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			o.mu.Unlock()
		}
	})
}

// startOf tells a process from another one that got its number later; "" if
// there is none, or only what its parent has not reaped.
func startOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name may hold spaces; what follows it begins with field 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || string(fields[0]) == "Z" || string(fields[0]) == "X" {
		return ""
	}
	return string(fields[19])
}

// Kill ends nodes with SIGKILL, all at once. What they had started must end, too.
func (s *Stage) Kill(nodes ...*Node) {
	families := make([][]int, len(nodes))
	for i, n := range nodes {
		families[i], _ = n.Family() // none if it has ended
	}
	s.Yard.Kill(nodes...)
	for i, n := range nodes {
		s.orphans.expect(n, families[i])
	}
}
