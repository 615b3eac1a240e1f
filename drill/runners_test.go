package drill

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orphansGone is how long a runner may outlive its node.
const orphansGone = 2 * time.Second

// TestKilledNodeLeavesNoRunner: kill -9 of a node takes its runners with it,
// and its next start ends what they had forked.
func TestKilledNodeLeavesNoRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	n := alone(t, func(program string) string {
		return fmt.Sprintf("[rrq.runners.a]\ncmd = [\"sh\", \"-c\", \"sleep 1000 & exec %s runner\"]\npool_size = 3\n", program)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	former := startRunners(t, ctx, n)
	forked := childrenOf(former)
	if len(forked) != 3 {
		t.Fatalf("runners %v have forked %v, not three processes", former, forked)
	}
	n.Kill()
	awaitEnds(t, former, orphansGone)
	now := startRunners(t, ctx, n)
	awaitEnds(t, forked, orphansGone)
	forked = childrenOf(now)
	if err := n.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	awaitEnds(t, append(now, forked...), 0)
}

// startRunners starts a node and returns the pids of its pool's processes.
func startRunners(t *testing.T, ctx context.Context, n *Node) (pids []int) {
	t.Helper()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Kill)
	err := until(ctx, "all runners are up", func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.Pools) != 1 || s.Pools[0].Up != s.Pools[0].Size {
			return fmt.Errorf("pools are %+v", s.Pools)
		}
		pids = nil
		for _, m := range s.Pools[0].Members {
			pids = append(pids, m.PID)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v; the log ends\n%s", err, tail(n.Log(), 5))
	}
	return pids
}

func childrenOf(pids []int) (children []int) {
	for _, pid := range pids {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			continue
		}
		for _, child := range strings.Fields(string(list)) {
			if n, err := strconv.Atoi(child); err == nil {
				children = append(children, n)
			}
		}
	}
	return children
}

// awaitEnds waits until no process of pids runs; what nobody has reaped does
// not run.
func awaitEnds(t *testing.T, pids []int, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := until(ctx, "they have ended", func() error {
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !strings.Contains(string(stat), ") Z ") {
				return fmt.Errorf("process %d runs: %.60s", pid, stat)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestProcessOne: as process 1 of a container that has no init, a node brings
// its runners up and ends well when it is asked to.
func TestProcessOne(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "node.toml")
	text := fmt.Sprintf("[nats]\nlisten = \"127.0.0.1:0\"\n[server]\nport = 0\n[rrq.runners.a]\ncmd = [%q, \"runner\"]\n", program)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	// The shell shows the node the processes of its own namespace, and becomes it.
	cmd := exec.CommandContext(ctx, "sh", "-c", `mount -t proc proc /proc || { echo cannot mount; exit 99; }; exec "$@"`, "sh",
		program, "node", "--config", config, "--data-dir", filepath.Join(dir, "data"), "--http-listen", "127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Skipf("no process namespaces here: %v", err)
	}
	said := new(strings.Builder)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		in.Close()
	}()
	for lines, asked := bufio.NewScanner(out), false; lines.Scan(); {
		fmt.Fprintln(said, lines.Text())
		if !asked && strings.Contains(lines.Text(), `msg="runner is up"`) {
			asked = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := <-ended; err != nil {
		if strings.Contains(said.String(), "cannot mount") {
			t.Skip("no file systems may be mounted here")
		}
		t.Errorf("ended with %v:\n%s", err, said)
	}
}
