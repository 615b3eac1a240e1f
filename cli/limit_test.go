package cli

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/google/go-cmp/cmp"
)

const limitJSON = `{"name":"stripe","total":20,"per_key":2,"rate":"100/s","burst":20,"changed":"2026-01-02T03:04:05Z","paused":false,
"running":20,"waiting":31,"full_since":"2026-01-02T03:04:05Z","tokens":0,"next_start_at":"2026-01-02T03:04:05.01Z",
"open_after":10,"within_ms":60000,"on":["http_503"],"half_open":1,"probe_after_ms":30000,
"circuit":{"state":"closed","probes":0,"failures":3},
"queues":[{"queue":"mail","waiting":31}],"keys":[{"limit_key":"acme","running":2,"waiting":30,"blocked":true}],"more_keys":7,
"holders":[],"more_holders":0}`

// Each command line about limits, and settings of queues about them, sends the expected request.
func TestLimitRequests(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.queue.set": queueJSON, "yard.api.v1.limit.set": limitJSON, "yard.api.v1.limit.pause": limitJSON,
		"yard.api.v1.limit.remove": `{"name":"stripe","removed":true}`,
	})
	for _, tt := range []struct{ line, want string }{
		{"queue set mail --concurrency none --limit stripe --limit gpu --key params.customer --fair --age 2m --priority 7 --attempts 3 --timeout 1m",
			`set {"age_ms":120000,"concurrency_limit":null,"fair":true,"key":"params.customer","limits":["stripe","gpu"],"max_attempts":3,"name":"mail","priority":7,"timeout_ms":60000}`},
		{"queue set mail --limit none --key none --fair=false", `set {"fair":false,"key":null,"limits":null,"name":"mail"}`},
		{"queue weight mail acme=3 a=b=none", `set {"name":"mail","weights":{"a=b":null,"acme":3}}`},
		{"limit set stripe --total 20 --per-key none --rate 100/s --burst 20 --on http_503,timeout --within 1m",
			`set {"burst":20,"name":"stripe","on":["http_503","timeout"],"per_key":null,"rate":"100/s","total":20,"within_ms":60000}`},
		{"limit rm stripe --force", `remove {"force":true,"name":"stripe"}`},
		{"limit pause stripe", `pause {"name":"stripe"}`},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if got.code != 0 {
			t.Errorf("%s: code %d, %q", tt.line, got.code, got.err)
		}
		if diff := cmp.Diff([]string{tt.want}, f.requests()); diff != "" {
			t.Errorf("%s (-want +asked):\n%s", tt.line, diff)
		}
	}
}

func TestLimitShow(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.limit.show": limitJSON, "yard.api.v1.limit.list": `{"limits":[` + limitJSON + `]}`})
	got := f.run(t, "limit", "show", "stripe")
	for _, want := range []string{
		"full since 2026-01-02T03:04:05Z", "0 may start now, the next at 2026-01-02T03:04:05.01Z",
		"circuit opens after 10 failures within 1m (http_503 count), and probes after 30s", "circuit closed: 3 failures count now", "and 7 more keys",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is missing in\n%s", want, got.out)
		}
	}
	if got := f.run(t, "limit", "list"); strings.Join(strings.Fields(got.out), " ") !=
		"LIMIT STATE TOTAL PER KEY RATE RATE PER KEY RUNNING WAITING stripe full 20 2 100/s - 20 31" {
		t.Errorf("list: %q, %q", got.out, got.err)
	}
}

// A number after --limit, which once was what --concurrency is, gets an error with the new flag.
func TestQueueSet_NumberAsLimit(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.queue.set": &api.Error{Code: api.CodeInvalid, Text: "limits: there is no such limit: 10"}})
	got := f.run(t, "queue", "set", "mail", "--limit", "10")
	if want := "yardmaster: --limit names a limit, and there is none named 10; give the number of jobs that run at the same time as --concurrency 10\n"; got.err != want {
		t.Errorf("got %q, want %q", got.err, want)
	}
}
