package job

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLabels(t *testing.T) {
	for _, want := range []Labels{
		{},
		{Key: "mail-4711"},
		{Tags: []string{"eu", "ü\x00"}},
		{Key: "k", Tags: []string{"a"}, Meta: []Label{{"region", "eu"}, {"x", ""}}, Params: []Label{{"customer", "acme"}}},
	} {
		text := want.Encode()
		got, err := ParseLabels(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
		for n := 1; n < len(text); n++ {
			if got, err := ParseLabels(text[:n]); err == nil {
				t.Errorf("%q parsed as %+v", text[:n], got)
			}
		}
	}
	if got, err := ParseLabels(NoLabels); err != nil || !cmp.Equal(got, Labels{}) {
		t.Errorf("NoLabels parsed as %+v, %v", got, err)
	}
	if got := (&Labels{}).Encode(); got != "" {
		t.Errorf("no labels are %q", got)
	}
}

func FuzzLabels(f *testing.F) {
	f.Add((&Labels{Key: "k", Tags: []string{"a"}, Meta: []Label{{"n", "v"}}}).Encode())
	f.Add("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLabels(text)
		if err != nil {
			return
		}
		again, err := ParseLabels(l.Encode())
		if diff := cmp.Diff(l, again); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	})
}

func TestRecord_ProducerKey(t *testing.T) {
	id, err := KeyID("mail", "order-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ key, body, want string }{
		{"", `{"function":"f"}`, ""},
		{"order-1", `{"function":"f"}`, "order-1"},
		{id.String(), `{"function":"f"}`, ""},
		{id.String(), string(WithKey([]byte(`{"function":"f"}`), "order-1")), "order-1"},
		{"auto-01234567890123456789abcdef", `{"function":"f"}`, ""},
	} {
		r := Record{Queue: "mail", Key: test.key, Body: []byte(test.body)}
		if got := r.ProducerKey(id); got != test.want {
			t.Errorf("key %q, body %s: %q, want %q", test.key, test.body, got, test.want)
		}
	}
}

func TestSpec_Labels(t *testing.T) {
	var s Spec
	if err := json.Unmarshal([]byte(`{"function":"f","tags":["b","a"],"meta":{"z":"1","y":"2"}}`), &s); err != nil {
		t.Fatal(err)
	}
	want := Labels{Tags: []string{"b", "a"}, Meta: []Label{{"y", "2"}, {"z", "1"}}}
	if diff := cmp.Diff(want, s.Labels()); diff != "" {
		t.Error(diff)
	}
}
