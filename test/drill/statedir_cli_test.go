package drill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// cliOutput is the output and exit code of a command.
type cliOutput struct {
	out, err string
	code     int
}

// runCLI runs the program. The environment names a cluster that does not exist, because
// commands on a directory need none.
func runCLI(t *testing.T, program string, args ...string) cliOutput {
	t.Helper()
	c := exec.Command(program, args...)
	c.Env = append(os.Environ(), "NATS_URL=nats://127.0.0.1:1")
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return cliOutput{out.String(), errs.String(), c.ProcessState.ExitCode()}
}

func directory(t *testing.T) (program, dir string) {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return program, filepath.Join(t.TempDir(), "state")
}

// TestStateDir_Output compares the whole output of a series of commands on one
// directory.
func TestStateDir_Output(t *testing.T) {
	program, dir := directory(t)
	at := "--state-dir=" + dir
	const fresh = "schema=1 authority=owner=none lease_id=none leased_until=none stale=false stale_reason=none " +
		"backlog=pending=0 notified=0 delivered=0 failed=0 replay=cursor=none pending_events=0 last_replayed_event_id=none " +
		"deferred_leader_notification=false readiness=blocked(authority lease not acquired)\n"
	for _, tt := range []struct {
		args []string
		want cliOutput
	}{
		{[]string{"snapshot", at}, cliOutput{"", "yardmaster: io error: " + dir + ": no such state directory; create it with 'yardmaster init " + dir + "'\n", 1}},
		{[]string{"init"}, cliOutput{"", "yardmaster: init requires a state directory path\n", 1}},
		{[]string{"init", dir}, cliOutput{"initialized state directory: " + dir + "\n", "", 0}},
		{[]string{"snapshot", at}, cliOutput{fresh, "", 0}},
		{[]string{"exec", at}, cliOutput{"", "yardmaster: exec requires a JSON command argument\n", 1}},
		{[]string{"exec", "{", at}, cliOutput{"", "yardmaster: invalid JSON: unexpected end of JSON input\n", 1}},
		{[]string{"exec", `{"command":"RenewAuthority","owner":"w1","lease_id":"l1","leased_until":"x"}`, at}, cliOutput{"", "yardmaster: authority error: no lease currently held\n", 1}},
		{
			[]string{"exec", `{"command":"AcquireAuthority","owner":"w1","lease_id":"l1","leased_until":"2026-03-19T02:00:00Z"}`, at},
			cliOutput{"{\n  \"event\": \"AuthorityAcquired\",\n  \"owner\": \"w1\",\n  \"lease_id\": \"l1\",\n  \"leased_until\": \"2026-03-19T02:00:00Z\"\n}\n", "", 0},
		},
		{[]string{"exec", `{"command":"AcquireAuthority","owner":"w2","lease_id":"l1","leased_until":"x"}`, at}, cliOutput{"", "yardmaster: authority error: lease already held by w1\n", 1}},
		{[]string{"exec", `{"command":"RenewAuthority","owner":"w2","lease_id":"l1","leased_until":"x"}`, at}, cliOutput{"", "yardmaster: authority error: owner mismatch: lease held by w1\n", 1}},
		{
			[]string{"exec", at, `{"command":"QueueDispatch","request_id":"req-1","target":"worker-2","metadata":{"k":"<a>"}}`},
			cliOutput{"{\n  \"event\": \"DispatchQueued\",\n  \"request_id\": \"req-1\",\n  \"target\": \"worker-2\",\n  \"metadata\": {\n    \"k\": \"<a>\"\n  }\n}\n", "", 0},
		},
		{[]string{"--state-dir", dir, "exec", `{"command":"MarkDelivered","request_id":"req-1"}`}, cliOutput{"", "yardmaster: dispatch error: invalid transition for req-1: pending -> delivered\n", 1}},
		{[]string{"exec", "--compact", "--state-dir", dir, `{"command":"MarkDelivered","request_id":"req-1"}`}, cliOutput{"", "yardmaster: dispatch error: invalid transition for req-1: pending -> delivered\n", 1}},
		{[]string{"exec", `{"command":"MarkDelivered","request_id":"req-9"}`, at}, cliOutput{"", "yardmaster: dispatch error: dispatch record not found: req-9\n", 1}},
		{[]string{"exec", `{"command":"MarkNotified","request_id":"req-1","channel":"tmux"}`, at, "--compact"}, cliOutput{"{\n  \"event\": \"DispatchNotified\",\n  \"request_id\": \"req-1\",\n  \"channel\": \"tmux\"\n}\n", "", 0}},
		{[]string{"exec", `{"command":"MarkDelivered","request_id":"req-1"}`, at, "--compact"}, cliOutput{"{\n  \"event\": \"DispatchDelivered\",\n  \"request_id\": \"req-1\"\n}\n", "", 0}},
		{[]string{"exec", `{"command":"RequestReplay"}`, at}, cliOutput{"{\n  \"event\": \"ReplayRequested\",\n  \"cursor\": null\n}\n", "", 0}},
		{[]string{"exec", `{"command":"RequestReplay","cursor":"cursor-1"}`, at}, cliOutput{"{\n  \"event\": \"ReplayRequested\",\n  \"cursor\": \"cursor-1\"\n}\n", "", 0}},
		{[]string{"exec", `{"command":"CaptureSnapshot"}`, at}, cliOutput{"{\n  \"event\": \"SnapshotCaptured\"\n}\n", "", 0}},
		{[]string{"snapshot", "--json", at}, cliOutput{`{
  "schema_version": 1,
  "authority": {
    "owner": "w1",
    "lease_id": "l1",
    "leased_until": "2026-03-19T02:00:00Z",
    "stale": false,
    "stale_reason": null
  },
  "backlog": {
    "pending": 0,
    "notified": 0,
    "delivered": 1,
    "failed": 0
  },
  "replay": {
    "cursor": "cursor-1",
    "pending_events": 0,
    "last_replayed_event_id": null,
    "deferred_leader_notification": false
  },
  "readiness": {
    "ready": true,
    "reasons": []
  }
}
`, "", 0}},
		{
			[]string{"exec", `{"command":"CreateMailboxMessage","message_id":"m","from_worker":"a","to_worker":"b","body":"c"}`, at},
			cliOutput{"{\n  \"event\": \"MailboxMessageCreated\",\n  \"message_id\": \"m\",\n  \"from_worker\": \"a\",\n  \"to_worker\": \"b\"\n}\n", "", 0},
		},
		{
			[]string{"exec", `{"command":"QueueDispatch","request_id":"req-2","target":"w"}`, "--state-dir=" + dir + "/missing"},
			cliOutput{"{\n  \"event\": \"DispatchQueued\",\n  \"request_id\": \"req-2\",\n  \"target\": \"w\",\n  \"metadata\": null\n}\n", "", 0},
		},
	} {
		if got := runCLI(t, program, tt.args...); got != tt.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", strings.Join(tt.args, " "), got, tt.want)
		}
	}
	if got := runCLI(t, program); got.code != 0 || got.out == "" {
		t.Errorf("no arguments: %+v", got)
	}
}

// TestStateDir_Client behaves like a typical client: it reads the schema once, runs
// commands, and reads the views as files.
func TestStateDir_Client(t *testing.T) {
	program, dir := directory(t)
	answer := func(v any, args ...string) {
		t.Helper()
		got := runCLI(t, program, args...)
		if got.code != 0 {
			t.Fatalf("%v: %+v", args, got)
		}
		if err := json.Unmarshal([]byte(got.out), v); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	view := func(v any, name string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var schema struct {
		Version          int `json:"schema_version"`
		Commands, Events []string
		Transport        string
	}
	answer(&schema, "schema", "--json")
	for _, name := range []string{"acquire-authority", "renew-authority", "queue-dispatch", "mark-notified", "mark-delivered", "mark-failed", "request-replay", "capture-snapshot"} {
		if !slices.Contains(schema.Commands, name) {
			t.Errorf("the schema has no %s", name)
		}
	}
	if schema.Version != 1 || len(schema.Events) != 17 || schema.Transport != "tmux" {
		t.Errorf("schema: %+v", schema)
	}
	if got := runCLI(t, program, "init", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, c := range []string{
		`{"command":"QueueDispatch","request_id":"r1","target":"w","metadata":{"n":12345678901234567890}}`,
		`{"command":"MarkFailed","request_id":"r1","reason":"gone"}`,
		`{"command":"QueueDispatch","request_id":"r2","target":"w"}`,
	} {
		var event struct{ Event, Reason string }
		answer(&event, "exec", c, "--state-dir="+dir, "--compact")
	}
	var list struct {
		Records []map[string]any `json:"records"`
	}
	view(&list, "dispatch.json")
	if len(list.Records) != 2 || len(list.Records[0]) != 9 || list.Records[0]["status"] != "failed" || list.Records[0]["reason"] != "gone" || list.Records[1]["metadata"] != nil {
		t.Errorf("dispatches: %v", list.Records)
	}
	var events []map[string]any
	view(&events, "events.json")
	if len(events) != 1 || events[0]["request_id"] != "r2" {
		t.Errorf("events: %v", events)
	}
	var told, shown map[string]any
	answer(&told, "snapshot", "--json", "--state-dir="+dir)
	view(&shown, "snapshot.json")
	if fmt.Sprint(told) != fmt.Sprint(shown) || len(told) != 5 {
		t.Errorf("snapshot %v, file %v", told, shown)
	}
	for name, field := range map[string]string{"authority.json": "owner", "backlog.json": "failed", "readiness.json": "reasons", "replay.json": "cursor", "mailbox.json": "records"} {
		var section map[string]any
		view(&section, name)
		if _, ok := section[field]; !ok {
			t.Errorf("%s has no %s", name, field)
		}
	}
}

// TestStateDir_Concurrent checks that the effects of fifty concurrent commands are all
// kept.
func TestStateDir_Concurrent(t *testing.T) {
	program, dir := directory(t)
	if got := runCLI(t, program, "init", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			got := runCLI(t, program, "exec", fmt.Sprintf(`{"command":"QueueDispatch","request_id":"r%d","target":"w"}`, i), "--state-dir="+dir, "--timeout=1m")
			if got.code != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	if got := runCLI(t, program, "snapshot", "--state-dir="+dir); !strings.Contains(got.out, "pending=50 ") {
		t.Errorf("%+v", got)
	}
}

// TestStateDir_Killed kills commands at random moments: the effects of acknowledged
// commands must be kept, and later commands must work.
func TestStateDir_Killed(t *testing.T) {
	program, dir := directory(t)
	if got := runCLI(t, program, "init", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	answered, killed := map[string]bool{}, 0
	for i := range 60 {
		id := fmt.Sprint("r", i)
		c := exec.Command(program, "exec", fmt.Sprintf(`{"command":"QueueDispatch","request_id":%q,"target":"w"}`, id), "--state-dir="+dir)
		var out bytes.Buffer
		c.Stdout = &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		death := time.AfterFunc(time.Duration(rand.IntN(30_000))*time.Microsecond, func() { _ = c.Process.Kill() })
		err := c.Wait()
		death.Stop()
		if err != nil {
			killed++
		}
		if strings.HasSuffix(out.String(), "}\n") {
			answered[id] = true
		}
		if got := runCLI(t, program, "snapshot", "--json", "--state-dir="+dir); got.code != 0 {
			t.Fatalf("after kill %d: %+v", killed, got)
		}
	}
	if got := runCLI(t, program, "exec", `{"command":"CaptureSnapshot"}`, "--state-dir="+dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	var list struct {
		Records []struct {
			RequestID string `json:"request_id"`
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "dispatch.json"))
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Records {
		delete(answered, r.RequestID)
	}
	t.Logf("%d of 60 killed, %d dispatches exist", killed, len(list.Records))
	if len(answered) > 0 {
		t.Errorf("acknowledged, but missing: %v", answered)
	}
	if killed == 0 {
		t.Error("no command was killed in time")
	}
}
