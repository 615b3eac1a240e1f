package ledger

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// encoder writes the state in a compact binary form. After an error it writes
// nothing more.
type encoder struct {
	w     *bufio.Writer
	names map[string]uint64 // number of each name written so far
	buf   [binary.MaxVarintLen64]byte
	err   error
}

func newEncoder(w io.Writer) *encoder {
	return &encoder{w: bufio.NewWriterSize(w, 64<<10), names: make(map[string]uint64)}
}

func (e *encoder) raw(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
	}
}

func (e *encoder) uint(v uint64) { e.raw(e.buf[:binary.PutUvarint(e.buf[:], v)]) }

func (e *encoder) int(v int64) { e.raw(e.buf[:binary.PutVarint(e.buf[:], v)]) }

// time writes t in Unix nanoseconds; the zero time is 0.
func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.int(0)
	} else {
		e.int(t.UnixNano())
	}
}

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
	} else {
		e.uint(0)
	}
}

func (e *encoder) bytes(b []byte) {
	e.uint(uint64(len(b)))
	e.raw(b)
}

func (e *encoder) text(s string) {
	e.uint(uint64(len(s)))
	if e.err == nil {
		_, e.err = e.w.WriteString(s)
	}
}

// name writes a text that occurs in many records: in full the first time, as a
// number afterwards.
func (e *encoder) name(s string) {
	if n, ok := e.names[s]; ok {
		e.uint(n)
		return
	}
	e.names[s] = uint64(len(e.names) + 1)
	e.uint(0)
	e.text(s)
}

func (e *encoder) id(id job.ID) { e.raw(id[:]) }

// optional writes and returns present; if it is true, the caller writes the
// value next.
func (e *encoder) optional(present bool) bool {
	e.bool(present)
	return present
}

// errCorrupt is returned for a snapshot that no encoder can have written.
var errCorrupt = errors.New("ledger snapshot is corrupt")

// decoder reads what an encoder wrote. After an error every method returns a
// zero value, so that loops end.
type decoder struct {
	r     *bufio.Reader
	names []string
	err   error
}

func newDecoder(r io.Reader) *decoder { return &decoder{r: bufio.NewReaderSize(r, 64<<10)} }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) uint() uint64 {
	if d.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(d.r)
	if err != nil {
		d.fail(err)
		return 0
	}
	return v
}

func (d *decoder) int() int64 {
	if d.err != nil {
		return 0
	}
	v, err := binary.ReadVarint(d.r)
	if err != nil {
		d.fail(err)
		return 0
	}
	return v
}

func (d *decoder) time() time.Time {
	if at := d.int(); at != 0 {
		return time.Unix(0, at).UTC()
	}
	return time.Time{}
}

func (d *decoder) bool() bool { return d.uint() == 1 }

// maxChunk is how many bytes a length prefix may cause to be allocated before
// they are read.
const maxChunk = 1 << 20

func (d *decoder) bytes() []byte {
	n := d.uint()
	if d.err != nil || n == 0 {
		return nil
	}
	if n > job.MaxBody {
		d.fail(errCorrupt)
		return nil
	}
	b := make([]byte, 0, min(n, maxChunk))
	for uint64(len(b)) < n {
		step := min(n-uint64(len(b)), maxChunk)
		at := len(b)
		b = append(b, make([]byte, step)...)
		if _, err := io.ReadFull(d.r, b[at:]); err != nil {
			d.fail(err)
			return nil
		}
	}
	return b
}

func (d *decoder) text() string { return string(d.bytes()) }

func (d *decoder) name() string {
	n := d.uint()
	if n == 0 {
		s := d.text()
		d.names = append(d.names, s)
		return s
	}
	if n > uint64(len(d.names)) {
		d.fail(errCorrupt)
		return ""
	}
	return d.names[n-1]
}

func (d *decoder) id() (id job.ID) {
	if d.err == nil {
		if _, err := io.ReadFull(d.r, id[:]); err != nil {
			d.fail(err)
		}
	}
	return id
}

// repeat reads a count and calls read that many times, or until an error
// occurs.
func (d *decoder) repeat(read func()) {
	for n := d.uint(); n > 0 && d.err == nil; n-- {
		read()
	}
}
