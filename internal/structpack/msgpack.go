package structpack

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Codes of MessagePack. Those of lengths and numbers are the first of a row, in which each
// code has twice the bytes of the one before it.
const (
	codeArray  = 0x90 // plus a length below 16
	codeString = 0xa0 // plus a length below 32
	codeNil    = 0xc0
	codeFalse  = 0xc2
	codeTrue   = 0xc3
	codeBin    = 0xc4 // lengths of 1 to 4 bytes
	codeUint   = 0xcc // 1 to 8 bytes
	codeInt    = 0xd0 // 1 to 8 bytes
	codeStr    = 0xd9 // lengths of 1 to 4 bytes
	codeArr    = 0xdc // lengths of 2 and 4 bytes
	minNumber  = -32  // numbers from this to 127 are one byte
)

// nil encodes nil.
func (e *Encoder) nil() { e.buf = append(e.buf, codeNil) }

func (e *Encoder) bool(b bool) {
	code := byte(codeFalse)
	if b {
		code = codeTrue
	}
	e.buf = append(e.buf, code)
}

// Uint encodes a number in as few bytes as it needs.
func (e *Encoder) Uint(n uint64) {
	switch {
	case n <= math.MaxInt8:
		e.buf = append(e.buf, byte(n))
	case n <= math.MaxUint8:
		e.buf = append(e.buf, codeUint, byte(n))
	case n <= math.MaxUint16:
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, codeUint+1), uint16(n))
	case n <= math.MaxUint32:
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, codeUint+2), uint32(n))
	default:
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, codeUint+3), n)
	}
}

// Int encodes a number in as few bytes as it needs.
func (e *Encoder) Int(n int64) {
	switch {
	case n >= 0:
		e.Uint(uint64(n))
	case n >= minNumber:
		e.buf = append(e.buf, byte(n))
	case n >= math.MinInt8:
		e.buf = append(e.buf, codeInt, byte(n))
	case n >= math.MinInt16:
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, codeInt+1), uint16(n))
	case n >= math.MinInt32:
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, codeInt+2), uint32(n))
	default:
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, codeInt+3), uint64(n))
	}
}

// String encodes a string.
func (e *Encoder) String(s string) {
	if n := len(s); n < 32 {
		e.buf = append(e.buf, codeString|byte(n))
	} else {
		e.bytesLen(codeStr, n)
	}
	e.buf = append(e.buf, s...)
}

// bytes encodes a byte slice, which may be nil.
func (e *Encoder) bytes(b []byte) {
	if b == nil {
		e.nil()
		return
	}
	e.bytesLen(codeBin, len(b))
	e.buf = append(e.buf, b...)
}

// bytesLen encodes a length after the code of a row that begins with lengths of one byte.
func (e *Encoder) bytesLen(code byte, n int) {
	if n <= math.MaxUint8 {
		e.buf = append(e.buf, code, byte(n))
	} else {
		e.longLen(code+1, n)
	}
}

// ArrayLen encodes the header of an array of n elements, which must follow.
func (e *Encoder) ArrayLen(n int) {
	if n < 16 {
		e.buf = append(e.buf, codeArray|byte(n))
	} else {
		e.longLen(codeArr, n)
	}
}

// longLen encodes a length of two bytes after code, or one of four after the next code.
func (e *Encoder) longLen(code byte, n int) {
	if n <= math.MaxUint16 {
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, code), uint16(n))
	} else {
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, code+1), uint32(n))
	}
}

// rest returns the number of bytes that are not decoded yet.
func (d *Decoder) rest() int { return len(d.raw) - d.pos }

// code decodes a code.
func (d *Decoder) code() (byte, error) {
	if d.pos == len(d.raw) {
		return 0, io.ErrUnexpectedEOF
	}
	d.pos++
	return d.raw[d.pos-1], nil
}

// isNil reports whether the next value is nil, which it decodes.
func (d *Decoder) isNil() bool {
	if d.pos == len(d.raw) || d.raw[d.pos] != codeNil {
		return false
	}
	d.pos++
	return true
}

// fixed decodes a number of 1, 2, 4 or 8 bytes.
func (d *Decoder) fixed(size int) (uint64, error) {
	if size > d.rest() {
		return 0, io.ErrUnexpectedEOF
	}
	b := d.raw[d.pos : d.pos+size]
	d.pos += size
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	}
	return binary.BigEndian.Uint64(b), nil
}

func (d *Decoder) bool() (bool, error) {
	switch code, err := d.code(); {
	case err != nil:
		return false, err
	case code == codeTrue, code == codeFalse:
		return code == codeTrue, nil
	case code == codeNil:
		return false, nil
	default:
		return false, fmt.Errorf("code %#x is not that of a bool", code)
	}
}

// Int decodes a number, 0 for nil. A number above math.MaxInt64 is returned as the
// negative one with the same bits.
func (d *Decoder) Int() (int64, error) {
	code, err := d.code()
	switch {
	case err != nil:
		return 0, err
	case int8(code) >= minNumber:
		return int64(int8(code)), nil
	case code >= codeUint && code < codeInt:
		n, err := d.fixed(1 << (code - codeUint))
		return int64(n), err
	case code >= codeInt && code <= codeInt+3:
		size := 1 << (code - codeInt)
		n, err := d.fixed(size)
		unused := 64 - 8*size
		return int64(n<<unused) >> unused, err
	case code == codeNil:
		return 0, nil
	}
	return 0, fmt.Errorf("code %#x is not that of a number", code)
}

// Uint decodes a number, 0 for nil. A negative number is returned as the positive one with
// the same bits.
func (d *Decoder) Uint() (uint64, error) {
	n, err := d.Int()
	return uint64(n), err
}

// ArrayLen decodes the header of an array and returns its length, -1 for nil.
func (d *Decoder) ArrayLen() (int, error) {
	code, err := d.code()
	switch {
	case err != nil:
		return 0, err
	case code&^0xf == codeArray:
		return int(code & 0xf), nil
	case code == codeNil:
		return -1, nil
	case code == codeArr, code == codeArr+1:
		n, err := d.fixed(2 << (code - codeArr))
		return int(n), err
	}
	return 0, fmt.Errorf("code %#x is not that of an array", code)
}

// blob decodes a string or byte slice, nil for nil. It shares memory with the input.
func (d *Decoder) blob() ([]byte, error) {
	code, err := d.code()
	n := uint64(code & 0x1f)
	switch {
	case err != nil:
	case code&^0x1f == codeString:
	case code == codeNil:
		return nil, nil
	case code >= codeBin && code <= codeBin+2:
		n, err = d.fixed(1 << (code - codeBin))
	case code >= codeStr && code <= codeStr+2:
		n, err = d.fixed(1 << (code - codeStr))
	default:
		err = fmt.Errorf("code %#x is not that of a string", code)
	}
	if err == nil && n > uint64(d.rest()) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	begin := d.pos
	d.pos += int(n)
	return d.raw[begin:d.pos:d.pos], nil
}
