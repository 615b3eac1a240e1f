package membership

import (
	"context"

	"yardmaster/ledger"
)

// Yard is what a keeper reads and moves; package node binds it.
type Yard interface {
	// Roll is the ledger's, as this node has it. Do commits a command; a
	// refusal is an error.
	Roll() ledger.Roll
	Do(ctx context.Context, c ledger.Command) error
	// Founders are those who formed the yard, for a ledger without a roll.
	Founders() []ledger.Member

	Agreement
	Messages
	Members
}

// Agreement is the Raft group.
type Agreement interface {
	Servers() []Server
	Last() uint64 // index of the last entry
	Admit(ctx context.Context, id string, vote bool) error
	Unseat(ctx context.Context, id string) error
	// Meet asks who waits at a raft address.
	Meet(addr string) (Newcomer, error)
}

// Messages is NATS.
type Messages interface {
	Routed() []string // identities that have a route to this node, and its own
	Streams(ctx context.Context) ([]StreamCopies, error)
	Evacuate(ctx context.Context, id string) error
	Expel(ctx context.Context, id string) error
}

// Members are the nodes, by name.
type Members interface {
	Ask(ctx context.Context, node string) (Word, error)
	Vouch(ctx context.Context, node, id string) error
	Dismiss(ctx context.Context, node, id string) error
	// HandOver gives the authority to a member; "" is any that takes it.
	HandOver(ctx context.Context, to string) error
}

// Server is a seat in the Raft group.
type Server struct {
	ID    string
	Voter bool
}

// Newcomer is who waits to be let in.
type Newcomer struct {
	Node, Dir string
	Yard      string // as people call it
	Used      bool   // its directory belongs to a yard already
}

// Word is what a node says of itself.
type Word struct {
	ID        string `json:"id"`
	Version   string `json:"version"`
	Applied   uint64 `json:"applied"`   // index of its ledger
	JetStream string `json:"jetstream"` // what is wrong with it; "": nothing
	Running   int    `json:"running"`   // dispatches in hand
	Declares  string `json:"declares"`  // members of its configuration, where that differs from the roll
	// Meta is JetStream's group, if this node's server leads it.
	Meta []Copy `json:"meta,omitempty"`
	Led  bool   `json:"led,omitempty"`
}

// Copy is one server's part in JetStream's group or in a stream.
type Copy struct {
	ID      string `json:"id"` // the seat's
	Leader  bool   `json:"leader,omitempty"`
	Current bool   `json:"current"`
	Offline bool   `json:"offline,omitempty"`
	Lag     uint64 `json:"lag,omitempty"` // operations behind the leader
}

func (c *Copy) well() bool { return c.Current && !c.Offline }

// StreamCopies is where a stream lies, and how many copies it should have.
type StreamCopies struct {
	Stream string
	Want   int    // 0: not known, as long as nobody leads it
	Copies []Copy // empty: nobody leads it
}
