package drill

import (
	"fmt"
	"os"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Recreate moves the data directories of all nodes, which must have exited, away and
// starts a new cluster of the given number of members at the same addresses, with
// the same secret and empty directories. It returns when the cluster is ready. One
// member is a standalone node.
func (h *Harness) Recreate(members int) {
	for _, n := range h.Nodes {
		must.Do(os.Rename(n.DataDir, n.DataDir+"-before"))
	}
	for len(h.Nodes) < members {
		must.Get(h.Add(fmt.Sprintf("n%d", len(h.Nodes)+1)))
	}
	h.Nodes = h.Nodes[:members]
	listed := h.Nodes
	if members == 1 {
		listed = nil
	}
	for _, n := range h.Nodes {
		must.Do(h.WriteConfig(n, listed...))
	}
	h.StartNodes()
}

// EndedJobs returns the jobs of a queue that have ended, as listed by a node, with
// their states.
func (h *Harness) EndedJobs(n *Node, queue string) map[job.ID]string {
	all := make(map[job.ID]string)
	for _, state := range []string{"completed", "failed"} {
		must.Do(h.eachEnded(h.Ctx, n, queue, state, func(id job.ID) { all[id] = state }))
	}
	return all
}
