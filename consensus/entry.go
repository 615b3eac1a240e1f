package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/structpack"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// An entry of the log consists of
//
//	0  checksum of all that follows (CRC-32C, big endian)
//	4  version of the format
//	5  length of the rest (big endian)
//	9  MessagePack: [at (Unix ns), epoch, [[kind, command], …]], and if one of them is not 0,
//	   then the offsets of elapsed time and of the wall clock (ns), see [ledger.Offsets]
//
// No other file depends on this format.
const (
	entryVersion   = 1
	entryHeaderLen = 9
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errInvalidEntry is wrapped by the error of every damaged entry.
var errInvalidEntry = errors.New("log entry cannot be read")

// errOtherRelease is wrapped by the error of an entry that is complete, according to its
// checksum, but that this release does not know.
var errOtherRelease = errors.New("log entry of another release")

// encodeEntry returns the log entry of a proposal.
func encodeEntry(p *ledger.Proposal) []byte {
	return encode(func(e *structpack.Encoder) {
		length := 3
		if p.Offsets != (ledger.Offsets{}) {
			length = 5
		}
		e.ArrayLen(length)
		e.Int(p.At.UnixNano())
		e.Uint(p.Epoch)
		e.ArrayLen(len(p.Commands))
		for _, c := range p.Commands {
			encodeCommand(e, c)
		}
		if length > 3 {
			e.Int(int64(p.Offsets.Elapsed))
			e.Int(int64(p.Offsets.Wall))
		}
	})
}

// decodeEntry returns the proposal of a log entry. An error wraps errInvalidEntry or
// errOtherRelease.
func decodeEntry(raw []byte) (*ledger.Proposal, error) {
	var p ledger.Proposal
	err := decode(raw, func(d *structpack.Decoder) error {
		length, err := d.ArrayLen()
		if err != nil {
			return err
		}
		if length != 3 && length != 5 {
			return fmt.Errorf("array of %d elements; must be 3 or 5", length)
		}
		at, err := d.Int()
		if err != nil {
			return err
		}
		p.At = time.Unix(0, at).UTC()
		if p.Epoch, err = d.Uint(); err != nil {
			return err
		}
		n, err := d.ArrayLen()
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
		if length == 3 {
			return nil
		}
		elapsed, err := d.Int()
		if err != nil {
			return err
		}
		wall, err := d.Int()
		p.Offsets = ledger.Offsets{Elapsed: time.Duration(elapsed), Wall: time.Duration(wall)}
		return err
	})
	return &p, err
}

// EncodeCommand encodes one command, to send it to the authority's node.
func EncodeCommand(c ledger.Command) []byte {
	return encode(func(e *structpack.Encoder) { encodeCommand(e, c) })
}

// DecodeCommand decodes what EncodeCommand of the same release wrote. Any other
// input is an error.
func DecodeCommand(raw []byte) (c ledger.Command, err error) {
	err = decode(raw, func(d *structpack.Decoder) error {
		c, err = decodeCommand(d)
		return err
	})
	return c, err
}

// encode returns what put encodes, after a header with version, length and checksum.
func encode(put func(*structpack.Encoder)) []byte {
	raw := structpack.Encode(make([]byte, entryHeaderLen), put)
	setHeader(raw)
	return raw
}

// setHeader sets version, length and checksum at the beginning of raw.
func setHeader(raw []byte) {
	raw[4] = entryVersion
	binary.BigEndian.PutUint32(raw[5:], uint32(len(raw)-entryHeaderLen))
	binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
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

// decode checks the header that encode has written and calls get with a decoder of the
// content, all of which get must consume.
func decode(raw []byte, get func(*structpack.Decoder) error) error {
	if err := checkEntry(raw); err != nil {
		return err
	}
	if raw[4] != entryVersion {
		return fmt.Errorf("%w: it has format %d, this release reads %d", errOtherRelease, raw[4], entryVersion)
	}
	if err := structpack.Decode(raw[entryHeaderLen:], get); err != nil {
		return fmt.Errorf("%w: %w", errOtherRelease, err)
	}
	return nil
}

// encodeCommand appends a command as an array of its kind and its fields.
func encodeCommand(e *structpack.Encoder, c ledger.Command) {
	e.ArrayLen(2)
	e.Uint(uint64(c.Kind()))
	e.Value(c)
}

// decodeCommand decodes what encodeCommand wrote. A kind that this release does not know
// is an error.
func decodeCommand(d *structpack.Decoder) (ledger.Command, error) {
	if err := d.ExpectArray(2); err != nil {
		return nil, err
	}
	kind, err := d.Uint()
	if err != nil {
		return nil, err
	}
	c, isKnown := ledger.NewCommand(ledger.Kind(kind))
	if fits := uint64(ledger.Kind(kind)) == kind; !isKnown || !fits {
		return nil, fmt.Errorf("command of kind %d is not known to this release", kind)
	}
	return c, d.Value(c)
}
