package drill

import (
	"context"
	"fmt"
	"os"

	"yardmaster/job"
)

// Refound moves the data directories of nodes that have ended away and starts a
// yard of so many members in their place: at the same addresses, with the same
// secret, knowing nothing. It returns when that is ready. One member is a node
// alone.
func (s *Stage) Refound(ctx context.Context, members int) error {
	for _, n := range s.Nodes {
		if err := os.Rename(n.DataDir, n.DataDir+"-before"); err != nil {
			return err
		}
	}
	for len(s.Nodes) < members {
		if _, err := s.Add(fmt.Sprintf("n%d", len(s.Nodes)+1)); err != nil {
			return err
		}
	}
	s.Nodes = s.Nodes[:members]
	listed := s.Nodes
	if members == 1 {
		listed = nil
	}
	for _, n := range s.Nodes {
		if err := s.WriteConfig(n, listed...); err != nil {
			return err
		}
	}
	return s.Open(ctx)
}

// Ended gives the jobs of a queue that have ended, as a node lists them, and how.
func (s *Stage) Ended(ctx context.Context, n *Node, queue string) (map[job.ID]string, error) {
	all := make(map[job.ID]string)
	for _, state := range []string{"completed", "failed"} {
		if err := s.eachEnded(ctx, n, queue, state, func(id job.ID) { all[id] = state }); err != nil {
			return nil, err
		}
	}
	return all, nil
}
