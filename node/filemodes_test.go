package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/yardmaster-dev/yardmaster/node/config"
)

// TestDataDir_ExcludesOtherUsers checks that other users of the host can read neither what a node
// writes nor what an earlier build has left readable.
func TestDataDir_ExcludesOtherUsers(t *testing.T) {
	var dir string
	n := startSingleNode(t, func(cfg *config.Config) {
		dir = cfg.Node.DataDir
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := enqueue(n, "mail", `{"function":"send"}`, "k1", false); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "raft"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o700 {
			t.Errorf("the directory %q has mode %o, want 700", name, got)
		}
	}
}
