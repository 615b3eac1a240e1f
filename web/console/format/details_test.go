package format

import "testing"

// A traceback is shown as lines. Characters that are invisible, or change the direction of the page, are
// shown as code points.
func TestDetails(t *testing.T) {
	for _, c := range []struct{ details, want string }{
		{`{"traceback":"T:\n  File \"<a>\"\u001b[2J\u202e\r\nE","n":1}`, `<p class="dim small">traceback</p><pre class="trace">T:
  File &#34;&lt;a&gt;&#34;<span class="code-point">\u{1b}</span>[2J<span class="code-point">\u{202e}</span>
E</pre>` + string(Tree([]byte(`{"n":1}`)))},
		{`"one\ntwo"`, "<pre class=\"trace\">one\ntwo</pre>"},
		{`{"a":"one line"}`, string(Tree([]byte(`{"a":"one line"}`)))},
		{`[1]`, string(Tree([]byte(`[1]`)))},
		{``, string(Tree(nil))},
	} {
		if got := string(Details([]byte(c.details))); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.details, got, c.want)
		}
	}
}
