package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

const cronJSON = `{"name":"nightly","schedule":"0 30 2 * * *","time_zone":"Europe/Berlin","queue":"reports",
"job":{"function":"build","params":{"n":12345678901234567890}},"missed":"skip","overlap":"allow","declared":false,"state":"running",
"next":"2026-03-29T01:00:00Z","upcoming":["2026-03-29T01:00:00Z","2026-03-30T00:30:00Z","2026-10-25T00:30:00Z"],
"ticks":[{"at":"2026-03-29T01:00:00Z","local":"2026-03-29T03:00:00+02:00","note":"skipped hour: runs at 03:00"},{"at":"2026-03-30T00:30:00Z","local":"2026-03-30T02:30:00+02:00"},
{"at":"2026-10-25T00:30:00Z","local":"2026-10-25T02:30:00+02:00","note":"double hour: first"}],
"last":"2026-01-02T02:00:00Z","last_job":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","last_left_out":{"at":"2026-01-01T02:00:00Z","why":"overlap","job":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a11"},
"fired":41,"skipped":2,"missed_count":1}`

// fakeCronPages replies with one of two pages of cron entries.
func fakeCronPages(request []byte) ([]byte, error) {
	var ask struct{ After string }
	if err := json.Unmarshal(request, &ask); err != nil {
		return nil, err
	}
	paused := `{"name":"poll","schedule":"@hourly","time_zone":"UTC","queue":"feeds","job":{"params":{}},"declared":true,"state":"paused","upcoming":[]}`
	if ask.After == "" {
		return fmt.Appendf(nil, `{"entries":[%s],"more":true}`, cronJSON), nil
	}
	return fmt.Appendf(nil, `{"entries":[%s],"more":false}`, paused), nil
}

func TestCron(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.cron.list":   fakeCronPages,
		"yard.api.v1.cron.show":   strings.Replace(cronJSON, `"fired"`, `"last_job_state":"active","fired"`, 1),
		"yard.api.v1.cron.add":    cronJSON,
		"yard.api.v1.cron.pause":  cronJSON,
		"yard.api.v1.cron.resume": &api.Error{Code: api.CodeNotFound, Text: `cron entry "nightly": cron entry does not exist`},
		"yard.api.v1.cron.remove": `{"name":"nightly","removed":true}`,
		"yard.api.v1.cron.run":    `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","queue":"reports","duplicate":false}`,
	})
	got := f.run(t, "cron", "list")
	golden(t, "cron-list.txt", got.out)
	if asked := f.requests(); got.code != 0 || len(asked) != 2 || asked[1] != `list {"after":"nightly"}` {
		t.Errorf("%+v, requests %q", got, asked)
	}
	var all struct{ Entries []json.RawMessage }
	got = f.run(t, "cron", "ls", "--json")
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || len(all.Entries) != 2 {
		t.Fatalf("%v: %s", err, got.out)
	}
	sameJSON(t, string(all.Entries[0]), cronJSON)
	golden(t, "cron-show.txt", f.run(t, "cron", "show", "nightly", "--next", "20").out)
	if asked := f.requests(); asked[len(asked)-1] != `show {"name":"nightly","next":20}` {
		t.Errorf("requests %q", asked)
	}

	got = f.run(t, "cron", "add", "nightly", "0 0 3 * * *", "reports", "build", "--zone", "Europe/Berlin", "--params", `{"n":12345678901234567890}`)
	golden(t, "cron-add.txt", got.out)
	if asked := f.requests(); len(asked) != 1 {
		t.Errorf("requests %q", asked)
	} else {
		sameJSON(t, strings.TrimPrefix(asked[0], "add "), `{"name":"nightly","schedule":"0 0 3 * * *","queue":"reports",
			"job":{"function":"build","params":{"n":12345678901234567890}},"time_zone":"Europe/Berlin","missed":"skip","overlap":"allow","replace":false}`)
	}
	exists := startFakeAPI(t, cannedReplies{
		"yard.api.v1.cron.add": &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("cron entry %q: %v", "nightly", ledger.ErrCronExists)},
	})
	got = exists.run(t, "cron", "add", "nightly", "@daily", "reports", "build")
	if want := "yardmaster: a different cron entry \"nightly\" exists; replace it with --replace\n"; got.code != 1 || got.err != want {
		t.Errorf("%+v, want %q", got, want)
	}
	for _, tt := range []struct {
		line string
		code int
		want string
	}{
		{"cron pause nightly", 0, "nightly"},
		{"cron resume nightly", 3, "does not exist"},
		{"cron rm nightly", 0, "removed"},
		{"cron run nightly", 0, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"},
		{"cron rm", 2, "entry"},
		{"cron add nightly @daily", 2, "queue"},
		{"cron add nightly @daily reports", 2, "names nothing to do"},
		{"cron add nightly @daily reports x --params 7", 2, "JSON object"},
		{"cron stop nightly", 2, "stop"},
	} {
		if got := f.run(t, strings.Fields(tt.line)...); got.code != tt.code || !strings.Contains(got.out+got.err, tt.want) {
			t.Errorf("%s: %+v", tt.line, got)
		}
	}
}
