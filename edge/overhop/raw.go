package overhop

import "iter"

// Kind tells the type of r; 0 if r is empty, which stands for a key that is
// not there.
func (r Raw) Kind() Kind {
	h, _ := readHead(r)
	return h.kind
}

// IsNil tells a nil or a missing value.
func (r Raw) IsNil() bool { return len(r) == 0 || r[0] == 0xc0 }

// Int is r's integer; ok is false for another kind.
func (r Raw) Int() (v int64, ok bool) {
	h, _ := readHead(r)
	return h.v, h.kind == KindInt
}

// Bool is r's truth; ok is false for another kind.
func (r Raw) Bool() (v, ok bool) {
	h, _ := readHead(r)
	return h.v == 1, h.kind == KindBool
}

// Text is r's text, in place; ok is false for another kind.
func (r Raw) Text() (v []byte, ok bool) {
	h, _ := readHead(r)
	if h.kind != KindStr {
		return nil, false
	}
	return r[h.size : h.size+int(h.n)], true
}

// Str is a copy of r's text; ok is false for another kind.
func (r Raw) Str() (v string, ok bool) {
	b, ok := r.Text()
	return string(b), ok
}

// Bin is r's binary, in place; ok is false for another kind.
func (r Raw) Bin() (v []byte, ok bool) {
	h, _ := readHead(r)
	if h.kind != KindBin {
		return nil, false
	}
	return r[h.size : h.size+int(h.n)], true
}

// Len is the number of an array's items or of a map's pairs, else 0.
func (r Raw) Len() int {
	h, _ := readHead(r)
	if h.kind != KindArray && h.kind != KindMap {
		return 0
	}
	return int(h.n)
}

// Items gives an array's values in order; none for another kind.
func (r Raw) Items() iter.Seq[Raw] {
	return func(yield func(Raw) bool) {
		h, _ := readHead(r)
		if h.kind != KindArray {
			return
		}
		at := h.size
		for range h.n {
			end := skip(r, at)
			if !yield(r[at:end:end]) {
				return
			}
			at = end
		}
	}
}

// Pairs gives a map's keys and values as they were written, repeated keys
// included; none for another kind. Of a repeated key the last value counts.
func (r Raw) Pairs() iter.Seq2[[]byte, Raw] {
	return func(yield func([]byte, Raw) bool) {
		h, _ := readHead(r)
		if h.kind != KindMap {
			return
		}
		at := h.size
		for range h.n {
			key, value, end := pairAt(r, at)
			if !yield(key, value) {
				return
			}
			at = end
		}
	}
}

func pairAt(r Raw, at int) (key []byte, value Raw, end int) {
	mid := skip(r, at)
	end = skip(r, mid)
	key, _ = r[at:mid].Text()
	return key, r[mid:end:end], end
}

// skip gives the end of the value that begins at at.
func skip(r Raw, at int) int {
	left := 1
	for left > 0 {
		h, _ := readHead(r[at:])
		left--
		at += h.size
		switch h.kind {
		case KindStr, KindBin:
			at += int(h.n)
		case KindArray:
			left += int(h.n)
		case KindMap:
			left += 2 * int(h.n)
		}
	}
	return at
}

// Get is the value of a map's key, empty if there is none.
func (r Raw) Get(key string) Raw {
	var found [1]Raw
	r.pick(found[:], key)
	return found[0]
}

// pick finds the values of several keys in one pass.
func (r Raw) pick(found []Raw, keys ...string) {
	for k, v := range r.Pairs() {
		for i, key := range keys {
			if string(k) == key {
				found[i] = v
				break
			}
		}
	}
}

// HasBinary tells whether r is or holds binary: what JSON cannot carry.
func (r Raw) HasBinary() bool {
	for at := 0; at < len(r); {
		h, ok := readHead(r[at:])
		if !ok || h.kind == KindBin {
			return ok
		}
		at += h.size
		if h.kind == KindStr {
			at += int(h.n)
		}
	}
	return false
}
