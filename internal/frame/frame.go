// Package frame cuts a byte stream into frames and back: each is a u32
// big-endian length followed by that many bytes of payload. Both wires of the
// yard, Overhop's and RRQ's, are framed like this.
//
//	| length, 4 bytes | payload, length bytes |
//
// A frame may arrive in any number of pieces, and one read may bring many
// frames. The length is a stranger's word: it is checked against the limit
// before anything else, and memory grows with the bytes that really arrive,
// never with the bytes that were promised.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// HeaderLen is the size of a frame's length prefix, in bytes.
const HeaderLen = 4

const (
	firstBuffer = 512      // what an idle connection costs
	readAhead   = 64 << 10 // the most a buffer grows before its bytes are here
	keepBuffer  = 16 << 10 // a larger buffer is given back once it is empty
)

// ErrZeroLength refuses a frame without payload.
var ErrZeroLength = errors.New("frame of zero length")

// TooLargeError refuses a frame that announces more than the limit.
type TooLargeError struct{ Size, Limit int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("frame of %d bytes is larger than the limit of %d", e.Size, e.Limit)
}

// FreeBytes is the most payload that a [Gate] is not asked for.
const FreeBytes = 64 << 10

// Gate hears of frames while they come, and has the say about large ones.
type Gate interface {
	// Begun says that the length of a frame is here, size, and its payload is not
	// yet.
	Begun(size int)
	// Hold is asked for leave to hold a frame of size bytes of payload, more than
	// FreeBytes, once FreeBytes of it have come. It may wait; its error ends the
	// stream.
	Hold(size int) error
}

// Reader cuts frames off a stream. It is used by one goroutine at a time and
// cannot go on after an error.
type Reader struct {
	r     io.Reader
	limit int
	gate  Gate // nil: none
	buf   []byte
	// The bytes received and not yet handed out are buf[at:end].
	at, end int
	filled  bool // the last read left no room: the stream is ahead of us
}

// NewReader reads frames of 1 to limit bytes of payload from r.
func NewReader(r io.Reader, limit int) *Reader { return &Reader{r: r, limit: limit} }

// SetLimit changes the limit from the next frame on.
func (r *Reader) SetLimit(limit int) { r.limit = limit }

// SetGate has g hear of the frames that come from now on.
func (r *Reader) SetGate(g Gate) { r.gate = g }

// Next returns the next frame's payload, valid until the next call. The error
// is io.EOF if the stream ended between two frames, io.ErrUnexpectedEOF if it
// ended within one, [ErrZeroLength], a [*TooLargeError], or the stream's own.
func (r *Reader) Next() ([]byte, error) {
	if err := r.need(HeaderLen); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.buf[r.at:])
	if size == 0 {
		return nil, ErrZeroLength
	}
	if uint64(size) > uint64(r.limit) {
		return nil, &TooLargeError{Size: int(size), Limit: r.limit}
	}
	whole := HeaderLen + int(size)
	if err := r.pass(int(size)); err != nil {
		return nil, err
	}
	if err := r.need(whole); err != nil {
		return nil, err
	}
	payload := r.buf[r.at+HeaderLen : r.at+whole : r.at+whole]
	r.at += whole
	return payload, nil
}

// pass takes a frame whose length is here past the gate.
func (r *Reader) pass(size int) error {
	if r.gate == nil || size <= FreeBytes && r.end-r.at >= HeaderLen+size {
		return nil
	}
	r.gate.Begun(size)
	if size <= FreeBytes {
		return nil
	}
	if err := r.need(HeaderLen + FreeBytes); err != nil {
		return err
	}
	return r.gate.Hold(size)
}

// Ready tells that a whole frame, or the reason to refuse it, is here already:
// the next call of Next will not wait for the stream.
func (r *Reader) Ready() bool {
	have := r.end - r.at
	if have < HeaderLen {
		return false
	}
	size := uint64(binary.BigEndian.Uint32(r.buf[r.at:]))
	return size == 0 || size > uint64(r.limit) || uint64(have) >= HeaderLen+size
}

// Buffered is how many bytes of the stream are here and not returned yet.
func (r *Reader) Buffered() int { return r.end - r.at }

// need reads until n unread bytes are here.
func (r *Reader) need(n int) error {
	if r.at == r.end {
		r.at, r.end = 0, 0
		switch {
		case len(r.buf) > keepBuffer:
			r.buf = nil
		case r.filled && len(r.buf) < keepBuffer:
			r.buf = make([]byte, 2*len(r.buf)) // fewer reads for a busy stream
		}
		r.filled = false
	}
	for r.end-r.at < n {
		r.makeRoom(n)
		m, err := r.r.Read(r.buf[r.end:])
		r.end += m
		r.filled = r.end == len(r.buf)
		if r.end-r.at >= n {
			break // an error that came with enough bytes will come again
		}
		if err != nil {
			return r.failure(err)
		}
	}
	return nil
}

// makeRoom leaves space for at least one more byte of the n that are wanted.
// It moves the unread bytes to the front at most once a frame, and grows a full
// buffer by what has arrived so far, within readAhead.
func (r *Reader) makeRoom(n int) {
	have := r.end - r.at
	if r.at > 0 && r.at+n > len(r.buf) {
		copy(r.buf, r.buf[r.at:r.end])
		r.at, r.end = 0, have
	}
	if r.end < len(r.buf) {
		return
	}
	step := min(max(have, firstBuffer), readAhead)
	if have > readAhead {
		step = have / 2 // what is here already vouches for more
	}
	grown := make([]byte, min(max(n, firstBuffer), have+step))
	copy(grown, r.buf[:r.end])
	r.buf = grown
}

func (r *Reader) failure(err error) error {
	if errors.Is(err, io.EOF) && r.end > r.at {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Append adds payload as one frame to dst. The caller keeps to the peer's
// limit.
func Append(dst, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}

// Begin opens a frame at the end of dst. Append the payload to what it
// returns, then close the frame with [End] and mark.
func Begin(dst []byte) (open []byte, mark int) {
	return append(dst, 0, 0, 0, 0), len(dst)
}

// End writes the length of the frame that [Begin] opened at mark, and returns
// how many bytes its payload has.
func End(dst []byte, mark int) int {
	size := len(dst) - mark - HeaderLen
	binary.BigEndian.PutUint32(dst[mark:], uint32(size))
	return size
}
