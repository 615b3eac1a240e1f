package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const statusJSON = `{"node":"n2","version":"1.2.3","time_zones":"2025c-9c1d7f3a","mode":"cluster","uptime_seconds":3725,"http":"127.0.0.1:4282",
"members":[{"name":"n1","address":"10.0.0.1:7000","voter":true,"leader":true,"state":"up"},
{"name":"n2","address":"10.0.0.2:7000","voter":true,"leader":false,"state":"up"},
{"name":"n3","address":"10.0.0.3:7000","voter":true,"leader":false,"state":"down"}],
"raft":{"state":"follower","leader":"n1","term":4,"applied":118,"last":120,"contact_ms":12},
"authority":{"owner":"n1","lease_id":"n1-4","epoch":97,"leased_until":"2026-01-02T03:04:05.678Z","expired":false},
"lanes":[{"lane":0,"stream":"YARD_JOBS_0","leader":"n1","first":1,"last":40,"cursor":38,"lag":2},
{"lane":1,"stream":"YARD_JOBS_1","leader":"","first":1,"last":7,"cursor":7,"lag":0}],
"backlog":{"pending":3,"notified":2,"delivered":1000,"failed":4},"held_keys":17,"outbox_bytes":2048,"stale_outcomes":1,
"nodes":[{"name":"n1","beat_ago_ms":310,"offers":2,"room":16,"running":2},{"name":"n2","beat_ago_ms":-1}],
"pools":[{"runner":"demo","managed":true,"size":2,"up":1,"slots":4,"in_flight":1,"reason":"exit status 3"},
{"runner":"far","managed":false,"size":1,"up":1,"slots":2,"in_flight":0}],
"workers":{"connections":3,"registered":2,"subscriptions":2},
"readiness":{"ready":false,"accepting":true,"dispatching":false,"reasons":["runner demo: exit status 3","node n3 is silent"]}}`

const jobJSON = `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","jid":"mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10",
"queue":"mail","state":"failed","function":"send","params":{"to":"ann","n":12345678901234567890},
"created_at":"2026-01-02T03:04:05Z","run_at":"2026-01-02T03:04:05Z","started_at":"2026-01-02T03:04:05.25Z",
"ended_at":"2026-01-02T03:04:06Z","priority":5,"attempts":2,"max_attempts":2,"dispatches":3,"losses":1,"timeout_ms":1500,
"node":"n1","worker":"overhop/w1","reason":"no route","error":{"message":"no route","type":"smtp"},
"trace_context":{"traceparent":"00-aa-bb-01"},"lane":1,"seq":42}`

const queueJSON = `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a11","name":"mail","state":"paused","concurrency_limit":10,
"allow_job_overrides":true,"counts":{"waiting":12,"delayed":3,"active":1,"completed":400,"failed":2}}`

const executorsJSON = `[{"node":"n1","workers":{"count":2,"stalled":1,"credits":0},"pool":{"runner":"demo","size":1,"up":0,"slots":0,"in_flight":0,
"crash_looping":1,"reason":"exit status 1"}},{"node":"n2","error":"silence"},{"node":"n3"}]`

const holdersJSON = `[{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a12","queue":"mail","node":"n1","channel":"overhop/w1","since":"2026-01-02T03:04:05.5Z",
"attempt":2,"deadline":"2026-01-02T03:09:05.5Z","stopping":true}]`

const explainJSON = `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","queue":"mail","state":"waiting",
"verdict":"It waits: queue mail runs as many jobs at once as its limit allows: 3.","next_at":null,
"reasons":[{"code":"queue_limit","text":"queue mail runs as many jobs at once as its limit allows: 3",
"data":{"queue":"mail","limit":3,"active":3,"holders":` + holdersJSON + `,"more_holders":2}},
{"code":"workers_busy","text":"no worker has credit for queue mail","data":{"nodes":` + executorsJSON + `}},
{"code":"ahead_in_line","text":"jobs of its queue for the same executors that start before it: 7","data":{"ahead":7}}],
"job":` + jobJSON + `,
"history":{"events":[{"event":"DispatchQueued","request_id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10#1","target":"mail","seq":7,"at":"2026-01-02T03:04:05.250Z"},
{"event":"worker.assigned","worker":"overhop/w1","task_id":"mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","seq":8,"at":"2026-01-02T03:04:05.300Z"},
{"event":"DispatchFailed","request_id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10#1","reason":"no\nroute","seq":9,"at":"2026-01-02T03:04:06.000Z"}],
"complete":false,"note":"the last events are not published yet, or no longer kept"},
"observed":{"node":"n2","at":"2026-01-02T03:04:07Z","index":17,"ledger_at":"2026-01-02T03:04:06.5Z","authority":"n1","certain":false}}`

const queueExplainJSON = `{"queue":` + queueJSON + `,"verdict":"Queue mail has 12 jobs waiting: queue mail is paused.",
"reasons":[{"code":"queue_paused","text":"queue mail is paused","data":{"queue":"mail"}}],
"oldest":{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","accepted_at":"2026-01-02T03:04:05Z","age_ms":61500},
"next_due":{"id":null,"at":"2026-01-02T04:00:00Z"},
"heads":[{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","function":"send","count":12,"reasons":[{"code":"next_in_line","text":"no job starts before it"}]}],
"active":` + holdersJSON + `,"more_active":0,"workers":"mail","runner":"demo","nodes":` + executorsJSON + `,
"observed":{"node":"n2","at":"2026-01-02T03:04:07Z","index":17,"ledger_at":"2026-01-02T03:04:06.5Z","authority":"n1","certain":true}}`

func fakeAllEndpoints(t *testing.T) *fakeAPI {
	return startFakeAPI(t, cannedReplies{
		"yard.status":                  statusJSON,
		"yard.snapshot":                snapshotJSON,
		"yard.exec.*":                  `{"event":"DispatchQueued","request_id":"r1","target":"anna","metadata":null}`,
		"yard.enqueue.*":               `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","queue":"mail","duplicate":false}`,
		"yard.api.v1.job.show":         jobJSON,
		"yard.api.v1.job.explain":      explainJSON,
		"yard.api.v1.queue.explain":    queueExplainJSON,
		"yard.api.v1.job.list":         `{"jobs":[` + jobJSON + `],"totals":{}}`,
		"yard.api.v1.job.wait":         jobJSON,
		"yard.api.v1.job.cancel":       `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","state":"cancelled"}`,
		"yard.api.v1.job.retry":        &api.Error{Code: api.CodeConflict, Text: "job has not failed, so there is nothing to retry"},
		"yard.api.v1.cluster.transfer": &api.Error{Code: api.CodeNotFound, Text: "there is no member \"n9\" to take the authority"},
		"yard.api.v1.job.result":       &api.Error{Code: api.CodeNotFound, Text: "job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 is failed and has no result; 'yardmaster job show' shows how it ended"},
		"yard.api.v1.job.remove":       &api.Error{Code: api.CodeNotFound, Text: "job does not exist"},
		"yard.api.v1.queue.list":       `{"queues":[` + queueJSON + `]}`,
		"yard.api.v1.queue.show":       queueJSON,
		"yard.api.v1.queue.add":        queueJSON,
		"yard.api.v1.queue.set":        &api.Error{Code: api.CodeNotFound, Text: `queue "nosuch": queue does not exist`},
		"yard.api.v1.queue.pause":      queueJSON,
		"yard.api.v1.queue.resume":     &api.Error{Code: api.CodeUnavailable, Text: "yard is unavailable: no authority", RetryAfter: time.Second},
		"yard.api.v1.queue.remove":     `{"name":"mail","removed":true}`,
	})
}

const snapshotJSON = `{"schema_version":1,"authority":{"owner":"n1","lease_id":"n1-4","leased_until":"2026-01-02T03:04:05.678Z",
"stale":false,"stale_reason":null},"backlog":{"pending":1,"notified":2,"delivered":3,"failed":4},
"replay":{"cursor":"0@12,1@3","pending_events":0,"last_replayed_event_id":null,"deferred_leader_notification":false},
"readiness":{"ready":false,"reasons":["a","b"]}}`

// The output of every verb with a table matches its golden file.
func TestTables(t *testing.T) {
	f := fakeAllEndpoints(t)
	for _, tt := range []struct {
		golden string
		line   string
		code   int
	}{
		{"status.txt", "status", 0},
		{"job-show.txt", "job show 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10", 0},
		{"job-list.txt", "job ls -q mail --state failed", 0},
		{"job-wait.txt", "job wait order-7 -q mail", 1},
		{"job-cancel.txt", "job cancel order-7 -q mail", 0},
		{"job-explain.txt", "job explain order-7 -q mail", 0},
		{"queue-explain.txt", "queue explain mail", 0},
		{"queue-list.txt", "queue ls", 0},
		{"snapshot.txt", "snapshot", 0},
		{"schema.txt", "schema", 0},
		{"schema.json", "schema --json", 0},
		{"enqueue.txt", "enqueue mail send", 0},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if got.code != tt.code || got.err != withIndexLine(tt.line) {
			t.Errorf("%s: code %d, %q", tt.line, got.code, got.err)
		}
		golden(t, tt.golden, got.out)
	}
}

// With --json the reply is shown unchanged, including the digits of large numbers.
func TestJSON(t *testing.T) {
	f := fakeAllEndpoints(t)
	for line, want := range map[string]string{
		"status --json":                          statusJSON,
		"snapshot -j":                            snapshotJSON,
		"job show x --json":                      jobJSON,
		"queue show mail --json":                 queueJSON,
		"enqueue mail send --json":               `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","queue":"mail","duplicate":false}`,
		"exec {\"command\":\"CaptureSnapshot\"}": `{"event":"DispatchQueued","request_id":"r1","target":"anna","metadata":null}`,
	} {
		got := f.run(t, strings.Fields(line)...)
		if got.code != 0 || got.err != withIndexLine(line) {
			t.Errorf("%s: code %d, %q", line, got.code, got.err)
			continue
		}
		sameJSON(t, got.out, want)
	}
	if got := f.run(t, "job", "show", "x", "--json"); !strings.Contains(got.out, "12345678901234567890") {
		t.Errorf("a large number lost digits: %s", got.out)
	}
}

// withIndexLine returns the expected standard error of a command line: for a
// snapshot, the index of the ledger entry.
func withIndexLine(line string) string {
	if strings.HasPrefix(line, "snapshot") {
		return "index=17\n"
	}
	return ""
}

// Refusals of the contract are shown unchanged, because programs compare them.
func TestExec_Errors(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.exec.*": &api.Error{Code: api.CodeConflict, Text: "dispatch error: invalid transition for a; b: pending -> delivered"},
	})
	for _, tt := range []struct{ line, want string }{
		{"exec", "exec requires a JSON command argument"},
		{"exec {", "invalid JSON: unexpected end of JSON input"},
		{"exec {}", "invalid JSON: missing field `command`"},
		{`exec {"command":"MarkDelivered","request_id":"r1"}`, "dispatch error: invalid transition for a; b: pending -> delivered"},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if want := (cmdResult{1, "", "yardmaster: " + tt.want + "\n"}); got != want {
			t.Errorf("%s: %+v, want %+v", tt.line, got, want)
		}
	}
}

// Each command line sends the expected request: last token of the subject, body.
func TestRequests(t *testing.T) {
	f := fakeAllEndpoints(t)
	file := filepath.Join(t.TempDir(), "params.json")
	if err := os.WriteFile(file, []byte(` {"n": 9007199254740993} `), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ line, in, want string }{
		{"enqueue mail send --id k1 --at 2026-01-02T03:04:05Z --priority 9 --max-attempts 3 --timeout 2s --retry-interval 1500ms", "",
			`mail {"id":"k1","function":"send","run_at":"2026-01-02T03:04:05Z","priority":9,"max_attempts":3,"timeout_ms":2000,"retry_interval_ms":1500}`},
		{"enqueue mail send --unique-key u --unique-ttl 1h --rate-limit-key r --rate-limit 5s", "",
			`mail {"function":"send","unique_key":"u","unique_ttl_ms":3600000,"rate_limit_key":"r","rate_limit_ms":5000}`},
		{"enqueue mail send --debounce-key d --debounce 1500ms", "", `mail {"function":"send","debounce_key":"d","debounce_ms":1500}`},
		{"enqueue mail send --in 90s --result-ttl 1h --trace a=b=c --trace tracestate=x=1,y=2", "",
			`mail {"function":"send","delay_ms":90000,"result_ttl_ms":3600000,"trace_context":{"a":"b=c","tracestate":"x=1,y=2"}}`},
		{"enqueue mail --params @" + file, "", `mail {"params":{"n":9007199254740993}}`},
		{"enqueue mail --params -", `{"html":"<a&b>"}`, `mail {"params":{"html":"<a&b>"}}`},
		{"enqueue mail demo#echo --params -", `{"a":[]}`, `mail {"function":"demo#echo","params":{"a":[]}}`},
		{"enqueue mail --payload-file -", "\xc0", `mail {"payload_msgpack":"wA=="}`},
		{"job show k1 --queue mail", "", `show {"id":"k1","queue":"mail"}`},
		{"job list --limit 1", "", `list {"queues":[],"states":null,"function":"","order":"","limit":1,"after":"","brief":false}`},
		{"job list --queue mail,post --state failed,active --state delayed --function send --oldest --limit 1 --after xyz", "",
			`list {"queues":["mail","post"],"states":["failed","active","delayed"],"function":"send","order":"oldest","limit":1,"after":"xyz","brief":false}`},
		{"queue add mail --concurrency 10", "", `add {"concurrency_limit":10,"name":"mail"}`},
		{"queue rm mail", "", `remove {"name":"mail"}`},
		{"queue pause mail", "", `pause {"name":"mail"}`},
	} {
		got := f.runIn(t, tt.in, strings.Fields(tt.line)...)
		if got.code != 0 {
			t.Errorf("%s: code %d, %q", tt.line, got.code, got.err)
		}
		if diff := cmp.Diff([]string{tt.want}, f.requests()); diff != "" {
			t.Errorf("%s (-want +asked):\n%s", tt.line, diff)
		}
	}
}

// A refusal is shown as one line with a remedy, and each kind of refusal has its exit code.
func TestAPIErrors(t *testing.T) {
	f := fakeAllEndpoints(t)
	for _, tt := range []struct {
		line string
		code int
		want string
	}{
		{"job retry x", 1, "job x: job has not failed, so there is nothing to retry; 'yardmaster job show' shows its state, and 'yardmaster job replay' runs it again as a new job"},
		{"job rm x", 3, "job x: job does not exist; 'yardmaster queue list' and 'yardmaster job list' show what exists"},
		{"queue set nosuch --concurrency 1", 3, "queue \"nosuch\": queue does not exist; 'yardmaster queue add' creates one, and 'yardmaster queue list' shows what exists"},
		{"job result mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10", 3, "job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 is failed and has no result; 'yardmaster job show' shows how it ended"},
		{"cluster transfer --to n9", 3, "there is no member \"n9\" to take the authority; 'yardmaster cluster members' lists them"},
		{"queue resume mail", 4, "yard is unavailable: no authority; 'yardmaster status' shows why; try again in 1s"},
		{"health", 4, "node n2 is not ready: runner demo: exit status 3; and node n3 is silent; 'yardmaster status' shows more"},
		{"node drain n9", 3, "there is no member n9; 'yardmaster status' lists the members"},
		{"node resume n9", 3, "there is no member n9; 'yardmaster status' lists the members"},
		{"events", 4, "the NATS server at " + f.url + " is not a yardmaster node, or the node is still starting; try again, or name a node with --server"},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if got.code != tt.code || got.err != "yardmaster: "+tt.want+"\n" || got.out != "" {
			t.Errorf("%s: code %d, %q, %q", tt.line, got.code, got.err, got.out)
		}
	}
	if got := f.run(t, "health", "--for", "accepting"); got.code != 0 || got.out != "accepting\n" {
		t.Errorf("health --for accepting: %+v", got)
	}
	if got := f.run(t, "health", "--json"); got.code != 4 || got.err != "" || !strings.Contains(got.out, "silent") {
		t.Errorf("health --json: %+v", got)
	}
}

// A node that accepts a connection but does not answer in time is a timeout over HTTP, too.
func TestHealth_Timeout(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	got := runLine(t, "", "health", "--url", "http://"+silent.Addr().String(), "--timeout", "50ms")
	if got.code != 5 || !strings.Contains(got.err, "no node replied over HTTP within 50ms; ") {
		t.Errorf("%+v", got)
	}
}

// An invalid command line fails with code 2 before any request.
func TestUsage(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"statuss", `yardmaster has no verb "statuss"; did you mean "status"?`},
		{"job shwo x", `yardmaster job has no verb "shwo"; did you mean "show"?`},
		{"stauts", `yardmaster has no verb "stauts"; did you mean "status"?`},
		{"job shw x", `yardmaster job has no verb "shw"; did you mean "show"?`},
		{"job cancel --query id:* --for 1s", "--for needs --wait"},
		{"job cancel x --for 1s", "--for is for --query"},
		{"status now", `"now" is one argument too many; 'yardmaster status --help' shows how it is used`},
		{"enqueue", "queue is missing; 'yardmaster enqueue --help' shows how it is used"},
		{"enqueue mail a b", `"b" is one argument too many`},
		{"restore a.tar b.tar", `"b.tar" is one argument too many`},
		{"enqueue mail", "job names nothing to do"},
		{"enqueue _system x", `queue name "_system"`},
		{"enqueue mail x --params {", "--params is not JSON"},
		{"enqueue mail x --params [1]", "--params must be a JSON object"},
		{"enqueue mail x --params {} --payload-file f", "--params and --payload-file exclude each other"},
		{"enqueue mail x --in -1s", "--in is -1s: must be 0 to 3650d"},
		{"enqueue mail x --in 3651d", "--in is 3651d: must be 0 to 3650d"},
		{"enqueue mail x --in 99999999d", `"99999999d" is too long; the longest duration is 3650d`},
		{"enqueue mail x --in 300", `"300" has no unit; write it like 30s, 5m, 1h30m or 1d`},
		{"enqueue mail x --in 1s --at 2026-01-02T03:04:05Z", "--in and --at exclude each other"},
		{"enqueue mail x --trace a", `--trace is "a": must be name=value`},
		{"enqueue mail x --result-ttl -1s", "result_ttl_ms is -1000; must be 0 to 315360000000"},
		{"enqueue mail x --priority 10", "priority is 10; must be 0 to 9"},
		{"enqueue mail x --in 1s --at 2026-01-02T03:04:05Z", "--in and --at exclude each other"},
		{"enqueue mail x --at tomorrow", `--at is "tomorrow"`},
		{"enqueue mail x --id " + strings.Repeat("k", 129), "idempotency key is longer than 128 bytes"},
		{"enqueue mail x --id=", "--id is empty: give a key, or omit it"},
		{"cron run nightly --id=", "--id is empty"},
		{"job replay x --id=", "--id is empty"},
		{"enqueue mail x --unique-ttl 1h", "--unique-ttl requires --unique-key"},
		{"enqueue mail x --unique-key=", "unique_key has 0 bytes; must have 1 to 128"},
		{"enqueue mail x --unique-until end", "--unique-until requires --unique-key"},
		{"enqueue mail x --unique-key k --unique-until end --unique-ttl 1h", "--unique-until and --unique-ttl exclude each other"},
		{"enqueue mail x --unique-key k --unique-until never", "unique_until is \"never\"; must be start or end"},
		{"enqueue mail x --unique-key k --unique-ttl 400d", "--unique-ttl is 400d; must be 1ms to 365d"},
		{"enqueue mail x --unique-key k --unique-ttl 0s", "--unique-ttl is 0s; must be 1ms to 365d"},
		{"enqueue mail x --rate-limit-key k", "--rate-limit-key requires --rate-limit"},
		{"enqueue mail x --debounce 1s", "--debounce requires --debounce-key"},
		{"enqueue mail x --rate-limit-key k --rate-limit 1s --debounce-key k --debounce 1s", "exclude each other"},
		{"enqueue mail x --debounce-key k --debounce 1s --in 5s", "--debounce-key excludes --in and --at"},
		{"enqueue mail x --wat", "unknown flag: --wat"},
		{"enqueue mail x --for 2s", "--for requires --wait"},
		{"enqueue mail x --wait --for -2s", "--for is -2s: must be more than 0"},
		{"job wait x --for 0s", "--for is 0s: must be more than 0"},
		{"job show", "job is missing"},
		{"job cancel", "no jobs are named"},
		{"job list -q mail --state failed,tired", `--state is "tired": must be some of active, waiting, delayed, failed, cancelled, expired, completed`},
		{"job list -q mail --limit 0", "--limit must be at least 1"},
		{"job list -q mail --limit many", `invalid argument "many" for "--limit" flag: must be a whole number; 'yard`},
		{"job list -q mail --limit 99999999999999999999", `flag: is out of range; 'yard`},
		{"queue set mail --retry-on-timeout=maybe", `flag: must be true or false; 'yard`},
		{"queue set mail", "there is nothing to change: give a setting, such as --concurrency"},
		{"queue set mail --backoff soon", `--backoff is "soon": must be 1ms to 3650d, such as 10s, or none`},
		{"queue set mail --jitter 101", `--jitter is "101": must be 0 to 100, or none`},
		{"queue set mail --retry-on a,", `--retry-on is "a,": must be types or codes of errors, joined by commas`},
		{"queue set mail --function send", "--function needs a retry setting, such as --backoff"},
		{"queue set mail --retry all", `--retry is "all": must be none`},
		{"queue set mail --retry none --jitter 1", "--retry none removes the settings of all functions"},
		{"queue add mail --function send --attempts 0", `--attempts is "0": must be 1 to 1000, or none`},
		{"queue add a.b", `queue name "a.b"`},
		{"retention set age=1d", `retention setting "age"; must be one of finished.age, finished.count, failed.age, `},
		{"retention set finished.age=99999999d", `finished.age: "99999999d" is too long; the longest duration is 3650d`},
		{"retention set finished.age=-1d", "finished.age is -1d: must be positive, or default"},
		{"retention set failed.count=0", "failed.count is 0: must be positive, or default"},
		{"retention set finished.count=few", `finished.count is "few": must be a number, or default`},
		{"retention set finished.bytes=1GiB", "finished.bytes cannot be set: records of finished jobs are about equally large; use finished.count"},
		{"retention set events.bytes=1GB", `events.bytes is "1GB": must be a number of bytes, such as 1073741824 or 1GiB, or default`},
		{"retention set events.bytes=1KiB", "events.bytes is 1 KiB; must be 4 MiB to 1024 TiB"},
		{"retention set events.bytes=-1GiB", "events.bytes is -1GiB: must be positive, or default"},
		{"queue set mail --retention age=1d", `retention setting "age"; must be one of finished.age, finished.count, failed.age, failed.count, results.age; `},
		{"queue set mail --retention events.count=1", "events.count cannot be set: "},
		{"queue set mail --retention events.bytes=1GiB", "events.bytes cannot be set: "},
		{"queue set mail --retention finished.age=1s", "finished.age is 1s; must be 1m to 3650d"},
		{"queue add mail --concurrency 0", `--concurrency is "0": must be 1 to 4294967295, or none`},
		{"queue set mail --key customer", `--key is "customer": key path "customer" must be params. and the names of fields`},
		{"queue set mail --limit stripe --limit none", "--limit none excludes other values of --limit"},
		{"queue weight mail acme", `"acme" names no weight: write key=number, or key=none`},
		{"queue weight mail acme=0", `the weight of "acme" is "0": must be 1 to 1000, or none`},
		{"limit set stripe --rate 5", `--rate is "5": must be a number of starts and a time`},
		{"limit set stripe --total -1", `--total is "-1": must be 1 to 4294967295, or none`},
		{"events --type bang", `--type is "bang": must be one of authority-acquired`},
		{"health --for tea", `--for is "tea"`},
		{"health --url localhost:4280", `--url is "localhost:4280": must begin with http:// or https://`},
		{"health --url 127.0.0.1:4280", "must begin with http:// or https://"},
		{"worker", "--queue is not given"},
		{"worker --queue mail --credits 0", "--credits is 0"},
		{"worker --queue mail --addr nonsense", `--addr is "nonsense": must be host:port`},
		{"worker --queue mail --queue _b", `--queue: queue name "_b"`},
		{"worker --queue mail -s 10.0.0.1:9876", "name the edges with --addr"},
		{"node --edge-listen 9876", `--edge-listen is "9876": must be host:port`},
	} {
		got := runLine(t, "", strings.Fields(tt.line)...)
		if got.code != 2 || !strings.HasPrefix(got.err, "yardmaster: ") || !strings.Contains(got.err, tt.want) ||
			strings.Count(got.err, "\n") != 1 || !strings.Contains(got.err, "; ") || got.out != "" {
			t.Errorf("%s: code %d, %q, %q; want %q", tt.line, got.code, got.err, got.out, tt.want)
		}
	}
}

// An empty argument, as of an unset variable of a shell, is refused before any request.
func TestUsage_EmptyArgument(t *testing.T) {
	for _, tt := range []struct {
		verb string
		args []string
		name string // of the empty argument
	}{
		{"job show", []string{""}, "job"},
		{"job cancel", []string{"x", ""}, "job"},
		{"queue show", []string{""}, "queue"},
		{"retention show", []string{""}, "queue"},
		{"enqueue", []string{"mail", ""}, "function"},
		{"dlq show", []string{""}, "letter"},
	} {
		want := fmt.Sprintf("yardmaster: %s is empty; 'yardmaster %s --help' shows how it is used\n", tt.name, tt.verb)
		if got := runLine(t, "", append(strings.Fields(tt.verb), tt.args...)...); got.code != 2 || got.err != want {
			t.Errorf("%s %q: code %d, %q; want %q", tt.verb, tt.args, got.code, got.err, want)
		}
	}
}

// Errors that depend on files or on the network fail with code 1.
func TestFailures(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(config, []byte("[node]\nnom = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line string
		code int
		want string
	}{
		{"status -s nats://" + closed, 4, "no yard can be reached at nats://" + closed},
		{"enqueue mail x --params @/nowhere.json", 1, "open /nowhere.json: no such file or directory; name a file"},
		{"node --config " + config, 1, "node.nom"},
		{"node --config /nowhere.toml", 1, "/nowhere.toml"},
		{"worker --queue mail --witness /nowhere/w", 1, "open witness file"},
	} {
		got := runLine(t, "", strings.Fields(tt.line)...)
		if got.code != tt.code || !strings.HasPrefix(got.err, "yardmaster: ") || !strings.Contains(got.err, tt.want) || !strings.Contains(got.err, "; ") {
			t.Errorf("%s: code %d, %q", tt.line, got.code, got.err)
		}
	}
	big := runLine(t, fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 1<<20)), "enqueue", "mail", "--params", "-")
	if big.code != 1 || !strings.Contains(big.err, "a request at most 1048576; over HTTP a job may have 32 MiB") {
		t.Errorf("big job: %+v", big)
	}
}

// Every visible verb has a short text and an example; the help of the program
// matches its golden file.
func TestHelp(t *testing.T) {
	root := testRoot()
	verbs := root.Commands()
	for len(verbs) > 0 {
		v := verbs[0]
		verbs = append(verbs[1:], v.Commands()...)
		if !v.Hidden && (v.Short == "" || v.Example == "") {
			t.Errorf("%s has no short text or no example", v.CommandPath())
		}
	}
	got := runLine(t, "")
	if got.code != 0 {
		t.Fatalf("no arguments: %+v", got)
	}
	golden(t, "help.txt", strings.ReplaceAll(got.out, os.Getenv("NATS_URL"), ""))
}

// A wait continues after the temporary refusals 408 and 503.
func TestWait_RetriesWhileUnavailable(t *testing.T) {
	turn := 0 // under the fake's lock
	f := startFakeAPI(t, cannedReplies{
		"yard.enqueue.*": `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","duplicate":true}`,
		"yard.api.v1.job.wait": func([]byte) ([]byte, error) {
			turn++
			switch turn {
			case 1:
				return nil, &api.Error{Code: api.CodeTimeout, Text: "job has not ended"}
			case 2:
				return nil, &api.Error{Code: api.CodeUnavailable, Text: "no authority"}
			}
			return []byte(`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","queue":"mail","state":"completed","result":[1],"priority":5,"attempts":1}`), nil
		},
	})
	got := f.run(t, "enqueue", "mail", "x", "--wait")
	if got.code != 0 || len(f.requests()) != 4 || !strings.Contains(got.out, "completed") || !strings.Contains(got.out, "[1]") {
		t.Errorf("gave up after a temporary refusal: %+v", got)
	}
	if got.err != "yardmaster: the job already existed\nyardmaster: waiting for job 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28\n" {
		t.Errorf("duplicate: %q", got.err)
	}
}

// brokenPipe is a standard output whose reader is gone.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// If the event cannot be written, the error states that the command was executed.
func TestExec_StdoutClosed(t *testing.T) {
	dir := t.TempDir()
	var errs bytes.Buffer
	code := Run(t.Context(), []string{"exec", `{"command":"QueueDispatch","request_id":"r1","target":"anna"}`, "--state-dir", dir},
		Streams{Out: brokenPipe{}, Err: &errs}, Program{})
	if want := "yardmaster: the command was executed, but its event cannot be shown: io: read/write on closed pipe\n"; code != 1 || errs.String() != want {
		t.Errorf("code %d with %q", code, errs.String())
	}
	var shown bytes.Buffer
	code = Run(t.Context(), []string{"snapshot", "--state-dir", dir}, Streams{Out: &shown, Err: &errs}, Program{})
	if code != 0 || !strings.Contains(shown.String(), "backlog=pending=1 ") {
		t.Errorf("code %d with %q", code, shown.String())
	}
}

// TestDurationFlags checks that every flag for a duration accepts days and refuses a number
// without a unit. The flags of the example worker are an exception.
func TestDurationFlags(t *testing.T) {
	flags := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" || c.Name() == "worker" {
				return
			}
			flags++
			if err := f.Value.Set("1d12h"); err != nil || f.Value.String() != "1d12h" {
				t.Errorf("%s --%s 1d12h: %v, %v", c.CommandPath(), f.Name, f.Value, err)
			}
			if err := f.Value.Set("300"); err == nil || !strings.Contains(err.Error(), "has no unit") {
				t.Errorf("%s --%s 300: %v", c.CommandPath(), f.Name, err)
			}
		})
		for _, verb := range c.Commands() {
			visit(verb)
		}
	}
	visit(testRoot())
	if flags < 10 {
		t.Errorf("only %d flags for durations found", flags)
	}
}
