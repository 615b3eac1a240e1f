package structpack

import (
	"reflect"
	"testing"
	"time"
)

// The same struct in an older and a newer release.
type (
	oldStruct struct{ A string }
	newStruct struct {
		A string
		B int64
	}
)

func TestAppendedFields(t *testing.T) {
	convert := func(from, to any) error {
		raw, err := Encode(nil, func(e *Encoder) error { return e.Value(from) })
		if err != nil {
			t.Fatal(err)
		}
		return Decode(raw, func(d *Decoder) error { return d.Value(to) })
	}
	var up newStruct
	if err := convert(&oldStruct{"x"}, &up); err != nil || up != (newStruct{A: "x"}) {
		t.Errorf("older entry read as %+v, %v", up, err)
	}
	if err := convert(&newStruct{"x", 1}, new(oldStruct)); err == nil {
		t.Error("a field of a newer release was dropped without an error")
	}
	if err := convert(&newStruct{"x", 300}, new(struct {
		A string
		B uint8
	})); err == nil {
		t.Error("300 was decoded into a uint8")
	}
}

func TestRejectsLossyTypes(t *testing.T) {
	for _, bad := range []any{struct{ a int }{}, struct{ A any }{}, struct{ A *[]int }{}, struct{ A *time.Time }{}, struct{ A func() }{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T was accepted", bad)
				}
			}()
			compile(reflect.TypeOf(bad))
		}()
	}
}
