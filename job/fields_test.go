package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSpec_Fields checks the validation of limit keys, limits, tags, metadata and expiries.
func TestSpec_Fields(t *testing.T) {
	texts := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprint("t", i)
		}
		text, _ := json.Marshal(list)
		return string(text)
	}
	object := func(n int) string {
		entries := make(map[string]string, n)
		for i := range n {
			entries[fmt.Sprint("n", i)] = "v"
		}
		text, _ := json.Marshal(entries)
		return string(text)
	}
	long := strings.Repeat("x", 600)
	for _, c := range []struct{ fields, want string }{ // want is a part of the error, "" if there is none
		{`"limit_key":"customer 7"`, ""},
		{`"limit_key":""`, ""},
		{`"limit_key":"ünï"`, ""},
		{`"limit_key":7`, "limit_key must be a string, not number"},
		{`"limit_key":"a\nb"`, "must be UTF-8 without control characters"},
		{`"limit_key":"` + long[:129] + `"`, "limit key has 129 bytes; at most 128"},
		{`"limits":{"stripe":"","smtp":"eu"}`, ""},
		{`"limits":` + object(MaxLimitUses), ""},
		{`"limits":` + object(MaxLimitUses+1), "limits names 9 limits; at most 8"},
		{`"limits":["stripe"]`, "limits must be an object, not array"},
		{`"limits":{"a b":""}`, `limit name "a b" must have`},
		{`"limits":{"a":"x\u0000"}`, "limits.a: limit key"},
		{`"tags":` + texts(MaxTags), ""},
		{`"tags":` + texts(MaxTags+1), "tags has 21 texts; at most 20"},
		{`"tags":[""]`, "tags has a text of 0 bytes; must have 1 to 64"},
		{`"tags":["` + long[:65] + `"]`, "tags has a text of 65 bytes"},
		{`"tags":"a"`, "tags must be an array, not string"},
		{`"meta":` + object(MaxMeta), ""},
		{`"meta":` + object(MaxMeta+1), "meta has 21 entries; at most 20"},
		{`"meta":{"":"v"}`, "meta has a name of 0 bytes; must have 1 to 64"},
		{`"meta":{"` + long[:65] + `":"v"}`, "meta has a name of 65 bytes"},
		{`"meta":{"n":"` + long[:513] + `"}`, "meta.n has 513 bytes; at most 512"},
		{`"meta":{"n":7}`, "must be a string, not number"},
		{`"expires_in_ms":1`, ""},
		{`"expires_in_ms":0`, "expires_in_ms is 0; must be 1 to 315360000000"},
		{`"expires_at":"2026-03-19T02:00:00Z"`, ""},
		{`"expires_at":"2300-03-19T02:00:00Z"`, "expires_at 2300-03-19T02:00:00Z is out of range"},
		{`"expires_at":"2026-03-19T02:00:00Z","expires_in_ms":1`, "expires_at and expires_in_ms exclude each other"},
		{`"expires_at":"2026-03-19T02:00:00Z","run_at":"2026-03-19T01:59:59Z"`, ""},
		{`"expires_at":"2026-03-19T02:00:00Z","run_at":"2026-03-19T02:00:00Z"`, "expires_at is not after run_at: the job would expire before it could start"},
		{`"expires_in_ms":2000,"delay_ms":2000`, "expires_in_ms is not more than delay_ms"},
		{`"expires_in_ms":2000,"debounce_ms":2000,"debounce_key":"k"`, "expires_in_ms is not more than debounce_ms"},
		{`"expires_in_ms":2000,"delay_ms":1999`, ""},
	} {
		_, err := ParseSpec([]byte(`{"function":"f",` + c.fields + `}`))
		_, isInvalid := errors.AsType[*InvalidError](err)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.fields, err)
		case c.want != "" && (err == nil || !isInvalid || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", c.fields, err, c.want)
		}
	}
}

// TestSpec_JobFields checks the facts that the ledger gets.
func TestSpec_JobFields(t *testing.T) {
	stored := time.Date(2026, 3, 19, 2, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		fields string
		want   Job
	}{
		{`"limit_key":"a","limits":{"smtp":"eu","api":""},"priority":3`, Job{LimitKey: "a", Limits: []LimitUse{{"api", ""}, {"smtp", "eu"}}, Priority: 3}},
		{`"expires_in_ms":1500`, Job{Priority: DefaultPriority, NoPriority: true, Expires: stored.Add(1500 * time.Millisecond), ExpiresIn: 1500 * time.Millisecond}},
		{`"expires_at":"2026-03-19T03:00:00Z","tags":["a"],"meta":{"b":"c"}`, Job{Priority: DefaultPriority, NoPriority: true, Expires: stored.Add(time.Hour)}},
	} {
		spec, err := ParseSpec([]byte(`{"function":"f",` + c.fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		c.want.ID, c.want.Queue, c.want.Function, c.want.Accepted = ID{1}, "mail", "f", stored
		if diff := cmp.Diff(c.want, spec.Job(ID{1}, "mail", Position{}, stored)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.fields, diff)
		}
	}
}

// TestKeyInBody checks whether the text under "key" in a body is taken for the limit key or for
// the producer's key.
func TestKeyInBody(t *testing.T) {
	keyed, err := KeyID("mail", "order-7")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key, body, want string // want is the limit key, or the error after a '!'
	}{
		{"", `{"function":"f","key":"a"}`, "a"},
		{"", `{"function":"f","limit_key":"a"}`, "a"},
		{"", `{"function":"f","limit_key":"a","key":"a"}`, "a"},
		{"", `{"function":"f","limit_key":"a","key":"b"}`, "!key and limit_key differ"},
		{"", `{"function":"f","key":"a\nb"}`, "!without control characters"},
		{"order-7", `{"function":"f","key":"order-7"}`, ""},
		{"order-7", `{"function":"f","key":"a"}`, "a"},
		{keyed.String(), `{"function":"f","limit_key":"a","key":"order-7"}`, "a"},
		{keyed.String(), `{"function":"f","key":"order-7"}`, ""},
		{keyed.String(), `{"function":"f","key":"order-8"}`, "order-8"},
		{keyed.String(), string(WithKey([]byte(`{"function":"f","key":"a"}`), "order-7")), "a"},
		{keyed.String(), string(WithKey([]byte(`{"function":"f","key":"order-7"}`), "order-7")), ""},
		{keyed.String(), string(WithKey([]byte(`{"function":"f","params":{"key":"a"}}`), "order-7")), ""},
		{"line\nbreak", `{"function":"f","key":"line\nbreak"}`, ""},
	} {
		record := Record{Queue: "mail", Key: c.key, Body: []byte(c.body)}
		j, err := record.Job("lane", Defaults{})
		if reason, refused := strings.CutPrefix(c.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%q %s: error %v, want %q", c.key, c.body, err, reason)
			}
			continue
		}
		if err != nil || j.LimitKey != c.want {
			t.Errorf("%q %s: limit key %q, %v; want %q", c.key, c.body, j.LimitKey, err, c.want)
		}
		again, err := ParseRecord([]byte(c.body), "mail", c.key, j.ID)
		if err != nil || again.Key != nil || (again.LimitKey != nil) != (c.want != "") {
			t.Errorf("%q %s: parsed again as %+v, %v", c.key, c.body, again, err)
		}
	}
	if body, _, err := ReadDirect("mail", "", []byte(`{"function":"f","key":"a"}`), Headers{Delay: "1s"}); err != nil || string(body) != `{"function":"f","delay_ms":1000,"limit_key":"a"}` {
		t.Errorf("with a header: %s, %v", body, err)
	}
}
