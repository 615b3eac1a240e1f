package overhop

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// The functions of this file append MessagePack in one form only: smallest
// integers and lengths, and where they choose the order, keys sorted by bytes.
// The same message is always the same bytes.

// AppendNil appends nil.
func AppendNil(b []byte) []byte { return append(b, 0xc0) }

// AppendBool appends a bool.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

// AppendInt appends an integer.
func AppendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v <= 0x7f, v < 0 && v >= -32:
		return append(b, byte(v))
	case v >= 0 && v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v >= 0 && v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v >= 0 && v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	case v >= 0:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

// AppendStr appends text, which must be UTF-8.
func AppendStr[S ~string | ~[]byte](b []byte, s S) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

// AppendBin appends binary.
func AppendBin(b, v []byte) []byte {
	switch n := len(v); {
	case n <= math.MaxUint8:
		b = append(b, 0xc4, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(n))
	}
	return append(b, v...)
}

// AppendArray appends the header of an array. n values must follow.
func AppendArray(b []byte, n int) []byte { return appendHeader(b, 0x90, 0xdc, n) }

// AppendMap appends the header of a map. n pairs of key and value must follow.
func AppendMap(b []byte, n int) []byte { return appendHeader(b, 0x80, 0xde, n) }

func appendHeader(b []byte, small, wide byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, small|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, wide), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, wide+1), uint32(n))
}

// AppendTime appends a time as RFC 3339 text in UTC.
func AppendTime(b []byte, t time.Time) []byte {
	var text [40]byte
	return AppendStr(b, t.UTC().AppendFormat(text[:0], time.RFC3339Nano))
}

// Fields is a map of plain Go values, for messages that are not performance
// critical.
type Fields map[string]any

// Raw returns f as an encoded value. It panics like [AppendValue].
func (f Fields) Raw() Raw { return f.append(nil) }

func (f Fields) append(b []byte) []byte { return AppendValue(b, f) }

// setUnlessZero sets a field unless v is the zero value.
func setUnlessZero[T comparable](f Fields, name string, v T) {
	if v != *new(T) {
		f[name] = v
	}
}

// setIfGiven sets a field to what v points to, unless v is nil.
func setIfGiven[T any](f Fields, name string, v *T) {
	if v != nil {
		f[name] = *v
	}
}

// AppendValue appends a value of type nil, bool, int, int64, uint32, string,
// []byte (as binary), [Raw], time.Time, []any, []string, [Fields] or
// map[string]string. It panics on any other type. [Marshal] accepts more types
// and returns errors.
func AppendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return AppendNil(b)
	case bool:
		return AppendBool(b, v)
	case int:
		return AppendInt(b, int64(v))
	case int64:
		return AppendInt(b, v)
	case uint32:
		return AppendInt(b, int64(v))
	case string:
		return AppendStr(b, v)
	case Raw:
		return append(b, v...)
	case []byte:
		return AppendBin(b, v)
	case time.Time:
		return AppendTime(b, v)
	}
	return appendTree(b, v)
}

func appendTree(b []byte, v any) []byte {
	switch v := v.(type) {
	case []any:
		b = AppendArray(b, len(v))
		for _, item := range v {
			b = AppendValue(b, item)
		}
	case []string:
		b = AppendArray(b, len(v))
		for _, item := range v {
			b = AppendStr(b, item)
		}
	case Fields:
		b = AppendMap(b, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = AppendValue(AppendStr(b, key), v[key])
		}
	case map[string]string:
		b = AppendMap(b, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = AppendStr(AppendStr(b, key), v[key])
		}
	default:
		panic(fmt.Sprintf("overhop: cannot encode a %T", v))
	}
	return b
}
