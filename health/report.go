package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// VerbAuthorityStatus is the verb of the requests that [Reporter.ServeAuthorityStatus]
// answers.
const VerbAuthorityStatus = "authority_status"

// AuthorityStatusTimeout bounds that request.
const AuthorityStatusTimeout = 700 * time.Millisecond

// ReporterConfig is what a [Reporter] depends on.
type ReporterConfig struct {
	Node, Version string
	TimeZones     string // version of the database
	Clustered     bool
	Started       time.Time
	HTTP          string // address of the HTTP listener, "" without one

	View      func(func(*ledger.Ledger))                                                   // reads this node's ledger
	Now       func(*ledger.Ledger) time.Time                                               // returns the present ledger time, which also advances while no entry is committed; called within View
	Raft      func() consensus.Status                                                      // returns this node's state in the Raft group
	Authority func() (node string, known bool)                                             // returns the authority according to the ledger
	Tenure    func(context.Context) (scheduler.AuthorityStatus, error)                     // asks this node's scheduler
	Request   func(ctx context.Context, node, verb string, payload []byte) ([]byte, error) // sends a request to another node
	AddPeers  func([]api.MemberStatus)                                                     // adds what this node has received from its peers
	Skew      func() []string                                                              // returns where Raft voters, stream replicas and the membership differ

	NATSHealth func() error
	LaneInfo   func(ctx context.Context, lane uint8) (streams.LaneInfo, error) // asks the leader of a lane
	Streams    func(ctx context.Context, lanes int) []streams.Usage            // asks the leaders of all streams

	Workers func() api.WorkerStatus
	Pools   func() []api.Pool
	Drain   func() *api.DrainStatus // nil: the node takes work

	Monitor *Monitor
	// LedgerReasons returns how the members' ledgers differ, and what is wrong with the local
	// one, which is locked for reading, for readiness.
	LedgerReasons func(*ledger.Ledger) []string
	Warnings      func() []string // returns what needs attention and does not make the node unready
}

// Reporter returns the status and the readiness of this node, and of the cluster as far as
// this node can see.
type Reporter struct{ cfg ReporterConfig }

// NewReporter returns a reporter.
func NewReporter(cfg ReporterConfig) *Reporter { return &Reporter{cfg} }

// Health returns whether Raft and JetStream work on this node. It does not fail.
func (r *Reporter) Health(context.Context) (*api.Health, error) {
	raft := r.cfg.Raft()
	h := &api.Health{Node: r.cfg.Node, Raft: raft.State, Leader: raft.Leader}
	if err := r.cfg.NATSHealth(); err != nil {
		h.JetStream = err.Error()
	}
	h.Healthy = h.JetStream == "" && h.Leader != ""
	return h, nil
}

// Status returns the status of the node and the cluster. The error is always nil: what
// another node does not answer is missing or "unknown".
func (r *Reporter) Status(ctx context.Context) (*api.Status, error) {
	raft := r.cfg.Raft()
	authority := r.AuthorityStatus(ctx)
	lanes := r.laneStates(ctx)
	usage := r.streamStates(ctx)
	s := &api.Status{
		Node: r.cfg.Node, Version: r.cfg.Version, TimeZones: r.cfg.TimeZones, Mode: "single", Uptime: int64(time.Since(r.cfg.Started).Seconds()),
		Raft: api.RaftStatus{
			State: raft.State, Leader: raft.Leader, Term: raft.Term, Applied: raft.Applied, Last: raft.Last,
			ContactMS: raft.Contact.Milliseconds(),
		},
		Workers: r.cfg.Workers(), Pools: r.cfg.Pools(), HTTP: r.cfg.HTTP, Drain: r.cfg.Drain(), Nodes: authority.Nodes,
		Lanes: make([]api.LaneStatus, len(lanes)), Readiness: r.readiness(ctx, authority, lanes, usage), Streams: usage,
	}
	if raft.Contact < 0 {
		s.Raft.ContactMS = -1
	}
	if r.cfg.Clustered {
		s.Mode = "cluster"
	}
	for i := range lanes {
		s.Lanes[i] = lanes[i].LaneStatus
	}
	r.cfg.View(func(l *ledger.Ledger) {
		a, view := l.Authority(), l.Snapshot(ledger.SnapshotContext{Now: r.cfg.Now(l)}) // without a quorum the ledger's own time does not advance
		s.Authority = api.AuthorityStatus{Owner: a.Owner, LeaseID: a.LeaseID, Epoch: a.Epoch, LeasedUntil: a.Until, Expired: view.Authority.Stale}
		s.HeldKeys, s.OutboxBytes, s.StaleOutcomes = l.HeldKeys(), l.OutboxBytes(), l.Stale()
		s.Backlog = view.Backlog
		balance := l.Balance()
		s.Balance = api.BalanceStatus{Accepted: balance.Accepted, Removed: balance.Removed, Imbalance: balance.Imbalance()}
		finished := l.Finished()
		s.Finished = api.FinishedStatus{Records: finished.Shared, Limit: finished.MaxShared, Own: finished.Own}
		if !finished.Oldest.IsZero() {
			s.Finished.Oldest = &finished.Oldest
		}
	})
	s.Members = memberStatuses(raft, &authority)
	r.cfg.AddPeers(s.Members)
	return s, nil
}

// memberStatuses returns the members of the Raft group with their states: "unknown" if
// the authority does not answer, and "down" for a node that it does not know.
func memberStatuses(raft consensus.Status, authority *scheduler.AuthorityStatus) (members []api.MemberStatus) {
	states := map[string]string{}
	for _, node := range authority.Nodes {
		states[node.Name] = node.State()
	}
	for _, m := range raft.Members {
		state := cmp.Or(states[m.Name], "down")
		if authority.Error != "" {
			state = "unknown"
		}
		members = append(members, api.MemberStatus{Name: m.Name, Address: m.Addr, Voter: m.Voter, Leader: m.Name == raft.Leader, State: state})
	}
	return members
}

// AuthorityStatus asks the authority, which may be this node, for its status. Without an
// answer within AuthorityStatusTimeout, the status has only an Error.
func (r *Reporter) AuthorityStatus(ctx context.Context) scheduler.AuthorityStatus {
	if text := NoQuorum(r.cfg.Raft()); text != "" {
		return scheduler.AuthorityStatus{Error: text}
	}
	ctx, cancel := context.WithTimeout(ctx, AuthorityStatusTimeout)
	defer cancel()
	owner, known := r.cfg.Authority()
	if !known {
		return scheduler.AuthorityStatus{Error: "no authority is known to this node: the Raft leader takes it within seconds"}
	}
	if owner == r.cfg.Node {
		return r.localAuthorityStatus(ctx)
	}
	var status scheduler.AuthorityStatus
	raw, err := r.cfg.Request(ctx, owner, VerbAuthorityStatus, nil)
	if err == nil {
		err = json.Unmarshal(raw, &status)
	}
	if err != nil {
		status.Error = "the authority, " + owner + ", does not answer: " + cluster.ErrorText(err)
	}
	return status
}

// NoQuorum returns why there is no quorum, or "" if there is one as far as this node
// knows.
func NoQuorum(raft consensus.Status) string {
	if raft.Leader != "" {
		return ""
	}
	voters := len(raft.Voters())
	return fmt.Sprintf("no quorum: this node hears no Raft leader, for which %d of %d members have to reach each other", voters/2+1, voters)
}

// localAuthorityStatus returns the authority's status on this node, which is the authority
// according to the ledger. If its scheduler does not run, the status has an Error.
func (r *Reporter) localAuthorityStatus(ctx context.Context) scheduler.AuthorityStatus {
	status, err := r.cfg.Tenure(ctx)
	if err != nil {
		status.Error = "this node holds the lease and does not decide yet, or no more: that passes within seconds"
	}
	status.Reasons = append(status.Reasons, r.cfg.Skew()...)
	return status
}

// ServeAuthorityStatus answers a request of another node for the status of the authority.
// It fails if this node's scheduler does not run.
func (r *Reporter) ServeAuthorityStatus(ctx context.Context, _ []byte) ([]byte, error) {
	status, err := r.cfg.Tenure(ctx)
	if err != nil {
		return nil, err
	}
	status.Reasons = append(status.Reasons, r.cfg.Skew()...)
	return json.Marshal(status)
}
