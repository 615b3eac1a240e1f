package vigil

import (
	"slices"
	"time"
)

// Ailment is something that is wrong with a node.
type Ailment struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"` // what it is, and what to do
}

// Kind tells ailments apart.
type Kind string

// The kinds.
const (
	DiskLow    Kind = "disk-low"    // the disk is below the mark that refuses jobs
	DiskOut    Kind = "disk-out"    // it is below the mark that stops the authority
	DiskFails  Kind = "disk-fails"  // a write failed
	JetStream  Kind = "jetstream"   // the embedded server's streams do not work
	Routes     Kind = "routes"      // most members are not reached over NATS
	NoLane     Kind = "no-lane"     // no lane answers
	Standstill Kind = "standstill"  // copies of streams on it do not come nearer to their leaders
	PartialCut Kind = "partial-cut" // the others reach the authority, and this node does not
	Copy       Kind = "copy"        // its copy of a stream is not what the others have
)

// unfit are the ailments with which nobody should hold the authority.
var unfit = []Kind{DiskOut, DiskFails, JetStream, Routes, NoLane}

// Word is what a node says of itself to the other members.
type Word struct {
	Node     string        `json:"node"`
	Level    Level         `json:"level"`
	Ailments []Ailment     `json:"ailments,omitempty"`
	Reaches  []string      `json:"reaches,omitempty"` // members over NATS, itself included
	Leader   string        `json:"leader,omitempty"`  // of agreement, as it knows
	Contact  time.Duration `json:"contact"`           // since it heard that one; -1: never
	Last     uint64        `json:"last"`              // index of its log's last entry
	Leaving  bool          `json:"leaving,omitempty"` // it is about to stop, or drained
	Drained  time.Time     `json:"drained,omitzero"`  // since when it is drained; zero: it is not
}

// Fit tells whether the node may hold the authority.
func (w *Word) Fit() bool {
	return !w.Leaving && !slices.ContainsFunc(w.Ailments, func(a Ailment) bool { return slices.Contains(unfit, a.Kind) })
}

func (w *Word) ails(k Kind) bool {
	return slices.ContainsFunc(w.Ailments, func(a Ailment) bool { return a.Kind == k })
}
