package nodetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/testlog"
	"yardmaster/node"
)

// Eventually waits until a fact holds. It looks again and again, and fails
// with what fact said last.
func (y *Yard) Eventually(what string, fact func() error) {
	y.t.Helper()
	deadline := time.Now().Add(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		err := fact()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			y.t.Fatalf("%s: %v", what, err)
		}
		<-look.C
	}
}

// WaitReady waits until every running member says that it is ready.
func (y *Yard) WaitReady() {
	y.t.Helper()
	y.await("ready", func(s node.ReadinessStatus) bool { return s.Ready && s.Accepting && s.Dispatching })
}

// waitServing is [Yard.WaitReady], whatever else a member may lack.
func (y *Yard) waitServing() {
	y.t.Helper()
	y.await("serving", func(s node.ReadinessStatus) bool { return s.Accepting && s.Dispatching })
}

// waitStreams waits until every member has opened the streams that a yard makes
// last, beside its work: the logs and the boards.
func (y *Yard) waitStreams() {
	y.t.Helper()
	streams := []string{cluster.StreamLogs}
	for _, bucket := range cluster.Boards {
		streams = append(streams, "KV_"+bucket)
	}
	y.Eventually("all streams are open", func() error {
		for _, name := range streams {
			if err := y.Running()[0].opened(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// opened fails unless all members have a stream.
func (m *Member) opened(stream string) error {
	var info struct {
		Error  json.RawMessage
		Config struct {
			Replicas int `json:"num_replicas"`
		}
		Cluster struct{ Replicas []struct{ Current bool } }
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // nobody answers for a stream that elects
	defer cancel()
	answer, err := m.client.Request(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return err
	}
	current := 1 // the leader, who answers
	for _, r := range info.Cluster.Replicas {
		if r.Current {
			current++
		}
	}
	if info.Error != nil || current < info.Config.Replicas {
		return fmt.Errorf("%d of %d copies are open; error %s", current, info.Config.Replicas, info.Error)
	}
	return nil
}

func (y *Yard) await(what string, is func(node.ReadinessStatus) bool) {
	y.t.Helper()
	y.Eventually("the yard is "+what, func() error {
		for _, m := range y.Running() {
			s, err := m.Status()
			if err != nil {
				return err
			}
			if !is(s.Readiness) {
				return fmt.Errorf("%s: %+v", m.Name, s.Readiness)
			}
			for _, o := range s.Members {
				if o.State != "up" && y.member(o.Name).Running() {
					return fmt.Errorf("%s thinks that %s is %s", m.Name, o.Name, o.State)
				}
			}
		}
		return nil
	})
}

func (y *Yard) member(name string) *Member {
	for _, m := range y.Members {
		if m.Name == name {
			return m
		}
	}
	y.t.Fatalf("no member is called %q", name)
	return nil
}

// WaitAuthority waits until a majority of the running members agree on an
// authority that holds its lease and runs, and gives it. Members among not
// will not do.
func (y *Yard) WaitAuthority(not ...*Member) (authority *Member) {
	y.t.Helper()
	y.Eventually("there is an authority", func() error {
		votes := map[string]int{}
		for _, m := range y.Running() {
			if a := m.node.Ledger().Authority(); a.Owner != "" && !a.Expired {
				votes[a.Owner]++
			}
		}
		for name, n := range votes {
			if n <= len(y.Members)/2 {
				continue
			}
			authority = y.member(name)
			for _, other := range not {
				if other == authority {
					return fmt.Errorf("it is still %s", name)
				}
			}
			if !authority.Running() {
				return fmt.Errorf("%s does not run", name)
			}
			return nil
		}
		return fmt.Errorf("votes are %v", votes)
	})
	return authority
}

// RequireOneAuthority checks that all members name the same holder and epoch,
// and that exactly this one has a tenure.
func (y *Yard) RequireOneAuthority() {
	y.t.Helper()
	y.Eventually("all members agree on the authority", func() error {
		owner, epoch := "", uint64(0)
		for i, m := range y.Running() {
			a := m.node.Ledger().Authority()
			if a.Owner == "" || a.Expired {
				return fmt.Errorf("%s knows none: %+v", m.Name, a)
			}
			if i > 0 && (a.Owner != owner || a.Epoch != epoch) {
				return fmt.Errorf("%s says %s in epoch %d, another says %s in %d", m.Name, a.Owner, a.Epoch, owner, epoch)
			}
			owner, epoch = a.Owner, a.Epoch
		}
		return nil
	})
}

// RequireSameLedger checks that every member's ledger has the same hash at the
// same index.
func (y *Yard) RequireSameLedger() {
	y.t.Helper()
	type state struct {
		index uint64
		hash  [sha256.Size]byte
	}
	y.Eventually("all ledgers are the same", func() error {
		var first state
		for i, m := range y.Running() {
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
				return fmt.Errorf("%s is at %d, another at %d", m.Name, s.index, first.index)
			}
			if s != first {
				y.t.Fatalf("at index %d %s has hash %x, another %x", s.index, m.Name, s.hash, first.hash)
			}
		}
		return nil
	})
}

// ours are the words in a goroutine's stack that make it a yard's.
var ours = []string{"yardmaster/", "nats-server", "hashicorp/raft", "bbolt"}

// goroutines gives the creation sites of what runs.
func goroutines() map[string]bool {
	found := make(map[string]bool)
	for _, g := range strings.Split(stacks(), "\n\n") {
		found[id(g)] = true
	}
	return found
}

func id(stack string) string {
	name, _, _ := strings.Cut(stack, " [")
	return name
}

// requireNoGoroutines checks that what the yard started has ended.
func requireNoGoroutines(t testing.TB, before map[string]bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		var left []string
		for _, g := range strings.Split(stacks(), "\n\n") {
			if !before[id(g)] && !strings.Contains(g, "nodetest.requireNoGoroutines") && isOurs(g) {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines outlive the yard:\n%s", len(left), strings.Join(left, "\n\n"))
			return
		}
		<-look.C
	}
}

func isOurs(stack string) bool {
	if strings.Contains(stack, "testing.(*T).Run") || strings.Contains(stack, "testing.tRunner") && !strings.Contains(stack, "created by yardmaster") {
		return false // a test that waits
	}
	for _, word := range ours {
		if strings.Contains(stack, word) {
			return true
		}
	}
	return false
}

// stacks tells what every goroutine does.
func stacks() string {
	buf := make([]byte, 4<<20)
	return string(bytes.TrimSpace(buf[:runtime.Stack(buf, true)]))
}

// terse is a test's log without what nobody reads in a failed test of whole
// nodes.
type terse struct{ slog.Handler }

func newLog(t testing.TB) slog.Handler { return terse{testlog.New(t).Handler()} }

func (h terse) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (h terse) WithAttrs(a []slog.Attr) slog.Handler         { return terse{h.Handler.WithAttrs(a)} }
func (h terse) WithGroup(name string) slog.Handler           { return terse{h.Handler.WithGroup(name)} }
