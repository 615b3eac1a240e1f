package query

import (
	"strings"
	"testing"
)

// TestComplete checks the proposals at a cursor, which is at |. The part that they replace is
// between « and ».
func TestComplete(t *testing.T) {
	values := func(field, prefix string) []string {
		return map[string][]string{"queue": {"mail", "main road", "maps"}, "customer": {"acme"}, "meta.a b": {"x"}, "tag": {"(x)"}}[field]
	}
	for _, test := range []struct{ text, want string }{
		{"«|»", "id: key: limit_key:"},
		{"«qu|»", "queue:"},
		{"«st|»", "state: started:"},
		{"a «q|ue»", "queue:"},
		{"a («Q|»)", "queue:"},
		{"-«que|»", "queue:"},
		{"«sta|te:»failed", "state: started:"},
		{"«cust|»", "customer:"},
		{"«mo|»", "meta.mode:"},
		{"«met|»", "meta."},
		{"«meta.cu|»", "meta.customer:"},
		{"queue:«ma|»", `mail "main road" maps`},
		{"queue:a,«mai|»,b", `mail "main road"`},
		{`queue:«"main r|»`, `"main road"`},
		{`queue:«"main |road"» a`, `"main road"`},
		{"QUEUE:«map|»", "maps"},
		{"customer:«|»", "acme"},
		{`meta."a b":«|»`, "x"},
		{"tag:«|»", `"(x)"`},
		{"state:failed,«c|»", "completed cancelled"},
		{"sort:«|»", "-created created -ended ended"},
		{"created:«to|»", "today"},
		{"took:«|»", ">1s >10s >1m >10m"},
		{"text:«a|»", ""},
	} {
		before, rest, _ := strings.Cut(test.text, "«")
		part, after, _ := strings.Cut(rest, "»")
		head, tail, _ := strings.Cut(part, "|")
		c := Complete(before+head+tail+after, len(before+head), []string{"customer", "mode", "a b"}, values)
		var texts []string
		for _, p := range c.Proposals {
			texts = append(texts, p.Text)
		}
		got := strings.Join(texts, " ")
		if c.Offset != len(before) || c.Length != len(head+tail) || got != test.want && !(test.text == "«|»" && strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: replaces %d+%d by %s, want %d+%d by %s", test.text, c.Offset, c.Length, got, len(before), len(head+tail), test.want)
		}
	}
}
