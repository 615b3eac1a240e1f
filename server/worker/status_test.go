package worker

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The size of the data directory is cached for a while.
func TestDirSizeCache(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) {
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "sub", name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var f dirSizeCache
		size := func(want int64) {
			t.Helper()
			if got := f.size(dir); got != want {
				t.Errorf("%d bytes, want %d", got, want)
			}
		}
		write("a", 100)
		size(100)
		write("b", 50)
		time.Sleep(dirSizeMaxAge - 1)
		size(100)
		time.Sleep(1)
		size(150)
	})
}
