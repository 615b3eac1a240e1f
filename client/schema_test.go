package client

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/payloadschema"
)

type testAddress struct {
	Street string  `json:"street"`
	Zip    *string `json:"zip"`
}

type testBase struct {
	Created time.Time `json:"created"`
	Tags    []string  `json:"tags,omitempty"`
}

type testExtra struct {
	Note string `json:"note"`
}

type testTree struct {
	Value    int         `json:"value"`
	Children []*testTree `json:"children"`
	Left     *testTree   `json:"left,omitempty"`
}

type testMail struct {
	testBase
	*testExtra
	To       string                 `json:"to"`
	Level    string                 `json:"level" jsonschema:"enum=low|high"`
	Sender   *testAddress           `json:"sender"`
	Cc       []testAddress          `json:"cc"`
	ByName   map[string]testAddress `json:"by_name"`
	ByNumber map[int16]float64      `json:"by_number,omitempty"`
	Retries  uint8                  `json:"retries"`
	Offset   int32                  `json:"offset"`
	Ratio    float32                `json:"ratio"`
	Exact    int64
	Flag     bool `json:",omitempty"`
	Pair     [2]bool
	Any      any        `json:"any"`
	From     netip.Addr `json:"from"`
	Tree     testTree   `json:"tree"`
	Inline   struct {
		A *int `json:"a"`
	} `json:"inline"`
	Hidden string `json:"-"`
	secret string
}

type testGeneric[T any] struct{ Value T }

// fill sets v to a random value.
func fill(v reflect.Value, random *rand.Rand, depth int) {
	switch {
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(time.Unix(random.Int64N(4e9), random.Int64N(1e9)).UTC()))
		return
	case v.Type() == reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{byte(random.Uint32()), 1, 2, 3})))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(random.IntN(2) == 0)
	case reflect.String:
		v.SetString([]string{"", "low", "ü", `"x"`}[random.IntN(4)])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(random.Uint64()) >> (64 - v.Type().Bits()))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(random.Uint64() >> (64 - v.Type().Bits()))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(float32(random.NormFloat64() * 1e6)))
	case reflect.Interface:
		v.Set(reflect.ValueOf([]any{"text", 1, []any{true}, map[string]any{"a": 1}}[random.IntN(4)]))
	case reflect.Pointer:
		if depth > 0 && random.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), random, depth-1)
		}
	case reflect.Slice:
		if n := random.IntN(3); depth > 0 && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n-1))
			for i := range n - 1 {
				fill(v.Index(i), random, depth-1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), random, depth)
		}
	case reflect.Map:
		if n := random.IntN(3); n > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n - 1 {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(key, random, depth)
				fill(value, random, depth)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() || f.Kind() == reflect.Struct {
				fill(f, random, depth)
			}
		}
	}
}

// checkValues checks that random values of T match its schema, as this package sends them and
// as encoding/json writes them.
func checkValues[T any](t *testing.T, fix func(*T)) *payloadschema.Schema {
	t.Helper()
	text, err := Schema[T]()
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := payloadschema.Compile(text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var value T
		fill(reflect.ValueOf(&value).Elem(), random, 4)
		fix(&value)
		asJSON, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := overhop.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		asSent, err := overhop.AppendJSON(nil, raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, payload := range [][]byte{asJSON, asSent} {
			if v := compiled.Check(payload); v != nil {
				t.Fatalf("%s: %+v; schema %s", payload, v, text)
			}
		}
	}
	return compiled
}

func TestSchema_Values(t *testing.T) {
	level := func(m *testMail) { m.Level = []string{"low", "high"}[m.Retries%2] }
	compiled := checkValues(t, level)
	checkValues(t, func(*testTree) {})
	checkValues(t, func(m *map[string]testTree) {
		if *m == nil { // would be no params
			*m = map[string]testTree{}
		}
	})
	checkValues(t, func(*testGeneric[testGeneric[*testTree]]) {})

	var valid testMail
	fill(reflect.ValueOf(&valid).Elem(), rand.New(rand.NewPCG(3, 4)), 4)
	level(&valid)
	text, _ := json.Marshal(valid)
	for name, tt := range map[string]struct {
		value any // nil: removed
		path  string
	}{
		"to": {7, "/to"}, "level": {"medium", "/level"}, "created": {"yesterday", "/created"}, "retries": {256, "/retries"}, "offset": {1.5, "/offset"},
		"sender": {map[string]any{"street": 1, "zip": nil}, "/sender/street"}, "cc": {[]any{map[string]any{"zip": nil}}, "/cc/0"},
		"by_name": {map[string]any{"x": 1}, "/by_name/x"}, "by_number": {map[string]any{"1": "x"}, "/by_number/1"}, "tree": {nil, ""}, "Pair": {[]any{true}, "/Pair"},
		"inline": {map[string]any{}, "/inline"}, "from": {1, "/from"}, "tags": {[]any{1}, "/tags/0"}, "note": {1, "/note"},
	} {
		var changed map[string]any
		if err := json.Unmarshal(text, &changed); err != nil {
			t.Fatal(err)
		}
		delete(changed, name)
		if tt.value != nil {
			changed[name] = tt.value
		}
		payload, _ := json.Marshal(changed)
		if v := compiled.Check(payload); v == nil || v.Path != tt.path {
			t.Errorf("%s: %+v, want %s", name, v, tt.path)
		}
	}
	_ = valid.secret
}

func TestSchema_Text(t *testing.T) {
	text, err := Schema[struct {
		To    string   `json:"to"`
		Level *string  `json:"level,omitempty" jsonschema:"enum=low|high"`
		N     []uint16 `json:"n"`
	}]()
	const want = `{"$schema":"https://json-schema.org/draft/2020-12/schema","properties":{` +
		`"level":{"anyOf":[{"enum":["low","high"],"type":"string"},{"type":"null"}]},` +
		`"n":{"items":{"maximum":65535,"minimum":0,"type":"integer"},"type":["array","null"]},` +
		`"to":{"type":"string"}},"required":["n","to"],"type":"object"}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

func TestSchema_Errors(t *testing.T) {
	for name, tt := range map[string]struct {
		schema func() (json.RawMessage, error)
		want   string
	}{
		"text":  {Schema[string], "params with a schema are a struct or a map"},
		"time":  {Schema[time.Time], "params with a schema are a struct or a map"},
		"bytes": {Schema[struct{ In struct{ Data []byte } }], ".In.Data: a []uint8 is sent as binary"},
		"raw":   {Schema[struct{ Data []json.RawMessage }], ".Data[]: a json.RawMessage is sent as binary"},
		"chan":  {Schema[struct{ C map[string]chan int }], ".C{}: a chan int cannot be sent"},
		"key":   {Schema[map[bool]int], "the keys of a map must be text or integers, not bool"},
		"enum": {Schema[struct {
			N int `jsonschema:"enum=1|2"`
		}], ".N: the tag enum is for strings"},
	} {
		if _, err := tt.schema(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

func ExampleSchema() {
	type Send struct {
		To      string  `json:"to"`
		Subject *string `json:"subject,omitempty"`
	}
	schema, err := Schema[Send]()
	fmt.Println(string(schema), err)
	// Output:
	// {"$defs":{"Send":{"properties":{"subject":{"type":["string","null"]},"to":{"type":"string"}},"required":["to"],"type":"object"}},"$ref":"#/$defs/Send","$schema":"https://json-schema.org/draft/2020-12/schema"} <nil>
}
