package overhop

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
)

// fieldReader parses a payload's fields and keeps the first error. A missing
// field is an empty Raw. In the protocol's draft a nil is not the same as a
// missing field; the messages of the extension treat it as one ([nilAsAbsent]).
type fieldReader struct{ err error }

func (r *fieldReader) result() error { return r.err }

func (r *fieldReader) mismatch(name, want string, got Raw) {
	if r.err != nil {
		return
	}
	if len(got) == 0 {
		r.err = &Violation{fmt.Sprintf("%s is missing, must be %s", name, want)}
		return
	}
	r.err = &Violation{fmt.Sprintf("%s must be %s, not %s", name, want, got.Kind())}
}

// nilAsAbsent returns an empty Raw for nil, and v otherwise.
func nilAsAbsent(v Raw) Raw {
	if v.IsNil() {
		return nil
	}
	return v
}

func (r *fieldReader) str(name string, v Raw) string {
	s, ok := v.Str()
	if !ok {
		r.mismatch(name, "a string", v)
	}
	return s
}

func (r *fieldReader) optStr(name string, v Raw) string {
	if len(v) == 0 {
		return ""
	}
	return r.str(name, v)
}

func (r *fieldReader) int(name string, v Raw, low, high int64) int64 {
	i, ok := v.Int()
	if !ok {
		r.mismatch(name, "an int", v)
	} else if (i < low || i > high) && r.err == nil {
		r.err = &Violation{fmt.Sprintf("%s is %d, must be %d to %d", name, i, low, high)}
	}
	return i
}

func (r *fieldReader) optInt(name string, v Raw, low, high, otherwise int64) int64 {
	if len(v) == 0 {
		return otherwise
	}
	return r.int(name, v, low, high)
}

func (r *fieldReader) optBool(name string, v Raw, otherwise bool) bool {
	if len(v) == 0 {
		return otherwise
	}
	b, ok := v.Bool()
	if !ok {
		r.mismatch(name, "a bool", v)
	}
	return b
}

func (r *fieldReader) optTime(name string, v Raw) time.Time {
	if len(v) == 0 {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, r.str(name, v))
	if err != nil {
		r.mismatch(name, "an RFC 3339 time", v)
	}
	return t
}

// uuid parses a UUID in any usual form and returns the canonical one.
func (r *fieldReader) uuid(name string, v Raw) string {
	id, err := uuid.Parse(r.str(name, v))
	if err != nil {
		r.mismatch(name, "a UUID", v)
	}
	return id.String()
}

// optKey returns nil for a missing text, so that it can be told from an empty
// one.
func (r *fieldReader) optKey(name string, v Raw) *string {
	if v.IsNil() {
		return nil
	}
	key := r.str(name, v)
	return &key
}

// optCount returns nil for a missing number, so that it can be told from 0.
func (r *fieldReader) optCount(name string, v Raw) *int64 {
	if v.IsNil() {
		return nil
	}
	n := r.int(name, v, math.MinInt64, maxInt)
	return &n
}

// maxStringMap is the number of entries allowed in a map of strings. In memory
// each takes many times its size in the frame.
const maxStringMap = 64

func (r *fieldReader) optStrings(name string, v Raw) map[string]string {
	if len(v) == 0 {
		return nil
	}
	if v.Kind() != KindMap {
		r.mismatch(name, "a map of strings", v)
	}
	if v.Len() > maxStringMap {
		if r.err == nil {
			r.err = &Violation{fmt.Sprintf("%s has %d entries, must have at most %d", name, v.Len(), maxStringMap)}
		}
		return nil
	}
	texts := make(map[string]string)
	for key, value := range v.Pairs() {
		texts[string(key)] = r.str(name+"."+string(key), value)
	}
	return texts
}

// bin returns binary in place. It is valid as long as the frame.
func (r *fieldReader) bin(name string, v Raw) []byte {
	b, ok := v.Bin()
	if !ok {
		r.mismatch(name, "binary", v)
	}
	return b
}

// text returns text in place. It is valid as long as the frame.
func (r *fieldReader) text(name string, v Raw) []byte {
	b, ok := v.Text()
	if !ok {
		r.mismatch(name, "a string", v)
	}
	return b
}
