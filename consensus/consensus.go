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

	"yardmaster/consensus/roster"
	"yardmaster/ledger"
)

const (
	keepSnapshots = 3
	logCache      = 512             // entries kept in memory for followers
	rpcTimeout    = 5 * time.Second // of one message and its answer
	drainTime     = 300 * time.Millisecond
	collectTime   = time.Second
)

// Node is this member of the raft group.
type Node struct {
	cfg   Config
	id    *Identity
	log   *slog.Logger
	fsm   *fsm
	store *Store
	guard *guard
	trans raft.Transport
	raft  *raft.Raft
	work  sync.WaitGroup
	done  chan struct{} // closed when raft has stopped

	submit    sync.Mutex // keeps proposals in order, guards closing
	closing   bool
	pending   chan *Pending // in order of submission
	collected chan struct{} // closed when all pending are settled

	closed  sync.Once
	closeEr error
}

// Open starts this member of the group on what [OpenStore] opened under the
// same config. The first time it lays down the group's first configuration, the
// same on every member. The caller closes the Node, which closes the store, and
// the Identity after it.
func Open(cfg Config, id *Identity, store *Store, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, id: id, log: log, store: store,
		done: make(chan struct{}), pending: make(chan *Pending, 1024), collected: make(chan struct{}),
	}
	n.fsm = newFSM(cfg.SnapshotBytes, func(err error) {
		cfg.Stuck(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err})
	}, log)
	if err := n.start(); err != nil {
		return nil, err
	}
	n.work.Go(n.compact)
	n.work.Go(n.keepMarks)
	go n.collect() // joined in Close, by collected
	return n, nil
}

func (n *Node) start() error {
	rlog := &raftLog{log: n.log}
	disk := newGuard(n.cfg.wrap(n.store.bolt), n.store.marks, n.cfg.WriteDeadline, n.cfg.Stuck)
	n.guard = disk
	logs, err := raft.NewLogCache(logCache, disk)
	if err != nil {
		return fmt.Errorf("open log cache: %w", err)
	}
	n.trans = n.transport(rlog)
	conf := n.raftConfig(rlog)
	if err := n.bootstrap(conf, logs, disk); err != nil {
		return errors.Join(err, closeTransport(n.trans))
	}
	if n.raft, err = raft.NewRaft(conf, n.fsm, logs, disk, n.store.snaps, n.trans); err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), closeTransport(n.trans))
	}
	if n.id.Door() != nil {
		n.store.tell(n.cfg, n.id, n.raft.LastIndex)
	}
	return nil
}

// bootstrap writes the first configuration once in a directory's life.
func (n *Node) bootstrap(conf *raft.Config, logs raft.LogStore, stable raft.StableStore) error {
	dir, snaps := n.store.dir, n.store.snaps
	exists, err := raft.HasExistingState(logs, stable, snaps)
	switch {
	case err != nil:
		return fmt.Errorf("look for raft's state: %w", err)
	case exists:
		return nil
	case n.id.Newcomer():
		return nil // it hears from the others who they are, and may be begun again until its votes count
	}
	// Servers are addressed by their ids, so that the first entry is the same
	// everywhere and a member may move to another host.
	var first raft.Configuration
	for _, seat := range n.id.Roster {
		first.Servers = append(first.Servers, server(seat.ID()))
	}
	if err := raft.BootstrapCluster(conf, logs, stable, snaps, n.trans, first); err != nil {
		return fmt.Errorf("lay down the first configuration: %w", err)
	}
	if err := errors.Join(syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("make raft directory durable: %w", err)
	}
	return n.id.MarkBootstrapped()
}

func (n *Node) raftConfig(log *raftLog) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(n.id.ID())
	conf.HeartbeatTimeout, conf.ElectionTimeout = n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout
	conf.LeaderLeaseTimeout, conf.CommitTimeout = n.cfg.LeaderLease, n.cfg.CommitTimeout
	conf.MaxAppendEntries, conf.BatchApplyCh = n.cfg.MaxAppendEntries, true
	conf.TrailingLogs = n.cfg.TrailingLogs
	// Snapshots come by bytes, see compact; this bounds a log of tiny entries.
	conf.SnapshotThreshold, conf.SnapshotInterval = 64<<10, time.Minute
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = log
	return conf
}

// transport speaks raft through the door that formed the yard. A node alone
// may have none.
func (n *Node) transport(log *raftLog) raft.Transport {
	if n.id.Door() == nil {
		_, t := raft.NewInmemTransport(raft.ServerAddress(n.id.ID()))
		return t
	}
	return &observed{n.store.marks, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addresses{},
		Stream:                stream{n.id.Door()},
		Logger:                log,
		MaxPool:               3,
		// 1 means no pipelining: it has wedged replication behind a slow disk,
		// and with batched entries it gains nothing.
		MaxRPCsInFlight:         1,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	})}
}

// observed is raft's transport; it notes how far the members' logs reach that
// this node leads.
type observed struct {
	marks *marks
	*raft.NetworkTransport
}

// AppendEntries sends entries. Whoever takes them has them on its disk, and
// those that are committed by now it must have for ever.
func (o *observed) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := o.NetworkTransport.AppendEntries(id, target, args, resp)
	if err == nil && resp.Success {
		o.marks.reached(string(id), min(args.PrevLogEntry+uint64(len(args.Entries)), args.LeaderCommitIndex))
	}
	return err
}

// server is a seat as raft's configuration holds it.
func server(id string) raft.Server {
	return raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
}

// stream is the door as raft's transport wants it.
type stream struct{ *roster.Door }

func (s stream) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.Door.Dial(string(id), timeout)
}

// addresses names every member by its raft id, this one too: the door knows
// where a seat is reached, and that another seat answers there.
type addresses struct{}

func (addresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// addr is where the raft port of a member is, by its name or its seat's id, ""
// if it is not known.
func (n *Node) addr(member string) string {
	for _, p := range n.id.Peers() {
		if p.Node != member && p.ID() != member {
			continue
		}
		if door := n.id.Door(); door != nil {
			return door.Address(p.ID())
		}
		return p.Raft
	}
	return ""
}

// compact takes a snapshot whenever enough bytes were applied.
func (n *Node) compact() {
	for {
		select {
		case <-n.fsm.grown:
		case <-n.done:
			return
		}
		begun := time.Now()
		err := n.raft.Snapshot().Error()
		switch {
		case err == nil:
			n.log.Info("snapshot taken", "took", time.Since(begun))
		case !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown):
			n.log.Warn("snapshot failed", "error", err)
		}
	}
}

// Close stops this member at once: the leadership is not handed over (Lead
// does that when its ctx ends), and proposals that cannot be settled within a
// moment end as unknown.
func (n *Node) Close() error {
	n.closed.Do(func() { n.closeEr = n.close() })
	return n.closeEr
}

func (n *Node) close() error {
	n.submit.Lock()
	n.closing = true
	close(n.pending)
	n.submit.Unlock()
	select {
	case <-n.collected: // what a quorum still answers is known
	case <-time.After(drainTime):
	}
	err := n.raft.Shutdown().Error()
	err = errors.Join(err, closeTransport(n.trans))
	select {
	case <-n.collected:
	case <-time.After(collectTime):
		// Raft forgets an entry that was committed in its last instant; its
		// waiters hear "unknown" from done.
		n.log.Warn("raft left a proposal unanswered when it stopped")
	}
	close(n.done)
	n.work.Wait()
	return errors.Join(err, n.store.marks.save(), n.store.Close())
}

// How often the marks are looked after, and every how many looks they are
// written: what is not written is lost with this process only.
const (
	markEvery = time.Second
	markWrite = 5
)

// keepMarks notes how far the log reaches, here and at the leader.
func (n *Node) keepMarks() {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-tick.C:
		case <-n.done:
			return
		}
		n.mark()
		if i%markWrite != 0 {
			continue
		}
		n.store.marks.only(n.members())
		if err := n.store.marks.save(); err != nil {
			n.log.Warn("marks are not written", "error", err)
		}
	}
}

// mark notes what is committed, which the leader of the same term has on its
// disk, too.
func (n *Node) mark() {
	term := n.raft.CurrentTerm()
	_, leader := n.raft.LeaderWithID()
	commit := min(n.raft.CommitIndex(), n.raft.LastIndex())
	n.store.marks.note(func(p *promises) { p.Index = max(p.Index, commit) })
	if leader != "" && n.raft.CurrentTerm() == term && string(leader) != n.id.ID() {
		n.store.marks.reached(string(leader), commit)
	}
}

// closeTransport ends the listener and the connections kept for later.
func closeTransport(t raft.Transport) error {
	if net, ok := t.(*observed); ok {
		net.CloseStreams()
		return net.Close()
	}
	return nil
}

// View lets fn read the ledger. Applying waits meanwhile, so fn must be short
// and must not keep what it saw.
func (n *Node) View(fn func(*ledger.Ledger)) {
	n.fsm.mu.RLock()
	defer n.fsm.mu.RUnlock()
	fn(n.fsm.ledger)
}

// Copy gives the ledger as it is now, for reads that take longer.
func (n *Node) Copy() *ledger.Ledger {
	n.fsm.mu.Lock() // copying marks the original's trees
	defer n.fsm.mu.Unlock()
	return n.fsm.ledger.Copy()
}

// Applied gives the index of the last entry this node applied, and a channel
// that closes with the next.
func (n *Node) Applied() (index uint64, changed <-chan struct{}) { return n.fsm.applied() }

// WaitApplied waits until the entry at index is applied here.
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

// Status is how the group looks from here.
type Status struct {
	State   string        `json:"state"`  // leader, follower, candidate, shutdown
	Leader  string        `json:"leader"` // member's name; "" if none is known
	Term    uint64        `json:"term"`
	Applied uint64        `json:"applied"` // index of the last entry in this node's ledger
	Commit  uint64        `json:"commit"`  // index known to be committed
	Last    uint64        `json:"last"`    // index of the last entry on this node's disk
	Contact time.Duration `json:"contact"` // since the leader was heard; 0 on the leader, -1: never
	Members []MemberInfo  `json:"members"`
}

// MemberInfo is a server of the group's configuration.
type MemberInfo struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Addr  string `json:"addr"` // as this node reaches it; "" if it does not know
	Voter bool   `json:"voter"`
}

// Status reads counters only and never blocks.
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
		name := roster.NodeOf(string(s.ID))
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
