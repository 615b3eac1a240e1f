package membership

import (
	"context"
	"slices"

	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Cluster is what a [Reconciler] reads and changes. [Member] implements it.
type Cluster interface {
	// Membership returns the membership in this node's ledger. Propose commits a
	// command, and returns an error if the ledger refuses it.
	Membership() ledger.Membership
	Propose(ctx context.Context, c ledger.Command) error
	// BootstrapMembers returns the members that formed the yard. They become the
	// membership of a ledger that has none.
	BootstrapMembers() []ledger.Member

	Consensus
	JetStream
	Nodes
}

// Consensus is the Raft group.
type Consensus interface {
	Servers() []consensus.MemberInfo
	LastIndex() uint64 // index of the last entry
	AddMember(ctx context.Context, id string, vote bool) error
	RemoveVoter(ctx context.Context, id string) error
	// Probe returns the node that waits to join at a Raft address.
	Probe(addr string) (consensus.WaitingNode, error)
}

// JetStream is the group of NATS servers.
type JetStream interface {
	Routed() []string // identities of the servers with a route to this node, and its own
	Streams(ctx context.Context) ([]StreamReplicas, error)
	Evacuate(ctx context.Context, id string) error
	RemoveServer(ctx context.Context, id string) error
}

// Nodes sends requests to nodes, by name.
type Nodes interface {
	NodeStatus(ctx context.Context, node string) (NodeStatus, error)
	Promote(ctx context.Context, node, id string) error
	NotifyRemoved(ctx context.Context, node, id string) error
	// TransferAuthority transfers the authority to a member, or to any that
	// accepts it if to is "".
	TransferAuthority(ctx context.Context, to string) error
}

// NodeStatus is a node's report about itself.
type NodeStatus struct {
	ID        string `json:"id"`
	Version   string `json:"version"`
	Applied   uint64 `json:"applied"`   // index of its ledger
	JetStream string `json:"jetstream"` // error of its JetStream; "": healthy
	Running   int    `json:"running"`   // dispatches
	Declares  string `json:"declares"`  // members in its configuration, if they differ from the ledger's
	// Meta is JetStream's meta group, if this node's server leads it.
	Meta []Replica `json:"meta,omitempty"`
	Led  bool      `json:"led,omitempty"`
}

// Replica is one server's replica of a stream, or its membership in JetStream's
// meta group.
type Replica struct {
	ID      string `json:"id"` // server ID of the member
	Leader  bool   `json:"leader,omitempty"`
	Current bool   `json:"current"`
	Offline bool   `json:"offline,omitempty"`
	Lag     uint64 `json:"lag,omitempty"` // operations behind the leader
}

// healthy reports whether the replica is current and its server is online.
func (r Replica) healthy() bool { return r.Current && !r.Offline }

// hasReplica reports whether one of the replicas is on the server with this ID.
func hasReplica(replicas []Replica, id string) bool {
	return slices.ContainsFunc(replicas, func(r Replica) bool { return r.ID == id })
}

// StreamReplicas is the list of a stream's replicas.
type StreamReplicas struct {
	Stream   string
	Want     int       // intended number; 0: unknown, because the stream has no leader
	Replicas []Replica // empty: the stream has no leader
}
