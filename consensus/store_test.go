package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"yardmaster/ledger"
)

// slowDisk keeps its log in memory; writes wait for gate, if there is one.
type slowDisk struct {
	*raft.InmemStore
	gate chan struct{}
}

func (d *slowDisk) wait() {
	if d.gate != nil {
		<-d.gate
	}
}

func (d *slowDisk) StoreLogs(l []*raft.Log) error { d.wait(); return d.InmemStore.StoreLogs(l) }
func (d *slowDisk) SetUint64(k []byte, v uint64) error {
	d.wait()
	return d.InmemStore.SetUint64(k, v)
}

func command(t *testing.T, index uint64) *raft.Log {
	t.Helper()
	raw, err := encodeEntry(&Proposal{At: time.Unix(1, 0), Commands: []ledger.Command{&ledger.RemoveQueue{Name: "q"}}})
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Index: index, Term: 1, Type: raft.LogCommand, Data: raw}
}

func TestGuard_ALateAppendIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{InmemStore: raft.NewInmemStore()}
		g := newGuard(d, nil, 5*time.Second, func(err error) { t.Errorf("stuck: %v", err) })
		if err := g.StoreLog(command(t, 1)); err != nil {
			t.Fatal(err)
		}
		d.gate = make(chan struct{})
		begun := time.Now()
		if err := g.StoreLog(command(t, 2)); !errors.Is(err, errWriteDeadline) {
			t.Fatalf("got %v, want the deadline", err)
		}
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("gave up after %v", took)
		}
		close(d.gate) // the disk comes back
		synctest.Wait()
		if last, _ := d.LastIndex(); last != 1 {
			t.Errorf("the log ends at %d: an entry that failed is in it", last)
		}
		if err := g.StoreLog(command(t, 2)); err != nil {
			t.Errorf("after the disk came back: %v", err)
		}
	})
}

func TestGuard_SecondStrike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{InmemStore: raft.NewInmemStore(), gate: make(chan struct{})}
		var strikes []error
		g := newGuard(d, nil, time.Second, func(err error) { strikes = append(strikes, err) })
		if err := g.StoreLog(command(t, 1)); err == nil || len(strikes) != 0 {
			t.Fatalf("first: %v, strikes %v", err, strikes)
		}
		if err := g.StoreLog(command(t, 1)); !errors.Is(err, errWriteDeadline) || len(strikes) != 1 {
			t.Errorf("second: %v, strikes %v", err, strikes)
		}
		close(d.gate)
		synctest.Wait()
	})
}

func TestGuard_ATermCannotBeTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{InmemStore: raft.NewInmemStore(), gate: make(chan struct{})}
		var strikes []error
		g := newGuard(d, nil, time.Second, func(err error) { strikes = append(strikes, err) })
		if err := g.SetUint64([]byte("term"), 2); err == nil || len(strikes) != 1 {
			t.Errorf("got %v, strikes %v", err, strikes)
		}
		close(d.gate)
		synctest.Wait()
	})
}

func TestGuard_DamagedEntriesDoNotPass(t *testing.T) {
	d := &slowDisk{InmemStore: raft.NewInmemStore()}
	g := newGuard(d, nil, time.Second, func(err error) { t.Error(err) })
	bad := command(t, 1)
	bad.Data[len(bad.Data)-1] ^= 1
	if err := g.StoreLog(bad); !errors.Is(err, errEntry) {
		t.Errorf("stored: %v", err)
	}
	if err := d.StoreLog(bad); err != nil { // as if it had rotted there
		t.Fatal(err)
	}
	if err := g.GetLog(1, new(raft.Log)); !errors.Is(err, errEntry) {
		t.Errorf("read: %v", err)
	}
	own := &raft.Log{Index: 2, Term: 1, Type: raft.LogNoop}
	if err := errors.Join(g.StoreLog(own), g.GetLog(2, new(raft.Log))); err != nil {
		t.Errorf("raft's own entry: %v", err)
	}
}

func TestFSM_StopsAtAnEntryItCannotRead(t *testing.T) {
	f := newFSM(1<<20, func(err error) { panic(err) }, quiet)
	bad := command(t, 1)
	bad.Data[4]++ // a version of the future, with a right checksum
	binary.BigEndian.PutUint32(bad.Data, crc32.Checksum(bad.Data[4:], castagnoli))
	defer func() {
		if recover() == nil {
			t.Error("went on")
		}
	}()
	f.Apply(&raft.Log{Index: 1, Term: 1, Type: raft.LogCommand, Data: bad.Data})
}

func TestSnapshot_WholeOrNotAtAll(t *testing.T) {
	f := newFSM(1<<20, func(err error) { panic(err) }, quiet)
	for i := range uint64(50) {
		f.Apply(command(t, i+1))
	}
	snap, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := writeSnapshot(&whole, snap.(snapshot).ledger); err != nil {
		t.Fatal(err)
	}
	restored := newFSM(1<<20, func(err error) { panic(err) }, quiet)
	_, changed := restored.applied()
	if err := restored.Restore(io.NopCloser(bytes.NewReader(whole.Bytes()))); err != nil {
		t.Fatal(err)
	}
	if index, _ := restored.applied(); index != 50 {
		t.Errorf("restored to %d", index)
	}
	select {
	case <-changed:
	default:
		t.Error("waiters were not told of the restore")
	}
	raw := whole.Bytes()
	for _, n := range []int{0, 5, len(snapshotMagic), len(snapshotMagic) + 6, len(raw) / 2, len(raw) - 8, len(raw) - 1} {
		if _, err := readSnapshot(bytes.NewReader(raw[:n])); err == nil {
			t.Errorf("cut at %d of %d: taken", n, len(raw))
		}
	}
	for i := 0; i < len(raw); i += 1 + len(raw)/97 {
		bad := bytes.Clone(raw)
		bad[i] ^= 0x10
		if _, err := readSnapshot(bytes.NewReader(bad)); err == nil {
			t.Errorf("byte %d changed: taken", i)
		}
	}
}

func TestChunks_LargeWritesComeBack(t *testing.T) {
	want := strings.Repeat("0123456789abcdef", snapshotChunk/8) // two chunks
	var b bytes.Buffer
	if _, err := io.WriteString(chunkWriter{&b}, want); err != nil {
		t.Fatal(err)
	}
	b.Write(make([]byte, 8))
	got, err := io.ReadAll(&chunkReader{r: &b})
	if err != nil || string(got) != want {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(want), err)
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := (Config{Dir: "d"}).Validate(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]Config{
		"dir":       {},
		"heartbeat": {Dir: "d", HeartbeatTimeout: time.Millisecond},
		"election":  {Dir: "d", ElectionTimeout: time.Millisecond},
		"lease":     {Dir: "d", LeaderLease: time.Hour},
		"commit":    {Dir: "d", CommitTimeout: 1},
		"append":    {Dir: "d", MaxAppendEntries: 5000},
		"entry":     {Dir: "d", MaxEntryBytes: 1},
	} {
		if bad.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// fullDisk has no room for a vote.
type fullDisk struct{ *raft.InmemStore }

func (fullDisk) SetUint64([]byte, uint64) error { return syscall.ENOSPC }

// A term or a vote that cannot be written ends the process: raft would panic, and
// the reason has to be said before. An entry that cannot be written does not.
func TestGuard_AFailedVoteIsSaid(t *testing.T) {
	var said error
	g := newGuard(fullDisk{raft.NewInmemStore()}, nil, time.Second, func(err error) { said = err })
	if err := g.StoreLog(command(t, 1)); err != nil || said != nil || g.failed.Load() != nil {
		t.Fatalf("an entry: %v, said %v", err, said)
	}
	if err := g.SetUint64([]byte("k"), 1); !errors.Is(err, syscall.ENOSPC) || !errors.Is(said, syscall.ENOSPC) {
		t.Errorf("a term: %v, said %v", err, said)
	}
	if failed := g.failed.Load(); failed == nil || !errors.Is(*failed, syscall.ENOSPC) {
		t.Error("the failure is not noted")
	}
	if err := g.StoreLog(command(t, 2)); err != nil || g.failed.Load() != nil {
		t.Errorf("the next write, which succeeds, does not clear it: %v", err)
	}
}
