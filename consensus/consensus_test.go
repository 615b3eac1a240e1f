package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

var discardLog = slog.New(slog.DiscardHandler)

// testCluster is a group of members in this process. Ports and directories are kept
// when nodes are restarted.
type testCluster struct {
	t         *testing.T
	members   []Member
	dirs      map[string]string
	nodes     map[string]*Node
	configure func(*Config)
}

func newTestCluster(t *testing.T, names ...string) *testCluster {
	t.Helper()
	c := &testCluster{t: t, dirs: map[string]string{}, nodes: map[string]*Node{}, configure: func(*Config) {}}
	for _, name := range names {
		c.members = append(c.members, Member{Name: name, Addr: testnet.Address(t)})
		c.dirs[name] = t.TempDir()
	}
	t.Cleanup(func() {
		for name := range c.nodes {
			c.kill(name)
		}
	})
	return c
}

func (c *testCluster) names() []string {
	var names []string
	for _, m := range c.members {
		names = append(names, m.Name)
	}
	return names
}

// open starts a member and blocks until its cluster has formed.
func (c *testCluster) open(name string) (*Node, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	i := slices.IndexFunc(c.members, func(m Member) bool { return m.Name == name })
	id, err := Identify(ctx, IdentityConfig{Node: name, Dir: c.dirs[name], Listen: c.members[i].Addr, Members: c.members}, discardLog)
	if err != nil {
		return nil, err
	}
	cfg := Config{Dir: c.dirs[name], heartbeatTimeout: 300 * time.Millisecond}
	c.configure(&cfg)
	store, err := OpenStore(cfg, id, discardLog)
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	n, err := Open(cfg, id, store, discardLog)
	if err != nil {
		return nil, errors.Join(err, store.Close(), id.Close())
	}
	return n, nil
}

// start starts members at the same time.
func (c *testCluster) start(names ...string) {
	c.t.Helper()
	var mu sync.Mutex
	var starts sync.WaitGroup
	for _, name := range names {
		starts.Go(func() {
			n, err := c.open(name)
			if err != nil {
				c.t.Errorf("start %s: %v", name, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			c.nodes[name] = n
		})
	}
	starts.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

func (c *testCluster) kill(name string) {
	n := c.nodes[name]
	delete(c.nodes, name)
	if err := errors.Join(n.Close(), n.id.Close()); err != nil {
		c.t.Errorf("close %s: %v", name, err)
	}
}

// eventually waits until fact reports true, and fails with what it saw last.
func eventually(t *testing.T, what string, fact func() (ok bool, seen any)) {
	t.Helper()
	var seen any
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var ok bool
		if ok, seen = fact(); ok {
			return
		}
	}
	t.Fatalf("%s: never; last seen %v", what, seen)
}

// leader waits until one member leads and all others follow it.
func (c *testCluster) leader() *Node {
	c.t.Helper()
	var leader *Node
	eventually(c.t, "one leader", func() (bool, any) {
		leader = nil
		var seen []string
		for name, n := range c.nodes {
			s := n.Status()
			seen = append(seen, fmt.Sprintf("%s is %s in term %d under %q", name, s.State, s.Term, s.Leader))
			if s.State == "leader" {
				leader = n
			}
		}
		if leader == nil {
			return false, seen
		}
		for _, n := range c.nodes {
			if n.Status().Leader != leader.id.Node {
				return false, seen
			}
		}
		return true, seen
	})
	return leader
}

// acquire makes the leader the authority and returns its epoch.
func acquire(t *testing.T, n *Node) uint64 {
	t.Helper()
	now := time.Now()
	c := propose(t, n, ledger.Proposal{At: now, Commands: []ledger.Command{&ledger.Lead{Owner: n.id.Node, Until: now.Add(time.Minute)}}})
	if c.Results[0].Err != nil {
		t.Fatal(c.Results[0].Err)
	}
	var epoch uint64
	n.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
	return epoch
}

func propose(t *testing.T, n *Node, p ledger.Proposal) ledger.Commit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := n.Propose(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func addQueues(t *testing.T, n *Node, epoch uint64, names ...string) ledger.Commit {
	t.Helper()
	p := ledger.Proposal{At: time.Now(), Epoch: epoch}
	for _, name := range names {
		p.Commands = append(p.Commands, &ledger.AddQueue{ID: [16]byte{1}, Name: name})
	}
	c := propose(t, n, p)
	for _, r := range c.Results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return c
}

// addQueues adds queues as the authority, through whichever member leads. A loaded
// machine may change the leader at any time, so it repeats what was not committed:
// adding a queue again changes nothing.
func (c *testCluster) addQueues(names ...string) (last ledger.Commit) {
	c.t.Helper()
	var add ledger.Proposal
	for _, name := range names {
		add.Commands = append(add.Commands, &ledger.AddQueue{ID: [16]byte{1}, Name: name})
	}
	eventually(c.t, "a commit", func() (bool, any) {
		n := c.leader()
		add.At = time.Now()
		lead := &ledger.Lead{Owner: n.id.Node, Until: add.At.Add(time.Minute)}
		if _, err := n.Propose(c.t.Context(), ledger.Proposal{At: add.At, Commands: []ledger.Command{lead}}); err != nil {
			return false, err
		}
		n.View(func(l *ledger.Ledger) { add.Epoch = l.Authority().Epoch })
		var err error
		if last, err = n.Propose(c.t.Context(), add); err != nil {
			return false, err
		}
		for _, r := range last.Results {
			if r.Err != nil {
				return false, r.Err
			}
		}
		return true, nil
	})
	return last
}

// encoded returns the encoded ledger, which must be equal on all members.
func encoded(t *testing.T, n *Node) string {
	t.Helper()
	var b bytes.Buffer
	if err := n.Copy().Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSingleNode_RestartKeepsLedger(t *testing.T) {
	dir := t.TempDir()
	open := func() *Node {
		id, err := Identify(t.Context(), IdentityConfig{Node: "solo", Dir: dir}, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Dir: dir, heartbeatTimeout: 50 * time.Millisecond, SnapshotBytes: 2 << 10, trailingBytes: 1}
		store, err := OpenStore(cfg, id, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		n, err := Open(cfg, id, store, discardLog)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stop := func(n *Node) {
		if err := errors.Join(n.Close(), n.id.Close()); err != nil {
			t.Fatal(err)
		}
	}
	leads := func(n *Node) {
		eventually(t, "leading", func() (bool, any) { s := n.Status(); return s.State == "leader", s })
	}
	n := open()
	leads(n)
	epoch := acquire(t, n)
	var last ledger.Commit
	for i := range 60 { // about 60 bytes each: more than SnapshotBytes
		last = addQueues(t, n, epoch, fmt.Sprintf("queue-%d", i))
	}
	eventually(t, "a snapshot", func() (bool, any) {
		snaps, err := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*-*"))
		return len(snaps) > 0 && !strings.HasSuffix(snaps[0], ".tmp"), err
	})
	want := encoded(t, n)
	stop(n)

	n = open()
	defer stop(n)
	if err := n.WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	if encoded(t, n) != want {
		t.Error("the ledger differs after a restart")
	}
	leads(n)
	if next := acquire(t, n); next <= epoch {
		t.Errorf("epoch %d after %d", next, epoch)
	}
}

func TestThreeNodes_LeaderFailover(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	first := c.leader()
	epoch := acquire(t, first)
	addQueues(t, first, epoch, "before")
	term := first.Status().Term
	c.kill(first.id.Node)

	second := c.leader()
	if now := second.Status().Term; now <= term {
		t.Errorf("term %d after %d", now, term)
	}
	propose(t, second, ledger.Proposal{At: time.Now(), Epoch: epoch + 1})
	epoch = acquire(t, second)
	last := addQueues(t, second, epoch, "after")

	c.start(first.id.Node)
	for name, n := range c.nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := n.WaitApplied(ctx, last.Index); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		if encoded(t, n) != encoded(t, second) {
			t.Errorf("ledger of %s differs", name)
		}
	}
	s := c.nodes[first.id.Node].Status()
	if len(s.Members) != 3 || !s.Members[0].Voter || s.Members[0].Addr == "" {
		t.Errorf("members %+v", s.Members)
	}
}

func TestThreeNodes_FollowersNameLeader(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	leader := c.leader()
	for _, n := range c.nodes {
		if n == leader {
			continue
		}
		_, err := n.Propose(t.Context(), ledger.Proposal{At: time.Now()})
		var not *NotLeaderError
		if !errors.As(err, &not) || not.Leader != leader.id.Node {
			t.Errorf("got %v, want an error that names leader %s", err, leader.id.Node)
		}
		if err := n.Transfer(t.Context(), ""); !errors.As(err, &not) {
			t.Errorf("transfer by a follower: %v", err)
		}
	}
	if err := leader.Transfer(t.Context(), "n9"); !errors.Is(err, ErrNoMember) {
		t.Errorf("transfer to an unknown member: %v", err)
	}
	to := c.names()[0]
	if to == leader.id.Node {
		to = c.names()[1]
	}
	started := time.Now()
	if err := leader.Transfer(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if now := c.leader(); now.id.Node != to {
		t.Errorf("%s leads, transferred to %s", now.id.Node, to)
	}
	t.Logf("transferred in %v", time.Since(started))
}

func TestThreeNodes_MissingRaftFilesRefused(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	c.leader()
	c.kill("n3")
	if err := os.RemoveAll(filepath.Join(c.dirs["n3"], "raft")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.open("n3"); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// hangingStore blocks appends while the test holds its lock.
type hangingStore struct {
	rawStore
	hung *sync.Mutex
}

func (d hangingStore) StoreLogs(entries []*raft.Log) error {
	d.hung.Lock()
	defer d.hung.Unlock()
	return d.rawStore.StoreLogs(entries)
}

func TestThreeNodes_HangingDiskDeposesLeader(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	locks := map[string]*sync.Mutex{}
	for _, dir := range c.dirs {
		locks[dir] = new(sync.Mutex)
	}
	c.configure = func(c *Config) {
		c.writeDeadline = time.Second
		c.OnFatal = func(err error) { t.Errorf("fatal: %v", err) }
		c.wrapStore = func(d rawStore) rawStore { return hangingStore{d, locks[c.Dir]} }
	}
	c.start(c.names()...)
	first := c.leader()
	epoch := acquire(t, first)
	disk := locks[c.dirs[first.id.Node]]
	disk.Lock()
	wait, err := first.Submit(ledger.Proposal{At: time.Now(), Epoch: epoch, Commands: []ledger.Command{&ledger.AddQueue{Name: "lost"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wait(t.Context()); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	eventually(t, "stepping down", func() (bool, any) { s := first.Status(); return s.State != "leader", s })
	disk.Unlock()
	second := c.leader()
	last := addQueues(t, second, acquire(t, second), "kept")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, n := range c.nodes {
		if err := n.WaitApplied(ctx, last.Index); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if encoded(t, n) != encoded(t, second) {
			t.Errorf("ledger of %s differs", name)
		}
	}
}

func TestPropose_OutcomeUnknownWithoutQuorum(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	var leader *Node
	var wait func(context.Context) (ledger.Commit, error)
	var not *NotLeaderError
	eventually(t, "a proposal to a leader that has not noticed the loss of its quorum yet", func() (bool, any) {
		leader = c.leader()
		var killed []string
		for _, name := range c.names() {
			if name != leader.id.Node {
				c.kill(name)
				killed = append(killed, name)
			}
		}
		var err error
		if wait, err = leader.Submit(ledger.Proposal{At: time.Now()}); errors.As(err, &not) {
			c.start(killed...)
			return false, err
		}
		if err != nil {
			t.Fatal(err)
		}
		return true, nil
	})
	if _, err := wait(t.Context()); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	eventually(t, "stepping down", func() (bool, any) { s := leader.Status(); return s.State != "leader", s })
	if _, err := leader.Propose(t.Context(), ledger.Proposal{At: time.Now()}); !errors.As(err, &not) {
		t.Errorf("got %v, want NotLeaderError", err)
	}
}

func TestPropose_Refusals(t *testing.T) {
	c := newTestCluster(t, "solo")
	c.start("solo")
	n := c.leader()
	big := ledger.Proposal{At: time.Now(), Commands: []ledger.Command{&ledger.RemoveQueue{Name: strings.Repeat("x", maxEntryBytes)}}}
	if _, err := n.Submit(big); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wait, err := n.Submit(ledger.Proposal{At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wait(ctx); err != nil && !errors.Is(err, ErrUnknown) {
		t.Errorf("cancelled caller got %v, want ErrUnknown", err)
	}
	if _, err := wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	var not *NotLeaderError
	if _, err := n.Submit(ledger.Proposal{At: time.Now()}); !errors.Is(err, ErrClosed) && !errors.As(err, &not) {
		t.Errorf("after close: %v", err)
	}
	if err := n.WaitApplied(t.Context(), 1<<40); !errors.Is(err, ErrClosed) {
		t.Errorf("wait after close: %v", err)
	}
}

func TestSubmit_PreservesOrder(t *testing.T) {
	c := newTestCluster(t, "solo")
	c.start("solo")
	n := c.leader()
	var all []func(context.Context) (ledger.Commit, error)
	for range 300 {
		p, err := n.Submit(ledger.Proposal{At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	var last uint64
	for _, p := range all {
		c, err := p(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c.Index <= last {
			t.Fatalf("entry %d after %d", c.Index, last)
		}
		last = c.Index
	}
	if index, _ := n.Applied(); index < last {
		t.Errorf("applied %d, committed %d", index, last)
	}
}
