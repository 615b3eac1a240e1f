package procs

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProcess_TermOnce checks that a process that is terminated and then stopped
// gets SIGTERM only once.
func TestProcess_TermOnce(t *testing.T) {
	const script = `n=0; trap 'n=$((n+1)); echo asked $n' TERM; echo up; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo done`
	p, err := StartProcess("a shell", filepath.Join(t.TempDir(), "log"), nil, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	await := func(word string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(p.OutputTail(), word); {
			if time.Now().After(deadline) {
				t.Fatalf("never wrote %q: %s", word, p.OutputTail())
			}
		}
	}
	await("up")
	p.Term()
	await("asked 1")
	p.Stop(10 * time.Second)
	if got := p.OutputTail(); strings.Contains(got, "asked 2") || !strings.HasSuffix(got, "done") {
		t.Errorf("%s", got)
	}
}
