package backup

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"
)

// streamState is what JetStream puts before a stream's messages.
type streamState struct {
	Messages    uint64 `json:"messages"`
	Bytes       uint64 `json:"bytes"`
	FirstSeq    uint64 `json:"first_seq"`
	LastSeq     uint64 `json:"last_seq"`
	NumSubjects int    `json:"num_subjects,omitempty"`
	Consumers   int    `json:"consumer_count"`
}

const stateName = "state.json"

// message is one of a stream's, as it lies in a copy. Its data is only good
// until the next.
type message struct {
	archive.Header
	data []byte // headers and payload
}

// scan reads a stream's copy.
func scan(r io.Reader, begin func(streamState) error, fn func(*message) error) error {
	in := archive.NewReader(s2.NewReader(r))
	head, err := in.Next()
	if err != nil || head.Name != stateName {
		return damaged("the copy does not begin with the stream's state (%v)", err)
	}
	var state streamState
	if err := json.NewDecoder(in).Decode(&state); err != nil || state.Consumers != 0 {
		return damaged("the stream's state cannot be read (%v)", err)
	}
	if err := begin(state); err != nil {
		return err
	}
	var m message
	for last := uint64(0); ; last = m.Sequence {
		head, err := in.Next()
		if err != nil {
			return damaged("the copy is cut off after message %d (%v)", last, err)
		}
		if m.Header = *head; head.Sequence == 0 {
			if head.Name != "" || head.Timestamp != 0 {
				return damaged("the copy holds %q after message %d", head.Name, last)
			}
			return nil // the end that its writer set
		}
		size := head.HeaderSize + head.PayloadSize
		if head.Sequence <= last || head.HeaderSize < 0 || head.PayloadSize < 0 || size > maxMessage {
			return damaged("message %d comes after %d, or is too large", head.Sequence, last)
		}
		if int64(cap(m.data)) < size {
			m.data = make([]byte, size)
		}
		m.data = m.data[:size]
		if _, err := io.ReadFull(in, m.data); err != nil {
			return damaged("message %d is cut off", head.Sequence)
		}
		if err := fn(&m); err != nil {
			return err
		}
	}
}

const maxMessage = 64 << 20 // bytes; JetStream's own limit is below it

// restoreBlock is how much of a copy is unpacked at once when it is brought
// back, in bytes: where each message is made durable by itself, a large block
// takes longer than JetStream waits for the next.
const restoreBlock = 64 << 10

// Trim copies a stream's copy from r to w as far as keep says, which [Verify]
// found: what lies behind tells of decisions that the ledger does not know.
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
	err := scan(r, begin, func(m *message) error {
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
