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
	"strings"
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

// value writes the value at offset at of src and returns the offset of its end.
// It visits every byte once, however deep the nesting.
func (w *jsonWriter) value(at int) (end int) {
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
	case KindNumber:
		w.out = append(w.out, w.src[at:at+int(h.n)]...)
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

// array writes the array whose n items begin at offset at of src, and returns
// the offset of its end.
func (w *jsonWriter) array(at int, n uint64) (end int) {
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

// object writes the map whose n pairs begin at offset at of src, and returns
// the offset of its end. Of a repeated key it keeps the last pair.
func (w *jsonWriter) object(at int, n uint64) (end int) {
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

// dropRepeated removes all but the last pair of every key from the output,
// which ends with pairs. It moves the remaining pairs together.
func (w *jsonWriter) dropRepeated(pairs []writtenPair) {
	if !w.markRepeated(pairs) {
		return
	}
	begin := pairs[0].out
	end := begin
	for _, pair := range pairs {
		if pair.end == 0 {
			continue
		}
		if end > begin {
			w.out[end] = ','
			end++
		}
		end += uint32(copy(w.out[end:], w.out[pair.out:pair.end]))
	}
	w.out = w.out[:end]
}

// markRepeated sets end to 0 for all pairs whose key is repeated later, and
// reports whether there are any. It compares the keys of a small map with each
// other. Those of a larger one are looked up in a hash table, whose random seed
// keeps clients from causing collisions; a Go map would take more memory.
func (w *jsonWriter) markRepeated(pairs []writtenPair) (found bool) {
	if len(pairs) <= 16 {
		for i := range pairs {
			isSameKey := func(later writtenPair) bool { return bytes.Equal(w.key(pairs[i]), w.key(later)) }
			if slices.ContainsFunc(pairs[i+1:], isSameKey) {
				pairs[i].end, found = 0, true
			}
		}
		return found
	}

	seed := maphash.MakeSeed()
	table := make([]uint32, 1<<bits.Len(uint(len(pairs)*3/2))) // open addressing; indexes of pairs plus 1, 0 if empty
	for i := len(pairs) - 1; i >= 0; i-- {
		key := w.key(pairs[i])
		slot := maphash.Bytes(seed, key) % uint64(len(table))
		for table[slot] != 0 && !bytes.Equal(w.key(pairs[table[slot]-1]), key) {
			slot = (slot + 1) % uint64(len(table))
		}
		if table[slot] != 0 {
			pairs[i].end, found = 0, true
			continue
		}
		table[slot] = uint32(i + 1)
	}
	return found
}

const hexDigits = "0123456789abcdef"

// appendJSONText appends UTF-8 text as a JSON string, with the required escapes
// only.
func appendJSONText(b, text []byte) []byte {
	b = append(b, '"')
	written := 0 // length of the part of text that is already in b
	for i, c := range text {
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[written:i]...)
		written = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\t':
			b = append(b, `\t`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, text[written:]...)
	return append(b, '"')
}

// AppendFromJSON appends one JSON value as MessagePack. Integers in the range
// of int64 stay integers; other numbers, which MessagePack as used here has no
// type for, become their text as written ("1.5", "1e3",
// "18446744073709551615"). Invalid surrogates and bytes that are not UTF-8
// become U+FFFD. If text is not JSON or is nested deeper than levels,
// AppendFromJSON returns an error that is [ErrNotSendable], and an unchanged b.
func AppendFromJSON(b, text []byte, levels int) ([]byte, error) {
	return appendFromJSON(b, text, levels, false)
}

// FromJSON returns one JSON value for [Unmarshal]. Unlike with [AppendFromJSON], numbers
// that are not integers in the range of int64 remain numbers, so it may not be sent in a
// frame as it is.
func FromJSON(text []byte) (Raw, error) {
	return appendFromJSON(make([]byte, 0, len(text)), text, payloadDepth, true)
}

// appendFromJSON is AppendFromJSON. With keepNumbers, numbers that are not integers in the
// range of int64 do not become text.
func appendFromJSON(b, text []byte, levels int, keepNumbers bool) ([]byte, error) {
	r := jsonReader{out: b, src: text, keepNumbers: keepNumbers}
	err := r.value(levels)
	r.next() // skips white space at the end
	if err == nil && r.at < len(text) {
		err = r.fail("trailing bytes")
	}
	if err != nil {
		return b[:len(b):len(b)], err
	}
	return r.out, nil
}

// JSONFits reports whether arrays and objects in text, which is valid JSON, are nested at
// most levels deep.
func JSONFits(text []byte, levels int) bool {
	depth := 0
	inText := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			if depth++; depth > levels {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// jsonReader converts JSON to MessagePack.
type jsonReader struct {
	out []byte // the MessagePack
	src []byte // the JSON
	at  int    // offset in src of what is read next

	keepNumbers bool // see appendFromJSON
}

func (r *jsonReader) fail(reason string) error {
	return fmt.Errorf("%w: JSON %s at byte %d", ErrNotSendable, reason, r.at)
}

// next skips white space and returns the byte after it, 0 at the end of src. It
// does not skip that byte.
func (r *jsonReader) next() byte {
	for ; r.at < len(r.src); r.at++ {
		if c := r.src[r.at]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c
		}
	}
	return 0
}

// value converts the next value. Arrays and objects in it may be nested up to
// levels deep.
func (r *jsonReader) value(levels int) error {
	switch first := r.next(); {
	case r.at >= len(r.src):
		return r.fail("ends early")
	case first == '{' || first == '[':
		if levels == 0 {
			return r.fail("is nested too deep")
		}
		return r.container(first, levels-1)
	case first == '"':
		return r.text()
	case first == '-' || first >= '0' && first <= '9':
		return r.number()
	case r.skipWord("null"):
		r.out = AppendNil(r.out)
	case r.skipWord("false"):
		r.out = AppendBool(r.out, false)
	case r.skipWord("true"):
		r.out = AppendBool(r.out, true)
	default:
		return r.fail("has an unknown value")
	}
	return nil
}

// skipWord skips word if it is next, and reports whether it was.
func (r *jsonReader) skipWord(word string) bool {
	found := bytes.HasPrefix(r.src[r.at:], []byte(word))
	if found {
		r.at += len(word)
	}
	return found
}

// container converts an object or an array, which opening begins. In MessagePack
// the number of items precedes them but is known only after them, so one byte is
// reserved for it and widened if necessary.
func (r *jsonReader) container(opening byte, levels int) error {
	start := len(r.out)
	r.out = append(r.out, 0)
	closing := opening + 2 // ']' and '}' are two code points after '[' and '{'
	r.at++
	count := 0
	for count > 0 || r.next() != closing {
		if opening == '{' {
			if err := r.key(); err != nil {
				return err
			}
		}
		if err := r.value(levels); err != nil {
			return err
		}
		count++
		following := r.next()
		if following == closing {
			break
		}
		if r.at >= len(r.src) {
			return r.fail("ends early")
		}
		if following != ',' {
			return r.fail("lacks a comma")
		}
		r.at++
	}
	r.at++

	var buf [5]byte
	header := AppendArray(buf[:0], count)
	if opening == '{' {
		header = AppendMap(buf[:0], count)
	}
	r.out = slices.Replace(r.out, start, start+1, header...)
	return nil
}

// key converts a key of an object and skips the colon after it.
func (r *jsonReader) key() error {
	if r.next() != '"' {
		return r.fail("lacks a key")
	}
	if err := r.text(); err != nil {
		return err
	}
	if r.next() != ':' {
		return r.fail("lacks a colon")
	}
	r.at++
	return nil
}

// text converts the string that begins at the current offset. One without
// escapes is copied; any other is left to encoding/json.
func (r *jsonReader) text() error {
	end, hasEscapes := r.at+1, false
	for ; end < len(r.src) && r.src[end] != '"'; end++ {
		if c := r.src[end]; c == '\\' {
			hasEscapes = true
			end++
		} else if c < 0x20 {
			return r.fail("has a control character")
		}
	}
	if end >= len(r.src) {
		return r.fail("ends early")
	}
	quoted := r.src[r.at : end+1]
	if body := r.src[r.at+1 : end]; !hasEscapes && utf8.Valid(body) {
		r.out = AppendStr(r.out, body)
	} else {
		var decoded string
		if err := json.Unmarshal(quoted, &decoded); err != nil {
			return r.fail("has a broken text")
		}
		r.out = AppendStr(r.out, decoded)
	}
	r.at = end + 1
	return nil
}

// number converts the number at the current offset: to an integer if it is one
// in the range of int64, else to its text or to a number.
func (r *jsonReader) number() error {
	end := r.at
	for end < len(r.src) && strings.IndexByte("+-.0123456789eE", r.src[end]) >= 0 {
		end++
	}
	digits := r.src[r.at:end]
	if !json.Valid(digits) {
		return r.fail("has a broken number")
	}
	if integer, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
		r.out = AppendInt(r.out, integer)
	} else if !r.keepNumbers {
		r.out = AppendStr(r.out, digits)
	} else if len(digits) <= maxNumberLen {
		r.out = appendNumber(r.out, digits)
	} else {
		return r.fail("has a number that is too long")
	}
	r.at = end
	return nil
}
