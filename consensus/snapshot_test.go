package consensus

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// TestFSM_OneSnapshotPerLimit takes snapshots as snapshotLoop and Raft do: entries
// are applied between the signal that a snapshot is due and the snapshot, and the
// signals that they send are for bytes that the snapshot covers.
func TestFSM_OneSnapshotPerLimit(t *testing.T) {
	entry := command(t, 1)
	size := int64(len(entry.Data))
	f := newFSM(10*size, func(err error) { panic(err) }, discardLog)
	index, snapshots := uint64(0), 0
	apply := func() {
		index++
		f.Apply(&raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: entry.Data})
	}
	for range 100 {
		apply()
		select {
		case <-f.snapshotDue:
		default:
			continue
		}
		apply()
		apply()
		if _, err := f.Snapshot(); err != nil {
			t.Fatal(err)
		}
		snapshots++
	}
	if snapshots != 10 {
		t.Errorf("%d snapshots of 10 times 12 entries, want 10", snapshots)
	}
}

// TestFSM_NoSnapshotIsDueAfterRestore checks that a snapshot received from the leader
// counts as one for the entries that were applied before it.
func TestFSM_NoSnapshotIsDueAfterRestore(t *testing.T) {
	entry := command(t, 1)
	f := newFSM(int64(len(entry.Data)), func(err error) { panic(err) }, discardLog)
	f.Apply(entry)
	var sent bytes.Buffer
	if err := writeSnapshot(&sent, f.ledger); err != nil {
		t.Fatal(err)
	}
	if err := f.Restore(io.NopCloser(&sent)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.snapshotDue:
		t.Error("a snapshot is due after a restore")
	default:
	}
}

// TestSingle_OneSnapshotPerLimit fills the log twice with a quarter more bytes than
// make a snapshot due. The entries are submitted together, so that some are applied
// while Raft prepares the snapshot.
func TestSingle_OneSnapshotPerLimit(t *testing.T) {
	dir := t.TempDir()
	id, err := Identify(t.Context(), IdentityConfig{Node: "solo", Dir: dir}, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	log, logged := testlog.NewRecorder(t)
	p := ledger.Proposal{At: time.Now(), Commands: []ledger.Command{&ledger.RemoveQueue{Name: "none"}}}
	entry, err := encodeEntry(&p)
	if err != nil {
		t.Fatal(err)
	}
	const entries = 400 // enough to make a snapshot due
	cfg := Config{Dir: dir, heartbeatTimeout: 50 * time.Millisecond, SnapshotBytes: int64(entries * len(entry))}
	store, err := OpenStore(cfg, id, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(cfg, id, store, log)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "leading", func() (bool, any) { s := n.Status(); return s.State == "leader", s })
	for range 2 {
		before, _ := n.Applied()
		var pending []func(context.Context) (ledger.Commit, error)
		for range entries * 5 / 4 {
			one, err := n.Submit(p)
			if err != nil {
				t.Fatal(err)
			}
			pending = append(pending, one)
		}
		for _, one := range pending {
			if _, err := one(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "a snapshot of these entries", func() (bool, any) {
			snaps, err := store.snaps.List()
			return len(snaps) > 0 && snaps[0].Index > before, err
		})
	}
	if err := errors.Join(n.Close(), id.Close()); err != nil { // snapshotLoop has ended
		t.Fatal(err)
	}
	taken := slices.DeleteFunc(logged.Messages(slog.LevelInfo), func(m string) bool { return m != "snapshot taken" })
	if len(taken) > 2 {
		t.Errorf("%d snapshots were taken, want 2", len(taken))
	}
}
