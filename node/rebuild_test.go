package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/cluster"
	"yardmaster/ledger"
)

// While a node makes a copy of its own anew it vouches for none, and no member may
// come or go: else two of three copies could be away at once.
func TestRebuild_OneAtATime(t *testing.T) {
	n := alone(t, nil)
	if _, err := n.serveCheck(t.Context(), []byte(`"YARD_JOBS_0"`)); err != nil {
		t.Fatalf("before: %v", err)
	}
	n.rebuilds.say(RebuildStatus{Stream: "YARD_DLQ", Step: "the copy is filled"})
	var refused *cluster.APIError
	if _, err := n.serveCheck(t.Context(), []byte(`"YARD_JOBS_0"`)); !errors.As(err, &refused) || refused.Code != "409" {
		t.Errorf("meanwhile its copy is read for another member: %v", err)
	}
	if w := n.word(t.Context()); !strings.Contains(w.JetStream, "YARD_DLQ") {
		t.Errorf("meanwhile it is %q", w.JetStream)
	}
	n.rebuilds.say(RebuildStatus{Stream: "YARD_DLQ", Outcome: "all right"})
	if _, err := n.serveCheck(t.Context(), []byte(`"YARD_JOBS_0"`)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Members that begin to change while the others' copies are read keep a copy where it
// is, up to its removal.
func TestTakeAway_MembersChange(t *testing.T) {
	n := alone(t, nil)
	joins := &ledger.ChangeMembers{Join: &ledger.Member{Node: "n2", Dir: "0000000b", Route: "127.0.0.1:1", Raft: "127.0.0.1:2"}}
	for _, c := range []ledger.Command{&ledger.SetMembers{Members: roster{n}.Founders()}, joins} {
		if err := (roster{n}).Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	once, cancel := context.WithCancel(t.Context())
	cancel()
	n.takeAway(once, &startAnew{removal{Stream: "YARD_JOBS_0", Group: "S-R3F-abcdefgh"}})
	if was, noted := n.notedRemoval(); !noted || was.Removed || !strings.Contains(was.Why, "members are changing (n2-0000000b joins)") {
		t.Errorf("noted %v: %+v", noted, was)
	}
}

// A note that cannot be read, as after a loss of power, keeps no node from starting.
func TestRemoval_UnreadableNote(t *testing.T) {
	var note string
	n := alone(t, func(c *Config) {
		note = filepath.Join(c.Node.DataDir, removalFile)
		if err := os.WriteFile(note, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(note); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the note stays: %v", err)
	}
	if s := n.rebuilds.status(); s != nil {
		t.Errorf("under way: %+v", s)
	}
}

// What a node goes on with stands from its start, and why nothing was removed is told.
func TestRemoval_Noted(t *testing.T) {
	n := &Node{cfg: Config{Node: NodeConfig{DataDir: t.TempDir()}}}
	if s := newRebuilder(n).status(); s != nil {
		t.Errorf("without a note: %+v", s)
	}
	if err := n.noteRemoval(&removal{Stream: "YARD_DLQ", Why: "a copy lags"}); err != nil {
		t.Fatal(err)
	}
	r := newRebuilder(n)
	if r.status().under() == "" {
		t.Errorf("with a note: %+v", r.status())
	}
	was, _ := n.notedRemoval()
	if s := r.refilled(t.Context(), &was); !s.Failed || s.Outcome != "nothing was removed: a copy lags" {
		t.Errorf("in the end: %+v", s)
	}
}

// Nobody waits for the answer of one who is gone.
func TestWhileReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, stop := whileReached(t.Context(), time.Second, func() bool { return time.Since(began) < 3*time.Second })
		<-ctx.Done()
		if took := time.Since(began); took != 3*time.Second || context.Cause(ctx) != errNotReached {
			t.Errorf("ended after %s for %v", took, context.Cause(ctx))
		}
		stop()
		ctx, stop = whileReached(t.Context(), time.Second, func() bool { return true })
		stop()
		if errors.Is(context.Cause(ctx), errNotReached) {
			t.Error("stopped as if nobody were there")
		}
	})
}
