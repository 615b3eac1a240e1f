package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// TestFSM_OneSnapshotPerLimit takes snapshots as snapshotLoop and Raft do: entries
// are applied between the signal that a snapshot is due and the snapshot, and the
// signals that they send are for bytes that the snapshot covers.
func TestFSM_OneSnapshotPerLimit(t *testing.T) {
	entry := command(t, 1)
	f := newFSM(10*int64(len(entry.Data)+entryOverhead), func(err error) { panic(err) }, nil)
	f.snapshots.spread = func() float64 { return 0 }
	f.snapshots.setLimit(0)
	index, snapshots := uint64(0), 0
	apply := func() {
		index++
		f.Apply(&raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: entry.Data})
	}
	for range 100 {
		apply()
		select {
		case <-f.snapshots.due:
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
	f := newFSM(1, func(err error) { panic(err) }, nil)
	f.Apply(entry)
	var sent bytes.Buffer
	if err := writeSnapshot(&sent, f.ledger, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Restore(io.NopCloser(&sent)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.snapshots.due:
		t.Error("a snapshot is due after a restore")
	default:
	}
}

// TestSingle_OneSnapshotPerLimit fills the log twice with more bytes than make a snapshot
// due, and checks that there are not more snapshots than the bytes allow. The entries are
// submitted together, so that some are applied while Raft prepares a snapshot.
func TestSingle_OneSnapshotPerLimit(t *testing.T) {
	dir := t.TempDir()
	id, err := Identify(t.Context(), IdentityConfig{Node: "solo", Dir: dir}, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	log, logged := testlog.NewRecorder(t)
	p := ledger.Proposal{At: time.Now(), Commands: []ledger.Command{&ledger.RemoveQueue{Name: "none"}}}
	entry := encodeEntry(&p)
	const (
		entries = 400             // the least that make a snapshot due; the limit is up to half higher
		round   = entries * 7 / 4 // entries submitted together
	)
	cfg := Config{Dir: dir, heartbeatTimeout: 50 * time.Millisecond, SnapshotBytes: int64(entries * (len(entry) + entryOverhead))}
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
		for range round {
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
	if most := 2 * round / entries; len(taken) > most {
		t.Errorf("%d snapshots were taken, want at most %d", len(taken), most)
	}
}

// TestSnapshotTrigger_FollowsSize checks that more must be applied before the next
// snapshot the larger the last one was, within bounds, and that members which have
// applied the same do not take snapshots at the same time.
func TestSnapshotTrigger_FollowsSize(t *testing.T) {
	for _, c := range []struct {
		last   int64 // size of the last snapshot
		spread float64
		want   int64
	}{
		{0, 0, 64 << 20},
		{32 << 20, 0, 64 << 20},
		{100 << 20, 0, 200 << 20},
		{100 << 20, 0.5, 250 << 20},
		{10 << 30, 0, 1 << 30},
		{10 << 30, 0.99, 1<<30 + 99<<29/100},
	} {
		trigger := newSnapshotTrigger(64 << 20)
		trigger.spread = func() float64 { return c.spread }
		trigger.setLimit(c.last)
		const size = 64<<10 - entryOverhead
		applied := int64(0)
		for len(trigger.due) == 0 {
			trigger.applied(size)
			applied += 64 << 10
		}
		if applied < c.want || applied >= c.want+64<<10 {
			t.Errorf("after a snapshot of %d bytes and spread %v, the next is due after %d bytes, want %d", c.last, c.spread, applied, c.want)
		}
	}
	limits := map[int64]bool{}
	for range 10 {
		trigger := newSnapshotTrigger(64 << 20)
		limits[trigger.limit] = true
	}
	if len(limits) < 2 {
		t.Error("all members have the same limit")
	}
}

// TestSnapshotTrigger_SetBySnapshots checks that a node counts from the size of the
// snapshot that it took, and from that of one that it restored.
func TestSnapshotTrigger_SetBySnapshots(t *testing.T) {
	from, to := newFSM(1, nil, nil), newFSM(1, nil, nil)
	names := []ledger.Command{}
	for i := range 1000 {
		names = append(names, &ledger.AddQueue{ID: [16]byte{1}, Name: fmt.Sprint("queue-", i)})
	}
	lead := &ledger.Lead{Owner: "n1", Until: time.Unix(100, 0)}
	for i, p := range []ledger.Proposal{{At: time.Unix(1, 0), Commands: []ledger.Command{lead}}, {At: time.Unix(1, 0), Epoch: 1, Commands: names}} {
		raw := encodeEntry(&p)
		from.Apply(&raft.Log{Index: uint64(i + 1), Term: 1, Type: raft.LogCommand, Data: raw})
	}
	store := raft.NewInmemSnapshotStore()
	sink, err := store.Create(1, 2, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	snap, err := from.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := snap.Persist(sink); err != nil {
		t.Fatal(err)
	}
	meta, body, err := store.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Restore(body); err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]*fsm{"taken": from, "restored": to} {
		if min := snapshotFactor * meta.Size; f.snapshots.limit < min || f.snapshots.limit > 2*min {
			t.Errorf("after a snapshot of %d bytes was %s, the next is due after %d", meta.Size, what, f.snapshots.limit)
		}
	}
}

// TestSnapshotTrigger_EntriesIn checks that the log keeps as many bytes of large entries
// as of small ones.
func TestSnapshotTrigger_EntriesIn(t *testing.T) {
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		trigger := newSnapshotTrigger(1 << 30)
		for range 1000 {
			trigger.applied(size)
		}
		kept := int64(trigger.entriesIn(32<<20)) * int64(size+entryOverhead)
		if kept > 32<<20 || kept < 31<<20 {
			t.Errorf("entries of %d bytes: %d bytes are kept, want 32 MiB", size, kept)
		}
		trigger.reset() // a snapshot that follows at once keeps as much
		if again := int64(trigger.entriesIn(32<<20)) * int64(size+entryOverhead); again != kept {
			t.Errorf("entries of %d bytes: %d bytes are kept after a snapshot, want %d", size, again, kept)
		}
	}
}

// TestThreeNodes_LaggingFollower checks that a follower which lacks less
// than the log keeps gets only the log, although the others have taken snapshots, and
// that one which lacks more restarts on the snapshot that it was sent.
func TestThreeNodes_LaggingFollower(t *testing.T) {
	for _, c := range []struct {
		what     string
		trailing int64
		snapshot bool
	}{
		{"trailing log is enough", 1 << 20, false},
		{"needs a snapshot", 1 << 10, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			cluster := newTestCluster(t, "n1", "n2", "n3")
			cluster.configure = func(cfg *Config) { cfg.SnapshotBytes, cfg.trailingBytes = 32<<10, c.trailing }
			cluster.start(cluster.names()...)
			cluster.addQueues("first")
			down := "n1"
			if cluster.leader().id.Node == down {
				down = "n2"
			}
			cluster.kill(down)
			leader := cluster.leader()
			last := cluster.addQueues("while-away")
			eventually(t, "a snapshot and more entries", func() (bool, any) {
				last = cluster.addQueues(strings.Repeat("q", 100))
				snaps, err := leader.store.snaps.List()
				return len(snaps) > 1 && last.Index > snaps[0].Index, err
			})
			for range 2 { // with what it was sent, it can start again
				cluster.start(down)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if err := cluster.nodes[down].WaitApplied(ctx, last.Index); err != nil {
					t.Fatal(err)
				}
				cancel()
				last = cluster.addQueues("more")
				if err := cluster.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
					t.Fatal(err)
				}
				first, err := cluster.nodes[down].guarded.FirstIndex()
				if received := first > 1; err != nil || received != c.snapshot {
					t.Errorf("received a snapshot: %v, want %v (%v)", received, c.snapshot, err)
				}
				cluster.kill(down)
			}
		})
	}
}

// indexes is a projection of the indexes of entries and their transitions.
type indexes struct{ text string }

func (p *indexes) Applied(l *ledger.Ledger) {
	p.text += fmt.Sprintf("%d:%d ", l.Index(), len(l.Transitions()))
}

func (p *indexes) Snapshot() func() []byte {
	text := p.text
	return func() []byte { return []byte(text) }
}

func (p *indexes) Restored(l *ledger.Ledger, state []byte) {
	p.text = fmt.Sprintf("%srestored at %d, ", state, l.Index())
}

// TestProjection checks that a projection gets each entry, also after a snapshot, with what was
// written with it, and that a snapshot without a projection is restored.
func TestProjection(t *testing.T) {
	entries := []ledger.Proposal{
		{At: time.Unix(1, 0), Commands: []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Unix(100, 0)}}},
		{At: time.Unix(1, 0), Epoch: 1, Commands: []ledger.Command{&ledger.Bootstrap{Lanes: []string{"L0"}}}},
		{At: time.Unix(1, 0), Epoch: 1, Commands: []ledger.Command{&ledger.Ingest{Identity: "L0", To: 1, CreateQueues: true, Jobs: []job.Job{{ID: job.ID{1}, Queue: "a"}}}}},
	}
	apply := func(f *fsm, first, last int) {
		for i := first; i <= last; i++ {
			f.Apply(&raft.Log{Index: uint64(i), Term: 1, Type: raft.LogCommand, Data: encodeEntry(&entries[i-1])})
		}
	}
	for _, c := range []struct {
		what          string
		before, after *indexes
		want          string
	}{
		{"with a projection", new(indexes), new(indexes), "1:0 2:0 restored at 2, 3:1 "},
		{"without one", nil, new(indexes), "restored at 2, 3:1 "},
		{"of a build without one", new(indexes), nil, ""},
	} {
		projection := func(p *indexes) Projection {
			if p == nil {
				return nil
			}
			return p
		}
		from, to := newFSM(1<<20, nil, projection(c.before)), newFSM(1<<20, nil, projection(c.after))
		apply(from, 1, 2)
		snap, err := from.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		apply(from, 3, 3)
		store := raft.NewInmemSnapshotStore()
		sink, err := store.Create(1, 2, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := snap.Persist(sink); err != nil {
			t.Fatal(err)
		}
		_, body, err := store.Open(sink.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := to.Restore(body); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		apply(to, 3, 3)
		if c.after != nil && c.after.text != c.want {
			t.Errorf("%s: the projection is %q, want %q", c.what, c.after.text, c.want)
		}
	}
}
