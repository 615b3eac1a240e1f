package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Forms of earlier releases mean what the present ones do, and are noted on standard error.
func TestRenamed(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.job.list": `{"jobs":[]}`, "yard.api.v1.job.find": `{"jobs":[]}`, "yard.api.v1.schema.list": `{"schemas":[]}`,
		"yard.api.v1.cluster.rm": `{"members":[]}`,
	})
	for _, tt := range []struct{ former, line, instead string }{
		{"job list mail post", "job list --queue mail,post", "--queue"},
		{"job find queue:mail --cursor abc", "job find queue:mail --after abc", "--after"},
		{"schema list mail", "schema list --queue mail", "--queue"},
		{"cluster rm n3 --no-wait", "cluster rm n3 --wait=false", "--wait=false"},
	} {
		now := f.run(t, strings.Fields(tt.line)...)
		want := f.requests()
		former := f.run(t, strings.Fields(tt.former)...)
		if diff := cmp.Diff(want, f.requests()); diff != "" || len(want) == 0 {
			t.Errorf("%s (-now +former):\n%s", tt.former, diff)
		}
		note := strings.SplitAfter(former.err, "\n")[0]
		if !strings.HasPrefix(note, "yardmaster: ") || !strings.HasSuffix(note, " is accepted in this release only; use "+tt.instead+"\n") || former.err != note+now.err {
			t.Errorf("%s: %q; %s: %q", tt.former, former.err, tt.line, now.err)
		}
		if former.code != now.code || former.out != now.out {
			t.Errorf("%s: %+v; %s: %+v", tt.former, former, tt.line, now)
		}
	}
}
