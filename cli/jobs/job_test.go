package jobs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/job"
)

// An active job is shown with the last progress that its worker reported.
func TestJobTable_Progress(t *testing.T) {
	for _, c := range []struct{ progress, want string }{
		{`{"percent":0}`, "0 %"},
		{`{"data":[1,"a"]}`, `[1,"a"]`},
		{`{"percent":40,"data":{"row":7}}`, `40 %, {"row":7}`},
		{`{"percent":100,"data_msgpack":"xAEA"}`, "100 %, MessagePack, as Base64: xAEA"},
		{`null`, ""},
	} {
		var j api.Job
		if err := json.Unmarshal([]byte(`{"state":"active","lease_until":"2026-01-02T03:04:05Z","progress":`+c.progress+`}`), &j); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		jobTable(&out, &j)
		shown := ""
		for line := range strings.Lines(out.String()) {
			if text, ok := strings.CutPrefix(line, "progress"); ok {
				shown = strings.TrimSpace(text)
			}
		}
		if shown != c.want || !strings.Contains(out.String(), "lease until") {
			t.Errorf("%s is shown as %q, want %q in\n%s", c.progress, shown, c.want, out.String())
		}
	}
}

// Lines of a job's log are written by its handler: as text, each is one line without
// control characters; with --json they are not changed.
func TestShowLogLine_Hostile(t *testing.T) {
	line, err := json.Marshal(job.LogLine{Text: "\x1b[2Jone\n\u202etwo\u009b31m", Worker: "a\tb", Level: "\x1b]0;x\a"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	env := &command.Env{Streams: command.Streams{Out: &out}}
	if err := showLogLine(env, line); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "-  #0  a b ]0;x  [2Jone two 31m\n"; got != want {
		t.Errorf("shown as %q, want %q", got, want)
	}

	out.Reset()
	env.JSON = true
	if err := showLogLine(env, line); err != nil || out.String() != string(line)+"\n" {
		t.Errorf("with --json: %q, %v", out.String(), err)
	}
}
