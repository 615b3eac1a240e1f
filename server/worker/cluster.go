// Package worker answers the requests of Overhop workers, which package edge receives.
package worker

import (
	"cmp"
	"context"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// Cluster is what the edge of a node uses of the cluster. All fields are required.
type Cluster struct {
	Node, ClusterName, DataDir string
	Incarnation                uint64
	DefaultTimeout             time.Duration // of a job that sets none

	Ledger     ledgerwait.Ledger
	Now        func(*ledger.Ledger) time.Time // returns the yard's time; called in View
	Authority  *authority.Client
	Intake     *intake.Intake
	Waiters    *ledgerwait.Waiters
	Viewer     *jobview.Viewer
	Retrier    *jobview.Retrier
	RaftLeader func() string
	OtherEdges func() []string // returns the addresses of other nodes' edges
	// Operations returns the endpoints of the API, by name, that are served over Overhop.
	Operations func() map[string]cluster.Endpoint

	dataSize dirSizeCache
}

// Session returns a session for the connection of a client, which is the actor of its
// commands.
func (c *Cluster) Session(client string) edge.Session {
	return &session{c: c, actor: ledger.Actor{Name: c.Node + "/" + client, Door: ledger.DoorOverhop}}
}

// Secret returns the key that signs lease tokens.
func (c *Cluster) Secret() (secret []byte) {
	c.Ledger.View(func(l *ledger.Ledger) { secret = l.Secret() })
	return secret
}

// Edges returns the addresses of other nodes' edges, to which a worker can move.
func (c *Cluster) Edges() []string { return c.OtherEdges() }

// Resume moves a dispatch to a worker of this node and returns its assignment.
func (c *Cluster) Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	channel := job.Channel(job.Overhop, worker)
	moved, err := c.Authority.Propose(ctx, &ledger.MoveDispatch{
		Job: id, N: n, Node: c.Node, Incarnation: c.Incarnation, Channel: channel,
	})
	if err != nil {
		return job.Assignment{}, err
	}
	var found ledger.ActiveDispatch
	var started time.Time
	ok := false
	c.Ledger.View(func(l *ledger.Ledger) {
		if found, ok = l.Dispatch(id, n); ok {
			started = time.Now().Add(-max(c.Now(l).Sub(found.Started), 0))
		}
	})
	if !ok {
		return job.Assignment{}, job.ErrLeaseLost
	}
	return job.Assignment{
		Job: id, N: n, Attempt: found.Attempt, MaxAttempts: found.MaxAttempts, Queue: found.Queue,
		Function: found.Function, Kind: job.Overhop, Key: found.Queue, Worker: worker, Epoch: found.Epoch,
		Fence: found.Fence, Timeout: cmp.Or(found.Timeout, c.DefaultTimeout), Accepted: found.Accepted, RunAt: found.Due,
		Redelivered: found.Redelivered, Position: found.Position, Started: started, MoveIndex: moved.Index,
	}, nil
}
