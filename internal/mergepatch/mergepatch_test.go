package mergepatch

import "testing"

// The cases are those of RFC 7396, appendix A, in which both texts are objects.
func TestApply(t *testing.T) {
	for _, c := range []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{``, `{"a":1}`, `{"a":1}`},
		{`{"n":12345678901234567890,"f":1.50}`, `{"a":1e400}`, `{"a":1e400,"f":1.50,"n":12345678901234567890}`},
		{`{"html":"<b>"}`, `{}`, `{"html":"<b>"}`},
	} {
		got, err := Apply([]byte(c.target), []byte(c.patch))
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %s: %s, %v, want %s", c.target, c.patch, got, err, c.want)
		}
	}
	for _, c := range []struct{ target, patch string }{{`[]`, `{}`}, {`{}`, `[]`}, {`{}`, `null`}, {`{}`, `{} {}`}, {`{`, `{}`}, {`{}`, ``}} {
		if got, err := Apply([]byte(c.target), []byte(c.patch)); err == nil {
			t.Errorf("%s, %s: %s", c.target, c.patch, got)
		}
	}
}
