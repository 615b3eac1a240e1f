package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The remedy depends on the text of a refusal, not only on its code.
func TestExplainAPIError(t *testing.T) {
	const jobHint = "yardmaster job show"
	for _, tt := range []struct {
		code, text, hint string
	}{
		{"500", job.ErrNotFailed.Error(), "yardmaster job replay"},
		{"409", job.ErrNotActive.Error(), jobHint},
		{"404", fmt.Sprintf("cron entry %q: %v", "nosuch", ledger.ErrCronNotFound), "yardmaster cron list"},
		{"404", job.ErrJobNotFound.Error(), "yardmaster job list"},
		{"500", "disk is full", "the node's log"},
	} {
		got := explainAPIError(&api.Error{Code: tt.code, Text: tt.text}).Error()
		if !strings.HasPrefix(got, tt.text) || !strings.Contains(got, tt.hint) || strings.Count(got, "node's log") > 0 != (tt.hint == "the node's log") {
			t.Errorf("%s: %q", tt.text, got)
		}
	}
}

// The error of a node has exactly one remedy: its own or a general one.
func TestNodeError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("port is taken; choose another"), "port is taken; choose another"},
		{fmt.Errorf("listen: %w", syscall.EADDRINUSE), "listen: address already in use; another program listens there: stop it or choose another address"},
		{errors.New("disk is full"), "disk is full; correct that and start the node again"},
	} {
		got := ""
		if err := nodeProblem(tt.err); err != nil {
			got = (&app{}).asUserError(err).Error()
		}
		if got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

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
	for _, f := range nodeFlags { // the flags set the variables; Setenv restores them
		if f.variable != "" {
			t.Setenv(f.variable, "")
			os.Unsetenv(f.variable)
		}
	}
	for line, want := range map[string]string{
		"node --config " + config:     "unknown key node.nom (did you mean node.name?); see docs/reference/config.md for the keys\n",
		"runner --tcp-socket " + port: "address already in use; another program listens there: stop it or choose another port with --tcp-socket\n",
		"runner --tcp-socket nowhere": "; 'yardmaster runner --help' shows how it is used\n",
		"node --raft-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --edge-listen 127.0.0.1:0 --log-level error --data-dir " + t.TempDir() + " --nats-listen " + port: "address already in use\"; another program listens there: stop it or choose another address by nats.listen\n",
	} {
		got := runLine(t, "", strings.Fields(line)...)
		if got.code != 1 || !strings.HasSuffix(got.err, want) || strings.Count(got.err, "docs/reference/config.md") > 1 || strings.Contains(got.err, "is kept") {
			t.Errorf("%s: %d, %q", line, got.code, got.err)
		}
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
