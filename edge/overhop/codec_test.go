package overhop

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

func decodeHex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCheck(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("91", depth) + "c0" }
	for _, c := range []struct{ name, bytes, refused string }{
		{"nil", "c0", ""},
		{"true", "c3", ""},
		{"smallest int64", "d3 8000000000000000", ""},
		{"largest int64 as uint64", "cf 7fffffffffffffff", ""},
		{"wide head of a small int", "cf 0000000000000001", ""},
		{"text", "a3 616263", ""},
		{"binary", "c4 02 ff00", ""},
		{"map with wide key", "81 d9 01 61 c0", ""},
		{"array of map", "91 81 a1 61 92 01 02", ""},
		{"repeated key", "82 a1 61 01 a1 61 02", ""},
		{"128 levels", nested(128), ""},

		{"nothing", "", "cut off"},
		{"uint64 beyond int64", "cf 8000000000000000", "integer beyond int64"},
		{"float32", "ca 00000000", "float"},
		{"float64 in a map", "81 a1 61 cb 0000000000000000", "float"},
		{"fixext", "d4 01 00", "extension type"},
		{"ext8", "c7 01 01 00", "extension type"},
		{"timestamp", "d6 ff 00000000", "extension type"},
		{"reserved", "c1", "reserved byte 0xc1"},
		{"text not UTF-8", "a1 ff", "text is not UTF-8"},
		{"key not UTF-8", "81 a1 ff c0", "text is not UTF-8"},
		{"int key", "81 01 c0", "map key is not text"},
		{"binary key", "81 c4 01 61 c0", "map key is not text"},
		{"trailing byte", "c0 c0", "trailing bytes"},
		{"cut text", "a3 6162", "cut off"},
		{"cut head", "cd 00", "cut off"},
		{"cut map", "81 a1 61", "cut off"},
		{"huge array, no items", "dd ffffffff", "cut off"},
		{"huge map, no items", "df ffffffff", "cut off"},
		{"huge binary, no bytes", "c6 ffffffff", "cut off"},
		{"129 levels", nested(129), "nested more than 128 deep"},
		{"100000 levels", nested(100_000), "nested more than 128 deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(decodeHex(t, c.bytes))
			var refused *CodecError
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refused != "" && (!errors.As(err, &refused) || refused.Reason != c.refused):
				t.Errorf("got %v, want %q", err, c.refused)
			}
		})
	}
}

// Checking a frame that announces millions of items does not allocate.
func TestCheckAllocatesNothing(t *testing.T) {
	million := append([]byte{0xdf, 0, 0x0f, 0x42, 0x40}, bytes.Repeat([]byte{0xa1, 'k', 0xc0}, 1_000_000)...)
	// With few runs, one allocation by the runtime would average to one.
	if n := testing.AllocsPerRun(20, func() {
		if err := Check(million); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEncodeSmallest(t *testing.T) {
	for v, want := range map[int64]string{
		0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000",
		math.MaxUint32: "ceffffffff", math.MaxUint32 + 1: "cf0000000100000000", math.MaxInt64: "cf7fffffffffffffff",
		-1: "ff", -32: "e0", -33: "d0df", -128: "d080", -129: "d1ff7f", -32768: "d18000", -32769: "d2ffff7fff",
		math.MinInt32: "d280000000", math.MinInt32 - 1: "d3ffffffff7fffffff", math.MinInt64: "d38000000000000000",
	} {
		if got := hex.EncodeToString(AppendInt(nil, v)); got != want {
			t.Errorf("%d is %s, want %s", v, got, want)
		}
	}
	for n, head := range map[int]string{0: "a0", 31: "bf", 32: "d920", 255: "d9ff", 256: "da0100", 65536: "db00010000"} {
		got := AppendStr(nil, strings.Repeat("x", n))
		if !strings.HasPrefix(hex.EncodeToString(got), head) || len(got) != len(head)/2+n {
			t.Errorf("text of %d bytes begins %x, want %s", n, got[:min(len(got), 5)], head)
		}
	}
}

// Values survive the round trip through another MessagePack library.
func TestCodec_AgreesWithMsgpack(t *testing.T) {
	tree := map[string]any{
		"nil": nil, "yes": true, "small": int64(1), "big": int64(math.MaxInt64), "low": int64(math.MinInt64),
		"text": "grüße", "bin": []byte{0, 255}, "list": []any{int64(-5), "x", []any{}},
		"map": map[string]any{"a": int64(1 << 40)}, "long": strings.Repeat("y", 70_000),
	}
	fields := Fields{}
	for k, v := range tree {
		fields[k] = v
	}
	fields["map"] = Fields{"a": int64(1 << 40)}
	ours := AppendValue(nil, fields)
	if err := Check(ours); err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := msgpack.Unmarshal(ours, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree, wideInts(back)); diff != "" {
		t.Errorf("the other library decodes a different value (-ours +theirs):\n%s", diff)
	}
	theirs, err := msgpack.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	if got := canonical(nil, theirs); !bytes.Equal(got, ours) {
		t.Errorf("the other library's encoding in canonical form is\n%x, want\n%x", got, ours)
	}
}

// wideInts converts every integer of a tree to int64.
func wideInts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wideInts(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wideInts(v[i])
		}
	case nil, bool, string, []byte:
	default:
		r := reflect.ValueOf(v)
		if r.CanUint() {
			return int64(r.Uint())
		}
		return r.Int()
	}
	return v
}

// canonical appends a checked value in the form that this package writes.
func canonical(b []byte, r Raw) []byte {
	switch r.Kind() {
	case KindInt:
		v, _ := r.Int()
		return AppendInt(b, v)
	case KindStr:
		v, _ := r.Text()
		return AppendStr(b, v)
	case KindBin:
		v, _ := r.Bin()
		return AppendBin(b, v)
	case KindArray:
		b = AppendArray(b, r.Len())
		for item := range r.Items() {
			b = canonical(b, item)
		}
		return b
	case KindMap:
		last := map[string]Raw{}
		var keys []string
		for k, v := range r.Pairs() {
			if _, seen := last[string(k)]; !seen {
				keys = append(keys, string(k))
			}
			last[string(k)] = v
		}
		slices.Sort(keys)
		b = AppendMap(b, len(keys))
		for _, k := range keys {
			b = canonical(AppendStr(b, k), last[k])
		}
		return b
	}
	return append(b, r...)
}

func TestRawReads(t *testing.T) {
	r := Raw(AppendValue(nil, Fields{"a": int64(7), "b": "x", "c": []any{true, nil}}))
	if v, ok := r.Get("a").Int(); !ok || v != 7 {
		t.Errorf("a is %d, %t", v, ok)
	}
	if _, ok := r.Get("a").Str(); ok {
		t.Error("an int is read as text")
	}
	if v := r.Get("none"); len(v) != 0 || v.Kind() != 0 || !v.IsNil() {
		t.Errorf("a missing key is %x", []byte(v))
	}
	if n := r.Get("c").Len(); n != 2 {
		t.Errorf("c has %d items", n)
	}
	twice := Raw(decodeHex(t, "82 a1 61 01 a1 61 02"))
	if v, _ := twice.Get("a").Int(); v != 2 {
		t.Errorf("of a repeated key the value is %d, want the last, 2", v)
	}
	if !Raw(decodeHex(t, "81 a1 61 91 c4 00")).HasBinary() || r.HasBinary() {
		t.Error("HasBinary is wrong")
	}
}

func FuzzCheck(f *testing.F) {
	for _, seed := range []string{"c0", "84a17080a3726964a131a17401a17602", "82a16101a16102", "dfffffffff", "91cb00", "c403010203", "d3ffffffffffffffff"} {
		f.Add(decodeHex(f, seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b) != nil {
			return
		}
		once := canonical(nil, b)
		if err := Check(once); err != nil {
			t.Fatalf("canonical form of %x is refused: %v", b, err)
		}
		if twice := canonical(nil, once); !bytes.Equal(once, twice) {
			t.Fatalf("canonical form of %x is not stable", b)
		}
		var any any
		d := msgpack.NewDecoder(bytes.NewReader(b))
		if err := d.Decode(&any); err != nil {
			t.Fatalf("the other library refuses %x: %v", b, err)
		}
		text, err := AppendJSON(nil, b)
		if err != nil {
			return
		}
		back, err := AppendFromJSON(nil, text, MaxDepth)
		if err != nil {
			t.Fatalf("JSON %s of %x is refused: %v", text, b, err)
		}
		if got := canonical(nil, back); !bytes.Equal(got, once) {
			t.Fatalf("%x came back from JSON %s as %x", once, text, got)
		}
	})
}
