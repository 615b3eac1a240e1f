package drill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// miscounts are mistakes in ledger/jobs.go: what replaces what, and the beginning of the reason for
// which a node that makes them is not ready.
var miscounts = []struct {
	name   string
	edits  map[string]string
	reason string
}{
	{"a delayed job that starts to wait is counted as delayed, too", map[string]string{
		"\told.queue.counts[old.state]--\n": "\tif old.state != job.Delayed {\n\t\told.queue.counts[old.state]--\n\t}\n",
	}, "the ledger's numbers of jobs do not add up"},
	{"delayed jobs are counted as waiting", map[string]string{
		"\tnext.queue.counts[next.state]++\n": "\tstate := next.state\n\tif state == job.Delayed {\n\t\tstate = job.Waiting\n\t}\n\tnext.queue.counts[state]++\n",
		"\told.queue.counts[old.state]--\n":   "\tstate := old.state\n\tif state == job.Delayed {\n\t\tstate = job.Waiting\n\t}\n\told.queue.counts[state]--\n",
	}, "the ledger differs from its history"},
}

// TestDrill_Miscount builds the program with a mistake in the numbers of jobs, and requires that three
// nodes of it become unready and say why.
func TestDrill_Miscount(t *testing.T) {
	soakTime(t)
	for _, m := range miscounts {
		t.Run(m.name, func(t *testing.T) {
			cl, ctx := newHarnessOf(t, buildWith(t, "ledger/jobs.go", m.edits), 2*time.Minute)
			publish(t, ctx, cl, &Load{Queue: "free", Jobs: 10, Fields: `"delay_ms":2000`}, &Load{Queue: "limited", Jobs: 10, Fields: `"delay_ms":600000`})
			err := until(ctx, "a node is not ready", func() error {
				for _, n := range cl.Nodes {
					var s api.Status
					if err := n.Ask(ctx, api.Subject("status"), nil, &s); err != nil {
						return err
					}
					for _, reason := range s.Readiness.Reasons {
						if strings.HasPrefix(reason, m.reason) {
							t.Logf("%s: %s", n.Name, reason)
							return nil
						}
					}
				}
				return errors.New("all nodes are ready")
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// buildWith builds the program with edits of one of its files, and returns its path.
func buildWith(t *testing.T, file string, edits map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range edits {
		if strings.Count(string(text), from) != 1 {
			t.Fatalf("%s has %q %d times, want once", file, from, strings.Count(string(text), from))
		}
		text = []byte(strings.Replace(string(text), from, to, 1))
	}
	edited, overlay, program := filepath.Join(dir, "edited.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "yardmaster")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: edited}})
	if err = errors.Join(err, os.WriteFile(edited, text, 0o600), os.WriteFile(overlay, list, 0o600)); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./cmd/node")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("build: %w: %s", err, out))
	}
	return program
}
