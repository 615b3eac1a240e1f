package node

import (
	"strings"
	"testing"
	"time"

	"yardmaster/scrub"
)

// What is said of a copy names the stream, the messages and what to do.
func TestCopyText(t *testing.T) {
	with := []string{"n1", "n3"}
	for _, tc := range []struct {
		f    scrub.Finding
		want string
	}{
		{scrub.Finding{Kind: scrub.Lacks, Count: 3, Which: "4, 7–8", With: with}, "its copy of YARD_JOBS_0 lacks, or cannot read, what others have: 3 messages (4, 7–8); "},
		{scrub.Finding{Kind: scrub.Differs, Count: 1, Which: "4", With: with}, "its copy of YARD_JOBS_0 is not what n1 and n3 have: message 4; "},
		{scrub.Finding{Kind: scrub.Split, Count: 1, Which: "4", With: with[:1]}, "its copy of YARD_JOBS_0 and that of n1 differ, and no third says which is right: message 4; start"},
		{scrub.Finding{Kind: scrub.Nowhere, Count: 1, Which: "4"}, "its copy of YARD_JOBS_0 lacks, or cannot read, what no copy that was heard has: message 4; start"},
	} {
		if got := copyText("n2", "YARD_JOBS_0", &tc.f); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.f.Kind, got, tc.want)
		}
	}
}

func TestUnopenedText(t *testing.T) {
	if got, want := unopenedText("n2", "YARD_JOBS_0"), "run 'yardmaster cluster rebuild YARD_JOBS_0 --node n2'"; !strings.HasSuffix(got, want) {
		t.Errorf("%q does not end with %q", got, want)
	}
}

func TestScrubConfig(t *testing.T) {
	for _, c := range []ScrubConfig{{Every: time.Second}, {Every: 31 * 24 * time.Hour}, {Rate: 1000}} {
		if c.fill(); c.validate() == nil {
			t.Errorf("%+v is let pass", c)
		}
	}
	var c ScrubConfig
	if c.fill(); c.validate() != nil || c.Every != time.Hour {
		t.Errorf("default %+v: %v", c, c.validate())
	}
}
