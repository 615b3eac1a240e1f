package wal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/raft"
)

const testSegment = 4 << 10

func openLog(t testing.TB, dir string) *Log {
	t.Helper()
	l, err := Open(dir, testSegment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// entriesFrom returns n entries from first on, without a byte that is zero in their data.
func entriesFrom(first uint64, n, size int) []*raft.Log {
	entries := make([]*raft.Log, n)
	for i := range entries {
		index := first + uint64(i)
		entries[i] = &raft.Log{
			Index: index, Term: 1 + index/10, Type: raft.LogType(index % 3), AppendedAt: time.Unix(1, int64(index)),
			Data: bytes.Repeat([]byte{1 + byte(index%255)}, size), Extensions: []byte{1, 2, 3, byte(index)},
		}
	}
	return entries
}

func store(t testing.TB, l *Log, entries ...*raft.Log) {
	t.Helper()
	if err := l.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
}

// content returns all entries of the log.
func content(t testing.TB, l *Log) []*raft.Log {
	t.Helper()
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var all []*raft.Log
	for i := first; i <= last && last > 0; i++ {
		e := new(raft.Log)
		if err := l.GetLog(i, e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	for _, i := range []uint64{0, first - 1, last + 1} {
		if err := l.GetLog(i, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("entry %d of log %d to %d: %v", i, first, last, err)
		}
	}
	return all
}

func requireContent(t testing.TB, l *Log, want []*raft.Log) {
	t.Helper()
	if diff := cmp.Diff(want, content(t, l)); diff != "" {
		t.Fatal(diff)
	}
}

func segments(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestLog_KeepsEntries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := openLog(t, dir)
	requireContent(t, l, nil)
	want := entriesFrom(7, 20, 300)
	want = append(want, entriesFrom(27, 2, 3*testSegment)...) // larger than a segment
	want = append(want, &raft.Log{Index: 29, Type: raft.LogNoop, Data: []byte{}, Extensions: []byte{}})
	store(t, l, want[:13]...)
	store(t, l, want[13:20]...)
	store(t, l, want[20:22]...)
	store(t, l, want[22])
	requireContent(t, l, want)
	if err := l.StoreLog(entriesFrom(31, 1, 1)[0]); err == nil {
		t.Error("an entry after a gap was appended")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(entriesFrom(30, 1, 1)[0]); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append to a closed log: %v", err)
	}
	l = openLog(t, dir)
	requireContent(t, l, want)
	store(t, l, entriesFrom(30, 1, 1)...)
	requireContent(t, l, append(want, entriesFrom(30, 1, 1)...))
}

// newRand returns a source of random numbers whose seed is in the test's log.
func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestLog_AgreesWithModel appends, removes and reopens at random, and compares the log
// with a slice.
func TestLog_AgreesWithModel(t *testing.T) {
	rng := newRand(t)
	dir := t.TempDir()
	l := openLog(t, dir)
	var model []*raft.Log
	next, term := uint64(5), uint64(1)
	for step := range 100 {
		var min, max uint64 // to be removed
		if action := rng.IntN(8); action < 4 || len(model) == 0 {
			term++
			added := entriesFrom(next, 1+rng.IntN(9), rng.IntN(900))
			for _, e := range added {
				e.Term = term
			}
			store(t, l, added...)
			model = append(model, added...)
			next += uint64(len(added))
		} else if action == 4 {
			min, max = model[0].Index-rng.Uint64N(2), model[rng.IntN(len(model))].Index
		} else if action == 5 {
			min, max = model[rng.IntN(len(model))].Index, next-1+rng.Uint64N(2)
			next = min
		} else if action == 6 && step%2 == 0 {
			min, max = model[0].Index, next+5
			next += rng.Uint64N(20)
		} else {
			l.Close()
			l = openLog(t, dir)
			all := content(t, l) // of which removed ones may be back at the beginning
			model = append(all[:len(all)-len(model)], model...)
		}
		if max > 0 {
			if err := l.DeleteRange(min, max); err != nil {
				t.Fatal(err)
			}
			model = slices.DeleteFunc(model, func(e *raft.Log) bool { return e.Index >= min && e.Index <= max })
		}
		if diff := cmp.Diff(model, content(t, l), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal("step ", step, diff)
		}
	}
}

// TestLog_RemovesFiles checks that files whose entries are removed are removed, too.
func TestLog_RemovesFiles(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for i := range uint64(100) {
		store(t, l, entriesFrom(1+i, 1, 900)...)
	}
	if n := len(segments(t, dir)); n != 25 {
		t.Fatalf("%d segments, want 25", n)
	}
	for _, c := range []struct {
		min, max uint64
		files    int
	}{{1, 49, 13}, {50, 51, 13}, {52, 52, 12}, {90, 100, 11}, {1, 89, 0}} {
		if err := l.DeleteRange(c.min, c.max); err != nil {
			t.Fatal(err)
		}
		if n := len(segments(t, dir)); n != c.files {
			t.Errorf("%d segments without the entries %d to %d, want %d", n, c.min, c.max, c.files)
		}
	}
	store(t, l, entriesFrom(200, 3, 10)...)
	if err := l.DeleteRange(201, 201); err == nil {
		t.Error("an entry in the middle was removed")
	}
}

// TestLog_CrashWhileEndIsRemoved checks that removed entries do not come back if the
// process ends when the new segment is there and those that it replaces still are.
func TestLog_CrashWhileEndIsRemoved(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for i := range uint64(20) {
		store(t, l, entriesFrom(1+i, 1, 900)...)
	}
	before := t.TempDir()
	if err := os.CopyFS(before, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(7, 20); err != nil {
		t.Fatal(err)
	}
	want := content(t, l)
	l.Close()
	restored := 0
	for _, file := range segments(t, before) {
		raw, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		restored++
	}
	// A segment that was not renamed yet is not one.
	if err := os.WriteFile(filepath.Join(dir, "0000000099.wal.new"), []byte("part"), 0o644); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	requireContent(t, l, want)
	store(t, l, entriesFrom(7, 1, 5)...)
	l.Close()
	l = openLog(t, dir)
	requireContent(t, l, append(want, entriesFrom(7, 1, 5)...))
	if n := len(segments(t, dir)); n != 3 || restored != 5 {
		t.Errorf("%d segments after %d, want 3 after 5", n, restored)
	}
}

// TestLog_CrashWhileAllIsRemoved checks that a log of which all entries are removed is empty or
// complete, and not a part of it, if the process ends at any point of that.
func TestLog_CrashWhileAllIsRemoved(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	for i := range uint64(20) {
		store(t, l, entriesFrom(501+i, 1, 900)...)
	}
	l.Close()
	before := t.TempDir()
	if err := os.CopyFS(before, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	if err := l.startSegment(l.segments[0].first, segmentHeadSize); err != nil { // the first step of removeAll
		t.Fatal(err)
	}
	marker := segments(t, dir)
	l.Close()
	if len(marker) != 1 {
		t.Fatalf("%d segments after the first step", len(marker))
	}
	old := segments(t, before)
	for left := range len(old) + 1 { // of the old segments, the newest of which are removed first
		crashed := t.TempDir()
		for _, file := range append(old[:left:left], marker[0]) {
			raw, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(filepath.Join(crashed, filepath.Base(file)), raw, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		l := openLog(t, crashed)
		requireContent(t, l, nil)
		store(t, l, entriesFrom(900, 2, 10)...)
		l.Close()
		l = openLog(t, crashed)
		requireContent(t, l, entriesFrom(900, 2, 10))
		l.Close()
	}
	l = openLog(t, before)
	if err := l.DeleteRange(501, 520); err != nil {
		t.Fatal(err)
	}
	requireContent(t, l, nil)
	store(t, l, entriesFrom(501, 1, 10)...)
	requireContent(t, l, entriesFrom(501, 1, 10))
}

// TestStoreLogs_AfterFailure checks that what is left of an append that failed has no
// effect on the next one.
func TestStoreLogs_AfterFailure(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	store(t, l, entriesFrom(1, 3, 50)...)
	tail := l.tail()
	left, _ := appendFrame(nil, tail.number, uint64(tail.end), entriesFrom(4, 2, 70))
	if _, err := tail.file.WriteAt(left[:100], tail.end); err != nil {
		t.Fatal(err)
	}
	readOnly, err := os.Open(tail.path)
	if err != nil {
		t.Fatal(err)
	}
	tail.file.Close()
	tail.file = readOnly
	if err := l.StoreLogs(entriesFrom(4, 2, 60)); err == nil {
		t.Fatal("the append did not fail")
	}
	blocked := filepath.Join(dir, "0000000002.wal.new")
	if err := os.Mkdir(blocked, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs(entriesFrom(4, 2, 60)); err == nil {
		t.Fatal("the append did not fail without a new segment")
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	requireContent(t, l, entriesFrom(1, 3, 50))
	want := append(entriesFrom(1, 3, 50), entriesFrom(4, 1, 20)...)
	store(t, l, want[3])
	requireContent(t, l, want)
	l.Close()
	requireContent(t, openLog(t, dir), want)
}

// TestOpen_InterruptedAppend checks that a log opens, with the entries before, whichever
// sectors of the last append a power loss has left out.
func TestOpen_InterruptedAppend(t *testing.T) {
	rng := newRand(t)
	for range 25 {
		dir := t.TempDir()
		l := openLog(t, dir)
		want := entriesFrom(1, 1+rng.IntN(3), rng.IntN(300))
		store(t, l, want...)
		path, before := l.tail().path, l.tail().end
		last := entriesFrom(want[len(want)-1].Index+1, 1+rng.IntN(2), rng.IntN(1200))
		if data := last[0].Data; len(data) > 0 {
			clear(data[rng.IntN(len(data)):]) // sectors of zeros that are not lost
		}
		store(t, l, last...)
		end := l.tail().end
		l.Close()
		if n := len(segments(t, dir)); n != 1 {
			t.Fatalf("%d segments", n)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		complete := true
		for at := before; at < end; at = (at/sectorSize + 1) * sectorSize {
			sector := raw[at:min((at/sectorSize+1)*sectorSize, end)]
			if rng.IntN(3) == 0 || isZero(sector) {
				continue
			}
			complete = false
			clear(sector)
		}
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		if complete {
			want = append(want, last...)
		}
		for range 2 { // the second time after another append
			l = openLog(t, dir)
			requireContent(t, l, want)
			want = append(want, entriesFrom(want[len(want)-1].Index+1, 1, 100)...)
			store(t, l, want[len(want)-1])
			l.Close()
		}
	}
}

// TestOpen_DetectsDamage checks that a log with a flipped bit anywhere is refused, unless
// the bit has no meaning, and likewise one that has lost a part.
func TestOpen_DetectsDamage(t *testing.T) {
	rng := newRand(t)
	whole := t.TempDir()
	l := openLog(t, whole)
	var want []*raft.Log
	for i := range uint64(8) {
		want = append(want, entriesFrom(1+2*i, 2, 600)...)
		store(t, l, want[2*i:]...)
	}
	files, end := segments(t, whole), l.tail().end
	l.Close()
	if len(files) != 3 {
		t.Fatalf("%d segments", len(files))
	}
	check := func(what string, hasMeaning bool, damage func(dir string)) {
		t.Helper()
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		damage(dir)
		l, err := Open(dir, testSegment)
		var corrupt *CorruptError
		switch {
		case errors.As(err, &corrupt):
		case err != nil:
			t.Errorf("%s: %v", what, err)
		default:
			if hasMeaning || cmp.Diff(want, content(t, l)) != "" {
				t.Errorf("%s is not detected", what)
			}
			l.Close()
		}
	}
	edit := func(file string, change func([]byte) []byte) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, filepath.Base(file))
			raw, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(raw), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, file := range files {
		for at := rng.IntN(9); at < int(end)+3*sectorSize && at < testSegment; at += 1 + rng.IntN(250) {
			check(fmt.Sprintf("a bit at %d of %s", at, file), false, edit(file, func(b []byte) []byte { b[at] ^= 0x10; return b }))
		}
		for _, size := range []int{0, 10, 40, 700, testSegment - 1} {
			check(fmt.Sprintf("%s cut to %d bytes", file, size), true, edit(file, func(b []byte) []byte { return b[:size] }))
		}
	}
	for _, file := range files[:2] {
		for at := 0; at < 2*sectorSize; at += sectorSize {
			check(fmt.Sprintf("a lost sector at %d of %s", at, file), true, edit(file, func(b []byte) []byte { clear(b[at : at+sectorSize]); return b }))
		}
	}
	check("a lost sector before another frame", true, edit(files[2], func(b []byte) []byte { clear(b[:sectorSize]); return b }))
	check("a missing segment", true, func(dir string) { os.Remove(filepath.Join(dir, filepath.Base(files[1]))) })
}

// TestOpen_DetectsDamageOfLastAppend checks that a log is refused if a bit is flipped in its
// last entry, also if that entry has sectors of zeros, as if a power loss had interrupted it.
func TestOpen_DetectsDamageOfLastAppend(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	last := entriesFrom(2, 1, 3000)
	clear(last[0].Data[600:2600])
	store(t, l, entriesFrom(1, 1, 100)...)
	begin := l.tail().end
	store(t, l, last...)
	path, at := l.tail().path, l.tail().entries[1]
	l.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := int(begin); i < int(at.offset+at.size); i += 7 {
		raw := bytes.Clone(whole)
		raw[i] ^= 1 << (i % 8)
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, testSegment)
		if _, isCorrupt := errors.AsType[*CorruptError](err); !isCorrupt {
			t.Fatalf("a bit at %d, in %d to %d: %v, entries %v", i, begin, at.offset+at.size, err, content(t, l))
		}
	}
}
