package health

import (
	"slices"
	"time"
)

// Condition is a problem of a node.
type Condition struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"` // what is wrong, and what to do
}

// Kind is the kind of a condition.
type Kind string

// The kinds.
const (
	DiskLow          Kind = "disk-low"    // free disk space is below the refuse threshold
	DiskCritical     Kind = "disk-out"    // free disk space is below the stop threshold
	DiskFailed       Kind = "disk-fails"  // a write failed
	JetStream        Kind = "jetstream"   // the embedded server's streams do not work
	Routes           Kind = "routes"      // most members are not reachable over NATS
	NoLane           Kind = "no-lane"     // no lane answers
	StalledReplica   Kind = "standstill"  // replicas of streams on it make no progress
	PartialPartition Kind = "partial-cut" // other members reach the authority and this node does not
	ReplicaMismatch  Kind = "copy"        // its replica of a stream differs from the others
)

// disqualifying lists the conditions with which a node should not hold the
// authority.
var disqualifying = []Kind{DiskCritical, DiskFailed, JetStream, Routes, NoLane}

// NodeStatus is a node's report about itself to the other members.
type NodeStatus struct {
	Node       string        `json:"node"`
	DiskLevel  DiskLevel     `json:"level"`
	Conditions []Condition   `json:"ailments,omitempty"`
	Reaches    []string      `json:"reaches,omitempty"` // members reachable over NATS, including itself
	Leader     string        `json:"leader,omitempty"`  // Raft leader, as far as it knows
	Contact    time.Duration `json:"contact"`           // time since the last contact with the leader; -1: never
	Last       uint64        `json:"last"`              // index of its last Raft entry
	Leaving    bool          `json:"leaving,omitempty"` // it is stopping or drained
	Behind     bool          `json:"behind,omitempty"`  // it is far behind in a Raft group of a stream
	Drained    time.Time     `json:"drained,omitzero"`  // since when it has been drained; zero: it is not
}

// Fit reports whether the node may hold the authority.
func (s *NodeStatus) Fit() bool {
	return !s.Leaving && !slices.ContainsFunc(s.Conditions, func(c Condition) bool { return slices.Contains(disqualifying, c.Kind) })
}

func (s *NodeStatus) has(k Kind) bool {
	return slices.ContainsFunc(s.Conditions, func(c Condition) bool { return c.Kind == k })
}
