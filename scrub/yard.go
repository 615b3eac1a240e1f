package scrub

import "context"

// ChunkSize is how many sequences are summed together.
const ChunkSize = 1024

// Copy is this node's copy of a stream, as its server has it.
type Copy struct {
	Stream      string
	First, Last uint64
	Dense       bool // nothing ever leaves its middle
}

// Yard is what a [Scrubber] reads and asks. Package node binds it.
type Yard interface {
	// Copies are this node's.
	Copies() ([]Copy, error)
	// Walk reads what the disk holds of one, both ends included. damaged counts
	// the places that cannot be read.
	Walk(stream string, from, to uint64, pace func(bytes int) error, fn func(seq, sum uint64)) (damaged int, err error)
	// Keeps asks a stream's leader whether it has a message.
	Keeps(ctx context.Context, stream string, seq uint64) (bool, error)
	// Others are the other members, by name.
	Others() []string
	Ask(ctx context.Context, member string, q Question) (Answer, error)
}

// Question asks a member about its copy of a stream: for the sums of chunks, as
// they were when it last read them, or for the messages themselves, as they are on
// the disk now.
type Question struct {
	Stream   string `json:"stream"`
	From     uint64 `json:"from"` // sequences, both included
	To       uint64 `json:"to"`
	Messages bool   `json:"messages,omitempty"`
}

// Answer is what a member has of a stream.
type Answer struct {
	Has      bool      `json:"has"`   // a copy, and for sums one that it has read
	First    uint64    `json:"first"` // as its server said when it was read
	Last     uint64    `json:"last"`
	Chunks   []Chunk   `json:"chunks,omitempty"`
	Messages []Message `json:"messages,omitempty"`
}

// Chunk sums the messages from sequence N*[ChunkSize] on.
type Chunk struct {
	N     uint64 `json:"n"`
	Count uint64 `json:"count"`
	Sum   uint64 `json:"sum"`
}

// Message is one message's sum.
type Message struct {
	Seq uint64 `json:"seq"`
	Sum uint64 `json:"sum"`
}
