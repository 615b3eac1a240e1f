package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/structpack"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// slowStore keeps its log in memory; if gate is not nil, writes wait for it.
type slowStore struct {
	*raft.InmemStore
	gate chan struct{}
}

func (d *slowStore) wait() {
	if d.gate != nil {
		<-d.gate
	}
}

func (d *slowStore) StoreLogs(l []*raft.Log) error { d.wait(); return d.InmemStore.StoreLogs(l) }
func (d *slowStore) SetUint64(k []byte, v uint64) error {
	d.wait()
	return d.InmemStore.SetUint64(k, v)
}

func command(t *testing.T, index uint64) *raft.Log {
	t.Helper()
	raw := encodeEntry(&ledger.Proposal{At: time.Unix(1, 0), Commands: []ledger.Command{&ledger.RemoveQueue{Name: "q"}}})
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: raw}
}

func TestGuardedStore_UndoesLateAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowStore{InmemStore: raft.NewInmemStore()}
		g := newGuardedStore(d, nil, 5*time.Second, func(err error) { t.Errorf("fatal: %v", err) })
		if err := g.StoreLog(command(t, 1)); err != nil {
			t.Fatal(err)
		}
		d.gate = make(chan struct{})
		started := time.Now()
		if err := g.StoreLog(command(t, 2)); !errors.Is(err, errWriteDeadline) {
			t.Fatalf("got %v, want the deadline", err)
		}
		if took := time.Since(started); took != 5*time.Second {
			t.Errorf("gave up after %v", took)
		}
		close(d.gate) // the disk works again
		synctest.Wait()
		if last, _ := d.LastIndex(); last != 1 {
			t.Errorf("the log ends at %d: an entry that failed is in it", last)
		}
		if err := g.StoreLog(command(t, 2)); err != nil {
			t.Errorf("after the disk works again: %v", err)
		}
	})
}

func TestGuardedStore_SecondTimeoutIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowStore{InmemStore: raft.NewInmemStore(), gate: make(chan struct{})}
		var fatal []error
		g := newGuardedStore(d, nil, time.Second, func(err error) { fatal = append(fatal, err) })
		if err := g.StoreLog(command(t, 1)); err == nil || len(fatal) != 0 {
			t.Fatalf("first: %v, fatal %v", err, fatal)
		}
		if err := g.StoreLog(command(t, 1)); !errors.Is(err, errWriteDeadline) || len(fatal) != 1 {
			t.Errorf("second: %v, fatal %v", err, fatal)
		}
		close(d.gate)
		synctest.Wait()
	})
}

func TestGuardedStore_LateTermIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowStore{InmemStore: raft.NewInmemStore(), gate: make(chan struct{})}
		var fatal []error
		g := newGuardedStore(d, nil, time.Second, func(err error) { fatal = append(fatal, err) })
		if err := g.SetUint64([]byte("term"), 2); err == nil || len(fatal) != 1 {
			t.Errorf("got %v, fatal %v", err, fatal)
		}
		close(d.gate)
		synctest.Wait()
	})
}

func TestGuardedStore_RejectsDamagedEntries(t *testing.T) {
	d := &slowStore{InmemStore: raft.NewInmemStore()}
	g := newGuardedStore(d, nil, time.Second, func(err error) { t.Error(err) })
	bad := command(t, 1)
	bad.Data[len(bad.Data)-1] ^= 1
	if err := g.StoreLog(bad); !errors.Is(err, errInvalidEntry) {
		t.Errorf("stored: %v", err)
	}
	if err := d.StoreLog(bad); err != nil { // as if it had been damaged on the disk
		t.Fatal(err)
	}
	if err := g.GetLog(1, new(raft.Log)); !errors.Is(err, errInvalidEntry) {
		t.Errorf("read: %v", err)
	}
	own := &raft.Log{Index: 2, Term: 1, Type: raft.LogNoop}
	if err := errors.Join(g.StoreLog(own), g.GetLog(2, new(raft.Log))); err != nil {
		t.Errorf("raft's own entry: %v", err)
	}
}

// unknownEntries are entries with valid checksums that this release does not know: of a
// later format, with a command of a later kind, and with more fields than this release has.
func unknownEntries(t *testing.T) map[string][]byte {
	later := bytes.Clone(command(t, 1).Data)
	later[4]++
	entries := map[string][]byte{"format": later}
	for name, put := range map[string]func(*structpack.Encoder){
		"kind": func(e *structpack.Encoder) {
			e.Uint(250)
			e.ArrayLen(0)
		},
		"fields": func(e *structpack.Encoder) {
			e.Uint(uint64(ledger.KindRemoveQueue))
			e.Value(&struct {
				Name  string
				Later int
			}{"q", 1})
		},
	} {
		entries[name] = encode(func(e *structpack.Encoder) {
			e.ArrayLen(3)
			e.Int(1)
			e.Uint(1)
			e.ArrayLen(1)
			e.ArrayLen(2)
			put(e)
		})
	}
	for _, raw := range entries {
		binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
	}
	return entries
}

// TestOpen_EntryOfLaterRelease checks that a node ends with an error that names the remedy
// when an entry of a later release is committed, also if it is already in its log at the
// start, and that its data does not count as damaged.
func TestOpen_EntryOfLaterRelease(t *testing.T) {
	for name, raw := range unknownEntries(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for range 2 { // the entry is committed, and then read at the start
				id, err := Identify(t.Context(), IdentityConfig{Node: "solo", Dir: dir}, discardLog)
				if err != nil {
					t.Fatal(err)
				}
				fatal := make(chan error)
				cfg := Config{Dir: dir, heartbeatTimeout: 50 * time.Millisecond, OnFatal: func(err error) {
					fatal <- err
					runtime.Goexit() // the process would end
				}}
				store, err := OpenStore(cfg, id, discardLog)
				if err != nil {
					t.Fatal(err)
				}
				n, err := Open(cfg, id, store, discardLog)
				if err != nil {
					t.Fatal(err)
				}
				n.raft.Apply(raw, 0)
				for ended := false; !ended; {
					select {
					case err := <-fatal:
						var other *ReleaseError
						if !errors.As(err, &other) || !strings.Contains(err.Error(), "start it with the release") {
							t.Errorf("got %v, want a ReleaseError", err)
						}
						ended = true
					case <-time.After(10 * time.Millisecond):
						n.raft.Apply(raw, 0) // once it leads
					}
				}
				if err := errors.Join(store.Close(), id.Close()); err != nil { // as the end of the process does
					t.Fatal(err)
				}
			}
		})
	}
}

func TestSnapshot_DetectsTruncation(t *testing.T) {
	f := newFSM(1<<20, func(err error) { panic(err) }, nil)
	for i := range uint64(50) {
		f.Apply(command(t, i+1))
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := writeSnapshot(&whole, snap.(snapshot).ledger, nil); err != nil {
		t.Fatal(err)
	}
	restored := newFSM(1<<20, func(err error) { panic(err) }, nil)
	_, changed := restored.Applied()
	if err := restored.Restore(io.NopCloser(bytes.NewReader(whole.Bytes()))); err != nil {
		t.Fatal(err)
	}
	if index, _ := restored.Applied(); index != 50 {
		t.Errorf("restored to %d", index)
	}
	select {
	case <-changed:
	default:
		t.Error("waiters were not woken by the restore")
	}
	raw := whole.Bytes()
	for _, n := range []int{0, 5, len(snapshotMagic), len(snapshotMagic) + 6, len(raw) / 2, len(raw) - 8, len(raw) - 1} {
		if _, _, err := readSnapshot(bytes.NewReader(raw[:n])); err == nil {
			t.Errorf("truncated to %d of %d bytes: accepted", n, len(raw))
		}
	}
	for i := 0; i < len(raw); i += 1 + len(raw)/97 {
		bad := bytes.Clone(raw)
		bad[i] ^= 0x10
		if _, _, err := readSnapshot(bytes.NewReader(bad)); err == nil {
			t.Errorf("byte %d changed: accepted", i)
		}
	}
}

func TestChunks_LargeRoundTrip(t *testing.T) {
	want := strings.Repeat("0123456789abcdef", snapshotChunk/8) // two chunks
	var b bytes.Buffer
	if _, err := io.WriteString(chunkWriter{&b}, want); err != nil {
		t.Fatal(err)
	}
	b.Write(make([]byte, 8))
	got, err := io.ReadAll(&chunkReader{r: &b})
	if err != nil || string(got) != want {
		t.Errorf("read %d bytes of %d, %v", len(got), len(want), err)
	}
}

// fullStore fails to store a term.
type fullStore struct{ *raft.InmemStore }

func (fullStore) SetUint64([]byte, uint64) error { return syscall.ENOSPC }

// TestGuardedStore_FailedVoteIsFatal checks that a term that cannot be written calls
// onFatal with the reason, before Raft panics, and that lastErr holds the error until
// the next successful write.
func TestGuardedStore_FailedVoteIsFatal(t *testing.T) {
	var reported error
	g := newGuardedStore(fullStore{raft.NewInmemStore()}, nil, time.Second, func(err error) { reported = err })
	if err := g.StoreLog(command(t, 1)); err != nil || reported != nil || g.lastErr.Load() != nil {
		t.Fatalf("entry: %v, reported %v", err, reported)
	}
	if err := g.SetUint64([]byte("k"), 1); !errors.Is(err, syscall.ENOSPC) || !errors.Is(reported, syscall.ENOSPC) {
		t.Errorf("term: %v, reported %v", err, reported)
	}
	if failed := g.lastErr.Load(); failed == nil || !errors.Is(*failed, syscall.ENOSPC) {
		t.Error("the failure is not recorded")
	}
	if err := g.StoreLog(command(t, 2)); err != nil || g.lastErr.Load() != nil {
		t.Errorf("the next successful write does not clear it: %v", err)
	}
}
