package jobs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
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
