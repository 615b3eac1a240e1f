package api

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// WorkerRequest selects workers and runner processes; the zero value selects all.
type WorkerRequest struct {
	Node   string `json:"node"`   // at this node
	Queue  string `json:"queue"`  // subscribed to this queue; no runner is
	Worker string `json:"worker"` // with this name, or this "worker" in [Worker]
}

// WorkerList holds the connected workers and the runner processes of the yard.
type WorkerList struct {
	Nodes []NodeWorkers `json:"nodes"` // by name
}

// NodeWorkers holds the workers and the runner processes of one node.
type NodeWorkers struct {
	Node    string   `json:"node"`
	Error   string   `json:"error,omitempty"` // the node did not answer: why; the rest is what the ledger has
	Running int      `json:"running"`         // jobs that the ledger has as active at the node
	Workers []Worker `json:"workers,omitempty"`
	More    int      `json:"more,omitempty"` // further workers that match
}

// Worker is a connected Overhop worker or a process of a runner. Times are the node's.
type Worker struct {
	Kind      string        `json:"kind"`             // "worker" or "runner"
	Worker    string        `json:"worker,omitempty"` // as in [Job]; "" means a process that is down
	Name      string        `json:"name,omitempty"`   // from HELLO, or the runner's
	Client    string        `json:"client,omitempty"` // software, from HELLO
	Address   string        `json:"address,omitempty"`
	PID       int           `json:"pid,omitempty"` // of a process that the node has started
	Connected *time.Time    `json:"connected_at,omitempty"`
	Stalled   bool          `json:"stalled,omitempty"` // as in [Subscribers]
	Leaving   bool          `json:"leaving,omitempty"` // takes no more jobs
	Drained   bool          `json:"drained,omitempty"` // takes no more jobs until it is resumed
	Reason    string        `json:"reason,omitempty"`  // why the process is down
	Queues    []WorkerQueue `json:"queues,omitempty"`  // by name
	Slots     int           `json:"slots,omitempty"`   // of a runner process
	Running   int           `json:"running"`
	Jobs      []WorkerJob   `json:"jobs,omitempty"` // oldest first; fewer than Running if there are many
}

// WorkerDrain is a worker or a process after a drain or the end of one.
type WorkerDrain struct {
	Node    string `json:"node"`
	Worker  string `json:"worker"` // as in [Worker]
	Name    string `json:"name,omitempty"`
	Drained bool   `json:"drained"`
	Running int    `json:"running"` // jobs that it finishes
}

// WorkerQueue is a worker's subscription to a queue.
type WorkerQueue struct {
	Queue   string `json:"queue"`
	Credits int    `json:"credits"` // jobs it would take now
}

// WorkerJob is a job that a worker or a process runs.
type WorkerJob struct {
	ID       job.ID    `json:"id"`
	JID      string    `json:"jid"`
	Function string    `json:"function,omitempty"`
	Attempt  uint32    `json:"attempt"`
	Started  time.Time `json:"started_at"`
	Percent  *int64    `json:"percent,omitempty"` // what the worker reported last
}
