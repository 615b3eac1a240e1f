package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/peers"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

const (
	retainSnapshots = 3
	logCache        = 512             // entries kept in memory for followers
	rpcTimeout      = 5 * time.Second // of one message and its answer
	drainTimeout    = 300 * time.Millisecond
	resolveTimeout  = time.Second
)

// Node is this member of the Raft group.
type Node struct {
	cfg           Config
	id            *Identity
	log           *slog.Logger
	fsm           *fsm
	store         *Store
	guarded       *guardedStore
	raftTransport raft.Transport
	raft          *raft.Raft
	work          sync.WaitGroup
	done          chan struct{} // closed when Raft has stopped

	submitMu sync.Mutex // keeps proposals in order, protects closing
	closing  bool
	pending  chan *Pending // in order of submission
	resolved chan struct{} // closed when all pending proposals are resolved

	closeOnce sync.Once
	closeErr  error
}

// Open starts this member of the group on a store that [OpenStore] opened with
// the same config. On the first start it writes the group's bootstrap
// configuration, which is the same on every member. The caller closes the Node,
// which closes the store, and then the Identity.
func Open(cfg Config, id *Identity, store *Store, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, id: id, log: log, store: store,
		done: make(chan struct{}), pending: make(chan *Pending, 1024), resolved: make(chan struct{}),
	}
	n.fsm = newFSM(cfg.SnapshotBytes, func(err error) {
		cfg.OnFatal(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err})
	}, log)
	if err := n.start(); err != nil {
		return nil, err
	}
	n.work.Go(n.snapshotLoop)
	n.work.Go(n.watermarkLoop)
	go n.resolvePending() // Close waits for it on n.resolved
	return n, nil
}

func (n *Node) start() error {
	rlog := &raftLog{log: n.log}
	store := newGuardedStore(n.cfg.wrapStore(n.store.bolt), n.store.watermarks, n.cfg.WriteDeadline, n.cfg.OnFatal)
	n.guarded = store
	logs, err := raft.NewLogCache(logCache, store)
	if err != nil {
		return fmt.Errorf("open log cache: %w", err)
	}
	n.raftTransport = n.newTransport(rlog)
	conf := n.raftConfig(rlog)
	if err := n.bootstrap(conf, logs, store); err != nil {
		return errors.Join(err, closeTransport(n.raftTransport))
	}
	if n.raft, err = raft.NewRaft(conf, n.fsm, logs, store, n.store.snaps, n.raftTransport); err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), closeTransport(n.raftTransport))
	}
	if n.id.Listener() != nil {
		n.store.setLogInfo(n.cfg, n.id, n.raft.LastIndex)
	}
	return nil
}

// bootstrap writes the bootstrap configuration into a new directory.
func (n *Node) bootstrap(conf *raft.Config, logs raft.LogStore, stable raft.StableStore) error {
	dir, snaps := n.store.dir, n.store.snaps
	exists, err := raft.HasExistingState(logs, stable, snaps)
	switch {
	case err != nil:
		return fmt.Errorf("check for existing raft state: %w", err)
	case exists:
		return nil
	case n.id.Joined():
		return nil // a member that was added gets the configuration from the leader; until it votes it may start again empty
	}
	// Servers are addressed by their ids, so that the first entry is the same
	// on every member and a member may move to another host.
	var first raft.Configuration
	for _, member := range n.id.BootstrapMembers {
		first.Servers = append(first.Servers, server(member.ServerID()))
	}
	if err := raft.BootstrapCluster(conf, logs, stable, snaps, n.raftTransport, first); err != nil {
		return fmt.Errorf("write the bootstrap configuration: %w", err)
	}
	if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("make raft directory durable: %w", err)
	}
	return n.id.MarkBootstrapped()
}

func (n *Node) raftConfig(log *raftLog) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(n.id.ServerID())
	conf.HeartbeatTimeout, conf.ElectionTimeout = n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout
	conf.LeaderLeaseTimeout, conf.CommitTimeout = n.cfg.LeaderLease, n.cfg.CommitTimeout
	conf.MaxAppendEntries, conf.BatchApplyCh = n.cfg.MaxAppendEntries, true
	conf.TrailingLogs = n.cfg.TrailingLogs
	// Snapshots are taken by bytes, see snapshotLoop; this limits a log of many
	// tiny entries.
	conf.SnapshotThreshold, conf.SnapshotInterval = 64<<10, time.Minute
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = log
	return conf
}

// newTransport returns Raft's transport over the peer listener. A single node
// without a listener gets a transport that connects to nothing.
func (n *Node) newTransport(log *raftLog) raft.Transport {
	if n.id.Listener() == nil {
		_, t := raft.NewInmemTransport(raft.ServerAddress(n.id.ServerID()))
		return t
	}
	return &trackingTransport{n.store.watermarks, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addressProvider{},
		Stream:                streamLayer{n.id.Listener()},
		Logger:                log,
		MaxPool:               3,
		// 1 disables pipelining, which has blocked replication behind a slow
		// disk; with batched entries it has no advantage.
		MaxRPCsInFlight:         1,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	})}
}

// trackingTransport is Raft's transport. It records how far the logs of the
// members reach that this node leads.
type trackingTransport struct {
	watermarks *watermarks
	*raft.NetworkTransport
}

// AppendEntries sends entries to a member. If it succeeds, the member has them
// on its disk, and must keep forever those that are committed by now.
func (o *trackingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := o.NetworkTransport.AppendEntries(id, target, args, resp)
	if err == nil && resp.Success {
		o.watermarks.recordPeer(string(id), min(args.PrevLogEntry+uint64(len(args.Entries)), args.LeaderCommitIndex))
	}
	return err
}

// server returns the member with this server id as an entry of Raft's
// configuration.
func server(id string) raft.Server {
	return raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
}

// streamLayer adapts the peer listener to Raft's transport.
type streamLayer struct{ *peers.PeerListener }

func (s streamLayer) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.PeerListener.Dial(string(id), timeout)
}

// addressProvider uses a member's server id as its address. The peer listener
// maps server ids to network addresses, and checks which member answers there.
type addressProvider struct{}

func (addressProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// addr returns the raft address of a member, given by its name or its server
// id, or "" if it is not known.
func (n *Node) addr(member string) string {
	for _, p := range n.id.Peers() {
		if p.Node != member && p.ServerID() != member {
			continue
		}
		if listener := n.id.Listener(); listener != nil {
			return listener.Address(p.ServerID())
		}
		return p.Raft
	}
	return ""
}

// snapshotLoop takes a snapshot whenever enough bytes were applied.
func (n *Node) snapshotLoop() {
	for {
		select {
		case <-n.fsm.snapshotDue:
		case <-n.done:
			return
		}
		started := time.Now()
		err := n.raft.Snapshot().Error()
		switch {
		case err == nil:
			n.log.Info("snapshot taken", "duration", time.Since(started))
		case !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown):
			n.log.Warn("snapshot failed", "err", err)
		}
	}
}

// Close stops this member immediately. It does not transfer the leadership
// ([Node.Lead] does when its ctx ends). Proposals that are not resolved within
// drainTimeout end with [ErrUnknown].
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *Node) close() error {
	n.submitMu.Lock()
	n.closing = true
	close(n.pending)
	n.submitMu.Unlock()
	select {
	case <-n.resolved: // proposals that a quorum still answers are resolved
	case <-time.After(drainTimeout):
	}
	err := n.raft.Shutdown().Error()
	err = errors.Join(err, closeTransport(n.raftTransport))
	select {
	case <-n.resolved:
	case <-time.After(resolveTimeout):
		// Raft drops an entry that was committed immediately before it stopped;
		// its waiters get ErrUnknown when n.done closes.
		n.log.Warn("raft stopped with unanswered proposals")
	}
	close(n.done)
	n.work.Wait()
	return errors.Join(err, n.store.watermarks.save(), n.store.Close())
}

// How often the watermarks are updated, and after how many updates they are
// saved. If the process ends, at most the updates since then are lost.
const (
	watermarkInterval  = time.Second
	watermarkSaveEvery = 5
)

// watermarkLoop updates and saves the watermarks until the node closes.
func (n *Node) watermarkLoop() {
	tick := time.NewTicker(watermarkInterval)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-tick.C:
		case <-n.done:
			return
		}
		n.recordWatermarks()
		if i%watermarkSaveEvery != 0 {
			continue
		}
		n.store.watermarks.prunePeers(n.members())
		if err := n.store.watermarks.save(); err != nil {
			n.log.Warn("watermarks not saved", "err", err)
		}
	}
}

// recordWatermarks records the commit index for this node and, because the
// leader of the same term also has these entries on its disk, for the leader.
func (n *Node) recordWatermarks() {
	term := n.raft.CurrentTerm()
	_, leader := n.raft.LeaderWithID()
	commit := min(n.raft.CommitIndex(), n.raft.LastIndex())
	n.store.watermarks.update(func(p *hardState) { p.Index = max(p.Index, commit) })
	if leader != "" && n.raft.CurrentTerm() == term && string(leader) != n.id.ServerID() {
		n.store.watermarks.recordPeer(string(leader), commit)
	}
}

// closeTransport closes the transport and its pooled connections.
func closeTransport(t raft.Transport) error {
	if net, ok := t.(*trackingTransport); ok {
		net.CloseStreams()
		return net.Close()
	}
	return nil
}

// View calls fn with the ledger. Entries are not applied meanwhile, so fn must
// be short, and it must not keep references into the ledger.
func (n *Node) View(fn func(*ledger.Ledger)) {
	n.fsm.mu.RLock()
	defer n.fsm.mu.RUnlock()
	fn(n.fsm.ledger)
}

// Copy returns a copy of the current ledger, for reads that take longer.
func (n *Node) Copy() *ledger.Ledger { // a copy modifies the original's trees
	n.fsm.mu.Lock() // copying marks the original's trees
	defer n.fsm.mu.Unlock()
	return n.fsm.ledger.Copy()
}

// Applied returns the index of the last entry that this node applied, and a
// channel that closes when the next one is applied.
func (n *Node) Applied() (index uint64, changed <-chan struct{}) { return n.fsm.applied() }

// WaitApplied blocks until the entry at index is applied on this node. It
// returns an error if ctx ends or the node closes first.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	for {
		now, changed := n.fsm.applied()
		if now >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for log entry %d, at %d: %w", index, now, ctx.Err())
		case <-n.done:
			return ErrClosed
		}
	}
}

// Status is the state of the group as seen by this node.
type Status struct {
	State   string        `json:"state"`  // leader, follower, candidate, shutdown
	Leader  string        `json:"leader"` // name of the leading member; "": not known
	Term    uint64        `json:"term"`
	Applied uint64        `json:"applied"` // index of the last entry applied to this node's ledger
	Commit  uint64        `json:"commit"`  // highest index known to be committed
	Last    uint64        `json:"last"`    // index of the last entry on this node's disk
	Contact time.Duration `json:"contact"` // time since the last message from the leader; 0 on the leader, -1: never
	Members []MemberInfo  `json:"members"`
}

// MemberInfo is one server of the group's configuration.
type MemberInfo struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Addr  string `json:"addr"` // as reachable from this node; "": not known
	Voter bool   `json:"voter"`
}

// Status returns the node's present status. It only reads counters and does not
// block.
func (n *Node) Status() Status {
	n.fsm.mu.RLock()
	applied := n.fsm.index
	n.fsm.mu.RUnlock()
	s := Status{
		State: strings.ToLower(n.raft.State().String()), Leader: n.leader(), Term: n.raft.CurrentTerm(),
		Applied: applied, Commit: n.raft.CommitIndex(), Last: n.raft.LastIndex(), Members: n.members(),
	}
	if s.State != "leader" {
		s.Contact = -1
		if last := n.raft.LastContact(); !last.IsZero() {
			s.Contact = time.Since(last)
		}
	}
	return s
}

func (n *Node) members() []MemberInfo {
	var members []MemberInfo
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		name := peers.NodeOf(string(s.ID))
		members = append(members, MemberInfo{Name: name, ID: string(s.ID), Addr: n.addr(string(s.ID)), Voter: s.Suffrage == raft.Voter})
	}
	return members
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
