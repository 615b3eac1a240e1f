package job

import (
	"strings"
	"testing"
)

func TestKeyAt(t *testing.T) {
	for _, c := range []struct{ params, path, want string }{ // want is the key, "-" for none, or a part of the error after a '!'
		{`{"customer":"acme"}`, "params.customer", "acme"},
		{`{"a":{"b c":{"d":"\u00fc"}}}`, "params.a.b c.d", "ü"},
		{`{"customer": 7.50 }`, "params.customer", "7.5"},
		{`{"customer":12345678901234567890}`, "params.customer", "12345678901234567890"},
		{`{"customer":1}`, "params.customer", "1"},
		{`{"customer":1.0}`, "params.customer", "1"},
		{`{"customer":1e0}`, "params.customer", "1"},
		{`{"customer":-2.50E1}`, "params.customer", "-25"},
		{`{"customer":true}`, "params.customer", "true"},
		{`{"customer":""}`, "params.customer", ""},
		{`{"customer":"a","customer":"b"}`, "params.customer", "b"},
		{`{"customer":null}`, "params.customer", "-"},
		{`{}`, "params.customer", "-"},
		{``, "params.customer", "-"},
		{`{"a":"b"}`, "params.a.b", "-"},
		{`{"customer":{"id":1}}`, "params.customer", "!the limit key at params.customer must be a string, a number or a boolean"},
		{`{"customer":[1]}`, "params.customer", "!must be a string"},
		{`{"customer":"a\nb"}`, "params.customer", "!at params.customer: limit key"},
		{`{"customer":"` + strings.Repeat("x", 129) + `"}`, "params.customer", "!at params.customer: limit key has 129 bytes"},
	} {
		key, found, err := KeyAt([]byte(c.params), c.path)
		reason, refused := strings.CutPrefix(c.want, "!")
		switch {
		case refused:
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s: error %v, want %q", c.params, err, reason)
			}
		case err != nil, found != (c.want != "-"), found && key != c.want:
			t.Errorf("%s: key %q, %t, %v; want %q", c.params, key, found, err, c.want)
		}
	}
}
