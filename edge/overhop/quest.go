package overhop

import (
	"fmt"
	"slices"
	"time"
)

// Quest is a job put into a worker's hands.
type Quest struct {
	JID, Queue  string
	Function    string // "": the job names none
	SID         string
	Token       [TokenLen]byte
	Fence       int64
	Attempt     uint32
	MaxAttempts uint32 // 0: the yard's default, nil on the wire
	Payload     Raw    // empty: nil, unless Params is given
	Params      []byte // JSON, written as the payload; never read
	Created     time.Time
	RunAt       time.Time
	AckBy       time.Time
	LeaseUntil  time.Time
	Deadline    time.Time // zero: none
	Lease       time.Duration
	Beat        time.Duration // how often to BEAT
	Redelivered bool
	Credits     uint32 // left on SID
	Trace       map[string]string
}

// AppendQuest appends a framed QUEST of at most limit bytes of payload. A
// payload that the wire cannot carry or that is too large gives an error that
// is [ErrNotSendable], and an unchanged b.
func AppendQuest(b []byte, q *Quest, limit int) ([]byte, error) {
	fields := 17
	if q.Function != "" {
		fields++
	}
	if len(q.Trace) > 0 {
		fields++
	}
	out, mark := Begin(b)
	out = AppendMap(out, fields)
	out = AppendTime(AppendStr(out, "ack_by"), q.AckBy)
	out = AppendInt(AppendStr(out, "attempt"), int64(q.Attempt))
	out = AppendInt(AppendStr(out, "beat_ms"), q.Beat.Milliseconds())
	out = AppendTime(AppendStr(out, "created_at"), q.Created)
	out = AppendInt(AppendStr(out, "credits"), int64(q.Credits))
	out = appendTimeOrNil(AppendStr(out, "deadline"), q.Deadline)
	out = AppendTime(AppendStr(out, "execution_start_at"), q.RunAt)
	out = AppendInt(AppendStr(out, "fence"), q.Fence)
	if q.Function != "" {
		out = AppendStr(AppendStr(out, "fn"), q.Function)
	}
	out = AppendStr(AppendStr(out, "jid"), q.JID)
	out, err := q.appendPayload(AppendStr(out, "job_payload"))
	if err != nil {
		return b, err
	}
	out = AppendInt(AppendStr(out, "lease_ms"), q.Lease.Milliseconds())
	out = AppendTime(AppendStr(out, "lease_until"), q.LeaseUntil)
	out = appendCountOrNil(AppendStr(out, "max_attempts"), q.MaxAttempts)
	out = AppendStr(AppendStr(out, "q"), q.Queue)
	out = AppendBool(AppendStr(out, "redelivered"), q.Redelivered)
	out = AppendStr(AppendStr(out, "sid"), q.SID)
	out = AppendBin(AppendStr(out, "tok"), q.Token[:])
	if len(q.Trace) > 0 {
		out = AppendValue(AppendStr(out, "trace"), q.Trace)
	}
	out, size := End(out, mark, TQuest, PushRID)
	if size > limit {
		return b, fmt.Errorf("%w: its frame has %d bytes of %d", ErrNotSendable, size, limit)
	}
	return out, nil
}

// payloadLevels is how deep a job's payload may be nested below the envelope
// and the message's own map.
const payloadLevels = MaxDepth - 2

func (q *Quest) appendPayload(b []byte) ([]byte, error) {
	switch {
	case len(q.Payload) > 0:
		if err := CheckDepth(q.Payload, payloadLevels); err != nil {
			return b, fmt.Errorf("%w: %v", ErrNotSendable, err)
		}
		return append(b, q.Payload...), nil
	case len(q.Params) > 0:
		return AppendFromJSON(b, q.Params, payloadLevels)
	}
	return AppendNil(b), nil
}

func appendTimeOrNil(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return AppendNil(b)
	}
	return AppendTime(b, t)
}

func appendCountOrNil(b []byte, n uint32) []byte {
	if n == 0 {
		return AppendNil(b)
	}
	return AppendInt(b, int64(n))
}

// ParseQuest reads a QUEST's payload into a value that outlives the frame; the
// error is a [*Violation] of the server's.
func ParseQuest(p Raw) (Quest, error) {
	var f [19]Raw
	p.pick(f[:], "jid", "q", "fn", "sid", "tok", "fence", "attempt", "max_attempts", "job_payload", "created_at",
		"execution_start_at", "ack_by", "lease_until", "deadline", "lease_ms", "beat_ms", "redelivered", "credits", "trace")
	var r reading
	q := Quest{
		JID: r.str("jid", f[0]), Queue: r.str("q", f[1]), Function: r.optStr("fn", orAbsent(f[2])), SID: r.str("sid", f[3]),
		Fence: r.int("fence", f[5], 0, maxInt), Attempt: uint32(r.int("attempt", f[6], 1, maxCount)),
		MaxAttempts: uint32(r.optInt("max_attempts", orAbsent(f[7]), 1, maxCount, 0)), Payload: slices.Clone(orAbsent(f[8])),
		Created: r.optTime("created_at", orAbsent(f[9])), RunAt: r.optTime("execution_start_at", orAbsent(f[10])),
		AckBy: r.optTime("ack_by", orAbsent(f[11])), LeaseUntil: r.optTime("lease_until", orAbsent(f[12])),
		Deadline: r.optTime("deadline", orAbsent(f[13])), Lease: milliseconds(r.optInt("lease_ms", f[14], 1, maxInt, 6000)),
		Beat: milliseconds(r.optInt("beat_ms", f[15], 1, maxInt, 2000)), Redelivered: r.optBool("redelivered", f[16], false),
		Credits: uint32(r.optInt("credits", f[17], 0, maxCount, 0)), Trace: r.optTexts("trace", orAbsent(f[18])),
	}
	if token := r.bin("tok", f[4]); len(token) == TokenLen {
		q.Token = [TokenLen]byte(token)
	} else {
		r.wrong("tok", "16 bytes", f[4])
	}
	return q, r.result()
}
