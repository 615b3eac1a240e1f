package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/peers"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
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
	*Replica
	cfg           Config
	id            *Identity
	log           *slog.Logger
	fsm           *fsm
	store         *Store
	guarded       *guardedStore
	raftTransport raft.Transport
	raft          *raft.Raft
	work          sync.WaitGroup

	submitMu sync.Mutex // keeps proposals in order, protects closing
	closing  bool
	pending  chan *pendingProposal // in order of submission
	resolved chan struct{}         // closed when all pending proposals are resolved

	closeOnce sync.Once
	closeErr  error
}

// Open starts this member of the group on a store that [OpenStore] opened with
// the same config. On the first start it writes the group's bootstrap
// configuration, which is the same on every member. The caller closes the Node,
// which closes the store, and then the Identity.
func Open(cfg Config, id *Identity, store *Store, log *slog.Logger) (*Node, error) {
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, id: id, log: log, store: store,
		pending: make(chan *pendingProposal, 1024), resolved: make(chan struct{}),
	}
	n.fsm = newFSM(cfg.SnapshotBytes, func(err error) {
		if errors.Is(err, errOtherRelease) {
			cfg.OnFatal(&ReleaseError{Node: id.Node, Err: err})
			return
		}
		cfg.OnFatal(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err})
	}, cfg.Projection)
	n.fsm.recordChanges(cfg.Changes, cfg.Saved)
	n.Replica = n.fsm.Replica
	if err := n.start(); err != nil {
		return nil, err
	}
	n.work.Go(n.snapshotLoop)
	n.work.Go(n.watermarkLoop)
	go n.resolvePending() // Close waits for it on n.resolved
	return n, nil
}

// start opens the transport and the guarded store, writes the bootstrap configuration if
// this is the first start, and starts Raft.
func (n *Node) start() error {
	rlog := newRaftLog(n.log)
	store := newGuardedStore(n.cfg.wrapStore(n.store.raw()), n.store.watermarks, n.cfg.writeDeadline, n.cfg.OnFatal)
	n.guarded = store
	logs, err := raft.NewLogCache(logCache, store)
	if err != nil {
		return fmt.Errorf("open log cache: %w", err)
	}
	n.raftTransport = newTransport(n.id, n.store.watermarks, rlog)
	conf := n.cfg.raft(n.id, rlog)
	if err := n.bootstrap(conf, logs, store); err != nil {
		return errors.Join(err, closeTransport(n.raftTransport))
	}
	if n.raft, err = raft.NewRaft(conf, n.fsm, logs, store, n.store.snaps, n.raftTransport); err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), n.fsm.restoreErr, closeTransport(n.raftTransport))
	}
	if n.id.Listener() != nil {
		n.store.setLogInfo(n.cfg, n.id, n.raft.LastIndex)
	}
	return nil
}

// bootstrap writes the bootstrap configuration, which lists the members that formed
// the group, into Raft's files, and makes them durable. It does nothing if the files
// have a state already, or if this member was added later.
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
	if err := errors.Join(durable.SyncDir(dir), durable.SyncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("make raft directory durable: %w", err)
	}
	return n.id.MarkBootstrapped()
}

// snapshotLoop takes a snapshot whenever enough bytes were applied.
func (n *Node) snapshotLoop() {
	for {
		select {
		case <-n.fsm.snapshots.due:
		case <-n.done:
			return
		}
		if err := n.limitTrailingLogs(); err != nil {
			n.log.Warn("number of log entries kept before a snapshot not changed", "err", err)
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

// limitTrailingLogs sets how many entries Raft keeps in the log before the next snapshot.
// A follower that lacks more of them is sent the snapshot.
func (n *Node) limitTrailingLogs() error {
	conf := n.raft.ReloadableConfig()
	conf.TrailingLogs = n.fsm.trailingEntries(n.cfg.trailingBytes)
	return n.raft.ReloadConfig(conf)
}

// Close stops this member immediately. It does not transfer the leadership
// ([Node.Lead] does when its ctx ends). Proposals that are not resolved within
// drainTimeout end with [ErrUnknown].
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

// close refuses further proposals, waits for drainTimeout for the answers to earlier ones,
// and stops Raft. What Raft has still not answered after resolveTimeout remains
// unresolved. At last, close saves the watermarks and closes the store.
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
	n.store.watermarks.update(func(s *hardState) { s.Index = max(s.Index, commit) })
	if leader != "" && n.raft.CurrentTerm() == term && string(leader) != n.id.ServerID() {
		n.store.watermarks.recordPeer(string(leader), commit)
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
	// CopyTime is how long the last copy of the ledger took. No entry was applied meanwhile.
	CopyTime time.Duration `json:"-"`
}

// MemberInfo is one server of the group's configuration.
type MemberInfo struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Addr  string `json:"addr"` // as reachable from this node; "": not known
	Voter bool   `json:"voter"`
}

// Voters returns the names of the voting members.
func (s Status) Voters() (names []string) {
	for _, m := range s.Members {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	return names
}

// Status returns the node's present status. It only reads counters and does not
// block.
func (n *Node) Status() Status {
	s := Status{
		State: strings.ToLower(n.raft.State().String()), Leader: n.leader(), Term: n.raft.CurrentTerm(),
		Applied: n.index.Load(), Commit: n.raft.CommitIndex(), Last: n.raft.LastIndex(), Members: n.members(),
		CopyTime: time.Duration(n.copyTime.Load()),
	}
	if s.State != "leader" {
		s.Contact = -1
		if last := n.raft.LastContact(); !last.IsZero() {
			s.Contact = time.Since(last)
		}
	}
	return s
}

// members returns the servers of the group's latest configuration, committed or not.
func (n *Node) members() []MemberInfo {
	var members []MemberInfo
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		name := peers.NodeOf(string(s.ID))
		members = append(members, MemberInfo{Name: name, ID: string(s.ID), Addr: addrOf(n.id, string(s.ID)), Voter: s.Suffrage == raft.Voter})
	}
	return members
}
