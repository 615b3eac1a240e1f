package overhop

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
)

// reading reads a payload's fields and keeps the first thing that is wrong. A
// field that is not there is an empty Raw. By the draft a nil is not the same
// as a missing field; our own messages take it for one with [orAbsent].
type reading struct{ err error }

func (r *reading) result() error { return r.err }

func (r *reading) wrong(name, want string, got Raw) {
	if r.err != nil {
		return
	}
	if len(got) == 0 {
		r.err = &Violation{fmt.Sprintf("%s is missing, must be %s", name, want)}
		return
	}
	r.err = &Violation{fmt.Sprintf("%s must be %s, not %s", name, want, got.Kind())}
}

// orAbsent takes a nil for a missing field.
func orAbsent(v Raw) Raw {
	if v.IsNil() {
		return nil
	}
	return v
}

func (r *reading) str(name string, v Raw) string {
	s, ok := v.Str()
	if !ok {
		r.wrong(name, "a string", v)
	}
	return s
}

func (r *reading) optStr(name string, v Raw) string {
	if len(v) == 0 {
		return ""
	}
	return r.str(name, v)
}

func (r *reading) int(name string, v Raw, low, high int64) int64 {
	i, ok := v.Int()
	if !ok {
		r.wrong(name, "an int", v)
	} else if (i < low || i > high) && r.err == nil {
		r.err = &Violation{fmt.Sprintf("%s is %d, must be %d to %d", name, i, low, high)}
	}
	return i
}

func (r *reading) optInt(name string, v Raw, low, high, otherwise int64) int64 {
	if len(v) == 0 {
		return otherwise
	}
	return r.int(name, v, low, high)
}

func (r *reading) optBool(name string, v Raw, otherwise bool) bool {
	if len(v) == 0 {
		return otherwise
	}
	b, ok := v.Bool()
	if !ok {
		r.wrong(name, "a bool", v)
	}
	return b
}

func (r *reading) optTime(name string, v Raw) time.Time {
	if len(v) == 0 {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, r.str(name, v))
	if err != nil {
		r.wrong(name, "an RFC 3339 time", v)
	}
	return t
}

// uuid reads any usual spelling of a UUID and gives the canonical one.
func (r *reading) uuid(name string, v Raw) string {
	id, err := uuid.Parse(r.str(name, v))
	if err != nil {
		r.wrong(name, "a UUID", v)
	}
	return id.String()
}

// optKey tells a text that is not there from an empty one.
func (r *reading) optKey(name string, v Raw) *string {
	if v.IsNil() {
		return nil
	}
	key := r.str(name, v)
	return &key
}

// optCount tells a number that is not there from a zero.
func (r *reading) optCount(name string, v Raw) *int64 {
	if v.IsNil() {
		return nil
	}
	n := r.int(name, v, math.MinInt64, maxInt)
	return &n
}

// maxTexts is the most entries of a map of texts: each costs many times its
// size in a frame.
const maxTexts = 64

func (r *reading) optTexts(name string, v Raw) map[string]string {
	if len(v) == 0 {
		return nil
	}
	if v.Kind() != KindMap {
		r.wrong(name, "a map of strings", v)
	}
	if v.Len() > maxTexts {
		if r.err == nil {
			r.err = &Violation{fmt.Sprintf("%s has %d entries, must have at most %d", name, v.Len(), maxTexts)}
		}
		return nil
	}
	texts := make(map[string]string)
	for key, value := range v.Pairs() {
		texts[string(key)] = r.str(name+"."+string(key), value)
	}
	return texts
}

// bin reads binary in place: it is valid as long as the frame.
func (r *reading) bin(name string, v Raw) []byte {
	b, ok := v.Bin()
	if !ok {
		r.wrong(name, "binary", v)
	}
	return b
}

// text reads text in place: it is valid as long as the frame.
func (r *reading) text(name string, v Raw) []byte {
	b, ok := v.Text()
	if !ok {
		r.wrong(name, "a string", v)
	}
	return b
}
