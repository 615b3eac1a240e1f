package format

import (
	"encoding/json"
	"html"
	"math"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"plain – ünï", "plain – ünï"},
		{`<b onload="x">&'`, "&lt;b onload=&#34;x&#34;&gt;&amp;&#39;"},
		{"אב, <", "<bdi>אב, &lt;</bdi>"},
		{"a\u202eb", `a<span class="code-point">\u{202e}</span>b`},
		{"\x07\u200b", `<span class="code-point">\u{7}</span><span class="code-point">\u{200b}</span>`},
		{"👩\u200d💻 👩🏽\u200d🔬 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3", "👩\u200d💻 👩🏽\u200d🔬 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3"},
		{"a\u200db", `a<span class="code-point">\u{200d}</span>b`},
		{"👩\u200d\u202e", `👩<span class="code-point">\u{200d}</span><span class="code-point">\u{202e}</span>`},
		{"a\ufe0f👩\u200d\u200d💻", `a<span class="code-point">\u{fe0f}</span>👩<span class="code-point">\u{200d}</span><span class="code-point">\u{200d}</span>💻`},
		{"\xff", `<span class="code-point">\xff</span>`},
		{"1\n2", `1<span class="code-point">\u{a}</span>2`},
		{strings.Repeat("é", 100), strings.Repeat("é", 30) + `<span class="cut">… 140 B more</span>`},
	} {
		if got := string(Text(c.text, 60, false)); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.text, got, c.want)
		}
	}
	if got := string(Text("1\n2", 40, true)); got != "1\n2" {
		t.Errorf("lines are shown as %q", got)
	}
}

// Names break into lines after their separators.
func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"yardmaster-python/1.2": "yardmaster-<wbr>python/<wbr>1.<wbr>2", "a::b-": "a::<wbr>b-", "<&>": "&lt;&amp;&gt;", "": "",
	} {
		if got := string(Name(name)); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
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
		if text = strings.ToValidUTF8(text, "?"); len(text) > 100 {
			return // a joiner at the end is hidden
		}
		got := string(Text(text, 100, false))
		got = strings.NewReplacer(`<span class="code-point">`, "", `<span class="cut">`, "", "</span>", "", "<bdi>", "", "</bdi>", "").Replace(got)
		if strings.ContainsAny(got, "<>\"") || Plain(html.UnescapeString(got), math.MaxInt) != html.UnescapeString(got) {
			t.Errorf("%q is shown as %q", text, got)
		}
	})
}
