package overhop

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ErrBinary is returned for binary values, which JSON cannot represent.
var ErrBinary = errors.New("JSON cannot represent binary")

// ErrNotSendable is returned for values that cannot be encoded in a frame.
var ErrNotSendable = errors.New("value cannot be sent over Overhop")

// AppendJSON appends r as JSON. Integers and text are represented exactly; of a
// repeated key the last value is kept. If r is or contains binary, AppendJSON
// returns [ErrBinary] and an unchanged b.
func AppendJSON(b []byte, r Raw) ([]byte, error) {
	if r.HasBinary() {
		return b, ErrBinary
	}
	w := jsonWriter{out: slices.Grow(b, len(r)+len(r)/2), src: r}
	w.value(0)
	return w.out, nil
}

// AppendLossyJSON is like [AppendJSON], for display: binary becomes Base64
// text.
func AppendLossyJSON(b []byte, r Raw) []byte {
	w := jsonWriter{out: b, src: r}
	w.value(0)
	return w.out
}

type jsonWriter struct {
	out []byte
	src Raw
	// pairs holds the pairs written so far of all open maps, the innermost
	// last.
	pairs []writtenPair
}

// writtenPair holds the position of a pair's key in src and of its bytes in
// out. The positions are less than 4 GiB, and there may be millions of pairs.
type writtenPair struct{ key, out, end uint32 }

// value writes the value at offset at and returns its end. It visits every byte
// once, however deep the nesting.
func (w *jsonWriter) value(at int) int {
	h, _ := readHeader(w.src[at:])
	at += h.size
	switch h.kind {
	case KindNil:
		w.out = append(w.out, "null"...)
	case KindBool:
		w.out = strconv.AppendBool(w.out, h.v == 1)
	case KindInt:
		w.out = strconv.AppendInt(w.out, h.v, 10)
	case KindStr:
		w.out = appendJSONText(w.out, w.src[at:at+int(h.n)])
		at += int(h.n)
	case KindBin:
		w.out = append(w.out, '"')
		w.out = base64.StdEncoding.AppendEncode(w.out, w.src[at:at+int(h.n)])
		w.out = append(w.out, '"')
		at += int(h.n)
	case KindArray:
		at = w.array(at, h.n)
	case KindMap:
		at = w.object(at, h.n)
	}
	return at
}

func (w *jsonWriter) array(at int, n uint64) int {
	w.out = append(w.out, '[')
	for i := range n {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		at = w.value(at)
	}
	w.out = append(w.out, ']')
	return at
}

func (w *jsonWriter) object(at int, n uint64) int {
	w.out = append(w.out, '{')
	first := len(w.pairs)
	w.pairs = slices.Grow(w.pairs, int(n)) // src has been checked, so there are n pairs
	for i := range n {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		pair := writtenPair{key: uint32(at), out: uint32(len(w.out))}
		at = w.value(at)
		w.out = append(w.out, ':')
		at = w.value(at)
		pair.end = uint32(len(w.out))
		w.pairs = append(w.pairs, pair)
	}
	w.dropRepeated(w.pairs[first:])
	w.pairs = w.pairs[:first]
	w.out = append(w.out, '}')
	return at
}

func (w *jsonWriter) key(p writtenPair) []byte {
	text, _ := w.src[p.key:].Text()
	return text
}

// dropRepeated removes all but the last pair of every key from the output.
func (w *jsonWriter) dropRepeated(pairs []writtenPair) {
	if !w.markRepeated(pairs) {
		return
	}
	begin := pairs[0].out
	end := begin
	for _, p := range pairs {
		if p.end == 0 {
			continue
		}
		if end > begin {
			w.out[end] = ','
			end++
		}
		end += uint32(copy(w.out[end:], w.out[p.out:p.end]))
	}
	w.out = w.out[:end]
}

// markRepeated sets end to 0 for all pairs whose key is repeated later, and
// reports whether there are any. Many keys are looked up in an open-addressing
// table with a random hash seed, which clients cannot predict.
func (w *jsonWriter) markRepeated(pairs []writtenPair) (found bool) {
	if len(pairs) <= 16 {
		for i := range pairs {
			for _, later := range pairs[i+1:] {
				if bytes.Equal(w.key(pairs[i]), w.key(later)) {
					pairs[i].end, found = 0, true
					break
				}
			}
		}
		return found
	}
	seed := maphash.MakeSeed()
	table := make([]uint32, 1<<bits.Len(uint(len(pairs)*3/2))) // of indices into pairs, from 1
	for i := len(pairs) - 1; i >= 0; i-- {
		key := w.key(pairs[i])
		at := maphash.Bytes(seed, key) % uint64(len(table))
		for table[at] != 0 && !bytes.Equal(w.key(pairs[table[at]-1]), key) {
			at = (at + 1) % uint64(len(table))
		}
		if table[at] != 0 {
			pairs[i].end, found = 0, true
			continue
		}
		table[at] = uint32(i + 1)
	}
	return found
}

const hexDigits = "0123456789abcdef"

// appendJSONText appends UTF-8 text as a JSON string, with the required escapes
// only.
func appendJSONText(b, text []byte) []byte {
	b = append(b, '"')
	plain := 0
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[plain:i]...)
		plain = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, text[plain:]...)
	return append(b, '"')
}

// AppendFromJSON appends one JSON value as MessagePack. Integers in the range
// of int64 stay integers; other numbers, which MessagePack as used here has no
// type for, become their text as written ("1.5", "1e3",
// "18446744073709551615"). Invalid surrogates and bytes that are not UTF-8
// become U+FFFD. If text is not JSON or is nested deeper than levels,
// AppendFromJSON returns an error that is [ErrNotSendable], and an unchanged b.
func AppendFromJSON(b, text []byte, levels int) ([]byte, error) {
	r := jsonReader{out: b, src: text}
	err := r.value(levels)
	if r.space(); err == nil && r.at != len(text) {
		err = r.fail("trailing bytes")
	}
	if err != nil {
		return b[:len(b):len(b)], err
	}
	return r.out, nil
}

type jsonReader struct {
	out []byte
	src []byte
	at  int
}

func (r *jsonReader) fail(reason string) error {
	return fmt.Errorf("%w: JSON %s at byte %d", ErrNotSendable, reason, r.at)
}

func (r *jsonReader) space() {
	for r.at < len(r.src) {
		switch r.src[r.at] {
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return
		}
	}
}

func (r *jsonReader) value(levels int) error {
	r.space()
	if r.at >= len(r.src) {
		return r.fail("ends early")
	}
	switch c := r.src[r.at]; {
	case c == '{' || c == '[':
		if levels == 0 {
			return r.fail("is nested too deep")
		}
		return r.container(c, levels-1)
	case c == '"':
		return r.text()
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	}
	for _, word := range [...]struct {
		text string
		code byte
	}{{"null", 0xc0}, {"false", 0xc2}, {"true", 0xc3}} {
		if bytes.HasPrefix(r.src[r.at:], []byte(word.text)) {
			r.at += len(word.text)
			r.out = append(r.out, word.code)
			return nil
		}
	}
	return r.fail("has an unknown value")
}

// container parses an object or an array. Its length precedes the items in
// MessagePack but is known only after them, so one byte is reserved and widened
// if necessary.
func (r *jsonReader) container(open byte, levels int) error {
	start := len(r.out)
	r.out = append(r.out, 0)
	closing := open + 2 // ']' and '}' are two code points after '[' and '{'
	n := 0
	for r.at++; ; n++ {
		r.space()
		if n == 0 && r.at < len(r.src) && r.src[r.at] == closing {
			break
		}
		if open == '{' {
			if err := r.key(); err != nil {
				return err
			}
		}
		if err := r.value(levels); err != nil {
			return err
		}
		r.space()
		if r.at >= len(r.src) {
			return r.fail("ends early")
		}
		if r.src[r.at] == closing {
			n++
			break
		}
		if r.src[r.at] != ',' {
			return r.fail("lacks a comma")
		}
		r.at++
	}
	r.at++
	var buf [5]byte
	head := AppendArray(buf[:0], n)
	if open == '{' {
		head = AppendMap(buf[:0], n)
	}
	r.out = slices.Replace(r.out, start, start+1, head...)
	return nil
}

func (r *jsonReader) key() error {
	if r.at >= len(r.src) || r.src[r.at] != '"' {
		return r.fail("lacks a key")
	}
	if err := r.text(); err != nil {
		return err
	}
	if r.space(); r.at >= len(r.src) || r.src[r.at] != ':' {
		return r.fail("lacks a colon")
	}
	r.at++
	return nil
}

func (r *jsonReader) text() error {
	end, simple := r.at+1, true
	for ; end < len(r.src) && r.src[end] != '"'; end++ {
		if c := r.src[end]; c == '\\' {
			simple = false
			end++
		} else if c < 0x20 {
			return r.fail("has a control character")
		}
	}
	if end >= len(r.src) {
		return r.fail("ends early")
	}
	quoted := r.src[r.at : end+1]
	if body := quoted[1 : len(quoted)-1]; simple && utf8.Valid(body) {
		r.out = AppendStr(r.out, body)
	} else {
		var s string
		if err := json.Unmarshal(quoted, &s); err != nil {
			return r.fail("has a broken text")
		}
		r.out = AppendStr(r.out, s)
	}
	r.at = end + 1
	return nil
}

func (r *jsonReader) number() error {
	end := r.at
	for end < len(r.src) && bytes.IndexByte([]byte("+-.0123456789eE"), r.src[end]) >= 0 {
		end++
	}
	digits := r.src[r.at:end]
	switch v, err := strconv.ParseInt(string(digits), 10, 64); {
	case !json.Valid(digits):
		return r.fail("has a broken number")
	case err == nil:
		r.out = AppendInt(r.out, v)
	default:
		r.out = AppendStr(r.out, digits)
	}
	r.at = end
	return nil
}
