package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Errors with real causes state their remedy once.
func TestUserErrors_NoRepetition(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	config := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(config, []byte("[node]\nnom = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unsetNodeVariables(t)
	for line, want := range map[string]string{
		"node --config " + config:     "unknown key node.nom (did you mean node.name?); see docs/reference/config.md for the keys\n",
		"runner --tcp-socket " + port: "address already in use; another program listens there: stop it or choose another port with --tcp-socket\n",
		"runner --tcp-socket nowhere": "; 'yardmaster runner --help' shows how it is used\n",
		"node --raft-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --edge-listen 127.0.0.1:0 --log-level error --data-dir " + t.TempDir() + " --nats-listen " + port: "address already in use; another program listens there: stop it or choose another address by nats.listen\n",
	} {
		got := runLine(t, "", strings.Fields(line)...)
		if got.code != 1 || !strings.HasSuffix(got.err, want) || strings.Count(got.err, "docs/reference/config.md") > 1 || strings.Contains(got.err, "is kept") {
			t.Errorf("%s: %d, %q", line, got.code, got.err)
		}
	}
}

// Joined errors are shown on one line.
func TestUserErrors_OneLine(t *testing.T) {
	config := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(config, []byte("[nats.tls]\ncert_file = \"a.pem\"\n[cluster.tls]\ncert_file = \"b.pem\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unsetNodeVariables(t)
	got := runLine(t, "", "node", "--config", config)
	if got.code != 1 || strings.Count(got.err, "\n") != 1 || !strings.Contains(got.err, "nats.tls") || !strings.Contains(got.err, "; cluster.tls") {
		t.Errorf("%d, %q", got.code, got.err)
	}
}

// A misspelt variable is an error.
func TestNode_Environment(t *testing.T) {
	t.Setenv("YARD_NODE_NAM", "n1")
	t.Setenv("YARD_NODE_DATA_DIR", t.TempDir())
	got := runLine(t, "", "node")
	if got.code != 1 || !strings.Contains(got.err, "YARD_NODE_NAM is not a key of the configuration; did you mean YARD_NODE_NAME?") {
		t.Errorf("%+v", got)
	}
}
