package yard

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process that is asked to end, and then waited for, is asked once: a second
// time would cut its work short.
func TestProcess_AskedOnce(t *testing.T) {
	const script = `n=0; trap 'n=$((n+1)); echo asked $n' TERM; echo up; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo done`
	p, err := StartProcess("a shell", filepath.Join(t.TempDir(), "log"), nil, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	await := func(word string) {
		t.Helper()
		for late := time.Now().Add(10 * time.Second); !strings.Contains(p.LastWords(), word); {
			if time.Now().After(late) {
				t.Fatalf("never said %q: %s", word, p.LastWords())
			}
		}
	}
	await("up")
	p.Term()
	await("asked 1")
	p.Stop(10 * time.Second)
	if got := p.LastWords(); strings.Contains(got, "asked 2") || !strings.HasSuffix(got, "done") {
		t.Errorf("%s", got)
	}
}
