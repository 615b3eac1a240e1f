package job

import (
	"bytes"
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxKeyLen is the longest idempotency key, in bytes.
const MaxKeyLen = 128

// ErrKeyTooLong is returned for an idempotency key of more than [MaxKeyLen]
// bytes.
var ErrKeyTooLong = fmt.Errorf("idempotency key is longer than %d bytes; use a shorter one or a UUID", MaxKeyLen)

// ErrNilKey is returned for the nil UUID as an idempotency key. A job cannot have it, because the
// zero [ID] means "no job" everywhere.
var ErrNilKey error = &InvalidError{Reason: "the nil UUID, of zeros alone, names no job; use another key"}

// ErrBadID is returned for a text that is not a UUID.
var ErrBadID = errors.New("not a UUID")

// ID is a job's identity: always a UUID, also when its producer named it by
// another kind of key.
type ID [16]byte

// namespace is the UUIDv5 namespace of keys. It must never change: otherwise a
// producer that retries after the change creates a second job.
var namespace = ID{0x6f, 0x1d, 0x0c, 0x52, 0x8e, 0x0b, 0x5a, 0x3e, 0x9c, 0x41, 0x7a, 0x72, 0x64, 0x6d, 0x73, 0x74}

// String returns the canonical form: lower case with hyphens.
func (id ID) String() string { return string(id.Append(make([]byte, 0, 36))) }

// Append appends the canonical form to b.
func (id ID) Append(b []byte) []byte {
	start := len(b)
	b = append(b, "00000000-0000-0000-0000-000000000000"...)
	text := b[start:]
	hex.Encode(text[0:], id[0:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:16])
	return b
}

// IsZero reports whether id is the zero ID, which names no job.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText returns the canonical form.
func (id ID) MarshalText() ([]byte, error) { return id.Append(nil), nil }

// UnmarshalText parses the canonical form, in either case.
func (id *ID) UnmarshalText(b []byte) error {
	parsed, err := ParseID(string(b))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// ParseID parses the hyphenated form of a UUID, in either case.
func ParseID(s string) (ID, error) {
	id, ok := parseID(s)
	if !ok {
		return ID{}, fmt.Errorf("%q: %w", s, ErrBadID)
	}
	return id, nil
}

// parseID is ParseID without an error, which would have to be allocated for
// every key that is not a UUID.
func parseID(s string) (id ID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, false
	}
	for _, group := range [...]struct{ begin, end, offset int }{{0, 8, 0}, {9, 13, 4}, {14, 18, 6}, {19, 23, 8}, {24, 36, 10}} {
		if _, err := hex.Decode(id[group.offset:], []byte(s[group.begin:group.end])); err != nil {
			return ID{}, false
		}
	}
	return id, true
}

// KeyID returns the id of the job that a producer names by key: the key itself
// if it is a UUID, else the UUIDv5 of queue and key. The same key in another
// queue is another job. The error is [ErrKeyTooLong] or [ErrNilKey].
func KeyID(queue, key string) (ID, error) {
	if len(key) > MaxKeyLen {
		return ID{}, ErrKeyTooLong
	}
	if id, ok := parseID(key); ok && id.IsZero() {
		return ID{}, ErrNilKey
	} else if ok {
		return id, nil
	}
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte(queue + "\x00" + key))
	return ID(h.Sum(nil)[:16]).withVersion(5), nil
}

// TickID returns the id of the job that a cron entry creates for the tick at
// the given time: a UUIDv5 of the entry's name and the time, so that one tick
// never becomes two jobs.
func TickID(entry string, at time.Time) ID {
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte("\x00cron\x00" + entry + "\x00")) // differs from every KeyID, which hashes a queue name here
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())))
	return ID(h.Sum(nil)[:16]).withVersion(5)
}

// RecordID returns the id of a record without a key: a UUIDv8 of the record's
// place and of the time it was stored, so that reading the record again yields
// the same id. lane is the identity of the lane's stream, which stands for at.Lane.
func RecordID(lane string, at Position, stored time.Time) ID {
	h := sha256.New()
	h.Write([]byte(lane))
	var b [17]byte
	binary.BigEndian.PutUint64(b[:8], at.Seq)
	binary.BigEndian.PutUint64(b[8:], uint64(stored.UnixNano()))
	b[16] = at.Index
	if at.Index == 0 { // as for records that have a message of their own
		h.Write(b[:16])
	} else {
		h.Write(b[:])
	}
	return ID(h.Sum(nil)[:16]).withVersion(8)
}

func (id ID) withVersion(v byte) ID {
	id[6] = id[6]&0x0f | v<<4
	id[8] = id[8]&0x3f | 0x80
	return id
}

// DispatchID identifies a dispatch: the N-th one of a job.
type DispatchID struct {
	Job ID
	N   uint32
}

// Compare orders dispatches by job and number, as [cmp.Compare] does.
func (d DispatchID) Compare(o DispatchID) int {
	return cmp.Or(bytes.Compare(d.Job[:], o.Job[:]), cmp.Compare(d.N, o.N))
}

// UUID returns an id for protocols that require a UUID: the UUIDv5 of the dispatch's
// [RequestID] in the namespace of keys.
func (d DispatchID) UUID() ID {
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte(RequestID(d.Job, d.N))) // differs from every KeyID: it has no zero byte
	return ID(h.Sum(nil)[:16]).withVersion(5)
}

// RequestID returns the name of one dispatch of a job: "<job uuid>#<n>". It is
// the request_id of the runtime contract.
func RequestID(id ID, n uint32) string {
	b := id.Append(make([]byte, 0, 48))
	b = append(b, '#')
	return string(strconv.AppendUint(b, uint64(n), 10))
}

// ParseRequestID parses a text that [RequestID] returned, into the job's id and
// the number n of the dispatch. ok is false for any other text.
func ParseRequestID(s string) (id ID, n uint32, ok bool) {
	if len(s) < 38 || len(s) > 47 || s[36] != '#' {
		return ID{}, 0, false
	}
	id, ok = parseID(s[:36])
	number, err := strconv.ParseUint(s[37:], 10, 32)
	if !ok || err != nil || number == 0 {
		return ID{}, 0, false
	}
	n = uint32(number)
	if RequestID(id, n) != s { // not the canonical form
		return ID{}, 0, false
	}
	return id, n, true
}
