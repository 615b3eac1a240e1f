package job

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestReadDirect checks which key a job has that a client has published, and that what would
// have no effect is refused with what to write instead.
func TestReadDirect(t *testing.T) {
	const uuid = "0197c5a2-1111-7000-8000-000000000001"
	for _, c := range []struct {
		header, body string
		record, key  string // record "" means the body
		bad          string // part of the error, "": none
	}{
		{"", `{ "function" : "f" }`, "", "", ""},
		{"k", `{"function":"f"}`, "", "k", ""},
		{"", `{"function":"f","id":"k"}`, `{"function":"f"}`, "k", ""},
		{"", `{"id":"k","params":null,"function":"f","tags":["a"]}`, `{"function":"f","tags":["a"]}`, "k", ""},
		{"k", `{"function":"f","id":"k"}`, `{"function":"f"}`, "k", ""},
		{"k", `{"function":"f","id":""}`, "", "k", ""},
		{uuid, `{"function":"f","id":"` + strings.ToUpper(uuid) + `"}`, `{"function":"f"}`, uuid, ""},
		{"", `{"function":"f","id":"k","key":"acme"}`, `{"function":"f","limit_key":"acme"}`, "k", ""},
		{"k", `{"function":"f","id":"other"}`, "", "k", "name different jobs"},
		{"", `{"function":"f","id":7}`, "", "", "id must be a string"},
		{"k", `{"function":"f","max_attemps":1}`, "", "k", `job has no key "max_attemps"; the nearest is max_attempts`},
		{"", `{"function":"f","id":"k","max_retries":1}`, "", "k", "here it is max_attempts"},
		{"", `{"function":"f","colour":"red"}`, "", "", "there are debounce_key"},
		{"", `{"function":"f","queue":"mail"}`, "", "", `job has no key "queue"`},
		{"", `{"function":"f","indexed":{"a":"1"}}`, "", "", "written by nodes"},
		{"", `{"blob":{"name":"a.b","chunks":1,"size":1,"sha256":"` + strings.Repeat("a", 64) + `"}}`, "", "", "written by nodes"},
		{"", "{\"function\":\"f\xff\"}", "", "", "not UTF-8"},
		{"k", `not a job`, "", "k", "not valid JSON"},
		{"k", ``, "", "k", "not valid JSON"},
	} {
		if c.record == "" {
			c.record = c.body
		}
		record, key, err := ReadDirect("mail", c.header, []byte(c.body), Headers{})
		var invalid *InvalidError
		switch {
		case string(record) != c.record || key != c.key:
			t.Errorf("%q %s: %s under %q, want %s under %q", c.header, c.body, record, key, c.record, c.key)
		case c.bad == "" && err != nil:
			t.Errorf("%q %s: %v", c.header, c.body, err)
		case c.bad != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.bad)):
			t.Errorf("%q %s: error %v, want %q", c.header, c.body, err, c.bad)
		}
	}
}

// TestRecord_KeysDiffer checks that a record with two keys is rejected under an id of its own,
// because either key may be another job's, and that it is still the record of a job that an
// earlier build made of it.
func TestRecord_KeysDiffer(t *testing.T) {
	r := Record{Queue: "mail", Key: "k", Stored: time.Unix(1, 0), Body: []byte(`{"function":"f","id":"other"}`)}
	r.Body, r.Key, r.Invalid = ReadDirect(r.Queue, r.Key, r.Body, Headers{})
	j, err := r.Job("L", Defaults{})
	if want := RecordID("L", r.Position, r.Stored); j.ID != want || !errors.Is(err, ErrKeysDiffer) {
		t.Errorf("rejected as %s, want %s: %v", j.ID, want, err)
	}
	if earlier, err := KeyID("mail", "k"); err != nil || !r.Matches(earlier, "L") {
		t.Errorf("the record is not that of %s, %v", earlier, err)
	}
}
