package overhop

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestAppendJSON(t *testing.T) {
	for _, c := range []struct{ bytes, want string }{
		{"c0", `null`},
		{"cf7fffffffffffffff", `9223372036854775807`},
		{"d38000000000000000", `-9223372036854775808`},
		{"a4220a5c01", `"\"\n\\\u0001"`},
		{"82a16202a16101", `{"b":2,"a":1}`},
		{"83a16101a16202a16103", `{"b":2,"a":3}`},
		{"82a16101a16102", `{"a":2}`},
		{"9281a161c2a0", `[{"a":false},""]`},
	} {
		b := decodeHex(t, c.bytes)
		if err := Check(b); err != nil {
			t.Fatal(err)
		}
		got, err := AppendJSON(nil, b)
		if err != nil || string(got) != c.want || !json.Valid(got) {
			t.Errorf("%s is %s (%v), want %s", c.bytes, got, err, c.want)
		}
	}
	if _, err := AppendJSON(nil, decodeHex(t, "81a16191c40100")); !errors.Is(err, ErrBinary) {
		t.Errorf("binary gave %v", err)
	}
	if got := AppendLossyJSON(nil, decodeHex(t, "81a161c4020001")); string(got) != `{"a":"AAE="}` {
		t.Errorf("binary in lossy JSON is %s", got)
	}
}

// Maps with many keys and many repeated keys are converted correctly.
func TestAppendJSON_ManyRepeated(t *testing.T) {
	b := AppendMap(nil, 1000)
	for i := range 1000 {
		b = AppendInt(AppendStr(b, fmt.Sprint("k", i%100)), int64(i))
	}
	text, err := AppendJSON(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]int
	if err := json.Unmarshal(text, &m); err != nil || len(m) != 100 || m["k7"] != 907 {
		t.Errorf("%d keys, k7 is %d: %v", len(m), m["k7"], err)
	}
	if strings.Count(string(text), `"k7":`) != 1 {
		t.Error("a repeated key was written more than once")
	}
}

func TestAppendFromJSON(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`null`, "c0"},
		{` { "a" : [ 1 , true ] } `, "81a1619201c3"},
		{`9223372036854775807`, "cf7fffffffffffffff"},
		{`-9223372036854775808`, "d38000000000000000"},
		{`9223372036854775808`, "b339323233333732303336383534373735383038"},
		{`1.50`, "a4312e3530"},
		{`1e3`, "a3316533"},
		{`-0`, "00"},
		{`"a\u00e9\ud83d\ude00"`, "a761c3a9f09f9880"},
		{`"\ud800"`, "a3efbfbd"},
		{"\"\xff\"", "a3efbfbd"},
		{`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]`, "dc00100102030405060708090a0b0c0d0e0f10"},
		{`{}`, "80"},
	} {
		got, err := AppendFromJSON(nil, []byte(c.text), 10)
		if err != nil || fmt.Sprintf("%x", got) != c.want {
			t.Errorf("%s is %x (%v), want %s", c.text, got, err, c.want)
		}
		if err := Check(got); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	for _, text := range []string{``, `{`, `[1,]`, `{"a"}`, `{"a":1,}`, `{1:2}`, `01`, `-`, `1.`, `"a`, `"\x"`, "\"\n\"", `nul`, `1 2`, `[[[[[[[[[[[1]]]]]]]]]]]`} {
		if got, err := AppendFromJSON([]byte("x"), []byte(text), 10); !errors.Is(err, ErrNotSendable) || string(got) != "x" {
			t.Errorf("%s gave %q, %v", text, got, err)
		}
	}
}

func FuzzFromJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,-2.5e9,"\u00e9",null,{"b":{}}]}`))
	f.Add([]byte(`"\ud800\ud83d\ude00"`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := AppendFromJSON(nil, text, MaxDepth)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q is not JSON and was accepted", text)
		}
		if err := Check(got); err != nil {
			t.Fatalf("%q became %x: %v", text, got, err)
		}
	})
}
