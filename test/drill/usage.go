package drill

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// usage is the resource usage of a node's process.
type usage struct {
	descriptors int
	threads     int
	memory      int64 // bytes
}

func usageOf(n *Node) usage {
	p := procstat.PID(n.PID())
	return usage{p.Descriptors(), p.Threads(), p.Memory()}
}

// moreDescriptors is how many more files and sockets a node may have open at the end
// than at the beginning: streams that were read have open files, and connections of
// the checks may not be closed yet.
const moreDescriptors = 64

// recordUsage records the resource usage of all nodes before the load.
func (h *Harness) recordUsage() {
	h.baselines = make(map[string]usage)
	for _, n := range h.Running() {
		h.baselines[n.Name] = usageOf(n)
	}
}

// checkUsage kills the workers and waits until the number of files and sockets that
// each node has open is back near the recorded one.
func (h *Harness) checkUsage() {
	for _, w := range h.workers {
		w.Kill()
	}
	limited, cancel := context.WithTimeout(h.Ctx, 20*time.Second)
	defer cancel()
	for _, n := range h.Running() {
		before, known := h.baselines[n.Name]
		if !known {
			continue
		}
		err := until(limited, n.Name+" has closed files and sockets", func() error {
			if now := usageOf(n); now.descriptors > before.descriptors+moreDescriptors {
				return fmt.Errorf("%d are open, %d were before the load", now.descriptors, before.descriptors)
			}
			return nil
		})
		h.Require(err == nil, "%v", err)
		now := usageOf(n)
		h.Figure(n.Name+" at the end (before the load)", fmt.Sprintf("%d (%d) descriptors, %d (%d) threads, %d (%d) MB",
			now.descriptors, before.descriptors, now.threads, before.threads, now.memory>>20, before.memory>>20))
	}
}
