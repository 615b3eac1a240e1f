package overhop

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

type inner struct {
	Deep  string `json:"deep"`
	Shown int
}

type testMessage struct {
	inner
	To      string `json:"to"`
	Shown   int    // hides inner's
	CC      []string
	Body    []byte         `json:"body,omitempty"`
	Sent    time.Time      `json:"sent,omitzero"`
	ID      uuid.UUID      `json:"id"`
	Tries   map[int]uint16 `json:"tries"`
	Next    *testMessage   `json:"next,omitempty"`
	Any     any            `json:"any"`
	Raw     Raw            `json:"raw"`
	Pair    [2]int8        `json:"pair"`
	Secret  string         `json:"-"`
	private int
}

var someMessage = testMessage{
	inner: inner{Deep: "d"}, To: "ann", Shown: 1, CC: []string{"bob"}, Body: []byte{0, 0xff},
	Sent: time.Date(2026, 5, 4, 3, 2, 1, 5000, time.UTC), ID: uuid.UUID{15: 7}, Tries: map[int]uint16{-3: 65535},
	Next: &testMessage{To: "carl"}, Any: map[string]any{"n": int64(math.MinInt64), "list": []any{true, nil, "ü"}},
	Raw: Raw{0x01}, Pair: [2]int8{-128, 127},
}

func TestMarshal_RoundTrip(t *testing.T) {
	r, err := Marshal(&someMessage)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckDepth(r, MaxDepth-2); err != nil {
		t.Fatal(err)
	}
	again, err := Marshal(someMessage)
	if err != nil || !bytes.Equal(r, again) {
		t.Errorf("the value has a different encoding than a pointer to it: %v", err)
	}
	if sent := textOf(r.Get("sent")); sent != "2026-05-04T03:02:01.000005Z" {
		t.Errorf("sent is %q", sent)
	}
	for _, key := range []string{"Secret", "private", "inner", "-"} {
		if len(r.Get(key)) > 0 {
			t.Errorf("%s was sent", key)
		}
	}
	var back testMessage
	if err := Unmarshal(r, &back); err != nil {
		t.Fatal(err)
	}
	want := someMessage
	next := *want.Next
	next.Raw, want.Next = Nil, &next // an empty Raw is sent as nil
	back.Next.Raw = Nil
	if !reflect.DeepEqual(back, want) {
		t.Errorf("came back as\n%+v, want\n%+v", back, want)
	}
	for i := range r {
		r[i] = 0xc1
	}
	if back.To != "ann" || back.Body[1] != 0xff || back.Raw[0] != 1 {
		t.Error("the decoded value refers to the encoded bytes")
	}
}

type ring struct{ Next *ring }

type pointers *pointers

func TestMarshal_Errors(t *testing.T) {
	endless := &ring{}
	endless.Next = endless
	var self pointers
	self = &self
	for want, v := range map[string]any{
		"value at [1].price: NaN cannot be sent":       []any{1, map[string]any{"price": math.NaN()}},
		"value at N: the value has binary":             struct{ B, N any }{[]byte{1}, 0.5},
		`value: "0x10" is not a number`:                json.Number("0x10"),
		"value: text is not UTF-8":                     "\xff",
		"value at a: a chan int cannot be sent":        map[string]any{"a": make(chan int)},
		"map keys must be text or integers, not bool":  map[bool]int{true: 1},
		"is nested more than":                          endless,
		"is nested more than 120 deep":                 self,
		"value at r: not an allowed MessagePack value": map[string]Raw{"r": {0xca}},
	} {
		_, err := Marshal(v)
		var value *ValueError
		if !errors.As(err, &value) || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v, want %q", v, err, want)
		}
	}
}

// Numbers that MessagePack has no type for are the same after their way as JSON.
func TestMarshal_Numbers(t *testing.T) {
	type numbers struct {
		Price  float64
		Small  float32
		Whole  float64
		Big    uint64
		Exact  json.Number
		Count  json.Number
		Plain  any
		Beyond any
		List   []any
	}
	sent := numbers{
		Price: 19.99, Small: 0.1, Whole: 3, Big: math.MaxUint64, Exact: "1.50", Count: "7", Plain: 2.5,
		Beyond: json.Number("18446744073709551616"), List: []any{int64(1), 1e-7, "0.5"},
	}
	encoded, err := Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	if !encoded.HasNumber() || Check(encoded) == nil {
		t.Error("numbers would be sent as MessagePack")
	}
	text, err := AppendJSON(nil, encoded)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"Beyond":18446744073709551616,"Big":18446744073709551615,"Count":7,"Exact":1.50,"List":[1,1e-07,"0.5"],` +
		`"Plain":2.5,"Price":19.99,"Small":0.1,"Whole":3}`
	if string(text) != want {
		t.Errorf("as JSON:\n%s, want\n%s", text, want)
	}
	received, err := FromJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var got numbers
	if err := Unmarshal(received, &got); err != nil || !reflect.DeepEqual(got, sent) {
		t.Errorf("received %+v, %v, want %+v", got, err, sent)
	}
	if whole, err := Marshal(map[string]any{"n": 3.0}); err != nil || whole.HasNumber() {
		t.Errorf("a float that is an integer is %x, %v", whole, err)
	}
}

func TestUnmarshal(t *testing.T) {
	for _, c := range []struct {
		value Raw
		into  any
		want  any
	}{
		{AppendStr(nil, "0.5"), new(float64), 0.5},
		{AppendInt(nil, 3), new(float32), float32(3)},
		{AppendInt(nil, math.MaxInt64), new(uint64), uint64(math.MaxInt64)},
		{AppendInt(nil, -128), new(int8), int8(-128)},
		{nil, new(string), ""},
		{Nil, &[]int{1}, []int(nil)},
		{AppendBin(nil, []byte{1}), new(any), []byte{1}},
		{Fields{"1": "a", "2": "b"}.Raw(), new(map[uint8]string), map[uint8]string{1: "a", 2: "b"}},
		{Fields{"x": 1, "Shown": 2}.Raw(), new(inner), inner{Shown: 2}},
		{AppendStr(nil, "2026-01-02T03:04:05+01:00"), new(time.Time), time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)},
	} {
		if err := Unmarshal(c.value, c.into); err != nil {
			t.Errorf("%x into %T: %v", c.value, c.into, err)
			continue
		}
		got := reflect.ValueOf(c.into).Elem().Interface()
		if at, ok := got.(time.Time); ok {
			got = at.UTC()
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%x into %T is %v, want %v", c.value, c.into, got, c.want)
		}
	}
}

func TestUnmarshal_Errors(t *testing.T) {
	for _, c := range []struct {
		value Raw
		into  any
		want  string
	}{
		{AppendInt(nil, 128), new(int8), "128 does not fit into a int8"},
		{AppendInt(nil, -1), new(uint), "-1 does not fit into a uint"},
		{AppendStr(nil, "1"), new(int), "string does not fit into a int"},
		{AppendStr(nil, "x"), new(float64), `"x" is not a number`},
		{appendNumber(nil, []byte("0.5")), new(int), "0.5 does not fit into a int"},
		{appendNumber(nil, []byte("18446744073709551615")), new(uint32), "18446744073709551615 does not fit into a uint32"},
		{appendNumber(nil, []byte("0.5")), new(string), "0.5 does not fit into a string"},
		{AppendStr(nil, "x"), new([]byte), "text is not the base64 of bytes"},
		{AppendStr(nil, "x"), new(time.Time), "parsing time"},
		{AppendValue(nil, []any{1}), new([2]int), "1 items do not fit"},
		{Fields{"to": 1}.Raw(), new(testMessage), "value at to: int does not fit into a string"},
		{Fields{"tries": Fields{"a": 1}}.Raw(), new(testMessage), `value at tries: key "a" does not fit`},
		{Fields{"next": Fields{"CC": []any{1}}}.Raw(), new(testMessage), "value at next.CC[0]"},
		{Raw{0xca, 0, 0, 0, 0}, new(any), "float"},
		{Nil, nil, "only into what a non-nil pointer points to"},
		{Nil, testMessage{}, "only into what a non-nil pointer points to"},
	} {
		err := Unmarshal(c.value, c.into)
		var value *ValueError
		var codec *CodecError
		if !errors.As(err, &value) && !errors.As(err, &codec) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%x into %T: %v, want %q", c.value, c.into, err, c.want)
		}
	}
}

// A value decoded into an any is encoded as the same value, except for repeated
// map keys.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{0xc8, '0', '0'}) // an extension without its type
	f.Add([]byte(Fields{"a": []any{1, "x", []byte{1}, nil, true}}.Raw()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l testMessage
		Unmarshal(b, &l) // an error is fine, a panic is not
		if CheckDepth(b, MaxDepth-2) != nil {
			return
		}
		var v any
		if err := Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		r, err := Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var again any
		if err := Unmarshal(r, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%v came back as %v: %v", v, again, err)
		}
	})
}
