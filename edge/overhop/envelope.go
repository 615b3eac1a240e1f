package overhop

import (
	"fmt"

	"yardmaster/internal/frame"
)

// Version is the protocol version that every envelope names.
const Version = 2

// PushRID is the request id of what a server says unasked.
const PushRID = "0"

// Frame limits, in bytes of payload.
const (
	MinFrameLimit     = 64 << 10
	MaxFrameLimit     = 32 << 20
	DefaultFrameLimit = 8 << 20
)

// Envelope is one message of the wire. P lies in the frame it was read from
// and is valid as long as that.
type Envelope struct {
	T   int64  // message type
	RID string // request id
	P   Raw    // payload, a map
}

// EnvelopeError says which part of an envelope is missing or wrong.
type EnvelopeError struct{ Reason string }

func (e *EnvelopeError) Error() string { return "not an envelope: " + e.Reason }

// ParseEnvelope reads a frame's payload: one allowed map with v, t, rid and p.
// The error is a [*CodecError] or an [*EnvelopeError]; both end a connection
// without an answer.
func ParseEnvelope(payload []byte) (Envelope, error) {
	t, rid, p, err := parseEnvelope(payload)
	return Envelope{T: t, RID: string(rid), P: p}, err
}

// parseEnvelope is ParseEnvelope without a copy of the rid.
func parseEnvelope(payload []byte) (t int64, rid []byte, p Raw, err error) {
	if err := Check(payload); err != nil {
		return 0, nil, nil, err
	}
	whole := Raw(payload)
	if whole.Kind() != KindMap {
		return 0, nil, nil, &EnvelopeError{"payload is not a map"}
	}
	var f [4]Raw
	whole.pick(f[:], "p", "rid", "t", "v")
	if v, ok := f[3].Int(); !ok || v != Version {
		return 0, nil, nil, &EnvelopeError{fmt.Sprintf("v must be %d", Version)}
	}
	t, ok := f[2].Int()
	if !ok {
		return 0, nil, nil, &EnvelopeError{"t must be an int"}
	}
	rid, ok = f[1].Text()
	if !ok || len(rid) == 0 {
		return 0, nil, nil, &EnvelopeError{"rid must be a string and not empty"}
	}
	if f[0].Kind() != KindMap {
		return 0, nil, nil, &EnvelopeError{"p must be a map"}
	}
	return t, rid, f[0], nil
}

// Begin opens a framed message at the end of b: append the payload map to what
// it returns, then call [End] with mark.
func Begin(b []byte) (open []byte, mark int) {
	b, mark = frame.Begin(b)
	return append(b, 0x84, 0xa1, 'p'), mark
}

// End closes the message that [Begin] opened and gives its size in bytes of
// frame payload, for the caller to hold against the peer's limit.
func End[S ~string | ~[]byte](b []byte, mark int, t int64, rid S) (whole []byte, size int) {
	b = append(b, 0xa3, 'r', 'i', 'd')
	b = AppendStr(b, rid)
	b = AppendInt(append(b, 0xa1, 't'), t)
	b = append(b, 0xa1, 'v', Version)
	return b, frame.End(b, mark)
}

// AppendMessage appends one framed message with a payload at hand.
func AppendMessage(b []byte, t int64, rid string, p Raw) []byte {
	b, mark := Begin(b)
	b, _ = End(append(b, p...), mark, t, rid)
	return b
}
