package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"yardmaster/ledger"
)

// An entry of the log is
//
//	0  checksum of all that follows (CRC-32C, big endian)
//	4  version of the format
//	5  length of the rest (big endian)
//	9  MessagePack: [at (unix ns), epoch, [[kind, command], …]]
//
// and this file is the only one that knows.
const (
	entryVersion = 1
	entryHeader  = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errEntry is what every damaged or foreign entry's error wraps.
var errEntry = errors.New("log entry cannot be read")

func encodeEntry(p *Proposal) ([]byte, error) {
	return encode(func(e *msgpack.Encoder) error {
		err := errors.Join(e.EncodeArrayLen(3), e.EncodeInt(p.At.UnixNano()), e.EncodeUint(p.Epoch), e.EncodeArrayLen(len(p.Commands)))
		if err != nil {
			return err
		}
		for _, c := range p.Commands {
			if err := putCommand(e, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func decodeEntry(raw []byte) (*Proposal, error) {
	var p Proposal
	err := decode(raw, func(d *reader) error {
		if err := expectArray(d, 3); err != nil {
			return err
		}
		at, err := d.DecodeInt64()
		if err != nil {
			return err
		}
		p.At = time.Unix(0, at).UTC()
		if p.Epoch, err = d.DecodeUint64(); err != nil {
			return err
		}
		n, err := d.DecodeArrayLen()
		if err != nil {
			return err
		}
		for range n {
			c, err := getCommand(d)
			if err != nil {
				return err
			}
			p.Commands = append(p.Commands, c)
		}
		return nil
	})
	return &p, err
}

// EncodeCommand writes one command, to be sent to the authority's node.
func EncodeCommand(c ledger.Command) ([]byte, error) {
	return encode(func(e *msgpack.Encoder) error { return putCommand(e, c) })
}

// DecodeCommand reads what EncodeCommand of the same release wrote. It returns
// an error for any other bytes.
func DecodeCommand(raw []byte) (c ledger.Command, err error) {
	err = decode(raw, func(d *reader) error {
		c, err = getCommand(d)
		return err
	})
	return c, err
}

// coder is what encoding needs each time; they are pooled.
type coder struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

var coders = sync.Pool{New: func() any { return &coder{enc: msgpack.NewEncoder(nil)} }}

// encode frames what put writes, in memory of its own: the log keeps it.
func encode(put func(*msgpack.Encoder) error) ([]byte, error) {
	c := coders.Get().(*coder)
	defer coders.Put(c)
	c.buf.Reset()
	c.buf.Write(make([]byte, entryHeader))
	c.enc.ResetWriter(&c.buf)
	if err := put(c.enc); err != nil {
		return nil, fmt.Errorf("encode log entry: %w", err)
	}
	raw := bytes.Clone(c.buf.Bytes())
	raw[4] = entryVersion
	binary.BigEndian.PutUint32(raw[5:], uint32(len(raw)-entryHeader))
	binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
	return raw, nil
}

// checkEntry tells whether raw is a whole and unharmed entry.
func checkEntry(raw []byte) error {
	switch {
	case len(raw) < entryHeader:
		return fmt.Errorf("%w: %d bytes", errEntry, len(raw))
	case crc32.Checksum(raw[4:], castagnoli) != binary.BigEndian.Uint32(raw):
		return fmt.Errorf("%w: checksum does not match", errEntry)
	case uint64(len(raw)-entryHeader) != uint64(binary.BigEndian.Uint32(raw[5:])):
		return fmt.Errorf("%w: length does not match", errEntry)
	}
	return nil
}

// reader is a decoder with its source, and with the short texts it read last:
// the same few names of queues, nodes and workers stand in entry after entry.
// Readers are pooled.
type reader struct {
	*msgpack.Decoder
	src   bytes.Reader
	buf   [maxKept]byte
	texts [64]string
}

const maxKept = 64 // bytes of a text worth keeping

var readers = sync.Pool{New: func() any { return &reader{Decoder: msgpack.NewDecoder(nil)} }}

// text reads a string.
func (r *reader) text() (string, error) {
	n, err := r.DecodeBytesLen()
	if err != nil || n <= 0 {
		return "", err
	}
	if n > r.src.Len() {
		return "", io.ErrUnexpectedEOF
	}
	if n > maxKept {
		b := make([]byte, n)
		err := r.ReadFull(b)
		return string(b), err
	}
	b := r.buf[:n]
	if err := r.ReadFull(b); err != nil {
		return "", err
	}
	slot := &r.texts[(n*31+int(b[0])*7+int(b[n-1]))%len(r.texts)]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot, nil
}

func decode(raw []byte, get func(*reader) error) error {
	if err := checkEntry(raw); err != nil {
		return err
	}
	if raw[4] != entryVersion {
		return fmt.Errorf("%w: format %d, this release knows %d", errEntry, raw[4], entryVersion)
	}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	r.src.Reset(raw[entryHeader:])
	r.Reset(&r.src)
	if err := get(r); err != nil {
		return fmt.Errorf("%w: %w", errEntry, err)
	}
	if r.src.Len() > 0 {
		return fmt.Errorf("%w: %d bytes too many", errEntry, r.src.Len())
	}
	return nil
}

func putCommand(e *msgpack.Encoder, c ledger.Command) error {
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("command %T is not a pointer to a struct", c)
	}
	if err := errors.Join(e.EncodeArrayLen(2), e.EncodeUint(uint64(c.Kind()))); err != nil {
		return err
	}
	return shapeOf(v.Type().Elem()).put(e, v.Elem())
}

func getCommand(d *reader) (ledger.Command, error) {
	if err := expectArray(d, 2); err != nil {
		return nil, err
	}
	kind, err := d.DecodeUint64()
	if err != nil {
		return nil, err
	}
	c, ok := ledger.NewCommand(ledger.Kind(kind))
	if !ok || uint64(ledger.Kind(kind)) != kind {
		return nil, fmt.Errorf("command of kind %d is not known to this release", kind)
	}
	v := reflect.ValueOf(c).Elem()
	return c, shapeOf(v.Type()).get(d, v)
}

func expectArray(d *reader, want int) error {
	n, err := d.DecodeArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("array of %d, not %d", n, want)
	}
	return err
}
