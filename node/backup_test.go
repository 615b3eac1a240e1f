package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// holder returns what has the hold of a backup, or "".
func holder(n *Node) (holder string) {
	n.raft.View(func(l *ledger.Ledger) { holder, _ = l.Holder() })
	return holder
}

// restoring returns the ID of the restore under way, or "".
func restoring(n *Node) (id string) {
	n.raft.View(func(l *ledger.Ledger) { id, _ = l.Restoring() })
	return id
}

// A hold whose node has lost its backup is released before it expires.
func TestBackup_HoldOfDeadNodeReleased(t *testing.T) {
	n := startSingleNode(t, nil)
	hold := func(holder string) {
		t.Helper()
		if _, err := n.proposer.Propose(t.Context(), &ledger.Hold{Holder: holder, Until: time.Now().Add(ledger.MaxHold)}); err != nil {
			t.Fatal(err)
		}
	}
	hold(n.cfg.Node.Name + "/before-it-was-killed")
	waitApplied(t, n, func() bool { return holder(n) == "" })

	hold("n9/of-a-node-that-is-not-heard")
	begun, err := n.backups.BeginBackup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(holder(n), "/"+begun.Session) {
		t.Errorf("hold of %s, want %+v", holder(n), begun)
	}
	if _, err := n.proposer.Propose(t.Context(), &ledger.Hold{Holder: "another", Until: time.Now().Add(time.Minute)}); !errors.Is(err, ledger.ErrBackupRunning) {
		t.Errorf("the node of a running backup: %v", err)
	}
}

// emptyPlan is the plan of a backup without lanes.
func emptyPlan() *backup.Plan {
	history := backup.Stream{Stream: subjects.StreamEvents}
	return &backup.Plan{Manifest: backup.Manifest{Format: backup.Format, Yard: "elsewhere", Streams: []backup.Stream{history}}, Keep: []backup.Stream{history}}
}

// finished waits for the end of the step that a request has started, and returns its
// error.
func finished(t *testing.T, b *backup.Server, reply *api.RestoreReply, err error) error {
	t.Helper()
	for err == nil && reply.Activity != "" {
		reply, err = b.WaitRestore(t.Context(), &api.BackupRequest{Session: reply.Session})
	}
	return err
}

func wantConflict(t *testing.T, err error) {
	t.Helper()
	var apiErr *api.Error
	if !errors.As(err, &apiErr) || apiErr.Code != api.CodeConflict {
		t.Errorf("%v, want a conflict", err)
	}
}

// A job that is accepted after the restore has checked the lanes is not lost: the restore is
// rejected, and the job runs.
func TestRestore_JobAcceptedBeforeClear(t *testing.T) {
	n := startSingleNode(t, nil)
	cfg := n.backupConfig()
	propose := cfg.Propose
	var early intake.Ack
	cfg.Propose = func(ctx context.Context, c ledger.Command) error {
		err := propose(ctx, c)
		if r, ok := c.(*ledger.Restore); ok && r.Stage == ledger.RestoreBegin && err == nil {
			early, err = enqueue(n, "mail", `{"params":{}}`, "early", false)
		}
		return err
	}
	b := backup.NewServer(cfg)
	begin := func() error {
		reply, err := b.BeginRestore(t.Context(), emptyPlan())
		return finished(t, b, reply, err)
	}
	wantConflict(t, begin())
	if id := restoring(n); id != "" {
		t.Errorf("restore %s is still under way", id)
	}
	if id, err := n.viewer.Locate(t.Context(), "early", "mail"); err != nil || id != early.ID {
		t.Errorf("the job: %v, %v, want %v", id, err, early.ID)
	}
	if late := enqueueLater(t, n); late.Position.Seq != early.Position.Seq+1 {
		t.Errorf("the lane continues at %+v", late.Position)
	}
	wantConflict(t, begin())
}

// supersededStreams are the streams of a restore that another one supersedes when it has
// closed the lanes.
type supersededStreams struct {
	backup.Streams
	supersede func() error
}

func (s supersededStreams) CloseLane(ctx context.Context, lane uint8, identity string) (streams.StreamState, error) {
	state, err := s.Streams.CloseLane(ctx, lane, identity)
	return state, errors.Join(err, s.supersede())
}

// A restore that was superseded removes nothing, and the next one does.
func TestRestore_Superseded(t *testing.T) {
	n := startSingleNode(t, nil)
	begin := func(cfg backup.Config) error {
		b := backup.NewServer(cfg)
		reply, err := b.BeginRestore(t.Context(), emptyPlan())
		return finished(t, b, reply, err)
	}
	cfg := n.backupConfig()
	cfg.Streams = supersededStreams{cfg.Streams, func() error {
		return n.backupConfig().Propose(t.Context(), &ledger.Restore{Stage: ledger.RestoreBegin, ID: "second", Source: "elsewhere"})
	}}
	if err := begin(cfg); !errors.Is(err, ledger.ErrNotRestoring) {
		t.Errorf("the first: %v", err)
	}
	if _, err := n.cluster.Reader.LaneInfo(t.Context(), 0); err != nil || restoring(n) != "second" {
		t.Errorf("the lane: %v; restore %q", err, restoring(n))
	}
	if err := begin(n.backupConfig()); err != nil {
		t.Errorf("the second: %v", err)
	}
	if _, err := n.cluster.Reader.LaneInfo(t.Context(), 0); !errors.Is(err, streams.ErrStreamMissing) {
		t.Errorf("the lane: %v", err)
	}
}

// unansweredStreams are streams whose servers remove a stream without an answer, the
// first time that this is requested.
type unansweredStreams struct {
	backup.Streams
	unanswered map[string]bool
}

func (s unansweredStreams) RemoveStream(ctx context.Context, stream string) error {
	if err := s.Streams.RemoveStream(ctx, stream); err != nil || s.unanswered[stream] {
		return err
	}
	s.unanswered[stream] = true
	return context.DeadlineExceeded
}

// A restore repeats requests to remove streams that got no answer.
func TestRestore_RemovalUnanswered(t *testing.T) {
	n := startSingleNode(t, nil)
	cfg := n.backupConfig()
	cfg.Streams = unansweredStreams{cfg.Streams, map[string]bool{}}
	b := backup.NewServer(cfg)
	reply, err := b.BeginRestore(t.Context(), emptyPlan())
	if err := finished(t, b, reply, err); err != nil {
		t.Fatal(err)
	}
	if _, err := n.cluster.Reader.LaneInfo(t.Context(), 0); !errors.Is(err, streams.ErrStreamMissing) {
		t.Errorf("the lane: %v", err)
	}
}

// enqueueLater enqueues a job, with retries until the lanes are open again.
func enqueueLater(t *testing.T, n *Node) intake.Ack {
	t.Helper()
	for t.Context().Err() == nil {
		late, err := enqueue(n, "mail", `{"params":{}}`, "late", false)
		var later *job.UnavailableError
		if err == nil {
			return late
		}
		if !errors.As(err, &later) && !errors.Is(err, streams.ErrUnknown) {
			t.Fatal(err)
		}
	}
	return intake.Ack{}
}

// A cluster whose restore is abandoned accepts jobs and publishes its history.
func TestRestore_Abandon(t *testing.T) {
	n := startSingleNode(t, nil)
	published := func() (all, published uint64) {
		n.raft.View(func(l *ledger.Ledger) { all, published = l.LastEvent(), l.PublishedEvents() })
		return all, published
	}
	waitApplied(t, n, func() bool { _, n := published(); return n > 0 })
	b := n.backups
	abandon := func() error {
		reply, err := b.AbandonRestore(t.Context())
		return finished(t, b, reply, err)
	}
	for range 2 { // an abandoned cluster can be restored again
		reply, err := b.BeginRestore(t.Context(), emptyPlan())
		if err := finished(t, b, reply, err); err != nil {
			t.Fatal(err)
		}
		if err := abandon(); err != nil {
			t.Fatal(err)
		}
	}
	wantConflict(t, abandon())
	enqueueLater(t, n)
	waitApplied(t, n, func() bool { all, published := published(); return all == published && all > 1 })
	waitReady(t, n)
}

// waitApplied waits until fits reports true for the local ledger.
func waitApplied(t *testing.T, n *Node, fits func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		_, changed := n.raft.Applied()
		if fits() {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatal("not in 20 s")
		}
	}
}
