package consensus

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/wal"
)

// requireDamaged opens a member, requires a DamagedError whose text contains words, and
// returns the text.
func (c *testCluster) requireDamaged(name string, words ...string) string {
	c.t.Helper()
	n, err := c.open(name)
	if err == nil {
		err = errors.Join(errors.New("opened without an error"), n.Close(), n.id.Close())
	}
	var damaged *DamagedError
	if !errors.As(err, &damaged) {
		c.t.Fatalf("got %v, want a DamagedError", err)
	}
	for _, w := range append(words, "yardmaster cluster replace "+name) {
		if !strings.Contains(err.Error(), w) {
			c.t.Errorf("error %q, want %q in it", err, w)
		}
	}
	return err.Error()
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// putBack replaces a directory by an older one.
func putBack(t *testing.T, older, dir string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(older))); err != nil {
		t.Fatal(err)
	}
}

func editFile(t *testing.T, file string, edit func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, edit(raw), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// logSegments returns the files of the log in a member's directory, the oldest first.
func logSegments(t *testing.T, dir string) []string {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "raft", logDir, "*.wal"))
	if err != nil || len(segments) < 1 {
		t.Fatalf("segments %q, %v; want one or more", segments, err)
	}
	return segments
}

// startDamaged starts a cluster whose log will have snapshots, and returns the name of
// a member that the test is to stop and damage.
func startDamaged(t *testing.T) (c *testCluster, down string) {
	c = newTestCluster(t, "n1", "n2", "n3")
	c.configure = func(c *Config) { c.SnapshotBytes, c.trailingBytes, c.segmentBytes = 4<<10, 1<<10, 4<<10 }
	c.start(c.names()...)
	last := c.addQueues("a", "b", "c")
	down = "n1"
	if c.leader().id.Node == down {
		down = "n2"
	}
	if err := c.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	return c, down
}

// TestOpenStore_DetectsDamage checks that damage to a member's files is detected
// before it takes part, and that the other members continue.
func TestOpenStore_DetectsDamage(t *testing.T) {
	c, down := startDamaged(t)
	for range 40 {
		c.addQueues(strings.Repeat("q", 100))
	}
	snaps := filepath.Join(c.dirs[down], "raft", "snapshots")
	eventually(t, "a snapshot", func() (bool, any) {
		found, err := filepath.Glob(filepath.Join(snaps, "*", "state.bin"))
		return len(found) > 0, err
	})
	last := c.addQueues("findme")
	if err := c.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	c.kill(down)
	whole := copyDir(t, c.dirs[down])
	newest := func(dir string) string {
		found, _ := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*", "state.bin"))
		if len(found) == 0 {
			t.Fatal("no snapshot")
		}
		return found[len(found)-1]
	}
	for name, corrupt := range map[string]func(dir string){
		"a truncated log": func(dir string) {
			editFile(t, logSegments(t, dir)[0], func(b []byte) []byte { return b[:len(b)-1000] })
		},
		"a byte of an entry": func(dir string) {
			for _, segment := range logSegments(t, dir) {
				editFile(t, segment, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("findme"), []byte("fincme")) })
			}
		},
		"a missing log": func(dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "raft", logDir)); err != nil {
				t.Fatal(err)
			}
		},
		"a meta page of the stable store": func(dir string) {
			editFile(t, filepath.Join(dir, "raft", stableFile), func(b []byte) []byte { b[4096+40] ^= 1; return b })
		},
		"a missing stable store": func(dir string) {
			if err := os.Remove(filepath.Join(dir, "raft", stableFile)); err != nil {
				t.Fatal(err)
			}
		},
		"a snapshot": func(dir string) {
			editFile(t, newest(dir), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
		"a missing snapshot": func(dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "raft", "snapshots")); err != nil {
				t.Fatal(err)
			}
		},
		"the watermarks": func(dir string) {
			editFile(t, filepath.Join(dir, "raft", watermarkFile), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &testCluster{t: t, members: c.members, dirs: map[string]string{down: copyDir(t, whole)}, configure: c.configure}
			corrupt(c.dirs[down])
			c.requireDamaged(down)
		})
	}
	c.addQueues("others-continue")
	c.start(down) // undamaged
}

// TestStore_DropsReplacedEntries checks the log of a member whose process ended after it
// had received a snapshot and before it had emptied its log, with and without entries
// after the snapshot.
func TestStore_DropsReplacedEntries(t *testing.T) {
	const snapshotIndex = 50
	for _, c := range []struct {
		what        string
		log         [2]uint64 // first and last index
		first, last uint64    // of the log that remains
		end         uint64    // last index with the snapshot
	}{
		{"no log", [2]uint64{1, 0}, 0, 0, 50},
		{"all from before", [2]uint64{1, 10}, 0, 0, 50},
		{"begins after it", [2]uint64{51, 60}, 51, 60, 60},
		{"includes it", [2]uint64{40, 60}, 40, 60, 60},
		{"ends with it", [2]uint64{40, 50}, 40, 50, 50},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			log, err := wal.Open(filepath.Join(dir, logDir), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, newRaftLog(discardLog))
			if err != nil {
				t.Fatal(err)
			}
			sink, err := snaps.Create(1, snapshotIndex, 1, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			for i := c.log[0]; i <= c.log[1]; i++ {
				if err := log.StoreLog(command(t, i)); err != nil {
					t.Fatal(err)
				}
			}
			s := &Store{dir: dir, log: log, snaps: snaps}
			end, err := s.verify()
			first, err1 := log.FirstIndex()
			last, err2 := log.LastIndex()
			if err := errors.Join(err, err1, err2); err != nil {
				t.Fatal(err)
			}
			if first != c.first || last != c.last || end != c.end {
				t.Errorf("the log is %d to %d, and ends with the snapshot at %d; want %d to %d and %d", first, last, end, c.first, c.last, c.end)
			}
		})
	}
}

// TestOpenStore_DetectsOlderCopy checks that an older copy of Raft's log, or of the
// whole directory, is refused: it lacks what the member has acknowledged since.
func TestOpenStore_DetectsOlderCopy(t *testing.T) {
	c, down := startDamaged(t)
	c.kill(down)
	old := copyDir(t, c.dirs[down])
	c.start(down)
	last := c.addQueues("later")
	if err := c.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	id := c.nodes[down].id.ServerID()
	var recorders []string // members that have recorded it: the leader, or followers if it leads itself
	eventually(t, "another member has recorded its index", func() (bool, any) {
		seen := map[string]uint64{}
		for name, n := range c.nodes {
			n.recordWatermarks()
			if seen[name] = n.store.watermarks.peerIndex(id); name != down && seen[name] >= last.Index {
				recorders = append(recorders, name)
			}
		}
		return len(recorders) > 0, seen
	})
	c.kill(down)

	t.Run("of the log", func(t *testing.T) {
		c := &testCluster{t: t, members: c.members, dirs: map[string]string{down: copyDir(t, c.dirs[down])}, configure: c.configure}
		putBack(t, filepath.Join(old, "raft", logDir), filepath.Join(c.dirs[down], "raft", logDir))
		c.requireDamaged(down, "put back", "had reached")
	})
	t.Run("of all", func(t *testing.T) {
		c := &testCluster{t: t, members: c.members, dirs: map[string]string{down: copyDir(t, old)}, configure: c.configure}
		text := c.requireDamaged(down, "older copy of its data directory")
		if !slices.ContainsFunc(recorders, func(name string) bool { return strings.Contains(text, name) }) {
			t.Errorf("error %q, want a name of %v in it", text, recorders)
		}
	})
	eventually(t, "a follower has recorded the index of its leader", func() (bool, any) {
		lead := c.leader()
		for name, n := range c.nodes {
			n.recordWatermarks()
			if name != lead.id.Node && n.store.watermarks.peerIndex(lead.id.ServerID()) >= last.Index {
				return true, nil
			}
		}
		return false, nil
	})
}

// TestWatermarks_Verify checks that a vote that the store has lost is detected, and
// that one that the watermarks do not have yet is accepted.
// TestWatermarks_SlowDisk checks that a slow write of the watermarks does not block the
// heartbeats of a leader, which record in them what the followers have.
func TestWatermarks_SlowDisk(t *testing.T) {
	w, err := loadWatermarks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	writing, written := make(chan struct{}), make(chan struct{})
	w.write = func(string, []byte) error {
		close(writing)
		<-written
		return nil
	}
	w.recordPeer("n2", 1)
	saved := make(chan error)
	go func() { saved <- w.save() }()
	<-writing
	recorded := make(chan struct{})
	go func() {
		w.recordPeer("n2", 2)
		close(recorded)
	}()
	select {
	case <-recorded:
	case <-time.After(5 * time.Second):
		t.Error("recording waits for the disk")
	}
	close(written)
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	if w.peerIndex("n2") != 2 || !strings.Contains(w.saved, `"n2":1`) {
		t.Errorf("index %d, saved %s", w.peerIndex("n2"), w.saved)
	}
}

func TestWatermarks_Verify(t *testing.T) {
	dir := t.TempDir()
	m, err := loadWatermarks(dir)
	if err != nil {
		t.Fatal(err)
	}
	store := raft.NewInmemStore()
	g := newGuardedStore(store, m, time.Minute, func(err error) { t.Errorf("fatal: %v", err) })
	vote := func(term uint64, name string) {
		t.Helper()
		if err := errors.Join(g.SetUint64([]byte(keyTerm), term), g.SetUint64([]byte(keyVoteTerm), term), g.Set([]byte(keyVote), []byte(name))); err != nil {
			t.Fatal(err)
		}
	}
	vote(3, "n1-1")
	vote(4, "n2-2")
	if m, err = loadWatermarks(dir); err != nil {
		t.Fatal(err)
	}
	m.state.Index = 10
	for _, c := range []struct {
		what                 string
		term, voteTerm, last uint64
		vote                 string
		valid                bool
	}{
		{"as it was", 4, 4, 10, "n2-2", true},
		{"a crash before the watermarks were written", 6, 5, 12, "n3-3", true},
		{"a crash between term and vote", 5, 5, 10, "n2-2", true},
		{"another vote", 4, 4, 10, "n1-1", false},
		{"an older vote", 4, 3, 10, "n1-1", false},
		{"an older term", 3, 4, 10, "n2-2", false},
		{"a shorter log", 4, 4, 9, "n2-2", false},
	} {
		old := raft.NewInmemStore()
		if err := errors.Join(old.SetUint64([]byte(keyTerm), c.term), old.SetUint64([]byte(keyVoteTerm), c.voteTerm), old.Set([]byte(keyVote), []byte(c.vote))); err != nil {
			t.Fatal(err)
		}
		if err := m.verify(old, c.last); (err == nil) != c.valid {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if err := m.verify(raft.NewInmemStore(), 10); err == nil {
		t.Error("an empty store is accepted")
	}
}

// TestOpenStore_RefusesOldRelease checks that the file that release 0.1.0 has in place of the log is
// not taken for a log that is gone, and is left as it is.
func TestOpenStore_RefusesOldRelease(t *testing.T) {
	dir := t.TempDir()
	id, err := Identify(t.Context(), IdentityConfig{Node: "n1", Dir: dir}, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	old := filepath.Join(dir, "raft", "raft.db")
	if err := errors.Join(id.MarkBootstrapped(), os.MkdirAll(filepath.Dir(old), 0o700), os.WriteFile(old, []byte("log"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err = OpenStore(Config{Dir: dir}, id, discardLog)
	if _, isDamaged := errors.AsType[*DamagedError](err); err == nil || isDamaged || !strings.Contains(err.Error(), "release 0.1.0") {
		t.Errorf("got %v, want an error with the release", err)
	}
	if raw, err := os.ReadFile(old); string(raw) != "log" {
		t.Errorf("the file has %q, %v", raw, err)
	}
}

// TestOpenStore_WritesVoteAgain checks that a vote is on the disk once the store is open, also if
// the sync of its file had failed.
func TestOpenStore_WritesVoteAgain(t *testing.T) {
	dir := t.TempDir()
	s := &Store{dir: dir}
	open := func() {
		t.Helper()
		if err := s.openFiles(0); err != nil {
			t.Fatal(err)
		}
	}
	open()
	if err := errors.Join(s.stable.SetUint64([]byte(keyTerm), 7), s.stable.SetUint64([]byte(keyVoteTerm), 7),
		s.stable.Set([]byte(keyVote), []byte("n2-2")), s.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, stableFile)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	open()
	defer s.Close()
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n, m := bytes.Count(before, []byte("n2-2")), bytes.Count(after, []byte("n2-2")); m != n+1 {
		t.Errorf("the vote is in %d pages of the file, and was in %d", m, n)
	}
	m := &watermarks{state: hardState{Term: 7, VoteTerm: 7, Vote: "n2-2"}}
	if err := m.verify(s.stable, 0); err != nil {
		t.Error(err)
	}
}

// TestEntryChecksum_CoversEveryField checks that the checksum covers all fields of an
// entry, also of Raft's own entries.
func TestEntryChecksum_CoversEveryField(t *testing.T) {
	entry := raft.Log{Index: 7, Term: 3, Type: raft.LogConfiguration, Data: []byte("servers")}
	entry.Extensions = entryChecksum(&entry)
	if err := checkLog(&entry); err != nil {
		t.Fatal(err)
	}
	for field, corrupt := range map[string]func(*raft.Log){
		"index": func(e *raft.Log) { e.Index++ }, "term": func(e *raft.Log) { e.Term ^= 1 },
		"type": func(e *raft.Log) { e.Type = raft.LogNoop }, "data": func(e *raft.Log) { e.Data = []byte("Servers") },
		"checksum": func(e *raft.Log) { e.Extensions = []byte{1, 2, 3, 4} },
	} {
		broken := entry
		if corrupt(&broken); checkLog(&broken) == nil {
			t.Errorf("another %s is accepted", field)
		}
	}
}
