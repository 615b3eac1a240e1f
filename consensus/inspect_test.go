package consensus

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// refused opens a member, which must fail as damaged, with the words.
func (y *yard) refused(name string, words ...string) {
	y.t.Helper()
	n, err := y.open(name)
	if err == nil {
		err = errors.Join(errors.New("it opened"), n.Close(), n.id.Close())
	}
	var damaged *DamagedError
	if !errors.As(err, &damaged) {
		y.t.Fatalf("got %v, want it to be damaged", err)
	}
	for _, w := range append(words, "yardmaster cluster replace "+name) {
		if !strings.Contains(err.Error(), w) {
			y.t.Errorf("it says %q, want %q in it", err, w)
		}
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func change(t *testing.T, file string, how func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, how(raw), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damaged makes a yard with a log and snapshots, and one member that is down.
func damaged(t *testing.T) (y *yard, down string, lead *Node, epoch uint64) {
	y = newYard(t, "n1", "n2", "n3")
	y.tune = func(c *Config) { c.SnapshotBytes, c.TrailingLogs = 4<<10, 8 }
	y.start(y.names()...)
	lead = y.leader()
	epoch = acquire(t, lead)
	last := addQueues(t, lead, epoch, "a", "b", "c")
	down = "n1"
	if lead.id.Node == down {
		down = "n2"
	}
	if err := y.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	return y, down, lead, epoch
}

// Whatever is damaged of a member's files is found before it takes part, and the
// others go on.
func TestOpenStore_DamageIsFound(t *testing.T) {
	y, down, lead, epoch := damaged(t)
	for range 40 {
		addQueues(t, lead, epoch, strings.Repeat("q", 100))
	}
	snaps := filepath.Join(y.dirs[down], "raft", "snapshots")
	eventually(t, "a snapshot", func() (bool, any) {
		found, err := filepath.Glob(filepath.Join(snaps, "*", "state.bin"))
		return len(found) > 0, err
	})
	last := addQueues(t, lead, epoch, "findme")
	if err := y.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	y.kill(down)
	whole := copyDir(t, y.dirs[down])
	newest := func(dir string) string {
		found, _ := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*", "state.bin"))
		if len(found) == 0 {
			t.Fatal("no snapshot")
		}
		return found[len(found)-1]
	}
	for what, hurt := range map[string]func(dir string){
		"cut short": func(dir string) {
			change(t, filepath.Join(dir, "raft", logFile), func(b []byte) []byte { return b[:9000] })
		},
		"a byte of an entry": func(dir string) {
			change(t, filepath.Join(dir, "raft", logFile), func(b []byte) []byte {
				return bytes.ReplaceAll(b, []byte("findme"), []byte("fincme")) // pages that are free hold it too
			})
		},
		"a meta page": func(dir string) {
			change(t, filepath.Join(dir, "raft", logFile), func(b []byte) []byte { b[4096+40] ^= 1; return b })
		},
		"a snapshot": func(dir string) {
			change(t, newest(dir), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
		"a snapshot that is gone": func(dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "raft", "snapshots")); err != nil {
				t.Fatal(err)
			}
		},
		"the marks": func(dir string) {
			change(t, filepath.Join(dir, "raft", markFile), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		},
	} {
		t.Run(what, func(t *testing.T) {
			y := &yard{t: t, members: y.members, dirs: map[string]string{down: copyDir(t, whole)}, tune: y.tune}
			hurt(y.dirs[down])
			y.refused(down)
		})
	}
	addQueues(t, lead, epoch, "others-go-on")
	y.start(down) // it is whole
}

// An older copy of raft's file, or of the whole directory, is not let in: what
// it had acknowledged since is missing.
func TestOpenStore_AnOlderCopyIsFound(t *testing.T) {
	y, down, lead, epoch := damaged(t)
	y.kill(down)
	old := copyDir(t, y.dirs[down])
	y.start(down)
	last := addQueues(t, lead, epoch, "later")
	if err := y.nodes[down].WaitApplied(t.Context(), last.Index); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leader has heard of it", func() (bool, any) {
		seen := lead.store.marks.floor(y.nodes[down].id.ID())
		return seen >= last.Index, seen
	})
	y.nodes[down].mark()
	y.kill(down)

	t.Run("of the log", func(t *testing.T) {
		y := &yard{t: t, members: y.members, dirs: map[string]string{down: copyDir(t, y.dirs[down])}, tune: y.tune}
		change(t, filepath.Join(y.dirs[down], "raft", logFile), func([]byte) []byte {
			raw, err := os.ReadFile(filepath.Join(old, "raft", logFile))
			if err != nil {
				t.Fatal(err)
			}
			return raw
		})
		y.refused(down, "put back", "has been at")
	})
	t.Run("of all", func(t *testing.T) {
		y := &yard{t: t, members: y.members, dirs: map[string]string{down: copyDir(t, old)}, tune: y.tune}
		y.refused(down, lead.id.Node, "older copy of its data directory")
	})
	eventually(t, "a follower knows how far its leader is", func() (bool, any) {
		for name, n := range y.nodes {
			n.mark()
			if name != lead.id.Node && n.store.marks.floor(lead.id.ID()) >= last.Index {
				return true, nil
			}
		}
		return false, nil
	})
}

// A vote that was forgotten is noticed, and one that the marks do not have yet
// is none of their business.
func TestMarks_Kept(t *testing.T) {
	dir := t.TempDir()
	m, err := loadMarks(dir)
	if err != nil {
		t.Fatal(err)
	}
	store := raft.NewInmemStore()
	g := newGuard(store, m, time.Minute, func(err error) { t.Errorf("stuck: %v", err) })
	vote := func(term uint64, name string) {
		t.Helper()
		if err := errors.Join(g.SetUint64([]byte(keyTerm), term), g.SetUint64([]byte(keyVoteTerm), term), g.Set([]byte(keyVote), []byte(name))); err != nil {
			t.Fatal(err)
		}
	}
	vote(3, "n1-1")
	vote(4, "n2-2")
	if m, err = loadMarks(dir); err != nil {
		t.Fatal(err)
	}
	m.now.Index = 10
	for _, c := range []struct {
		what                 string
		term, voteTerm, last uint64
		vote                 string
		whole                bool
	}{
		{"as it was", 4, 4, 10, "n2-2", true},
		{"a crash before the marks were written", 6, 5, 12, "n3-3", true},
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
		if err := m.kept(old, c.last); (err == nil) != c.whole {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if err := m.kept(raft.NewInmemStore(), 10); err == nil {
		t.Error("an empty store passed")
	}
}

// A seal covers all of an entry, raft's own ones too.
func TestSeal_EveryFieldCounts(t *testing.T) {
	entry := raft.Log{Index: 7, Term: 3, Type: raft.LogConfiguration, Data: []byte("servers")}
	entry.Extensions = seal(&entry)
	if err := checkLog(&entry); err != nil {
		t.Fatal(err)
	}
	for what, hurt := range map[string]func(*raft.Log){
		"index": func(e *raft.Log) { e.Index++ }, "term": func(e *raft.Log) { e.Term ^= 1 },
		"type": func(e *raft.Log) { e.Type = raft.LogNoop }, "data": func(e *raft.Log) { e.Data = []byte("Servers") },
		"seal": func(e *raft.Log) { e.Extensions = []byte{1, 2, 3, 4} },
	} {
		broken := entry
		if hurt(&broken); checkLog(&broken) == nil {
			t.Errorf("another %s passed", what)
		}
	}
}
