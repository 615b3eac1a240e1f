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

// AppendInt appends an integer in the shortest of MessagePack's forms.
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
	default:
		b = appendWideHeader(b, 0xda, n)
	}
	return append(b, s...)
}

// AppendBin appends binary.
func AppendBin(b, v []byte) []byte {
	if n := len(v); n <= math.MaxUint8 {
		b = append(b, 0xc4, byte(n))
	} else {
		b = appendWideHeader(b, 0xc5, n)
	}
	return append(b, v...)
}

// numberCode begins a number: an extension value of type 0 that holds the digits, as JSON
// writes them.
const numberCode = 0xc8

// maxNumberLen is the greatest number of bytes in a number.
const maxNumberLen = math.MaxUint16

// appendNumber appends a number that is not an integer in the range of int64, as written
// in JSON.
func appendNumber(b, digits []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, numberCode), uint16(len(digits)))
	return append(append(b, 0), digits...)
}

// AppendArray appends the header of an array. n values must follow.
func AppendArray(b []byte, n int) []byte { return appendHeader(b, 0x90, 0xdc, n) }

// AppendMap appends the header of a map. n pairs of key and value must follow.
func AppendMap(b []byte, n int) []byte { return appendHeader(b, 0x80, 0xde, n) }

// appendHeader appends the header of an array or map with n items. short is the
// first byte of a header without a length of its own, and wide that of a header
// with a length of two bytes.
func appendHeader(b []byte, short, wide byte, n int) []byte {
	if n < 16 {
		return append(b, short|byte(n))
	}
	return appendWideHeader(b, wide, n)
}

// appendWideHeader appends the header of a value with the length n. first is
// the first byte of a header with a length of two bytes; the next higher byte
// begins one with a length of four.
func appendWideHeader(b []byte, first byte, n int) []byte {
	if n <= math.MaxUint16 {
		return binary.BigEndian.AppendUint16(append(b, first), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, first+1), uint32(n))
}

// mapWriter appends a map whose number of pairs is known at the end only. The caller
// begins pairs in the order of their keys, and appends the value of each to out.
type mapWriter struct {
	out   []byte
	start int // of the map in out
	pairs int
}

// beginMap returns a writer of a map at the end of b.
func beginMap(b []byte) mapWriter { return mapWriter{out: append(b, 0), start: len(b)} }

// begin begins a pair.
func (m *mapWriter) begin(key string) {
	m.out = AppendStr(m.out, key)
	m.pairs++
}

// end returns out with the complete map.
func (m *mapWriter) end() []byte {
	var space [4]byte
	header := AppendMap(space[:0], m.pairs)
	return slices.Replace(m.out, m.start, m.start+1, header...)
}

// writeUnlessZero writes a pair unless v is the zero value.
func writeUnlessZero[T comparable](m *mapWriter, key string, v T, appendValue func([]byte, T) []byte) {
	if v != *new(T) {
		m.begin(key)
		m.out = appendValue(m.out, v)
	}
}

// writeIfGiven writes a pair unless v is nil.
func writeIfGiven[T any](m *mapWriter, key string, v *T, appendValue func([]byte, T) []byte) {
	if v != nil {
		m.begin(key)
		m.out = appendValue(m.out, *v)
	}
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
	case []any:
		return appendItems(b, v, AppendValue)
	case []string:
		return appendItems(b, v, AppendStr[string])
	case Fields:
		return appendPairs(b, v, AppendValue)
	case map[string]string:
		return appendPairs(b, v, AppendStr[string])
	}
	panic(fmt.Sprintf("overhop: cannot encode a %T", v))
}

// appendItems appends items as an array, each with appendItem.
func appendItems[T any](b []byte, items []T, appendItem func([]byte, T) []byte) []byte {
	b = AppendArray(b, len(items))
	for _, item := range items {
		b = appendItem(b, item)
	}
	return b
}

// appendPairs appends pairs as a map, each value with appendItem.
func appendPairs[T any](b []byte, pairs map[string]T, appendItem func([]byte, T) []byte) []byte {
	b = AppendMap(b, len(pairs))
	keys := slices.AppendSeq(make([]string, 0, len(pairs)), maps.Keys(pairs))
	slices.Sort(keys)
	for _, key := range keys {
		b = appendItem(AppendStr(b, key), pairs[key])
	}
	return b
}
