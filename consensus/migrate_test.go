package consensus

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// writeOld creates oldFile as earlier releases did, with entries, a term and a vote.
func writeOld(t *testing.T, dir string, entries []*raft.Log) {
	t.Helper()
	old, err := raftboltdb.New(raftboltdb.Options{
		Path:                    filepath.Join(dir, oldFile),
		BoltOptions:             &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 64 << 20},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(old.StoreLogs(entries),
		old.SetUint64([]byte(keyTerm), 9), old.SetUint64([]byte(keyVoteTerm), 8), old.Set([]byte(keyVote), []byte("n2-2")), old.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// requireMigrated checks that the files in dir have the entries, and what writeOld wrote
// otherwise.
func requireMigrated(t *testing.T, dir string, want []*raft.Log) {
	t.Helper()
	s := Store{dir: dir}
	if err := s.openFiles(0); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if diff := cmp.Diff(want, storedLogs(t, s.log)); diff != "" {
		t.Error(diff)
	}
	term, err1 := s.stable.GetUint64([]byte(keyTerm))
	voteTerm, err2 := s.stable.GetUint64([]byte(keyVoteTerm))
	vote, err3 := s.stable.Get([]byte(keyVote))
	if err := errors.Join(err1, err2, err3); err != nil || term != 9 || voteTerm != 8 || string(vote) != "n2-2" {
		t.Errorf("term %d, vote for %q in term %d, %v", term, vote, voteTerm, err)
	}
	if _, err := os.Stat(filepath.Join(dir, oldFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", oldFile, err)
	}
}

// storedLogs returns all entries of a log.
func storedLogs(t *testing.T, log raft.LogStore) []*raft.Log {
	t.Helper()
	first, err1 := log.FirstIndex()
	last, err2 := log.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var entries []*raft.Log
	for i := first; i <= last && last > 0; i++ {
		e := new(raft.Log)
		if err := log.GetLog(i, e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

// oldEntries returns entries from first to last, with and without the outer checksum.
func oldEntries(t *testing.T, first, last uint64) []*raft.Log {
	var entries []*raft.Log
	for i := first; i <= last; i++ {
		e := command(t, i)
		e.AppendedAt, e.Extensions = time.Unix(1, int64(i)), []byte{}
		if i%2 == 0 {
			e.Extensions = entryChecksum(e)
		}
		entries = append(entries, e)
	}
	return entries
}

// TestMigrate takes over the file of an earlier release, also after a start that ended
// before it was complete.
func TestMigrate(t *testing.T) {
	for name, c := range map[string]struct{ entries, want []*raft.Log }{
		"no entries":        {nil, nil},
		"several appends":   {oldEntries(t, 5, 100), oldEntries(t, 5, 100)},
		"entries and a gap": {append(oldEntries(t, 1, 50), oldEntries(t, 81, 90)...), oldEntries(t, 81, 90)},
	} {
		t.Run(name, func(t *testing.T) {
			dir, before := t.TempDir(), t.TempDir()
			writeOld(t, before, c.entries)
			putBack(t, before, dir)
			if err := migrate(dir); err != nil {
				t.Fatal(err)
			}
			done := copyDir(t, dir)
			requireMigrated(t, dir, c.want)

			// Everything was copied, and the old file was not removed yet.
			dir = copyDir(t, done)
			if err := os.CopyFS(dir, os.DirFS(before)); err != nil {
				t.Fatal(err)
			}
			if err := migrate(dir); err != nil {
				t.Fatal(err)
			}
			requireMigrated(t, dir, c.want)

			// A part was copied: the log has other entries, and stableFile has no name yet.
			dir = copyDir(t, done)
			err := errors.Join(os.CopyFS(dir, os.DirFS(before)), os.Remove(filepath.Join(dir, stableFile)),
				os.WriteFile(filepath.Join(dir, stableFile+".new"), []byte("part"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			s := Store{dir: t.TempDir()}
			if err := s.openFiles(0); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.log.StoreLogs(oldEntries(t, 3, 7)), s.Close()); err != nil {
				t.Fatal(err)
			}
			putBack(t, filepath.Join(s.dir, logDir), filepath.Join(dir, logDir))
			if err := migrate(dir); err != nil {
				t.Fatal(err)
			}
			requireMigrated(t, dir, c.want)
		})
	}
}

// TestMigrate_Damaged checks that a damaged file of an earlier release is refused and kept.
func TestMigrate_Damaged(t *testing.T) {
	entries := oldEntries(t, 1, 100)
	entries[70].Data[9] ^= 1
	for name, damage := range map[string]func(dir string){
		"an entry": func(dir string) { writeOld(t, dir, entries) },
		"a page": func(dir string) {
			writeOld(t, dir, oldEntries(t, 1, 100))
			editFile(t, filepath.Join(dir, oldFile), func(b []byte) []byte { return b[:9000] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			damage(dir)
			for range 2 {
				var damaged *DamagedError
				if err := migrate(dir); !errors.As(err, &damaged) || damaged.What != oldFile {
					t.Errorf("got %v, want a DamagedError of %s", err, oldFile)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, oldFile)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenStore_EarlierRelease starts a cluster whose members have directories as an
// earlier release left them: they have the same ledger as before, and go on.
func TestOpenStore_EarlierRelease(t *testing.T) {
	c := newTestCluster(t, "n1", "n2", "n3")
	c.start(c.names()...)
	c.addQueues("before")
	for _, name := range c.names() {
		c.kill(name)
		makeOld(t, filepath.Join(c.dirs[name], "raft"))
	}
	c.start(c.names()...)
	last := c.addQueues("after")
	for name, n := range c.nodes {
		if err := n.WaitApplied(t.Context(), last.Index); err != nil {
			t.Fatal(err)
		}
		if state := encoded(t, n); !strings.Contains(state, "before") || !strings.Contains(state, "after") {
			t.Errorf("the ledger of %s lacks a queue", name)
		}
	}
}

// makeOld moves the log, term and vote in dir to oldFile.
func makeOld(t *testing.T, dir string) {
	t.Helper()
	s := Store{dir: dir}
	if err := s.openFiles(0); err != nil {
		t.Fatal(err)
	}
	old, err := openBolt(filepath.Join(dir, oldFile), false)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(old.StoreLogs(storedLogs(t, s.log)), copyStable(old, s.stable), s.Close(), old.Close(),
		os.RemoveAll(filepath.Join(dir, logDir)), os.Remove(filepath.Join(dir, stableFile)))
	if err != nil {
		t.Fatal(err)
	}
}
