package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The shell gets names from the yard, files only where a path is expected, and nothing if no yard
// answers. The last line of a completion is its directive: :0 files, :4 no files.
func TestCompletion(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.queue.list": `{"queues":[{"name":"mail"},{"name":"maps"},{"name":"post"}]}`,
		"yard.api.v1.limit.list": `{"limits":[{"name":"smtp"}]}`, "yard.api.v1.cluster.members": `{"members":[{"name":"n1"},{"name":"n2"}]}`,
		"yard.api.v1.cron.list": `{"entries":[{"name":"nightly"}]}`,
	})
	t.Setenv("NATS_URL", f.url)
	for _, tt := range []struct {
		line []string
		want string
	}{
		{[]string{"queue", "show", "ma"}, "mail maps :4"},
		{[]string{"enqueue", ""}, "mail maps post :4"},
		{[]string{"enqueue", "mail", ""}, ":4"},
		{[]string{"job", "list", "--queue", "p"}, "post :4"},
		{[]string{"dlq", "list", "-q", "m"}, "mail maps :4"},
		{[]string{"limit", "show", ""}, "smtp :4"},
		{[]string{"cron", "pause", ""}, "nightly :4"},
		{[]string{"node", "drain", "n"}, "n1 n2 :4"},
		{[]string{"job", "show", ""}, ":4"},
		{[]string{"job", "find", ""}, ":4"},
		{[]string{"backup", "yard-"}, ":0"},
		{[]string{"node", "--config", ""}, ":0"},
		{[]string{"status", "--tlsca", ""}, ":0"},
		{[]string{"enqueue", "mail", "--priority", ""}, ":4"},
	} {
		got := runLine(t, "", append([]string{"__complete"}, tt.line...)...)
		if words := strings.Join(strings.Fields(got.out), " "); words != tt.want {
			t.Errorf("%q: %q, want %q", tt.line, words, tt.want)
		}
	}
	if got := runLine(t, "", "__complete", "-s", "nats://127.0.0.1:1", "queue", "show", ""); strings.TrimSpace(got.out) != ":4" {
		t.Errorf("without a yard: %+v", got)
	}
}

// Each shell gets a script that completes yardmaster.
func TestCompletion_Scripts(t *testing.T) {
	for _, shell := range []string{"bash", "fish", "powershell", "zsh"} {
		if got := runLine(t, "", "completion", shell); got.code != 0 || !strings.Contains(got.out, "__complete") {
			t.Errorf("%s: %+v", shell, got)
		}
	}
	if got := runLine(t, "", "completion", "tcsh"); got.code != 2 || !strings.Contains(got.err, "bash, fish, powershell, zsh") {
		t.Errorf("%+v", got)
	}
}

// A man page has the arguments, examples and flags of its verb.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	if got := runLine(t, "", "man", dir); got.code != 0 || got.err != "" {
		t.Fatalf("%+v", got)
	}
	page, err := os.ReadFile(filepath.Join(dir, "yardmaster-job-wait.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"job wait <job>", "exits with 5", "yardmaster job wait order-7", "--for"} {
		if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), want) {
			t.Errorf("%q is missing from\n%s", want, page)
		}
	}
}
