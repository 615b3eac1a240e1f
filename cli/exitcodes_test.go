package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// lines are complete command lines, one for each verb, by the path of the verb. "DIR" stands for a
// directory, "FILE" for a file with an empty JSON object and "BACKUP" for a file that does not exist.
var lines = map[string]string{
	"backup": "BACKUP", "backup verify": "FILE",
	"cert ca": "--dir DIR", "cert client": "ann --dir DIR", "cert node": "n1 --dir DIR", "cert show": "FILE",
	"cluster add": "n4 --route 127.0.0.1:1 --raft 127.0.0.1:2", "cluster cancel": "", "cluster members": "", "cluster replace": "n1", "cluster rm": "n1", "cluster transfer": "",
	"completion": "bash",
	"cron add":   "nightly @daily mail send", "cron list": "", "cron pause": "nightly", "cron resume": "nightly",
	"cron rm": "nightly", "cron run": "nightly", "cron show": "nightly",
	"demo": "", "diff": "--from 1h",
	"dlq list": "", "dlq requeue": "1", "dlq rm": "1", "dlq show": "1", "dlq stats": "",
	"enqueue": "mail send", "events": "", "exec": `{"command":"CaptureSnapshot"}`, "health": "", "init": "DIR",
	"job cancel": "x", "job errors": "x", "job explain": "x", "job find": "a b c", "job history": "x", "job list": "", "job logs": "x", "job params": "x",
	"job replay": "x", "job result": "x", "job retry": "x", "job rm": "x", "job set": "x --priority 9", "job show": "x", "job wait": "x",
	"limit list": "", "limit pause": "stripe", "limit resume": "stripe", "limit rm": "stripe", "limit set": "stripe --total 5", "limit show": "stripe",
	"man": "DIR", "node": "", "node drain": "n1", "node release-ballast": "", "node resume": "n1",
	"operation cancel": "7", "operation list": "", "operation pause": "7", "operation resume": "7", "operation set": "7 --rate 5", "operation show": "7",
	"queue add": "mail", "queue clear": "mail --state failed", "queue explain": "mail", "queue list": "", "queue pause": "mail", "queue resume": "mail",
	"queue rm": "mail", "queue set": "mail --concurrency 5", "queue show": "mail", "queue weight": "mail acme=3",
	"restore": "FILE", "retention set": "failed.age=1d", "retention show": "", "runner": "",
	"schema": "", "schema list": "", "schema rm": "mail send", "schema set": "mail send --file FILE", "schema show": "mail send",
	"snapshot": "", "state": "", "status": "", "top": "--once", "version": "", "workers": "",
	"worker": "--queue mail", "worker drain": "w1", "worker resume": "w1",
}

// needNoYard are the verbs that succeed or fail without a request over NATS.
var needNoYard = map[string]bool{
	"backup verify": true, "cert ca": true, "cert client": true, "cert node": true, "cert show": true, "completion": true, "demo": true,
	"init": true, "man": true, "node": true, "node release-ballast": true, "restore": true, "runner": true, "schema": true, "version": true, "worker": true,
}

// takeMore are the verbs that accept any number of arguments, with the reason.
var takeMore = map[string]string{
	"job cancel": "jobs", "job find": "the words of a query", "job list": "queues, as in an earlier release", "job replay": "jobs",
	"job retry": "jobs", "job rm": "jobs", "dlq requeue": "letters", "dlq rm": "letters", "cert show": "files", "queue weight": "keys",
	"retention set": "settings", "job set": "jobs",
}

// verbLine returns the words of the line of a verb.
func verbLine(t *testing.T, verb string) []string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	paths := strings.NewReplacer("DIR", dir, "FILE", file, "BACKUP", filepath.Join(dir, "new.tar"))
	return strings.Fields(verb + " " + paths.Replace(lines[verb]))
}

// verbPaths returns the paths of all visible verbs that do more than to show their help.
func verbPaths(t *testing.T) (paths []string) {
	t.Helper()
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden {
				continue
			}
			path := strings.TrimPrefix(sub.CommandPath(), "yardmaster ")
			if _, known := lines[path]; known {
				paths = append(paths, path)
			} else if !sub.HasSubCommands() {
				t.Errorf("the test has no line for %s", path)
			}
			visit(sub)
		}
	}
	visit(testRoot())
	if len(paths) != len(lines) {
		t.Errorf("the test has lines for %d verbs, but there are %d", len(lines), len(paths))
	}
	return paths
}

// Every verb exits with 2 if it gets a flag that it does not have, or too many arguments.
func TestExitCodes_Usage(t *testing.T) {
	for _, verb := range verbPaths(t) {
		invalid := [][]string{append(verbLine(t, verb), "--no-such-flag")}
		if _, more := takeMore[verb]; !more {
			invalid = append(invalid, append(verbLine(t, verb), "more", "and", "more"))
		}
		for _, line := range invalid {
			if got := runLine(t, "", append(line, "--server", "nats://127.0.0.1:1")...); got.code != 2 || got.out != "" || !strings.Contains(got.err, " --help' ") {
				t.Errorf("%q: code %d, %q, %q; want 2", line, got.code, got.out, got.err)
			}
		}
	}
}

// Every verb that talks to a yard exits with 4 if no yard can be reached.
func TestExitCodes_Unreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "nats://" + ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	for _, verb := range verbPaths(t) {
		if needNoYard[verb] {
			continue
		}
		line := append(verbLine(t, verb), "--server", dead)
		if got := runLine(t, "", line...); got.code != 4 || got.out != "" || !strings.Contains(got.err, "no yard can be reached at "+dead) {
			t.Errorf("%q: code %d, %q, %q; want 4", line, got.code, got.out, got.err)
		}
	}
}

// testExitCodes checks the exit codes for things that do not exist, for a job that fails and for waits
// that are too short, against a real node.
func testExitCodes(t *testing.T, f *fakeAPI) {
	const job = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"
	codes := map[int][]string{
		1: {"enqueue mail fail --params {\"final\":true} --wait"},
		3: {
			"job show " + job, "job wait " + job, "job cancel " + job, "job retry " + job, "job replay " + job, "job rm " + job, "job explain " + job,
			"job errors " + job, "job history " + job, "job logs " + job, "job params " + job, "job result " + job, "job set " + job + " --priority 9",
			"job show mail:nothing", "job show nothing --queue mail",
			"queue show nothing", "queue explain nothing", "queue pause nothing", "queue resume nothing", "queue rm nothing",
			"queue set nothing --concurrency 5", "queue weight nothing acme=3", "queue clear nothing --state failed", "retention show nothing",
			"cron show nothing", "cron pause nothing", "cron resume nothing", "cron rm nothing", "cron run nothing",
			"dlq show 99999", "dlq rm 99999", "dlq requeue 99999", "dlq show " + job,
			"limit show nothing", "limit pause nothing", "limit resume nothing", "limit rm nothing",
			"operation show 99999", "operation pause 99999", "operation resume 99999", "operation cancel 99999", "operation set 99999 --rate 5",
			"schema show mail nothing", "schema rm mail nothing",
			"node drain nothing", "node resume nothing",
			"worker drain nothing", "worker resume nothing",
		},
		5: {"enqueue mail echo --in 1h --wait --for 50ms", "enqueue mail echo --id slow --in 1h --wait --for 50ms", "job wait mail:slow --for 50ms"},
	}
	for code, all := range codes {
		for _, line := range all {
			if got := f.run(t, strings.Fields(line)...); got.code != code || code == 3 && !strings.Contains(got.err, "; ") {
				t.Errorf("%s: code %d, %q, %q; want %d", line, got.code, got.out, got.err, code)
			}
		}
	}
}
