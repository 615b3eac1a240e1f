package node

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestLoad_Defaults(t *testing.T) {
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if c.Clustered() || c.Node.Name != "local" || c.Scheduler.MaxAttempts != 5 || c.Scheduler.DefaultTimeout != 5*time.Minute ||
		!*c.Scheduler.CreateQueues || c.Server.Port != 9876 || len(c.members()) != 1 {
		t.Errorf("%+v", c)
	}
}

const three = `
[[cluster.members]]
name = "n1"
route = "127.0.0.1:6221"
raft = "127.0.0.1:7221"
[[cluster.members]]
name = "n2"
route = "127.0.0.1:6222"
raft = "127.0.0.1:7222"
[[cluster.members]]
name = "n3"
route = "127.0.0.1:6223"
raft = "127.0.0.1:7223"
`

func TestLoad_File(t *testing.T) {
	c, err := load(t, `
[node]
name = "n2"
[scheduler]
create_queues = false
retry_base = "250ms"
[server]
port = 9999
[rrq]
default_max_retries = 7
max_retry_delay_seconds = 12.5
default_job_timeout_seconds = 90
[rrq.runners.python]
cmd = ["python3", "runner.py"]
`+three)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Scheduler
	if *s.CreateQueues || s.RetryBase != 250*time.Millisecond || s.MaxAttempts != 7 || s.RetryMax != 12500*time.Millisecond || s.DefaultTimeout != 90*time.Second {
		t.Errorf("scheduler %+v", s)
	}
	if c.NATS.RouteListen != "127.0.0.1:6222" || c.Raft.Listen != "127.0.0.1:7222" || strings.Join(c.members(), " ") != "n1 n2 n3" {
		t.Errorf("member %+v %+v %v", c.NATS, c.Raft, c.members())
	}
	if c.Server.Port != 9999 || c.RRQ.Default() != "python" || c.RRQ.Dir != c.Node.DataDir {
		t.Errorf("%+v %+v", c.Server, c.RRQ)
	}
}

// Every refusal names the key and what would be right.
func TestLoad_Refuses(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"no TOML":            {"[node\nname = 1", "line 2: "},
		"wrong type":         {"[node]\nname = 7", "line 2"},
		"unknown key":        {"[node]\nnmae = \"x\"", "unknown key node.nmae"},
		"unknown table":      {"[nodes]\nname = \"x\"", "unknown key nodes"},
		"unknown runner key": {"[rrq.runners.a]\ncmd = [\"x\"]\npool = 1", "unknown key rrq.runners.a.pool"},
		"log level":          {"[node]\nlog_level = \"loud\"", "debug, info, warn or error"},
		"log format":         {"[node]\nlog_format = \"xml\"", "text or json"},
		"name":               {"[node]\nname = \"Über\"", "node.name"},
		"listen":             {"[nats]\nlisten = \"4222\"", "host:port"},
		"store":              {"[nats]\nmax_store_bytes = 5", "at least 268435456"},
		"timeout":            {"[scheduler]\ndefault_timeout = \"1ms\"", "must be 1s to"},
		"no duration":        {"[scheduler]\nretry_base = \"soon\"", "soon"},
		"retry":              {"[scheduler]\nretry_base = \"10s\"\nretry_max = \"5s\"", "scheduler.retry_max is 5s; must be 10s to"},
		"attempts":           {"[scheduler]\nmax_attempts = 1001", "1 to 1000"},
		"port":               {"[server]\nport = 70000", "server.port"},
		"lease":              {"[delivery]\nlease = \"10s\"", "delivery.lease"},
		"runner without cmd": {"[rrq.runners.a]\ntype = \"socket\"", "runners.a.cmd"},
		"default runner":     {"[rrq]\ndefault_runner_name = \"b\"\n[rrq.runners.a]\ncmd = [\"x\"]", "default_runner_name"},
		"two members":        {"[node]\nname = \"n1\"\n[cluster]\nmembers = [{name=\"n1\",route=\"a:1\",raft=\"a:2\"},{name=\"n2\",route=\"b:1\",raft=\"b:2\"}]", "3 or 5"},
		"not a member":       {"[node]\nname = \"n9\"\n" + three, "does not name this node"},
		"twice":              {"[node]\nname = \"n1\"\n" + strings.Replace(three, "n3", "n2", 1), "twice"},
		"route":              {"[node]\nname = \"n1\"\n" + strings.Replace(three, "127.0.0.1:6223", "nowhere", 1), "cluster.members n3 route"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, c.text); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.toml")); err == nil || !strings.Contains(err.Error(), "none.toml") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestFromEnvironment(t *testing.T) {
	set := map[string]string{
		"YARD_NODE_NAME": "n7", "YARD_NODE_DATA_DIR": "/data", "YARD_NATS_MAX_STORE_BYTES": "1073741824",
		"YARD_NATS_PRIMARY_LANE": "true", "YARD_SCHEDULER_RETRY_BASE": "3s", "YARD_SCHEDULER_MAX_ATTEMPTS": "9",
		"YARD_SCHEDULER_CREATE_QUEUES": "false", "YARD_SERVER_PORT": "1234", "YARD_CLUSTER_SECRET": "sesame",
	}
	lookup := func(over map[string]string) func(string) (string, bool) {
		all := maps.Clone(set)
		maps.Copy(all, over)
		return func(name string) (string, bool) { v, ok := all[name]; return v, ok }
	}
	var c Config
	c.Node.LogLevel = "warn"
	if err := fromEnvironment(&c, lookup(nil)); err != nil {
		t.Fatal(err)
	}
	if c.Node != (NodeConfig{Name: "n7", DataDir: "/data", LogLevel: "warn"}) || c.NATS.MaxStore != 1<<30 || !c.NATS.PrimaryLane ||
		c.Scheduler.RetryBase != 3*time.Second || c.Scheduler.MaxAttempts != 9 || *c.Scheduler.CreateQueues || c.Server.Port != 1234 || c.Cluster.Secret != "sesame" {
		t.Errorf("%+v", c)
	}
	for name, value := range map[string]string{
		"YARD_SERVER_PORT": "many", "YARD_SCHEDULER_RETRY_BASE": "3", "YARD_NATS_PRIMARY_LANE": "yes",
		"YARD_SCHEDULER_MAX_ATTEMPTS": "1\nname = \"injected\"",
	} {
		var c Config
		err := fromEnvironment(&c, lookup(map[string]string{name: value}))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%q: %v", name, value, err)
		}
	}
}

// A variable that looks like a key and is none is refused with the key that was
// meant; what belongs to others, or to those who work on the yard, is let be.
func TestCheckEnvironment(t *testing.T) {
	for entry, says := range map[string]string{
		"YARD_NODE_NAM=n1":             "did you mean YARD_NODE_NAME?",
		"YARD_NODE_DATADIR=/data":      "did you mean YARD_NODE_DATA_DIR?",
		"YARD_NATS_LISTN=":             "did you mean YARD_NATS_LISTEN?",
		"YARD_SCHEDULER_ATTEMPTS=3":    "did you mean YARD_SCHEDULER_MAX_ATTEMPTS?",
		"YARD_CLUSTER_MEMBERS=[n1,n2]": "list the members in the configuration file",
	} {
		name, _, _ := strings.Cut(entry, "=")
		if err := checkEnvironment([]string{"HOME=/root", entry}); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", entry, err)
		}
	}
	fine := []string{
		"HOME=/root", "YARDSTICK=1", "YARD_NODE_NAME=n1", "YARD_SERVER_PORT=1", "YARD_SCHEDULER_CREATE_QUEUES=false",
		"YARD_PPROF=127.0.0.1:6060", "YARD_WITNESS=/w", "YARD_RUNNER=x/1", "YARD_BIN=b", "YARD_TEST_RUNNER=1", "",
	}
	if err := checkEnvironment(fine); err != nil {
		t.Error(err)
	}
	t.Setenv("YARD_NODE_NAM", "n1")
	if _, err := Load(""); err == nil || !strings.Contains(err.Error(), "YARD_NODE_NAM ") {
		t.Errorf("loaded with a misspelt variable: %v", err)
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"", "ab", 2}, {"abc", "", 3}, {"abc", "axc", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
