package catalogue

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// TestSnapshots_Newest checks that the newest snapshot is found although its name does not
// sort last.
func TestSnapshots_Newest(t *testing.T) {
	n := &drill.Node{Node: &procs.Node{DataDir: t.TempDir()}}
	if latest, writing := snapshots(n); latest != "" || writing {
		t.Errorf("without snapshots: %q, %t", latest, writing)
	}
	const newest = "2-1154-1795677715900"
	for _, name := range []string{"2-648-1795677709686", newest, "2-2287-1795677729157.tmp"} {
		if err := os.MkdirAll(filepath.Join(n.DataDir, "raft", "snapshots", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if latest, writing := snapshots(n); latest != newest || !writing {
		t.Errorf("%q, %t", latest, writing)
	}
}
