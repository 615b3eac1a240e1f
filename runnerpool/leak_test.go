package runnerpool

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// soakEnv enables the long tests.
const soakEnv = "YARD_SOAK"

// resources is what a node holds for runners, which must not grow with their
// number.
type resources struct {
	children   []string // "<pid> <state>"; Z is an unreaped one
	files      int      // open descriptors
	goroutines int
}

func currentResources(t *testing.T) resources {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	h := resources{files: len(files), goroutines: runtime.NumGoroutine()}
	for pid := range processes() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has just ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if col := strings.Fields(rest); col[1] == fmt.Sprint(os.Getpid()) {
			h.children = append(h.children, fmt.Sprintf("%d %s", pid, col[0]))
		}
	}
	return h
}

// A sequence of short-lived runners leaves nothing behind: no process, zombie,
// descriptor, goroutine or line in the record.
func TestSpawnsLeakNothing(t *testing.T) {
	spawns := 30
	if os.Getenv(soakEnv) != "" {
		spawns = 1000
	}
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err != nil || ln.Close() != nil { // resources that the Go runtime allocates for its first socket
		t.Fatal("no socket")
	}
	before := currentResources(t)
	cfg := testConfig("", nil)
	cfg.Dir = t.TempDir()
	y := startHarness(t, cfg)
	y.pid()
	first, began, pids := currentResources(t), time.Now(), make(map[string]bool)
	for n := range spawns {
		function := "exit0"
		switch n % 3 {
		case 1:
			function = "crash"
		case 2: // leaves a child in its group
			if o := y.run("fork", nil); o.Status != job.Success {
				t.Fatalf("spawn %d: fork is %s", n, o.Status)
			}
		}
		if o := y.run(function, nil); o.Status != job.Lost {
			t.Fatalf("spawn %d: outcome is %s", n, o.Status)
		}
		pids[y.pid()] = true
	}
	took := time.Since(began)
	last := currentResources(t)
	if last.files > first.files || last.goroutines > first.goroutines || len(last.children) != 1 {
		t.Errorf("after %d runners the node holds %+v, after the first %+v", spawns, last, first)
	}
	if len(pids) != spawns {
		t.Errorf("%d processes, not %d", len(pids), spawns)
	}
	y.close()
	after := currentResources(t)
	for late := time.Now().Add(testTimeout); after.goroutines > before.goroutines && time.Now().Before(late); after = currentResources(t) {
		runtime.Gosched() // some goroutines are about to return
	}
	if after.files > before.files || after.goroutines > before.goroutines || len(after.children) > len(before.children) {
		t.Errorf("a stopped node holds %+v, before it was started %+v", after, before)
	}
	if list, err := os.ReadFile(filepath.Join(cfg.Dir, "runners.json")); err != nil || len(list) > 0 {
		t.Errorf("list of runners is %q, %v", list, err)
	}
	t.Logf("%d runners in %s: before %+v, with the first %+v, with the last %+v, after %+v",
		spawns, took.Round(time.Millisecond), before, first, last, after)
}
