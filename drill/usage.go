package drill

import (
	"context"
	"fmt"
	"time"

	"yardmaster/drill/yard"
)

// usage is what a node's process takes of the machine.
type usage struct {
	pid         int
	descriptors int
	threads     int
	memory      int64 // bytes
}

func usageOf(n *Node) usage {
	p := yard.PID(n.PID())
	return usage{n.PID(), p.Descriptors(), p.Threads(), p.Memory()}
}

// moreDescriptors is how many more files and sockets a node may have open after
// all is done than before anything began: streams that are read have files, and
// the judge's own connections may not be closed yet.
const moreDescriptors = 64

// baseline notes what the nodes take before there is work.
func (s *Stage) baseline() {
	s.baselines = make(map[string]usage)
	for _, n := range s.Up() {
		s.baselines[n.Name] = usageOf(n)
	}
}

// usage ends the workers and waits until the nodes' files and sockets are back
// to where they began.
func (s *Stage) usage(ctx context.Context) {
	for _, w := range s.workers {
		w.Kill()
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, n := range s.Up() {
		before, known := s.baselines[n.Name]
		if !known {
			continue
		}
		err := until(soon, n.Name+" has closed what it opened", func() error {
			if now := usageOf(n); now.descriptors > before.descriptors+moreDescriptors {
				return fmt.Errorf("%d files and sockets are open, %d were", now.descriptors, before.descriptors)
			}
			return nil
		})
		s.Promise(err == nil, "%v", err)
		now := usageOf(n)
		s.Figure(n.Name+" at the end (at first)", fmt.Sprintf("%d (%d) descriptors, %d (%d) threads, %d (%d) MB",
			now.descriptors, before.descriptors, now.threads, before.threads, now.memory>>20, before.memory>>20))
	}
}
