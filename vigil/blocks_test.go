package vigil

import (
	"testing"

	"golang.org/x/sys/unix"
)

// blocksOf is how much of the disk a file takes, in bytes.
func blocksOf(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
