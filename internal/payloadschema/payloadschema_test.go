package payloadschema

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// mail is a schema of the usual kind.
const mail = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"properties": {
		"to": {"type": "string", "format": "email"},
		"cc": {"type": "array", "items": {"$ref": "#/$defs/address"}, "maxItems": 2},
		"sender": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
		"priority": {"enum": ["low", "high"]},
		"retries": {"type": "integer", "minimum": 0, "maximum": 9.5},
		"subject": {"type": ["string", "null"], "minLength": 1, "maxLength": 5, "pattern": "^[A-Z]"},
		"kind": {"const": "mail"},
		"a/b~c": {"type": "boolean"},
		"either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
		"later": false
	},
	"required": ["to"],
	"additionalProperties": false,
	"$defs": {"address": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
}`

func compile(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchema_Check(t *testing.T) {
	s := compile(t, mail)
	for _, tt := range []struct{ payload, path, reason string }{
		{`{"to":"ann@example.org"}`, "", ""},
		{`{"to":"ann@example.org","sender":null,"cc":[{"name":"bob"}],"either":1,"subject":null}`, "", ""},
		{`{}`, "", `must have the property "to"`},
		{`[]`, "", "must be an object"},
		{`"x"`, "", "must be an object"},
		{`{"to":1}`, "/to", "must be a string"},
		{`{"to":"ann"}`, "/to", "does not have the format email"},
		{`{"to":"a@b.c","cc":[{"name":"x"},{"name":7}]}`, "/cc/1/name", "must be a string"},
		{`{"to":"a@b.c","cc":[{"name":"x"},{"name":"y"},{"name":"z"}]}`, "/cc", "must have at most 2 items"},
		{`{"to":"a@b.c","sender":{}}`, "/sender", `must have the property "name"`},
		{`{"to":"a@b.c","sender":{"name":1}}`, "/sender/name", "must be a string"},
		{`{"to":"a@b.c","sender":"x"}`, "/sender", "matches none of the schemas of anyOf"},
		{`{"to":"a@b.c","either":[]}`, "/either", "matches none of the schemas of oneOf"},
		{`{"to":"a@b.c","priority":"secret"}`, "/priority", `must be one of "low", "high"`},
		{`{"to":"a@b.c","retries":-1}`, "/retries", "must be at least 0"},
		{`{"to":"a@b.c","retries":10}`, "/retries", "must be at most 9.5"},
		{`{"to":"a@b.c","retries":1.5}`, "/retries", "must be an integer"},
		{`{"to":"a@b.c","retries":1.0}`, "", ""},
		{`{"to":"a@b.c","subject":""}`, "/subject", "does not match the pattern ^[A-Z]"},
		{`{"to":"a@b.c","subject":"Äpfeln"}`, "/subject", "does not match the pattern ^[A-Z]"},
		{`{"to":"a@b.c","subject":"Appeln"}`, "/subject", "must have at most 5 characters"},
		{`{"to":"a@b.c","subject":7}`, "/subject", "must be a string or null"},
		{`{"to":"a@b.c","kind":"x"}`, "/kind", `must be "mail"`},
		{`{"to":"a@b.c","a/b~c":"x"}`, "/a~1b~0c", "must be a boolean"},
		{`{"to":"a@b.c","later":1}`, "/later", "is not allowed"},
		{`{"to":"a@b.c","z":1,"y":1}`, "", `must not have the properties "y", "z"`},
		{`{"to":1,"cc":1}`, "/cc", "must be an array"},
		{`{"to":"a@b.c","retries":1e999999}`, "/retries", "is a number of more than 1000 digits"},
		{`{"to":"a@b.c","retries":1e99999999999999999999}`, "/retries", "is a number of more than 1000 digits"},
		{`{"to":`, "", "is not valid JSON"},
	} {
		for range 3 { // the order in which the library visits properties is random
			got := s.Check([]byte(tt.payload))
			if got == nil {
				got = &Violation{}
			}
			if got.Path != tt.path || got.Reason != tt.reason {
				t.Errorf("%s: %q %q, want %q %q", tt.payload, got.Path, got.Reason, tt.path, tt.reason)
			}
		}
	}
}

// TestSchema_CheckNamesNoValue checks that a violation does not show the payload's values.
func TestSchema_CheckNamesNoValue(t *testing.T) {
	for _, keyword := range []string{
		`"type":"integer"`, `"enum":[1,2]`, `"const":1`, `"format":"email"`, `"format":"date-time"`, `"pattern":"^x"`, `"minLength":100`, `"maxLength":1`,
		`"not":{"type":"string"}`, `"allOf":[{"type":"integer"}]`, `"anyOf":[{"type":"integer"},{"minLength":99}]`, `"oneOf":[{},{}]`,
		`"if":{"type":"string"},"then":{"minLength":99}`,
	} {
		s := compile(t, `{"properties":{"a":{`+keyword+`}}}`)
		v := s.Check([]byte(`{"a":"hunter2"}`))
		if v == nil || strings.Contains(v.Reason, "hunter") || v.Path != "/a" {
			t.Errorf("%s: %+v", keyword, v)
		}
	}
}

func TestCompile_Refuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`{`, "schema: is not valid JSON"},
		{`[]`, "schema: must be a JSON object"},
		{`{"type":"text"}`, `schema at /type: `},
		{`{"properties":{"to":{"type":["string",1]}}}`, "schema at /properties/to/type: "},
		{`{"properties":{"to":{"minLength":-1}}}`, "schema at /properties/to/minLength: must be at least 0"},
		{`{"properties":{"to":{"pattern":"("}}}`, "schema at /properties/to/pattern: must be a regular expression"},
		{`{"patternProperties":{"(":{}}}`, "schema at /patternProperties: "},
		{`{"$schema":"http://json-schema.org/draft-07/schema#"}`, "schema at /$schema: must be https://json-schema.org/draft/2020-12/schema, or missing"},
		{`{"properties":{"to":{"$ref":"https://example.org/a.json"}}}`, "schema at /properties/to/$ref: refers to another document"},
		{`{"properties":{"to":{"$ref":"other.json#/a"}}}`, "schema at /properties/to/$ref: refers to another document"},
		{`{"$ref":"file:///etc/passwd"}`, "schema at /$ref: refers to another document"},
		{`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, "refers to another document"},
		{`{"properties":{"to":{"$ref":"#/$defs/missing"}}}`, "/$defs/missing"},
		{`{"properties":{"to":{"$ref":"#missing"}}}`, "missing"},
		{`{"properties":{"to":{"pattern":"((a{100}){100}){100}"}}}`, "schema at /properties/to/pattern: must be a regular expression: "},
		{`{"properties":{"a":{"multipleOf":1e-999999}}}`, "schema at /properties/a/multipleOf: is a number of more than 1000 digits"},
		{`{"patternProperties":{` + manyPatterns(400) + `}}`, "the patterns are too large"},
	} {
		if _, err := Compile([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.80s: %v, want %s", tt.text, err, tt.want)
		}
	}
}

func manyPatterns(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"%d[a-z]{1000}":{}`, i))
	}
	return strings.Join(all, ",")
}

// TestCompile_Local checks that a schema may refer to its own parts by any of their names.
func TestCompile_Local(t *testing.T) {
	for _, text := range []string{
		`{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`,
		`{"properties":{"a":{"$ref":"#x"}},"$defs":{"x":{"$anchor":"x","type":"string"}}}`,
		`{"$id":"https://example.org/mail","properties":{"a":{"$ref":"x"}},"$defs":{"x":{"$id":"x","type":"string"}}}`,
		`{"$id":"https://example.org/mail","properties":{"a":{"$ref":"https://example.org/mail#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`,
		`{"properties":{"a":{"$dynamicRef":"#x"}},"$defs":{"x":{"$dynamicAnchor":"x","type":"string"}}}`,
	} {
		s := compile(t, text)
		if v := s.Check([]byte(`{"a":1}`)); v == nil || v.Path != "/a" || v.Reason != "must be a string" {
			t.Errorf("%s: %+v", text, v)
		}
		if v := s.Check([]byte(`{"a":"x"}`)); v != nil {
			t.Errorf("%s: %+v", text, v)
		}
	}
}

// TestSchema_CheckEnds checks that no payload takes a schema exponential time.
func TestSchema_CheckEnds(t *testing.T) {
	chain := func(keyword string) string { // each definition applies the next one twice
		var defs []string
		for i := range 60 {
			defs = append(defs, fmt.Sprintf(`"d%d":{"%s":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, keyword, i+1, i+1))
		}
		return strings.Join(defs, ",")
	}
	deep := func(keyword string) string {
		return `{"$ref":"#/$defs/n","$defs":{"n":{"` + keyword + `":[{"properties":{"c":{"$ref":"#/$defs/n"}}},{"properties":{"c":{"$ref":"#/$defs/n"}}}]}}}`
	}
	nested := strings.Repeat(`{"c":`, 60) + `1` + strings.Repeat(`}`, 60)
	for name, tt := range map[string]struct{ schema, payload string }{
		"alternatives that match":  {`{"$ref":"#/$defs/d0","$defs":{` + chain("allOf") + `,"d60":{}}}`, `{}`},
		"alternatives that do not": {`{"$ref":"#/$defs/d0","$defs":{` + chain("anyOf") + `,"d60":{"type":"string"}}}`, `{}`},
		"negated":                  {`{"not":{"$ref":"#/$defs/d0"},"$defs":{` + chain("anyOf") + `,"d60":{"type":"string"}}}`, `{}`},
		"one of":                   {`{"$ref":"#/$defs/d0","$defs":{` + chain("oneOf") + `,"d60":{}}}`, `{}`},
		"depth of the payload":     {deep("allOf"), nested},
		"unevaluated":              {`{"unevaluatedProperties":false,"$ref":"#/$defs/d0","$defs":{` + chain("anyOf") + `,"d60":{}}}`, `{"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := compile(t, tt.schema)
			done := make(chan *Violation, 1)
			go func() { done <- s.Check([]byte(tt.payload)) }()
			select {
			case v := <-done:
				if v == nil || !strings.HasPrefix(v.Reason, "takes too long to check") {
					if name != "unevaluated" && name != "one of" {
						t.Errorf("%+v", v)
					}
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the check does not end")
			}
			if v := s.Check([]byte(tt.payload)); v == nil && name == "depth of the payload" {
				t.Error("the second check finds nothing")
			}
		})
	}
	t.Run("pattern in the payload", func(t *testing.T) {
		s := compile(t, `{"properties":{"re":{"format":"regex"}}}`)
		payload := `{"re":"` + strings.Repeat("[a-z]{1000}", 5000) + `"}`
		if v := s.Check([]byte(payload)); v == nil || v.Path != "/re" {
			t.Errorf("%+v", v)
		}
	})
}

// TestSchema_CheckLarge checks that the bound on steps leaves room for large payloads.
func TestSchema_CheckLarge(t *testing.T) {
	s := compile(t, `{"properties":{"n":{"type":"array","items":{"anyOf":[{"type":"string"},{"type":"null"},{"$ref":"#/$defs/n"}]}}},"$defs":{"n":{"type":"integer","minimum":0,"maximum":9}}}`)
	payload := `{"n":[1` + strings.Repeat(",1", 100_000) + `]}`
	if v := s.Check([]byte(payload)); v != nil {
		t.Errorf("%+v", v)
	}
}

func TestSchema_CheckConcurrently(t *testing.T) {
	s := compile(t, mail)
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 200 {
				if v := s.Check([]byte(`{"to":"a@b.c"}`)); v != nil {
					t.Errorf("%+v", v)
				}
				if v := s.Check([]byte(`{"to":1}`)); v == nil || v.Path != "/to" {
					t.Errorf("%+v", v)
				}
			}
		})
	}
}

// FuzzCheck checks that neither a schema nor a payload makes the library panic or hang.
func FuzzCheck(f *testing.F) {
	f.Add(mail, `{"to":1}`)
	f.Add(`{"minimum":1,"multipleOf":0.1}`, `1e5`)
	f.Add(`{"uniqueItems":true,"contains":{"const":1e2},"maxContains":2}`, `[1,1.0,{"a":1},{"a":1.0}]`)
	f.Fuzz(func(t *testing.T, text, payload string) {
		defer time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("it does not end: %q %q", text, payload)) }).Stop()
		if s, err := Compile([]byte(text)); err == nil {
			s.Check([]byte(payload))
		}
	})
}

func BenchmarkSchema_Check(b *testing.B) {
	s := compile(b, mail)
	payload := []byte(`{"to":"ann@example.org","cc":[{"name":"bob"}],"priority":"low","retries":3,"subject":"Hi"}`)
	b.ReportAllocs()
	for b.Loop() {
		if s.Check(payload) != nil {
			b.Fatal("it does not match")
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		compile(b, mail)
	}
}
