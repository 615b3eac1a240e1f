package backup

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"
)

// streamState is the beginning of JetStream's archive of a stream.
type streamState struct {
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	FirstSeq    uint64 `json:"first_seq"`
	LastSeq     uint64 `json:"last_seq"`
	NumSubjects int    `json:"num_subjects,omitempty"`
	Consumers   int    `json:"consumer_count"`
}

const stateName = "state.json"

// message is a message in the archive of a stream. Its data is only valid until
// the next one is read.
type message struct {
	archive.Header
	data []byte // headers and payload
}

// scanMessages reads the archive of a stream and calls begin with the stream's state,
// and then fn with each message. The first error of either ends it.
func scanMessages(r io.Reader, begin func(streamState) error, fn func(*message) error) error {
	in := archive.NewReader(s2.NewReader(r))
	head, err := in.Next()
	if err != nil || head.Name != stateName {
		return damaged("the archive does not begin with the stream's state (%v)", err)
	}
	var state streamState
	if err := json.NewDecoder(in).Decode(&state); err != nil || state.Consumers != 0 {
		return damaged("malformed stream state (%v)", err)
	}
	if err := begin(state); err != nil {
		return err
	}
	var m message
	for last := uint64(0); ; last = m.Sequence {
		head, err := in.Next()
		if err != nil {
			return damaged("the archive is truncated after message %d (%v)", last, err)
		}
		m.Header = *head
		if head.Sequence == 0 {
			if head.Name != "" || head.Timestamp != 0 {
				return damaged("unexpected %q after message %d", head.Name, last)
			}
			return nil // the end mark
		}
		size := head.HeaderSize + head.PayloadSize
		if head.Sequence <= last || head.HeaderSize < 0 || head.PayloadSize < 0 || size > maxMessageBytes {
			return damaged("message %d comes after %d, or is too large", head.Sequence, last)
		}
		if int64(cap(m.data)) < size {
			m.data = make([]byte, size)
		}
		m.data = m.data[:size]
		if _, err := io.ReadFull(in, m.data); err != nil {
			return damaged("message %d is truncated", head.Sequence)
		}
		if err := fn(&m); err != nil {
			return err
		}
	}
}

const maxMessageBytes = 64 << 20 // bytes; JetStream's own limit is below it

// restoreBlock is the size in bytes of a compressed block of an archive that Trim
// writes. While JetStream restores a stream, it may sync each message, and a large
// block could take longer than its timeout for the next chunk.
const restoreBlock = 64 << 10

// Trim copies the archive of a stream from r to w, up to the message keep.Last, which
// [Verify] determined. Later messages are about decisions that the ledger does not
// contain. The copy's state has the numbers of keep.
func Trim(w io.Writer, r io.Reader, keep Stream) error {
	packed := s2.NewWriter(w, s2.WriterBlockSize(restoreBlock), s2.WriterConcurrency(1))
	out := archive.NewWriter(packed)
	begin := func(state streamState) error {
		state.FirstSeq, state.LastSeq, state.Messages, state.Bytes = keep.First, keep.Last, keep.Messages, keep.Bytes
		text, err := json.Marshal(state)
		if err == nil {
			err = out.WriteHeader(&archive.Header{Name: stateName, PayloadSize: int64(len(text))})
		}
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	}
	err := scanMessages(r, begin, func(m *message) error {
		if m.Sequence > keep.Last {
			return nil
		}
		if err := out.WriteHeader(&m.Header); err != nil {
			return err
		}
		_, err := out.Write(m.data)
		return err
	})
	if err == nil {
		err = out.WriteHeader(&archive.Header{}) // the end
	}
	return errors.Join(err, packed.Close())
}
