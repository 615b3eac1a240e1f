package clustertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Eventually polls fact until it returns nil. It fails the test with the last
// error if that takes longer than waitTimeout.
func (c *Cluster) Eventually(what string, fact func() error) {
	c.t.Helper()
	deadline := time.Now().Add(waitTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fact()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

// WaitReady waits until every running member reports that it is ready.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	c.waitReadiness("ready", func(s api.Readiness) bool { return s.Ready && s.Accepting && s.Dispatching })
}

// waitServing waits until every running member accepts and dispatches jobs,
// whether or not it is ready otherwise.
func (c *Cluster) waitServing() {
	c.t.Helper()
	c.waitReadiness("serving", func(s api.Readiness) bool { return s.Accepting && s.Dispatching })
}

// waitStreams waits until every member has opened all streams and its replicas are
// current. A server that stops while a replica catches up from a snapshot waits for the
// stream's leader, which may have stopped at the same time.
func (c *Cluster) waitStreams() {
	c.t.Helper()
	streams := []string{subjects.StreamBlobs, subjects.StreamResultBlobs, subjects.StreamEvents, subjects.StreamResults, subjects.StreamDLQ, subjects.StreamLogs}
	for lane := range c.Members {
		streams = append(streams, subjects.LaneStream(uint8(lane)))
	}
	for _, bucket := range subjects.Boards {
		streams = append(streams, "KV_"+bucket)
	}
	c.Eventually("all streams are open", func() error {
		for _, name := range streams {
			if err := c.Running()[0].checkReplicas(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// checkReplicas returns an error unless all replicas of a stream are current.
func (m *Member) checkReplicas(stream string) error {
	var info struct {
		Error  json.RawMessage
		Config struct {
			Replicas int `json:"num_replicas"`
		}
		Cluster struct{ Replicas []struct{ Current bool } }
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // a stream without a leader does not answer
	defer cancel()
	answer, err := m.client.Request(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return err
	}
	current := 1 // the leader, which answers
	for _, r := range info.Cluster.Replicas {
		if r.Current {
			current++
		}
	}
	if info.Error != nil || current < info.Config.Replicas {
		return fmt.Errorf("%d of %d replicas are current; error %s", current, info.Config.Replicas, info.Error)
	}
	return nil
}

// waitReadiness waits until the readiness of every running member satisfies ok,
// and each sees all running members as up.
func (c *Cluster) waitReadiness(what string, ok func(api.Readiness) bool) {
	c.t.Helper()
	c.Eventually("the cluster is "+what, func() error {
		for _, m := range c.Running() {
			s, err := m.Status()
			if err != nil {
				return err
			}
			if !ok(s.Readiness) {
				return fmt.Errorf("%s: %+v", m.Name, s.Readiness)
			}
			for _, o := range s.Members {
				if o.State != "up" && c.member(o.Name).Running() {
					return fmt.Errorf("%s reports %s as %s", m.Name, o.Name, o.State)
				}
			}
		}
		return nil
	})
}

// member returns the member of that name. It fails the test if there is none.
func (c *Cluster) member(name string) *Member {
	for _, m := range c.Members {
		if m.Name == name {
			return m
		}
	}
	c.t.Fatalf("there is no member %q", name)
	return nil
}

// WaitAuthority waits until a majority of the members agree on an authority that
// is running, holds its lease and is not among except, and returns it.
func (c *Cluster) WaitAuthority(except ...*Member) (authority *Member) {
	c.t.Helper()
	c.Eventually("there is an authority", func() error {
		votes := map[string]int{}
		for _, m := range c.Running() {
			if a := m.node.Ledger().Authority(); a.Owner != "" && !a.Expired {
				votes[a.Owner]++
			}
		}
		for name, n := range votes {
			if n <= len(c.Members)/2 {
				continue
			}
			authority = c.member(name)
			for _, other := range except {
				if other == authority {
					return fmt.Errorf("the authority is still %s", name)
				}
			}
			if !authority.Running() {
				return fmt.Errorf("the authority %s is not running", name)
			}
			return nil
		}
		return fmt.Errorf("votes are %v", votes)
	})
	return authority
}

// RequireOneAuthority waits until all running members report the same authority
// and epoch.
func (c *Cluster) RequireOneAuthority() {
	c.t.Helper()
	c.Eventually("all members agree on the authority", func() error {
		owner, epoch := "", uint64(0)
		for i, m := range c.Running() {
			a := m.node.Ledger().Authority()
			if a.Owner == "" || a.Expired {
				return fmt.Errorf("%s reports no authority: %+v", m.Name, a)
			}
			if i > 0 && (a.Owner != owner || a.Epoch != epoch) {
				return fmt.Errorf("%s reports %s in epoch %d, another member %s in %d", m.Name, a.Owner, a.Epoch, owner, epoch)
			}
			owner, epoch = a.Owner, a.Epoch
		}
		return nil
	})
}

// RequireSameLedger waits until the ledgers of all running members are at the same
// index, and requires that their hashes are equal.
func (c *Cluster) RequireSameLedger() {
	c.t.Helper()
	type state struct {
		index uint64
		hash  [sha256.Size]byte
	}
	c.Eventually("all ledgers are the same", func() error {
		var first state
		for i, m := range c.Running() {
			l := m.node.Ledger()
			hash, err := l.Hash()
			if err != nil {
				return err
			}
			s := state{l.Index(), hash}
			if i == 0 {
				first = s
			}
			if s.index != first.index {
				return fmt.Errorf("%s is at index %d, another member at %d", m.Name, s.index, first.index)
			}
			if s != first {
				c.t.Fatalf("at index %d the ledger of %s has hash %x, another member's %x", s.index, m.Name, s.hash, first.hash)
			}
		}
		return nil
	})
}

// ownStackMarkers are the packages that mark a goroutine as one of a node.
var ownStackMarkers = []string{"github.com/yardmaster-dev/yardmaster/", "nats-server", "hashicorp/raft", "bbolt"}

// leakedByNATS are functions of goroutines that nats-server does not end if it is
// stopped while it opens a stream.
var leakedByNATS = []string{"server.(*fileStore).flushStreamStateLoop", "server/ats.Register"}

// clusters counts the clusters that run in this process. Tests run in parallel, and
// a goroutine does not show which cluster it belongs to, so that goroutines are
// checked when the last cluster has stopped.
var clusters struct {
	sync.Mutex
	running int
}

// countCluster counts one more running cluster. It waits for a check of goroutines.
func countCluster() {
	clusters.Lock()
	defer clusters.Unlock()
	clusters.running++
}

// uncountCluster counts one running cluster less. It fails the test if that was the
// last one and goroutines of nodes have not ended after ten seconds.
func uncountCluster(t testing.TB) {
	clusters.Lock()
	defer clusters.Unlock()
	if clusters.running--; clusters.running > 0 {
		return
	}
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left := slices.DeleteFunc(strings.Split(stacks(), "\n\n"), func(stack string) bool { return !isOwn(stack) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines outlive the clusters:\n%s", len(left), strings.Join(left, "\n\n"))
			return
		}
		<-tick.C
	}
}

// isOwn reports whether stack belongs to a goroutine started by a node, other than
// those that nats-server leaks.
func isOwn(stack string) bool {
	contained := func(word string) bool { return strings.Contains(stack, word) }
	return slices.ContainsFunc(ownStackMarkers, contained) && !slices.ContainsFunc(leakedByNATS, contained) &&
		!contained("testing.tRunner") && !contained("testing.(*M).Run") && !contained("main.main()") // a test, or TestMain
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 4<<20)
	return string(bytes.TrimSpace(buf[:runtime.Stack(buf, true)]))
}
