package drill

import (
	"context"
	"fmt"
	"os"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Recreate moves the data directories of all nodes, which must have exited, away and
// starts a new cluster of the given number of members at the same addresses, with
// the same secret and empty directories. It returns when the cluster is ready. One
// member is a standalone node.
func (h *Harness) Recreate(ctx context.Context, members int) error {
	for _, n := range h.Nodes {
		if err := os.Rename(n.DataDir, n.DataDir+"-before"); err != nil {
			return err
		}
	}
	for len(h.Nodes) < members {
		if _, err := h.Add(fmt.Sprintf("n%d", len(h.Nodes)+1)); err != nil {
			return err
		}
	}
	h.Nodes = h.Nodes[:members]
	listed := h.Nodes
	if members == 1 {
		listed = nil
	}
	for _, n := range h.Nodes {
		if err := h.WriteConfig(n, listed...); err != nil {
			return err
		}
	}
	return h.Start(ctx)
}

// EndedJobs returns the jobs of a queue that have ended, as listed by a node, with
// their states.
func (h *Harness) EndedJobs(ctx context.Context, n *Node, queue string) (map[job.ID]string, error) {
	all := make(map[job.ID]string)
	for _, state := range []string{"completed", "failed"} {
		if err := h.eachEnded(ctx, n, queue, state, func(id job.ID) { all[id] = state }); err != nil {
			return nil, err
		}
	}
	return all, nil
}
