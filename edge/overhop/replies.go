package overhop

import (
	"errors"
	"time"
)

// AppendOK appends a framed OK with payload p.
func AppendOK(b []byte, rid string, p Raw) []byte { return AppendMessage(b, TOK, rid, p) }

// AppendErr appends a framed ERR; details may be nil.
func AppendErr(b []byte, rid string, code Code, message string, details Fields) []byte {
	b, mark := Begin(b)
	if details == nil {
		b = AppendMap(b, 2)
	} else {
		b = AppendMap(b, 3)
	}
	b = AppendStr(AppendStr(b, "code"), code)
	if details != nil {
		b = AppendValue(AppendStr(b, "details"), details)
	}
	b = AppendStr(AppendStr(b, "msg"), message)
	b, _ = End(b, mark, TErr, rid)
	return b
}

// AppendFields appends a framed message with a payload of plain values, and
// gives its size in bytes of frame payload.
func AppendFields(b []byte, t int64, rid string, p Fields) (whole []byte, size int) {
	b, mark := Begin(b)
	return End(AppendValue(b, p), mark, t, rid)
}

// AppendHi appends the answer to a HELLO: empty by the draft, unless the
// client offered the delivery extension.
func AppendHi(b []byte, rid string, delivery bool, node string) []byte {
	if !delivery {
		return AppendMessage(b, THi, rid, EmptyMap)
	}
	b, _ = AppendFields(b, THi, rid, Fields{"ext": []string{Delivery}, "node": node})
	return b
}

// AppendPong appends the answer to a PING.
func AppendPong(b []byte, rid string, now time.Time) []byte {
	b, mark := Begin(b)
	b = AppendTime(AppendStr(AppendMap(b, 1), "server_time"), now)
	b, _ = End(b, mark, TPong, rid)
	return b
}

// AppendIdent appends the question to a client that has said HELLO and nothing
// since.
func AppendIdent(b []byte, timeout time.Duration, deadline time.Time) []byte {
	b, _ = AppendFields(b, TIdent, PushRID, Fields{
		"register_timeout_seconds": int64(timeout.Round(time.Second) / time.Second),
		"reply_deadline":           deadline,
	})
	return b
}

// RemoteError is an ERR as a client gets it.
type RemoteError struct {
	Code    Code
	Message string
	Details Raw // empty: none
}

func (e *RemoteError) Error() string { return string(e.Code) + ": " + e.Message }

// ErrorCode is the code of the [*RemoteError] in err, or "".
func ErrorCode(err error) Code {
	var remote *RemoteError
	if errors.As(err, &remote) {
		return remote.Code
	}
	return ""
}

func parseErr(p Raw) *RemoteError {
	var f [3]Raw
	p.pick(f[:], "code", "msg", "details")
	e := &RemoteError{Details: append(Raw(nil), f[2]...)}
	code, _ := f[0].Str()
	e.Code = Code(code)
	e.Message, _ = f[1].Str()
	return e
}
