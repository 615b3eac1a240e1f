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

// TestKilledNodeLeavesNoRunner checks that the runners of a killed node exit, and that
// its next start ends the processes they had forked.
func TestKilledNodeLeavesNoRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	n := alone(t, func(program string) string {
		return fmt.Sprintf("[rrq.runners.a]\ncmd = [\"sh\", \"-c\", \"sleep 1000 & exec %s runner\"]\npool_size = 3\n", program)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	previous := startRunners(t, ctx, n)
	forked := childrenOf(previous)
	if len(forked) != 3 {
		t.Fatalf("runners %v have forked %v, want three processes", previous, forked)
	}
	n.Kill()
	awaitEnds(t, previous, orphansGone)
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

// awaitEnds waits until none of the processes runs. Zombies do not count.
func awaitEnds(t *testing.T, pids []int, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := until(ctx, "all processes have ended", func() error {
		for _, pid := range pids {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !strings.Contains(string(stat), ") Z ") {
				return fmt.Errorf("process %d is running: %.60s", pid, stat)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPIDOne checks that a node can run as process 1 of a container without an init: it
// starts its runners and exits cleanly on request.
func TestPIDOne(t *testing.T) {
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
	// The shell mounts /proc for the new PID namespace and then becomes the node.
	cmd := exec.CommandContext(ctx, "sh", "-c", `mount -t proc proc /proc || { echo cannot mount; exit 99; }; exec "$@"`, "sh",
		program, "node", "--config", config, "--data-dir", filepath.Join(dir, "data"), "--http-listen", "127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Skipf("no process namespaces here: %v", err)
	}
	output := new(strings.Builder)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		in.Close()
	}()
	for lines, asked := bufio.NewScanner(out), false; lines.Scan(); {
		fmt.Fprintln(output, lines.Text())
		if !asked && strings.Contains(lines.Text(), `msg="runner is up"`) {
			asked = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := <-ended; err != nil {
		if strings.Contains(output.String(), "cannot mount") {
			t.Skip("mounting file systems is not permitted here")
		}
		t.Errorf("ended with %v:\n%s", err, output)
	}
}
