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
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

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
	store *raftboltdb.BoltStore
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

// Open starts this member of the group. The first time it lays down the
// group's first configuration, the same on every member. The caller closes the
// Node, and the Identity after it.
func Open(cfg Config, id *Identity, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	n := &Node{
		cfg: cfg, id: id, log: log, fsm: newFSM(cfg.SnapshotBytes, log),
		done: make(chan struct{}), pending: make(chan *Pending, 1024), collected: make(chan struct{}),
	}
	if err := n.start(filepath.Join(cfg.Dir, "raft")); err != nil {
		return nil, err
	}
	n.work.Go(n.compact)
	go n.collect() // joined in Close, by collected
	return n, nil
}

func (n *Node) start(dir string) (err error) {
	if err := n.prepare(dir); err != nil {
		return err
	}
	if n.store, err = openDisk(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.store.Close())
		}
	}()
	rlog := &raftLog{log: n.log}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, keepSnapshots, rlog)
	if err != nil {
		return fmt.Errorf("open snapshots: %w", err)
	}
	disk := newGuard(n.cfg.wrap(n.store), n.cfg.WriteDeadline, n.cfg.Stuck)
	logs, err := raft.NewLogCache(logCache, disk)
	if err != nil {
		return fmt.Errorf("open log cache: %w", err)
	}
	n.trans = n.transport(rlog)
	conf := n.raftConfig(rlog)
	if err := n.bootstrap(conf, logs, disk, snaps, dir); err != nil {
		return errors.Join(err, closeTransport(n.trans))
	}
	if n.raft, err = raft.NewRaft(conf, n.fsm, logs, disk, snaps, n.trans); err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), closeTransport(n.trans))
	}
	return nil
}

// prepare makes the directory. What lies there from a first start that did not
// come to its end was never used by raft and is begun again.
func (n *Node) prepare(dir string) error {
	if !n.id.Bootstrapped() {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear unfinished raft directory: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make raft directory: %w", err)
	}
	return nil
}

// bootstrap writes the first configuration once in a directory's life, and
// refuses a directory whose votes and log are gone.
func (n *Node) bootstrap(conf *raft.Config, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, dir string) error {
	exists, err := raft.HasExistingState(logs, stable, snaps)
	switch {
	case err != nil:
		return fmt.Errorf("look for raft's state: %w", err)
	case exists:
		return nil
	case n.id.Bootstrapped():
		return fmt.Errorf("raft's files in %s are gone although this node has voted before: "+
			"restore the data directory as a whole, or empty it and give member %s's place to it by 'yardmaster cluster replace %s'", dir, n.id.Node, n.id.Node)
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
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addresses{},
		Stream:                stream{n.id.Door()},
		Logger:                log,
		MaxPool:               3,
		// 1 means no pipelining: it has wedged replication behind a slow disk,
		// and with batched entries it gains nothing.
		MaxRPCsInFlight:         1,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	})
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
	return errors.Join(err, n.store.Close())
}

// closeTransport ends the listener and the connections kept for later.
func closeTransport(t raft.Transport) error {
	if net, ok := t.(*raft.NetworkTransport); ok {
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
