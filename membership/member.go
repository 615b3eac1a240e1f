package membership

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Requests about members between nodes: verbMembers carries a [Request] to the
// authority, verbNodeStatus asks a node for its [NodeStatus], verbPromote informs a
// node that it votes from now on, and verbNotifyRemoved that it has been removed.
const (
	verbMembers       = "members"
	verbNodeStatus    = "node_status"
	verbPromote       = "promote"
	verbNotifyRemoved = "notify_removed"
)

// Config is what a [Member] uses of its node. All fields are required.
type Config struct {
	Cluster     string // name of the yard in the configuration
	Version     string
	Clustered   bool            // members are configured
	Declared    []ledger.Member // the configured members, or this node: name, Route and Raft
	Identity    *consensus.Identity
	Group       *consensus.Node
	NATS        *cluster.Server
	Replication *replication.Replication
	// Running returns the number of dispatches on this node.
	Running func() int
	// Authority returns the name of the member that holds the authority, or "", and a
	// channel that is closed when the authority changes.
	Authority func() (owner string, changed <-chan struct{})
	// ProposeLocal commits a command on this node, which must hold the authority, and
	// returns the ledger's error if it rejects the command.
	ProposeLocal func(context.Context, ledger.Command) error
	// NotProposed reports whether an error means for certain that nothing was proposed,
	// because the node asked does not hold the authority.
	NotProposed func(error) bool
	// CheckAddress returns an error unless value is host:port. key names it.
	CheckAddress func(key, value string) error
	Log          *slog.Logger
}

// Member is this node as a member of the cluster: it applies changes of the
// membership to the node, reports the node's status, and serves requests about
// members. While the node holds the authority it also carries changes out.
type Member struct {
	cfg        Config
	drainer    *Drainer
	transfer   *Transferer
	reconciler *Reconciler
	removed    chan error // receives the reason when this node is removed from the cluster
}

// New returns a member that drains its node by d when it is about to be removed.
func New(cfg Config, d *Drainer) *Member {
	m := &Member{cfg: cfg, drainer: d, transfer: d.transfer, removed: make(chan error, 1)}
	m.reconciler = newReconciler(cfg.Identity.ServerID(), cfg.Cluster, memberCluster{m, cfg.Group, cfg.Replication}, cfg.Log)
	return m
}

// Handlers returns the handlers of messages from other nodes, by verb.
func (m *Member) Handlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbMembers: m.serveMembers, verbNodeStatus: m.serveNodeStatus, verbPromote: m.servePromote, verbNotifyRemoved: m.serveNotifyRemoved,
	}
}

// Reconcile makes Raft and JetStream agree with the ledger's membership until ctx
// ends. It must run while this node holds the authority, and only then.
func (m *Member) Reconcile(ctx context.Context) { m.reconciler.Run(ctx) }

// Reasons returns where Raft and JetStream differ from the membership, as readiness
// reasons.
func (m *Member) Reasons() []string { return m.reconciler.Reasons() }

func (m *Member) membership() (ms ledger.Membership) {
	m.transfer.Raft.View(func(l *ledger.Ledger) { ms = l.Membership() })
	return ms
}

// nodeStatus returns this node's own status.
func (m *Member) nodeStatus() NodeStatus {
	replicas, led := m.cfg.Replication.MetaReplicas()
	s := NodeStatus{
		ID: m.cfg.Identity.ServerID(), Version: m.cfg.Version, Applied: m.transfer.Raft.Status().Applied, Running: m.cfg.Running(), Led: led,
		Meta: withMemberIDs(m.membership(), replicas), Declares: m.declaredMembers(),
	}
	if err := m.cfg.NATS.Health(); err != nil {
		s.JetStream = err.Error()
	}
	return s
}

// withMemberIDs converts replicas as package replication reports them to the form in
// which nodes send them to each other, which identifies a server by its member's server
// ID. NATS has only the hash of that ID for a server that was removed; a replica on a
// server that is not in members keeps what NATS has.
func withMemberIDs(members ledger.Membership, replicas []replication.Replica) []Replica {
	converted := make([]Replica, len(replicas))
	for i, replica := range replicas {
		id := replica.Identity
		for n := range members.Members { // by index, because a member is a large struct
			if serverID := members.Members[n].ServerID(); replica.Is(serverID) {
				id = serverID
				break
			}
		}
		converted[i] = Replica{ID: id, Leader: replica.Leader, Current: replica.Current, Offline: replica.Offline, Lag: replica.Lag}
	}
	return converted
}

// declaredMembers returns the names of the members in this node's configuration, sorted
// and separated by commas, if they differ from the cluster's present members, else "".
func (m *Member) declaredMembers() string {
	var declared []string
	for i := range m.cfg.Declared {
		declared = append(declared, m.cfg.Declared[i].Node)
	}
	present := m.membership().PresentNodes()
	slices.Sort(declared)
	slices.Sort(present)
	if slices.Equal(present, declared) {
		return ""
	}
	return strings.Join(declared, ",")
}

// serveNodeStatus answers a node that asks for the status of this one.
func (m *Member) serveNodeStatus(ctx context.Context, _ []byte) ([]byte, error) {
	return json.Marshal(m.nodeStatus())
}

// checkMemberID returns an error unless a message, which is a server ID as JSON, is meant
// for this node. The node's name alone does not suffice: it may belong to a new data
// directory by now.
func (m *Member) checkMemberID(payload []byte) error {
	var id string
	if err := json.Unmarshal(payload, &id); err != nil {
		return &job.InvalidError{Reason: err.Error()}
	}
	if ownID := m.cfg.Identity.ServerID(); id != ownID {
		return &api.Error{Code: api.CodeConflict, Text: "this is " + ownID}
	}
	return nil
}

// servePromote records on disk that this node votes from now on.
func (m *Member) servePromote(_ context.Context, payload []byte) ([]byte, error) {
	if err := m.checkMemberID(payload); err != nil {
		return nil, err
	}
	return []byte("{}"), m.cfg.Group.Promote()
}

// serveNotifyRemoved records on disk that this node has been removed, and makes Run end.
func (m *Member) serveNotifyRemoved(_ context.Context, payload []byte) ([]byte, error) {
	if err := m.checkMemberID(payload); err != nil {
		return nil, err
	}
	if err := m.cfg.Identity.MarkRemoved(); err != nil {
		return nil, err
	}
	select {
	case m.removed <- &consensus.RemovedError{Member: m.cfg.Identity.MemberID}:
	default:
	}
	return []byte("{}"), nil
}

// Run applies each change of the ledger's membership to this node. It returns when
// ctx ends or, with a [*consensus.RemovedError], when this node has been removed.
func (m *Member) Run(ctx context.Context) error {
	var applied uint64
	for {
		_, changed := m.transfer.Raft.Applied()
		if ms := m.membership(); ms.Revision > applied {
			applied = ms.Revision
			if err := m.apply(ms); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case err := <-m.removed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// apply passes a membership to the NATS server and the drainer, and stores it in the data
// directory. NATS gets no peers that are leaving.
func (m *Member) apply(ms ledger.Membership) error {
	kept := consensus.Membership{Revision: ms.Revision}
	var peers []embedded.Peer
	for i := range ms.Members {
		p := &ms.Members[i]
		kept.Peers = append(kept.Peers, consensus.Peer{
			MemberID: consensus.MemberID{Node: p.Node, Dir: p.Dir}, Raft: p.Raft, Route: p.Route, JoinRevision: p.JoinRevision,
		})
		if p.State != ledger.MemberLeaving {
			peers = append(peers, embedded.Peer{Node: p.Node, Identity: p.ServerID(), Route: p.Route})
		}
		if p.ServerID() == m.cfg.Identity.ServerID() {
			m.drainer.setRemoving(p.State == ledger.MemberLeaving)
		}
	}
	if m.cfg.Clustered {
		m.cfg.NATS.SetPeers(peers)
	}
	if differs := m.declaredMembers(); differs != "" && m.cfg.Clustered {
		m.cfg.Log.Info("configured members differ from the cluster's, which take precedence",
			"configured", differs, "members", strings.Join(ms.PresentNodes(), ","))
	}
	return m.cfg.Identity.UpdateMembership(kept)
}

// memberCluster implements [Cluster] for the member's reconciler. Changes of the Raft
// group, and moves of replicas, are methods of the parts that it embeds.
type memberCluster struct {
	*Member
	*consensus.Node
	*replication.Replication
}

func (c memberCluster) Membership() ledger.Membership { return c.membership() }

func (c memberCluster) Propose(ctx context.Context, command ledger.Command) error {
	return c.cfg.ProposeLocal(ctx, command)
}

// BootstrapMembers returns the members that formed the cluster, with the addresses of
// this node's configuration.
func (c memberCluster) BootstrapMembers() []ledger.Member {
	var all []ledger.Member
	for _, member := range c.cfg.Identity.BootstrapMembers {
		m := ledger.Member{Node: member.Node, Dir: member.Dir, State: ledger.MemberPresent}
		for i := range c.cfg.Declared {
			if declared := &c.cfg.Declared[i]; declared.Node == member.Node {
				m.Route, m.Raft = declared.Route, declared.Raft
			}
		}
		all = append(all, m)
	}
	return all
}

func (c memberCluster) Servers() []consensus.MemberInfo { return c.transfer.Raft.Status().Members }
func (c memberCluster) LastIndex() uint64               { return c.transfer.Raft.Status().Commit }

func (c memberCluster) Routed() []string { return c.cfg.NATS.Routed() }

func (c memberCluster) Streams(ctx context.Context) ([]StreamReplicas, error) {
	streams, err := c.cfg.Replication.StreamReplicas(ctx)
	ms := c.membership()
	all := make([]StreamReplicas, len(streams))
	for i, s := range streams {
		all[i] = StreamReplicas{Stream: s.Stream, Want: s.Want, Replicas: withMemberIDs(ms, s.Replicas)}
	}
	return all, err
}

func (c memberCluster) NodeStatus(ctx context.Context, node string) (s NodeStatus, err error) {
	if node == c.transfer.Node {
		return c.nodeStatus(), nil
	}
	err = c.transfer.Fleet.RequestJSON(ctx, node, verbNodeStatus, struct{}{}, &s)
	return s, err
}

func (c memberCluster) Promote(ctx context.Context, node, id string) error {
	return c.transfer.Fleet.RequestJSON(ctx, node, verbPromote, id, new(struct{}))
}

func (c memberCluster) NotifyRemoved(ctx context.Context, node, id string) error {
	return c.transfer.Fleet.RequestJSON(ctx, node, verbNotifyRemoved, id, new(struct{}))
}

// TransferAuthority transfers the authority to a member, or to the first that accepts
// it if to is "".
func (c memberCluster) TransferAuthority(ctx context.Context, to string) error {
	_, err := c.transfer.transferTo(ctx, to)
	return err
}
