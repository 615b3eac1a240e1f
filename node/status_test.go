package node

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Without an answer of the authority, readiness has the reason.
func TestReadiness_NoAuthority(t *testing.T) {
	n := &Node{serving: make(chan struct{})}
	if ready, shows := n.readyz(t.Context()); ready || shows.(ReadinessStatus).Reasons[0] != "the node is starting" {
		t.Errorf("a starting node: %v", shows)
	}
	n.waitingFor.Store(&[]string{"n2: nobody answers"})
	if ready, shows := n.readyz(t.Context()); ready || shows.(ReadinessStatus).Reasons[0] != "the node waits: n2: nobody answers" {
		t.Errorf("a node that waits for others: %v", shows)
	}
	n.scheduler = scheduler.New(scheduler.Config{Node: "n1", Members: []string{"n1"}}, nil, nil, nil, nil, slog.New(slog.DiscardHandler))
	if l := n.localAuthorityStatus(t.Context()); !strings.HasPrefix(l.Error, "this node holds the lease and does not decide yet") {
		t.Errorf("a node without a tenure: %+v", l)
	}
	if why := noAuthorityText(false); !strings.HasPrefix(why, "no authority is known") || noAuthorityText(true) != "" {
		t.Error(why)
	}
}

// A node that accepts no jobs has a reason, and one that does has none.
func TestAcceptingJobs(t *testing.T) {
	led := []LaneStatus{{}, {Leader: "n2"}}
	for _, c := range []struct {
		sound     error
		lanes     []LaneStatus
		accepting bool
		why       string
	}{
		{nil, led, true, ""},
		{nil, led[:1], false, "no lane has a leader that this node hears: it accepts no jobs until one has"},
		{nil, []LaneStatus{{}, {Leader: "n2", full: true}}, false, ""}, // the authority reports that
		{nil, []LaneStatus{{Leader: "n1"}, {Leader: "n2", full: true}}, true, ""},
		{errors.New("JetStream is not healthy: x"), led, false, "JetStream is not healthy: x: this node accepts no jobs until it is; others may"},
		{nil, nil, false, ""},
	} {
		if accepting, why := acceptingJobs(c.sound, c.lanes); accepting != c.accepting || strings.Join(why, "\n") != c.why {
			t.Errorf("%v, %v: %t because %q", c.sound, c.lanes, accepting, why)
		}
	}
}

// streamsNotMade is true from the first entry until the authority has created the streams.
func TestStreamsNotMade(t *testing.T) {
	l := ledger.New()
	at := ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1, 0)}
	for i, step := range []struct {
		command ledger.Command
		unmade  bool
	}{
		{nil, false},
		{&ledger.Lead{Owner: "n1", Until: time.Unix(11, 0)}, true},
		{&ledger.Bootstrap{Secret: []byte{1}, Lanes: []string{"L0"}}, true},
		{&ledger.Bootstrap{StreamsCreated: true}, false},
	} {
		if step.command != nil {
			if r := l.Apply(at, []ledger.Command{step.command}); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
			at.Index, at.Epoch = at.Index+1, l.Authority().Epoch
		}
		if got := streamsNotMade(l); got != step.unmade {
			t.Errorf("after step %d: %t", i, got)
		}
	}
}

// The size of the data directory is cached for a while.
func TestDirSizeCache(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) {
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "sub", name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var f dirSizeCache
		size := func(want int64) {
			t.Helper()
			if got := f.size(dir); got != want {
				t.Errorf("%d bytes, want %d", got, want)
			}
		}
		write("a", 100)
		size(100)
		write("b", 50)
		time.Sleep(dirSizeMaxAge - 1)
		size(100)
		time.Sleep(1)
		size(150)
	})
}
