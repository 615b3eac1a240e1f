package wal

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpen_ReadsLastAppendFromDisk checks that a log that was written just now is not read from
// memory, which may have entries whose sync has failed.
func TestOpen_ReadsLastAppendFromDisk(t *testing.T) {
	dir := t.TempDir()
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err != nil {
		t.Fatal(err)
	}
	if system.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is in memory")
	}
	l, err := Open(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	want := entriesFrom(1, 5, 100<<10)
	store(t, l, want...)
	size := l.tail().end
	l.Close()
	before := bytesRead(t)
	l, err = Open(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if read := bytesRead(t) - before; read < size {
		t.Errorf("%d bytes were read from the disk, and the entries have %d", read, size)
	}
	requireContent(t, l, want)
}

// bytesRead returns how much the process has read from disks.
func bytesRead(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "\nread_bytes: ")
	digits, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
