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

	"yardmaster/job"
)

// soakEnv asks for the long tests.
const soakEnv = "YARD_SOAK"

// held is what a process holds that must not grow with the runners it has had.
type held struct {
	children   []string // "<pid> <state>", Z of one that has ended and not been reaped
	files      int      // open descriptors
	goroutines int
}

func holding(t *testing.T) held {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	h := held{files: len(files), goroutines: runtime.NumGoroutine()}
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

// A short-lived runner after the other leaves nothing behind: no process, no
// zombie, no descriptor, no goroutine, no line in the list.
func TestSpawnsLeakNothing(t *testing.T) {
	spawns := 30
	if os.Getenv(soakEnv) != "" {
		spawns = 1000
	}
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err != nil || ln.Close() != nil { // the Go runtime keeps what its first socket needs
		t.Fatal("no socket")
	}
	before := holding(t)
	cfg := testConfig("", nil)
	cfg.Dir = t.TempDir()
	y := startYard(t, cfg)
	y.pid()
	first, began, pids := holding(t), time.Now(), make(map[string]bool)
	for n := range spawns {
		function := "exit0"
		switch n % 3 {
		case 1:
			function = "crash"
		case 2: // and one that leaves a child in its group
			if o := y.do("fork", nil); o.Status != job.Success {
				t.Fatalf("spawn %d: fork is %s", n, o.Status)
			}
		}
		if o := y.do(function, nil); o.Status != job.Lost {
			t.Fatalf("spawn %d: outcome is %s", n, o.Status)
		}
		pids[y.pid()] = true
	}
	took := time.Since(began)
	last := holding(t)
	if last.files > first.files || last.goroutines > first.goroutines || len(last.children) != 1 {
		t.Errorf("after %d runners the node holds %+v, after the first %+v", spawns, last, first)
	}
	if len(pids) != spawns {
		t.Errorf("%d processes, not %d", len(pids), spawns)
	}
	y.close()
	after := holding(t)
	for late := time.Now().Add(patience); after.goroutines > before.goroutines && time.Now().Before(late); after = holding(t) {
		runtime.Gosched() // some have only to return
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
