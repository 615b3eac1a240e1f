package job

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestRecordKey checks that a key added to a record is found there, and does not change the
// job, also after the record was part of a dead letter.
func TestRecordKey(t *testing.T) {
	for _, body := range []string{
		`{"function":"send"}`, " { \"function\" : \"send\" } \n", `{"params":{"a":1,"key":"k"}}`, `{"function":"send","key":"other"}`,
	} {
		for _, key := range []string{"order-7", `a "quoted" <key> \ /`, "ünï 🚂", "line\nbreak\x00", `,"key":"x"}`, strings.Repeat("k", MaxKeyLen)} {
			id, err := KeyID("mail", key)
			if err != nil {
				t.Fatal(err)
			}
			record := WithKey([]byte(body), key)
			if got := KeyOf(record, "mail", id); got != key {
				t.Errorf("%s: key %q, want %q", record, got, key)
			}
			letter, err := json.Marshal(struct{ Job json.RawMessage }{record})
			if got := KeyOf(bytes.TrimSuffix(letter[len(`{"Job":`):], []byte("}")), "mail", id); err != nil || got != key {
				t.Errorf("%s: in a dead letter: key %q, %v; want %q", record, got, err, key)
			}
			want, err := ParseSpec([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := ParseSpec(record); err != nil || got.Function != want.Function || !bytes.Equal(got.Params, want.Params) {
				t.Errorf("%s: %+v, %v; want %+v", record, got, err, want)
			}
			if other := KeyOf(record, "post", id); other != "" {
				t.Errorf("%s: key %q of another queue's job", record, other)
			}
		}
	}
	for _, body := range []string{`{"function":"send"`, `{}`, ` `, `[1]`, `"}`, `{"function":"send","key":7}`} {
		if key := KeyOf([]byte(body), "mail", ID{1}); key != "" {
			t.Errorf("%s: key %q", body, key)
		}
	}
	for key, generated := range map[string]bool{
		"auto-ABCDEFGHIJKLMNOPQRSTUVWX27": true, "auto-0123456789abcdef0123456789abcdef": true,
		"auto-17": false, "auto-insurance-of-the-customer-1234567": false, "ABCDEFGHIJKLMNOPQRSTUVWX27": false,
	} {
		id, err := KeyID("mail", key)
		record := []byte(`{"function":"f","key":"` + key + `"}`)
		if shown := KeyOf(record, "mail", id); err != nil || (shown == "") != generated {
			t.Errorf("key %q is shown as %q, %v", key, shown, err)
		}
		if added := len(WithKey([]byte(`{"function":"f"}`), key)) > len(`{"function":"f"}`); added == generated {
			t.Errorf("key %q is added: %t", key, added)
		}
	}
	for _, unchanged := range []struct{ body, key string }{
		{`{"function":"send"}`, ""}, {`{"function":"send"}`, ID{1}.String()}, {`{}`, "k"}, {" { } ", "k"}, {`[1]`, "k"}, {``, "k"},
	} {
		if got := WithKey([]byte(unchanged.body), unchanged.key); string(got) != unchanged.body {
			t.Errorf("%q with key %q: %q", unchanged.body, unchanged.key, got)
		}
	}
}
