package usererror

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The remedy depends on the text of a refusal, not only on its code.
func TestRefusal(t *testing.T) {
	const jobHint = "yardmaster job show"
	for _, tt := range []struct {
		code, text, hint string
	}{
		{"500", job.ErrNotFailed.Error(), "yardmaster job replay"},
		{"409", job.ErrNotActive.Error(), jobHint},
		{"404", fmt.Sprintf("cron entry %q: %v", "nosuch", ledger.ErrCronNotFound), "yardmaster cron list"},
		{"404", job.ErrJobNotFound.Error(), "yardmaster job list"},
		{"500", "disk is full", "the node's log"},
	} {
		got := Refusal(&api.Error{Code: tt.code, Text: tt.text}).Error()
		if !strings.HasPrefix(got, tt.text) || !strings.Contains(got, tt.hint) || strings.Count(got, "node's log") > 0 != (tt.hint == "the node's log") {
			t.Errorf("%s: %q", tt.text, got)
		}
	}
}
