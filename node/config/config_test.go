package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/yardmaster-dev/yardmaster/edge"
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
		!*c.Scheduler.CreateQueues || c.Server.Port != 9876 || len(c.MemberNames()) != 1 {
		t.Errorf("%+v", c)
	}
}

const threeMembers = `
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
`+threeMembers)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Scheduler
	if *s.CreateQueues || s.RetryBase != 250*time.Millisecond || s.MaxAttempts != 7 || s.RetryMax != 12500*time.Millisecond || s.DefaultTimeout != 90*time.Second {
		t.Errorf("scheduler %+v", s)
	}
	if c.NATS.RouteListen != "127.0.0.1:6222" || c.Raft.Listen != "127.0.0.1:7222" || strings.Join(c.MemberNames(), " ") != "n1 n2 n3" {
		t.Errorf("member %+v %+v %v", c.NATS, c.Raft, c.MemberNames())
	}
	if c.Server.Port != 9999 || c.RRQ.DefaultRunnerName() != "python" || c.RRQ.Dir != c.Node.DataDir {
		t.Errorf("%+v %+v", c.Server, c.RRQ)
	}
}

// The keys of the Overhop server have the same meaning here.
func TestLoad_OverhopFile(t *testing.T) {
	c, err := load(t, `
[server]
host = "0.0.0.0"
port = 0
tls_enabled = false
[server.tls]
cert_file = "for-later.pem"
[wire]
max_envelope_size_bytes = 1048576
[wire.session]
unhelloed_max_lifetime_seconds = 3
helloed_unregistered_max_lifetime_seconds = 4
ident_register_timeout_seconds = 5
[pagination]
page_size = 5000
max_page_size = 6000
`)
	if err != nil {
		t.Fatal(err)
	}
	session := edge.SessionConfig{Unhelloed: 3, Unregistered: 4, Ident: 5}
	if c.Server.Address() != "0.0.0.0:0" || c.Wire.Session != session || *c.Server.TLSEnabled || c.Wire.MaxEnvelope != 1<<20 ||
		c.Pagination != (edge.PaginationConfig{PageSize: 5000}) || len(c.RRQ.Ignored) != 1 {
		t.Errorf("%+v, ignored: %q", c.Config, c.RRQ.Ignored)
	}
	t.Setenv("YARD_SERVER_PORT", "0")
	if c, err := Load(""); err != nil || c.Server.Address() != "127.0.0.1:0" {
		t.Errorf("port 0 of the environment: %s, %v", c.Server.Address(), err)
	}
}

// The token does not show in a printed configuration.
func TestToken_Redacted(t *testing.T) {
	c, err := load(t, "[server]\ntoken = \"sesame\"\n")
	if err != nil || c.Server.Token != "sesame" {
		t.Fatalf("%q, %v", string(c.Server.Token), err)
	}
	var log, file bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("started", "server", c.Server, "token", c.Server.Token)
	text, err := json.Marshal(c.Server)
	if err := errors.Join(err, toml.NewEncoder(&file).Encode(c.Server)); err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{
		fmt.Sprint(c), fmt.Sprintf("%v %+v %#v", c.Server, c.Server, c.Server), fmt.Sprintf("%s %q", c.Server.Token, c.Server.Token),
		log.String(), string(text), file.String(),
	} {
		if strings.Contains(shown, "sesame") || !strings.Contains(shown, "hidden") {
			t.Errorf("the token shows: %s", shown)
		}
	}
}

// Every validation error names the key and the valid values.
func TestLoad_InvalidConfig(t *testing.T) {
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
		"advertise":          {"[server]\nadvertise = \"n1\"", "server.advertise is \"n1\"; must be host:port"},
		"advertise port":     {"[server]\nadvertise = \"n1:0\"", "server.advertise"},
		"long token":         {"[server]\ntoken = \"" + strings.Repeat("s", 257) + "\"", "server.token has 257 bytes; must be 1 to 256"},
		"token with newline": {"[server]\ntoken = \"sesame\\n\"", "server.token is not valid UTF-8, or contains a control character"},
		"TLS without files":  {"[server]\ntls_enabled = true", "set cert_file and key_file in [server.tls]"},
		"TLS without key":    {"[server.tls]\ncert_file = \"a\"", "server.tls.key_file is missing"},
		"TLS without cert":   {"[server.tls]\nclient_ca_file = \"a\"", "set cert_file and key_file in [server.tls]"},
		"page":               {"[pagination]\npage_size = 10001", "pagination.page_size is 10001; must be 1 to 10000"},
		"old page":           {"[pagination]\ndefault_page_size = 20", "unknown key pagination.default_page_size (use pagination.page_size)"},
		"other's log":        {"[logging]\nlevel = \"info\"", "unknown key logging.level (use node.log_level)"},
		"other's store":      {"[storage]\nengine = \"sled\"\npath = \"x\"\n[storage.sled]\nmode = \"low_space\"", "unknown key storage.path (use node.data_dir), unknown key storage.sled.mode (there is no sled"},
		"other's heartbeat":  {"[heartbeat]\ninterval_ms = 1000", "heartbeat.interval_ms (the interval is fixed"},
		"lease":              {"[delivery]\nlease = \"10s\"", "delivery.lease"},
		"runner without cmd": {"[rrq.runners.a]\ntype = \"socket\"", "runners.a.cmd"},
		"default runner":     {"[rrq]\ndefault_runner_name = \"b\"\n[rrq.runners.a]\ncmd = [\"x\"]", "default_runner_name"},
		"two members":        {"[node]\nname = \"n1\"\n[cluster]\nmembers = [{name=\"n1\",route=\"a:1\",raft=\"a:2\"},{name=\"n2\",route=\"b:1\",raft=\"b:2\"}]", "3 to 5"},
		"not a member":       {"[node]\nname = \"n9\"\n" + threeMembers, "does not name this node"},
		"twice":              {"[node]\nname = \"n1\"\n" + strings.Replace(threeMembers, "n3", "n2", 1), "twice"},
		"route":              {"[node]\nname = \"n1\"\n" + strings.Replace(threeMembers, "127.0.0.1:6223", "nowhere", 1), "cluster.members n3 route"},
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
		"YARD_SCHEDULER_RETRY_BASE": "3s", "YARD_SCHEDULER_MAX_ATTEMPTS": "9",
		"YARD_SCHEDULER_CREATE_QUEUES": "false", "YARD_SERVER_PORT": "1234", "YARD_CLUSTER_SECRET": "sesame",
		"YARD_SERVER_TOKEN": "mellon", "YARD_SERVER_TLS_ENABLED": "false", "YARD_SERVER_TLS_CERT_FILE": "c.pem",
		"YARD_SERVER_ADVERTISE": "n7:9876",
	}
	lookup := func(over map[string]string) func(string) (string, bool) {
		all := maps.Clone(set)
		maps.Copy(all, over)
		return func(name string) (string, bool) { v, ok := all[name]; return v, ok }
	}
	var c Config
	c.Node.LogLevel = "warn"
	if err := applyEnvironment(&c, lookup(nil)); err != nil {
		t.Fatal(err)
	}
	if c.Node != (Node{Name: "n7", DataDir: "/data", LogLevel: "warn"}) || c.NATS.MaxStore != 1<<30 ||
		c.Scheduler.RetryBase != 3*time.Second || c.Scheduler.MaxAttempts != 9 || *c.Scheduler.CreateQueues || c.Server.Port != 1234 || c.Cluster.Secret != "sesame" {
		t.Errorf("%+v", c)
	}
	if s := c.Server; s.Token != "mellon" || *s.TLSEnabled || s.TLS.CertFile != "c.pem" || s.Advertise != "n7:9876" {
		t.Errorf("%+v", s)
	}
	for _, wrong := range []struct{ name, value, says string }{
		{"YARD_SERVER_PORT", "many", `="many": must be a whole number, such as 5`},
		{"YARD_SERVER_PORT", "1.5", "must be a whole number"},
		{"YARD_SCHEDULER_RETRY_BASE", "3", "must be a number with a unit, such as 30s or 1d"},
		{"YARD_SCHEDULER_CREATE_QUEUES", "yes", "must be true or false"},
		{"YARD_SCHEDULER_MAX_ATTEMPTS", "-1", "the number is out of range"},
		{"YARD_SCHEDULER_MAX_ATTEMPTS", "1\nname = \"injected\"", "must be one line"},
	} {
		var c Config
		err := applyEnvironment(&c, lookup(map[string]string{wrong.name: wrong.value}))
		if err == nil || !strings.HasPrefix(err.Error(), "environment variable "+wrong.name) || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%s=%q: %v", wrong.name, wrong.value, err)
		}
	}
}

// A secret may come from a file, unless its variable is set as well.
func TestFromEnvironment_SecretFiles(t *testing.T) {
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file, empty := write("token", " mellon \r\n"), write("empty", "\n")
	for _, c := range []struct{ name, value, says string }{
		{"YARD_SERVER_TOKEN_FILE", file, ""},
		{"YARD_SERVER_TOKEN_FILE", file + ".none", "no such file"},
		{"YARD_HTTP_TOKEN_FILE", empty, "is empty"},
		{"YARD_CLUSTER_SECRET_FILE", file, "both set the same key"},
	} {
		set := map[string]string{"YARD_CLUSTER_SECRET": "sesame", c.name: c.value}
		var got Config
		err := applyEnvironment(&got, func(name string) (string, bool) { v, ok := set[name]; return v, ok })
		if c.says == "" {
			if err != nil || got.Server.Token != " mellon " || got.Cluster.Secret != "sesame" {
				t.Errorf("%s: %v, token %q", c.name, err, string(got.Server.Token))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s=%s: %v does not say %q", c.name, c.value, err, c.says)
		}
	}
	if err := checkEnvironment([]string{"YARD_HTTP_TOKEN_FILE=/run/secrets/t", "YARD_SERVER_TOKEN_FILE=/run/secrets/t"}); err != nil {
		t.Error(err)
	}
}

// Variables that Kubernetes sets for Services are ignored with a warning, even if one has the name of a
// key. Variables with such names but other values are refused.
func TestLoad_ServiceVariables(t *testing.T) {
	services := map[string]string{
		"YARD_PORT": "tcp://10.0.0.7:9876", "YARD_SERVICE_HOST": "10.0.0.7", "YARD_SERVICE_PORT": "9876", "YARD_SERVICE_PORT_OVERHOP": "9876",
		"YARD_PORT_9876_TCP": "tcp://10.0.0.7:9876", "YARD_PORT_9876_TCP_PROTO": "tcp", "YARD_PORT_9876_TCP_PORT": "9876",
		"YARD_PORT_9876_TCP_ADDR": "10.0.0.7", "YARD_NODE_1_PORT_53_UDP": "udp://[fd00::7]:53", "YARD_NODE_1_SERVICE_HOST": "fd00::7",
		"YARD_SERVER_PORT": "tcp://10.0.0.8:9876",
	}
	for name, value := range services {
		t.Setenv(name, value)
	}
	c, err := load(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.RRQ.Ignored) != len(services) || c.Server.Port != edge.DefaultPort {
		t.Errorf("ignored %q, port %d; want all %d variables, and the default port", c.RRQ.Ignored, c.Server.Port, len(services))
	}
	for name := range services {
		if !slices.ContainsFunc(c.RRQ.Ignored, func(s string) bool { return strings.HasPrefix(s, name+" (Kubernetes") }) {
			t.Errorf("%s is not named in %q", name, c.RRQ.Ignored)
		}
	}
	for name, value := range map[string]string{"YARD_PORT": "9876", "YARD_SERVICE_HOST": "yard", "YARD_SERVER_PORT": "tcp", "YARD_PORT_TCP": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := load(t, ""); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		})
	}
}

// Keys of earlier builds without effect are accepted, in the file and as variables, and each
// is reported once with what applies instead.
func TestLoad_RetiredKeys(t *testing.T) {
	t.Setenv("YARD_SCRUB_EVERY", "5s")
	t.Setenv("YARD_NATS_PRIMARY_LANE", "true")
	text := "[node]\nname = \"n1\"\n"
	for _, key := range slices.Sorted(maps.Keys(retiredKeys)) {
		dot := strings.LastIndexByte(key, '.')
		if table := "[" + key[:dot] + "]\n"; !strings.Contains(text, table) {
			text += table
		}
		text += key[dot+1:] + " = 1\n"
	}
	c, err := load(t, text)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	ignored := strings.Join(c.RRQ.Ignored, "; ")
	want := map[string]string{"YARD_SCRUB_EVERY": retiredKeys["scrub.every"], "YARD_NATS_PRIMARY_LANE": retiredKeys["nats.primary_lane"]}
	maps.Copy(want, retiredKeys)
	for name, reason := range want {
		if strings.Count(ignored, name+" ("+reason+")") != 1 {
			t.Errorf("%s is not named once in %q", name, ignored)
		}
	}
	if len(c.RRQ.Ignored) != len(want) {
		t.Errorf("%d keys are reported as ignored, want %d: %s", len(c.RRQ.Ignored), len(want), ignored)
	}
	if c, err := load(t, "[scrub]\n"); err != nil || len(c.RRQ.Ignored) != 2 {
		t.Errorf("empty tables: %v, ignored: %q", err, c.RRQ.Ignored)
	}
	for _, key := range []string{"scrub.rate", "wire.session.rate", "delivery.grace"} {
		dot := strings.LastIndexByte(key, '.')
		if _, err := load(t, "["+key[:dot]+"]\n"+key[dot+1:]+" = 1\n"); err == nil || !strings.Contains(err.Error(), "unknown key "+key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Every retired key is documented with what applies instead.
func TestConfigurationDocument_RetiredKeys(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	for key, reason := range retiredKeys {
		if row := "| `" + key + "` | " + reason + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/config.md lacks the row %s", row)
		}
	}
}

// A variable with the prefix that is not a key is rejected with the key that was probably
// meant; other variables and reserved ones are ignored.
func TestCheckEnvironment(t *testing.T) {
	for entry, says := range map[string]string{
		"YARD_NODE_NAM=n1":             "did you mean YARD_NODE_NAME?",
		"YARD_NODE_DATADIR=/data":      "did you mean YARD_NODE_DATA_DIR?",
		"YARD_SERVER_TLS_CERT=a.pem":   "did you mean YARD_SERVER_TLS_CERT_FILE?",
		"YARD_SERVER_TLS=true":         "did you mean YARD_SERVER_",
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

// EdgeAddress returns an address that other hosts can reach.
func TestConfig_EdgeAddress(t *testing.T) {
	alone := func(host, advertise string) Config {
		var c Config
		c.Server.Host, c.Server.Advertise = host, advertise
		return c
	}
	member := func(host, advertise string) Config {
		c := alone(host, advertise)
		c.Node.Name = "n2"
		c.Cluster.Members = []Member{{Name: "n1", Route: "one:6222"}, {Name: "n2", Route: "two:6222"}}
		return c
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{alone("", ""), "127.0.0.1:4000"},
		{alone("localhost", ""), "localhost:4000"},
		{alone("10.0.0.1", "edge.example.org:443"), "edge.example.org:443"},
		{alone("0.0.0.0", ""), ""},
		{member("10.0.0.2", ""), "10.0.0.2:4000"},
		{member("0.0.0.0", ""), "two:4000"},
		{member("::", ""), "two:4000"},
		{member("::", "edge:1"), "edge:1"},
		{member("::1", ""), "[::1]:4000"},
	} {
		cfg := c.cfg.WithDefaults()
		if got := cfg.EdgeAddress("0.0.0.0:4000"); got != c.want {
			t.Errorf("host %q, advertise %q: %q, want %q", c.cfg.Server.Host, c.cfg.Server.Advertise, got, c.want)
		}
	}
}
