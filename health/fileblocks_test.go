package health

import (
	"testing"

	"golang.org/x/sys/unix"
)

// blocksOf returns the bytes of disk space that a file occupies.
func blocksOf(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
