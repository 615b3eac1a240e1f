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

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// An entry of the log consists of
//
//	0  checksum of all that follows (CRC-32C, big endian)
//	4  version of the format
//	5  length of the rest (big endian)
//	9  MessagePack: [at (Unix ns), epoch, [[kind, command], …]]
//
// No other file depends on this format.
const (
	entryVersion   = 1
	entryHeaderLen = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errInvalidEntry is wrapped by the error of every damaged or unknown entry.
var errInvalidEntry = errors.New("log entry cannot be read")

func encodeEntry(p *Proposal) ([]byte, error) {
	return encode(func(e *msgpack.Encoder) error {
		err := errors.Join(e.EncodeArrayLen(3), e.EncodeInt(p.At.UnixNano()), e.EncodeUint(p.Epoch), e.EncodeArrayLen(len(p.Commands)))
		if err != nil {
			return err
		}
		for _, c := range p.Commands {
			if err := encodeCommand(e, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func decodeEntry(raw []byte) (*Proposal, error) {
	var p Proposal
	err := decode(raw, func(d *entryReader) error {
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
			c, err := decodeCommand(d)
			if err != nil {
				return err
			}
			p.Commands = append(p.Commands, c)
		}
		return nil
	})
	return &p, err
}

// EncodeCommand encodes one command, to send it to the authority's node.
func EncodeCommand(c ledger.Command) ([]byte, error) {
	return encode(func(e *msgpack.Encoder) error { return encodeCommand(e, c) })
}

// DecodeCommand decodes what EncodeCommand of the same release wrote. Any other
// input is an error.
func DecodeCommand(raw []byte) (c ledger.Command, err error) {
	err = decode(raw, func(d *entryReader) error {
		c, err = decodeCommand(d)
		return err
	})
	return c, err
}

// pooledEncoder is an encoder and its buffer, for reuse.
type pooledEncoder struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

var encoders = sync.Pool{New: func() any { return &pooledEncoder{enc: msgpack.NewEncoder(nil)} }}

// encode returns the frame around what put writes. The result is newly
// allocated, because Raft's log keeps it.
func encode(put func(*msgpack.Encoder) error) ([]byte, error) {
	c := encoders.Get().(*pooledEncoder)
	defer encoders.Put(c)
	c.buf.Reset()
	c.buf.Write(make([]byte, entryHeaderLen))
	c.enc.ResetWriter(&c.buf)
	if err := put(c.enc); err != nil {
		return nil, fmt.Errorf("encode log entry: %w", err)
	}
	raw := bytes.Clone(c.buf.Bytes())
	raw[4] = entryVersion
	binary.BigEndian.PutUint32(raw[5:], uint32(len(raw)-entryHeaderLen))
	binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
	return raw, nil
}

// checkEntry returns an error unless raw is a complete entry with a valid
// checksum.
func checkEntry(raw []byte) error {
	switch {
	case len(raw) < entryHeaderLen:
		return fmt.Errorf("%w: %d bytes", errInvalidEntry, len(raw))
	case crc32.Checksum(raw[4:], castagnoli) != binary.BigEndian.Uint32(raw):
		return fmt.Errorf("%w: checksum does not match", errInvalidEntry)
	case uint64(len(raw)-entryHeaderLen) != uint64(binary.BigEndian.Uint32(raw[5:])):
		return fmt.Errorf("%w: length does not match", errInvalidEntry)
	}
	return nil
}

// entryReader is a decoder with its source and a small cache of short strings:
// the names of queues, nodes and workers repeat from entry to entry. Readers
// are pooled.
type entryReader struct {
	*msgpack.Decoder
	src      bytes.Reader
	buf      [maxInterned]byte
	interned [64]string
}

const maxInterned = 64 // longest string that is cached, in bytes

var entryReaders = sync.Pool{New: func() any { return &entryReader{Decoder: msgpack.NewDecoder(nil)} }}

// internedString decodes a string, using the cache.
func (r *entryReader) internedString() (string, error) {
	n, err := r.DecodeBytesLen()
	if err != nil || n <= 0 {
		return "", err
	}
	if n > r.src.Len() {
		return "", io.ErrUnexpectedEOF
	}
	if n > maxInterned {
		b := make([]byte, n)
		err := r.ReadFull(b)
		return string(b), err
	}
	b := r.buf[:n]
	if err := r.ReadFull(b); err != nil {
		return "", err
	}
	slot := &r.interned[(n*31+int(b[0])*7+int(b[n-1]))%len(r.interned)]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot, nil
}

// decode checks the frame of raw and calls get with a reader for its content,
// all of which get must consume.
func decode(raw []byte, get func(*entryReader) error) error {
	if err := checkEntry(raw); err != nil {
		return err
	}
	if raw[4] != entryVersion {
		return fmt.Errorf("%w: format %d, this release knows %d", errInvalidEntry, raw[4], entryVersion)
	}
	r := entryReaders.Get().(*entryReader)
	defer entryReaders.Put(r)
	r.src.Reset(raw[entryHeaderLen:])
	r.Reset(&r.src)
	if err := get(r); err != nil {
		return fmt.Errorf("%w: %w", errInvalidEntry, err)
	}
	if r.src.Len() > 0 {
		return fmt.Errorf("%w: %d bytes too many", errInvalidEntry, r.src.Len())
	}
	return nil
}

func encodeCommand(e *msgpack.Encoder, c ledger.Command) error {
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("command %T is not a pointer to a struct", c)
	}
	if err := errors.Join(e.EncodeArrayLen(2), e.EncodeUint(uint64(c.Kind()))); err != nil {
		return err
	}
	return codecOf(v.Type().Elem()).put(e, v.Elem())
}

func decodeCommand(d *entryReader) (ledger.Command, error) {
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
	return c, codecOf(v.Type()).get(d, v)
}

// expectArray decodes the header of an array that must have want elements.
func expectArray(d *entryReader, want int) error {
	n, err := d.DecodeArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("array of %d, not %d", n, want)
	}
	return err
}
