package format

import (
	"strings"
	"testing"
)

// Times within a text are elements, and the rest is escaped.
func TestVerdict(t *testing.T) {
	got := string(Verdict("It failed at 2026-11-29T07:10:02.291Z: <b>\nsecond"))
	for _, part := range []string{`<time datetime="2026-11-29T07:10:02.291Z"`, "2026-11-29 07:10:02 UTC</time>: &lt;b&gt;\nsecond"} {
		if !strings.Contains(got, part) {
			t.Errorf("%s does not contain %s", got, part)
		}
	}
	if got := Verdict("at 2026-13-45T07:10:02Z"); got != "at 2026-13-45T07:10:02Z" {
		t.Errorf("what is no time is %s", got)
	}
}

// Times within a reason are elements, too.
func TestReason(t *testing.T) {
	if got := string(Reason("the next\nat 2026-11-29T07:10:02Z <")); !strings.HasPrefix(got, `the next at <time datetime="2026-11-29T07:10:02Z"`) || !strings.HasSuffix(got, "UTC</time> &lt;") {
		t.Error(got)
	}
}

// A line break is a space in one line; other characters that are not visible are marked.
func TestLine(t *testing.T) {
	if got := Line("first\r\n  second\u202e"); got != `first second<span class="code-point">\u{202e}</span>` {
		t.Error(got)
	}
}
