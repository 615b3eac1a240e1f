package pages

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
)

func TestJobsData_WithState(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "state:failed",
		"queue:mail":                       "queue:mail state:failed",
		"queue:mail state:active since:1h": "queue:mail since:1h state:failed",
		"state:active,waiting":             "state:failed",
		"queue:a or queue:b":               "(queue:a or queue:b) state:failed",
		"(state:active or queue:b) tag:x":  "(state:active or queue:b) tag:x state:failed",
	} {
		parsed, err := query.Parse(text, query.Options{Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		d := &jobsData{Text: text, query: parsed}
		if got := d.WithState("failed"); got != Search(want) {
			t.Errorf("%q becomes %s, want %s", text, got, Search(want))
		}
		if _, err := query.Parse(want, query.Options{Now: time.Now()}); err != nil {
			t.Error(err)
		}
	}
}
