package overhop

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// Version is the protocol version, v in every envelope.
const Version = 2

// PushRID is the request id of messages that a server sends without a request.
const PushRID = "0"

// Frame limits, in bytes of payload.
const (
	MinFrameLimit     = 64 << 10
	MaxFrameLimit     = 32 << 20
	DefaultFrameLimit = 8 << 20
)

// Envelope is one message. P refers to the frame that the message was read from
// and is valid as long as the frame.
type Envelope struct {
	T   int64  // message type
	RID string // request id
	P   Raw    // payload, a map
}

// ParseEnvelope parses a frame's payload, a map with v, t, rid and p. Any error
// ends a connection without an answer.
func ParseEnvelope(payload []byte) (Envelope, error) {
	t, rid, p, err := parseEnvelope(payload)
	return Envelope{T: t, RID: string(rid), P: p}, err
}

// parseEnvelope is ParseEnvelope without a copy of the rid. It returns the
// message type t, the request id rid and the payload p, which both refer to
// received.
func parseEnvelope(received []byte) (t int64, rid []byte, p Raw, err error) {
	if err := Check(received); err != nil {
		return 0, nil, nil, err
	}
	if Raw(received).Kind() != KindMap {
		return 0, nil, nil, errors.New("not an envelope: payload is not a map")
	}
	var fields [4]Raw
	Raw(received).pick(fields[:], "p", "rid", "t", "v")
	if version, ok := fields[3].Int(); !ok || version != Version {
		return 0, nil, nil, fmt.Errorf("not an envelope: v must be %d", Version)
	}
	t, ok := fields[2].Int()
	if !ok {
		return 0, nil, nil, errors.New("not an envelope: t must be an int")
	}
	rid, ok = fields[1].Text()
	if !ok || len(rid) == 0 {
		return 0, nil, nil, errors.New("not an envelope: rid must be a string and not empty")
	}
	if fields[0].Kind() != KindMap {
		return 0, nil, nil, errors.New("not an envelope: p must be a map")
	}
	return t, rid, fields[0], nil
}

// Begin begins a framed message at the end of b. The caller appends the payload
// map to the returned slice and then calls [End] with mark.
func Begin(b []byte) (open []byte, mark int) {
	b, mark = frame.Begin(b)
	return append(b, 0x84, 0xa1, 'p'), mark
}

// End finishes the message begun by [Begin]. size is the size of the frame's
// payload in bytes, which the caller must compare with the peer's limit.
func End[S ~string | ~[]byte](b []byte, mark int, t int64, rid S) (whole []byte, size int) {
	b = append(b, 0xa3, 'r', 'i', 'd')
	b = AppendStr(b, rid)
	b = AppendInt(append(b, 0xa1, 't'), t)
	b = append(b, 0xa1, 'v', Version)
	return b, frame.End(b, mark)
}

// AppendMessage appends a framed message with payload p.
func AppendMessage(b []byte, t int64, rid string, p Raw) []byte {
	b, mark := Begin(b)
	b, _ = End(append(b, p...), mark, t, rid)
	return b
}

// AppendOK appends a framed OK with payload p.
func AppendOK(b []byte, rid string, p Raw) []byte { return AppendMessage(b, TOK, rid, p) }

// AppendErr appends a framed ERR with the given code and message, and with
// details unless they are nil.
func AppendErr(b []byte, rid string, code Code, message string, details Fields) []byte {
	b, mark := Begin(b)
	if details == nil {
		b = AppendStr(AppendStr(AppendMap(b, 2), "code"), code)
	} else {
		b = AppendStr(AppendStr(AppendMap(b, 3), "code"), code)
		b = AppendValue(AppendStr(b, "details"), details)
	}
	b = AppendStr(AppendStr(b, "msg"), message)
	b, _ = End(b, mark, TErr, rid)
	return b
}

// AppendFields appends a framed message with payload p and returns the size of
// the frame's payload in bytes.
func AppendFields(b []byte, t int64, rid string, p Fields) (whole []byte, size int) {
	b, mark := Begin(b)
	return End(p.append(b), mark, t, rid)
}

// AppendHi appends the answer to HELLO. It is empty unless the client offered
// the delivery extension. limit is the largest frame payload that the node
// accepts, in bytes.
func AppendHi(b []byte, rid string, hello Hello, node string, limit int) []byte {
	if !hello.Delivery {
		return AppendMessage(b, THi, rid, EmptyMap)
	}
	hi := Fields{"ext": []string{Delivery}, "max_envelope_size_bytes": limit, "node": node}
	var shared []string
	for _, c := range capabilities {
		if *c.of(&hello) {
			shared = append(shared, c.name)
		}
	}
	if len(shared) > 0 {
		hi["caps"] = shared
	}
	b, _ = AppendFields(b, THi, rid, hi)
	return b
}

// AppendPong appends the answer to a PING.
func AppendPong(b []byte, rid string, now time.Time) []byte {
	b, mark := Begin(b)
	b = AppendTime(AppendStr(AppendMap(b, 1), "server_time"), now)
	b, _ = End(b, mark, TPong, rid)
	return b
}

// AppendIdent appends an IDENT, which asks a client that has sent HELLO to
// register.
func AppendIdent(b []byte, timeout time.Duration, deadline time.Time) []byte {
	b, _ = AppendFields(b, TIdent, PushRID, Fields{
		"register_timeout_seconds": int64(timeout.Round(time.Second) / time.Second),
		"reply_deadline":           deadline,
	})
	return b
}

// RemoteError is an ERR received by a client.
type RemoteError struct {
	Code    Code
	Message string
	Details Raw // empty: none
}

func (e *RemoteError) Error() string { return string(e.Code) + ": " + e.Message }

// ErrorCode returns the code of the [*RemoteError] in err's chain, or "".
func ErrorCode(err error) Code {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		return remote.Code
	}
	return ""
}

// parseErr ignores fields that have another type.
func parseErr(p Raw) *RemoteError {
	r := newFieldReader(p, "code", "msg", "details")
	return &RemoteError{Code: Code(r.str("code")), Message: r.str("msg"), Details: slices.Clone(r.raw("details"))}
}

// RetryAfter returns how long to wait before the request is repeated: what the
// node asked for, but at least 50 ms and at most 5 s. Without such a wish it is
// 250 ms.
func (e *RemoteError) RetryAfter() time.Duration {
	ms, ok := e.Details.Get("retry_after_ms").Int()
	if !ok {
		ms = 250
	}
	return min(max(milliseconds(ms), 50*time.Millisecond), 5*time.Second)
}
