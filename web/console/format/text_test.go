package format

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"plain – ünï", "plain – ünï"},
		{`<b onload="x">&'`, "&lt;b onload=&#34;x&#34;&gt;&amp;&#39;"},
		{"a\u202eb", `a<span class="code-point">\u{202e}</span>b`},
		{"\x07\u200b", `<span class="code-point">\u{7}</span><span class="code-point">\u{200b}</span>`},
		{"\xff", `<span class="code-point">\xff</span>`},
		{"1\n2", `1<span class="code-point">\u{a}</span>2`},
		{strings.Repeat("é", 100), strings.Repeat("é", 20) + `<span class="cut">… 160 B more</span>`},
	} {
		if got := string(Text(c.text, 40, false)); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.text, got, c.want)
		}
	}
	if got := string(Text("1\n2", 40, true)); got != "1\n2" {
		t.Errorf("lines are shown as %q", got)
	}
}

// A text of a field is visible, and sent back as it was.
func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"acme": "acme", "a\u202eb\n\x00": `a\u{202e}b\u{a}\u{0}`, `\u{202e}`: `\u{5c}u{202e}`, `\\u{5c}u{41}`: `\\u{5c}u{5c}u{41}`, strings.Repeat("x", 1<<20): strings.Repeat("x", 1<<20),
	} {
		got := Escape(text)
		if got != want || Plain(got, math.MaxInt) != got {
			t.Errorf("%.40q is %.40q in a field, want %.40q", text, got, want)
		}
		if back := Unescape(got); back != text {
			t.Errorf("%.40q comes back as %.40q", text, back)
		}
	}
	for _, text := range []string{`\u{110000}`, `\u{ffffffff}`, `\u{d800}`, `\u{}`, `\u{x}`, `\u{41`} {
		if got := Unescape(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func TestTree(t *testing.T) {
	got := string(Tree(json.RawMessage(`{"a<b>":[1,"\u202e",null,{}],"n":1.50}`)))
	for _, want := range []string{"a&lt;b&gt;", `<span class="json-number">1</span>`, `\u{202e}`, "null", "{}", "1.50"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	if strings.Count(got, "<details") != strings.Count(got, "</details>") {
		t.Errorf("elements are not closed in %q", got)
	}
}

// Values that are large, deep or no JSON are cut, and all elements are closed.
func TestTree_Large(t *testing.T) {
	for _, value := range []string{
		"[" + strings.Repeat("1,", 100_000) + "1]",
		strings.Repeat(`{"a":[`, 300) + strings.Repeat(`]}`, 300),
		`{"text":"` + strings.Repeat("x", 1<<20) + `"}`,
		`{"broken`,
	} {
		got := string(Tree(json.RawMessage(value)))
		if len(got) > 100<<10 || strings.Count(got, "<details") != strings.Count(got, "</details>") || strings.Count(got, "<li") != strings.Count(got, "</li>") {
			t.Errorf("%.20q becomes %d bytes: %.300q", value, len(got), got)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("<script>\u202e\x00")
	f.Fuzz(func(t *testing.T, text string) {
		got := string(Text(text, 100, false))
		got = strings.NewReplacer(`<span class="code-point">`, "", `<span class="cut">`, "", "</span>", "").Replace(got)
		if strings.ContainsAny(got, "<>\"") || strings.ContainsFunc(got, hidden) {
			t.Errorf("%q is shown as %q", text, got)
		}
	})
}
