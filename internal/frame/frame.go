// Package frame splits a byte stream into frames and writes frames. A frame is a
// big-endian uint32 length followed by that many bytes of payload. Both the
// Overhop and the RRQ protocol use it.
//
//	| length, 4 bytes | payload, length bytes |
//
// A frame may arrive in any number of pieces, and one read may return many frames.
// The length is untrusted: it is checked against the limit first, and memory grows
// with the bytes that have arrived, not with the announced length.
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
	initialBuffer = 512      // initial buffer of a connection
	readAhead     = 64 << 10 // maximum growth of a buffer beyond the bytes received
	maxIdleBuffer = 16 << 10 // a larger buffer is released once it is empty
)

// ErrZeroLength means that a frame has no payload.
var ErrZeroLength = errors.New("frame of zero length")

// TooLargeError means that the length of a frame exceeds the limit.
type TooLargeError struct{ Size, Limit int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("frame of %d bytes is larger than the limit of %d", e.Size, e.Limit)
}

// Prefix returns the four bytes that were read as the length. They are text, such as "HTTP", if the
// peer speaks a line-based protocol.
func (e *TooLargeError) Prefix() string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(e.Size)))
}

// UngatedBytes is the largest payload for which [Gate.Reserve] is not called.
const UngatedBytes = 64 << 10

// Gate observes incoming frames and controls the admission of large ones.
type Gate interface {
	// Started is called when a frame's length has arrived and its payload has not,
	// with the size of the payload.
	Started(size int)
	// Reserve is called for a frame with more than UngatedBytes of payload, after
	// UngatedBytes of it have arrived. It may block until there is memory for it; its
	// error ends the stream.
	Reserve(size int) error
}

// Reader reads frames from a stream. It must be used by one goroutine at a time,
// and not after an error.
type Reader struct {
	r     io.Reader
	limit int
	gate  Gate // nil: none
	buf   []byte
	// The bytes received and not yet returned are buf[start:end].
	start, end int
	filled     bool // the last read filled the buffer: more is likely to follow
}

// NewReader returns a reader of frames with 1 to limit bytes of payload.
func NewReader(r io.Reader, limit int) *Reader { return &Reader{r: r, limit: limit} }

// SetLimit changes the limit, beginning with the next frame.
func (r *Reader) SetLimit(limit int) { r.limit = limit }

// SetGate sets the gate, beginning with the next frame.
func (r *Reader) SetGate(g Gate) { r.gate = g }

// Next returns the next frame's payload, which is valid until the next call. The
// error is io.EOF if the stream ends between two frames, io.ErrUnexpectedEOF if it
// ends within one, [ErrZeroLength], a [*TooLargeError], or an error of the stream
// or the gate.
func (r *Reader) Next() ([]byte, error) {
	if err := r.fill(HeaderLen); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.buf[r.start:])
	if size == 0 {
		return nil, ErrZeroLength
	}
	if uint64(size) > uint64(r.limit) {
		return nil, &TooLargeError{Size: int(size), Limit: r.limit}
	}
	if err := r.passGate(int(size)); err != nil {
		return nil, err
	}
	if err := r.fill(HeaderLen + int(size)); err != nil {
		return nil, err
	}
	begin := r.start + HeaderLen
	r.start = begin + int(size)
	return r.buf[begin:r.start:r.start], nil
}

// passGate calls the gate, if there is one, for a frame whose length has arrived.
// A frame of at most UngatedBytes of payload that has arrived as a whole passes
// without a call. The error is that of the stream or the gate.
func (r *Reader) passGate(size int) error {
	isLarge := size > UngatedBytes
	isComplete := r.Buffered() >= HeaderLen+size
	if r.gate == nil || isComplete && !isLarge {
		return nil
	}
	r.gate.Started(size)
	if !isLarge {
		return nil
	}
	if err := r.fill(HeaderLen + UngatedBytes); err != nil {
		return err
	}
	return r.gate.Reserve(size)
}

// Ready reports whether a whole frame, or an invalid length, is buffered, so that
// Next will not block.
func (r *Reader) Ready() bool {
	if r.Buffered() < HeaderLen {
		return false
	}
	size := uint64(binary.BigEndian.Uint32(r.buf[r.start:]))
	isInvalid := size == 0 || size > uint64(r.limit)
	return isInvalid || uint64(r.Buffered()) >= HeaderLen+size
}

// Buffered returns the number of bytes that were received and not returned yet.
func (r *Reader) Buffered() int { return r.end - r.start }

// fill reads from the stream until n bytes of the current frame are buffered. If
// the stream ends or fails before that, it returns the error; an error that comes
// with enough bytes is left to the next read. Between two frames fill also
// releases a large buffer, or enlarges one that was too small.
func (r *Reader) fill(n int) error {
	if r.Buffered() == 0 {
		r.start, r.end = 0, 0
		switch {
		case len(r.buf) > maxIdleBuffer:
			r.buf = nil
		case r.filled && len(r.buf) < maxIdleBuffer:
			r.buf = make([]byte, 2*len(r.buf)) // fewer reads for a busy stream
		}
		r.filled = false
	}

	for r.Buffered() < n {
		r.grow(n)
		received, err := r.r.Read(r.buf[r.end:])
		r.end += received
		r.filled = r.end == len(r.buf)
		if err == nil || r.Buffered() >= n {
			continue
		}
		if errors.Is(err, io.EOF) && r.Buffered() > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

// grow makes space for at least one more of the n bytes of the current frame that
// are needed. It moves the buffered bytes to the front at most once per frame, and
// enlarges a full buffer by as much as has arrived so far, at most by readAhead:
// the announced length is not trusted.
func (r *Reader) grow(n int) {
	buffered := r.Buffered()
	if r.start > 0 && r.start+n > len(r.buf) {
		copy(r.buf, r.buf[r.start:r.end])
		r.start, r.end = 0, buffered
	}
	if r.end < len(r.buf) {
		return
	}
	step := min(max(buffered, initialBuffer), readAhead)
	if buffered > readAhead {
		step = buffered / 2 // a peer that has sent this much is likely to send the rest
	}
	enlarged := make([]byte, min(max(n, initialBuffer), buffered+step))
	copy(enlarged, r.buf[:r.end])
	r.buf = enlarged
}

// Append appends payload to dst as one frame.
func Append(dst, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(payload))), payload...)
}

// Begin begins a frame at the end of dst, at the index mark. Append the payload to open,
// then complete the frame with [End].
func Begin(dst []byte) (open []byte, mark int) {
	return append(dst, 0, 0, 0, 0), len(dst)
}

// End writes the length of the frame that [Begin] began at mark, and returns the
// size of its payload.
func End(dst []byte, mark int) int {
	size := len(dst) - mark - HeaderLen
	binary.BigEndian.PutUint32(dst[mark:], uint32(size))
	return size
}
