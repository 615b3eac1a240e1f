package drill

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// TestStart_Refused checks that a node that cannot start exits at once with code 1, and
// logs in one line what is wrong and what to do.
func TestStart_Refused(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	held := t.TempDir()
	holder := &procs.Process{Name: "holder", LogFile: filepath.Join(held, "log"), Args: []string{program, "node", "--data-dir", filepath.Join(held, "data"),
		"--nats-listen", "127.0.0.1:0", "--edge-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	err = until(ctx, "a node holds the directory", func() error {
		_, err := os.Stat(filepath.Join(held, "data", "node.lock"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ config, what, fix string }{
		"no TOML":           {"[node\n", "line 2", "docs/reference/config.md"},
		"unknown key":       {"[node]\nnmae = \"x\"\n", "nmae", "docs/reference/config.md"},
		"wrong value":       {"[scheduler]\nmax_attempts = 0\nretry_base = \"2h\"\n", "scheduler.retry_base is 2h", "must be"},
		"NATS port in use":  {"[nats]\nlisten = \"127.0.0.1:" + port + "\"\n", "address already in use", "nats.listen"},
		"edge port in use":  {"[nats]\nlisten = \"127.0.0.1:0\"\n[server]\nport = " + port + "\n", "address already in use", "server.port"},
		"runner without":    {"[rrq.runners.a]\ntype = \"socket\"\n", "rrq.runners.a.cmd", "give the program"},
		"directory in use":  {"[node]\ndata_dir = \"" + filepath.Join(held, "data") + "\"\n[nats]\nlisten = \"127.0.0.1:0\"\n", "in use by another process", "start the node again"},
		"directory a file":  {"[node]\ndata_dir = \"" + filepath.Join(held, "log") + "\"\n[nats]\nlisten = \"127.0.0.1:0\"\n", "data directory", "start the node again"},
		"members not three": {"[node]\nname = \"n1\"\n[cluster]\nmembers = [{name=\"n1\",route=\"a:1\",raft=\"a:2\"}]\n", "1 members", "3 to 5"},
	} {
		t.Run(name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "node.toml")
			if err := os.WriteFile(config, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(one, program, "node", "--config", config)
			cmd.Env = append(os.Environ(), "YARD_HTTP_LISTEN=127.0.0.1:0")
			if !strings.Contains(c.config, "port = ") {
				cmd.Env = append(cmd.Env, "YARD_SERVER_PORT=0")
			}
			if !strings.Contains(c.config, "data_dir") {
				cmd.Env = append(cmd.Env, "YARD_NODE_DATA_DIR="+filepath.Join(t.TempDir(), "data"))
			}
			output, err := cmd.CombinedOutput()
			last := tail(string(output), 1)
			if err == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("exit code %d (%v)", cmd.ProcessState.ExitCode(), err)
			}
			if !strings.HasPrefix(last, "yardmaster: ") || !strings.Contains(string(output), c.what) || !strings.Contains(string(output), c.fix) {
				t.Errorf("the log is\n%s\nwant %q and %q", output, c.what, c.fix)
			}
		})
	}
}

// alone returns a standalone node with the configuration that config returns for the
// program.
func alone(t *testing.T, config func(program string) string) *Node {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	address := testnet.Address(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "node.toml")
	if err := os.WriteFile(file, []byte(config(program)), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Node{Node: &procs.Node{
		Name: "alone", NATS: address,
		Process: &procs.Process{Name: "alone", LogFile: filepath.Join(dir, "log"), Args: []string{program, "node", "--config", file,
			"--data-dir", filepath.Join(dir, "data"), "--nats-listen", address, "--edge-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"}},
	}}
}

// TestMissingRunner checks that a node whose runner does not start keeps running, and
// reports it.
func TestMissingRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	n := alone(t, func(string) string { return "[rrq.runners.a]\ncmd = [\"/no/such/runner\"]\npool_size = 1\n" })
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := until(ctx, "the status names the missing program", func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.Pools) == 1 && strings.Contains(s.Pools[0].Reason, "/no/such/runner") {
			return nil
		}
		return os.ErrNotExist
	})
	if err != nil {
		t.Errorf("%v; the log ends\n%s", err, tail(n.Log(), 5))
	}
}
