package overhop

import (
	"fmt"
	"slices"
	"time"
)

// Quest is a job sent to a worker, the payload of QUEST.
type Quest struct {
	JID, Queue  string         // JID is "<queue>:<uuid>"
	Function    string         // "": the job names no function
	SID         string         // the subscription
	Token       [TokenLen]byte // proves the lease
	Fence       int64          // greater with every dispatch of the yard; lets other systems refuse writes of an old one
	Attempt     uint32         // from 1
	MaxAttempts uint32         // 0: the yard's default, nil in the message
	Payload     Raw            // decoded by [Unmarshal]; empty: nil, unless Params is set
	Params      []byte         // JSON, sent as the payload by AppendQuest; not set by ParseQuest
	JSON        bool           // the worker takes Params as JSON; not set by ParseQuest
	Content     bool           // the worker reads a large payload by CONTENT; not set by ParseQuest
	Omitted     bool           // the payload does not fit into the frame: the worker reads it by CONTENT
	Created     time.Time      // when the job was accepted
	RunAt       time.Time      // when it was due
	AckBy       time.Time      // deadline of ACK or NACK
	LeaseUntil  time.Time      // end of the lease, by the node's clock
	Deadline    time.Time      // zero: none
	Lease       time.Duration  // length of the lease
	Beat        time.Duration  // interval of BEATs
	Redelivered bool           // an earlier dispatch of this attempt was lost or not acknowledged; the job may have run before
	Credits     uint32         // credits left on SID
	Trace       map[string]string
	Tags        []string // as the producer gave them, likewise Meta
	Meta        map[string]string
}

// AppendQuest appends a framed QUEST with a frame payload of at most limit
// bytes. A payload that is too large is omitted if the worker can read it by CONTENT. If
// the payload cannot be encoded or is too large, AppendQuest returns an error that is
// [ErrNotSendable], and an unchanged b.
func AppendQuest(b []byte, q *Quest, limit int) ([]byte, error) {
	if q.Content && len(q.Payload)+len(q.Params) > limit {
		return appendQuestWithoutPayload(b, q, limit)
	}
	fields := 17 // without the optional ones
	if q.Function != "" {
		fields++
	}
	for _, given := range [...]bool{len(q.Trace) > 0, len(q.Tags) > 0, len(q.Meta) > 0, q.Omitted} {
		if given {
			fields++
		}
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
	out, err := q.appendPayload(out)
	if err != nil {
		return b, err
	}
	out = AppendInt(AppendStr(out, "lease_ms"), q.Lease.Milliseconds())
	out = AppendTime(AppendStr(out, "lease_until"), q.LeaseUntil)
	out = appendCountOrNil(AppendStr(out, "max_attempts"), q.MaxAttempts)
	if len(q.Meta) > 0 {
		out = AppendValue(AppendStr(out, "meta"), q.Meta)
	}
	if q.Omitted {
		out = AppendValue(AppendStr(out, "omitted"), []string{questPayload})
	}
	out = AppendStr(AppendStr(out, "q"), q.Queue)
	out = AppendBool(AppendStr(out, "redelivered"), q.Redelivered)
	out = AppendStr(AppendStr(out, "sid"), q.SID)
	if len(q.Tags) > 0 {
		out = AppendValue(AppendStr(out, "tags"), q.Tags)
	}
	out = AppendBin(AppendStr(out, "tok"), q.Token[:])
	if len(q.Trace) > 0 {
		out = AppendValue(AppendStr(out, "trace"), q.Trace)
	}
	out, size := End(out, mark, TQuest, PushRID)
	switch {
	case size > limit && q.Content && !q.Omitted:
		return appendQuestWithoutPayload(b, q, limit)
	case size > limit:
		return b, fmt.Errorf("%w: its frame would have %d bytes, the limit is %d", ErrNotSendable, size, limit)
	}
	return out, nil
}

// appendQuestWithoutPayload is AppendQuest for a job whose payload the worker reads by
// CONTENT.
func appendQuestWithoutPayload(b []byte, q *Quest, limit int) ([]byte, error) {
	without := *q
	without.Omitted, without.Payload, without.Params = true, nil, nil
	return AppendQuest(b, &without, limit)
}

// questPayload is the key of the payload in a QUEST.
const questPayload = "job_payload"

// payloadDepth is how deep a value may be nested that a frame contains. It is below the
// envelope and the message's own map, and above [MaxValueDepth], so that payloads can be
// sent which earlier builds have accepted.
const payloadDepth = MaxDepth - 2

// appendPayload appends the key and the value of the job's payload, or of its params, which
// are converted from JSON unless the worker takes that, or nil if it has neither. If they
// cannot be sent it returns an error that is [ErrNotSendable].
func (q *Quest) appendPayload(b []byte) ([]byte, error) {
	const key = questPayload
	if q.JSON && len(q.Params) > 0 && len(q.Payload) == 0 {
		if !JSONFits(q.Params, payloadDepth) {
			return b, fmt.Errorf("%w: JSON is nested more than %d deep", ErrNotSendable, payloadDepth)
		}
		return AppendBin(AppendStr(b, key+JSONSuffix), q.Params), nil
	}
	b = AppendStr(b, key)
	switch {
	case len(q.Payload) > 0:
		if err := CheckDepth(q.Payload, payloadDepth); err != nil {
			return b, fmt.Errorf("%w: %v", ErrNotSendable, err)
		}
		return append(b, q.Payload...), nil
	case len(q.Params) > 0:
		return AppendFromJSON(b, q.Params, payloadDepth)
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

// questFields are the fields of a QUEST.
var questFields = []string{
	"ack_by", "attempt", "beat_ms", "created_at", "credits", "deadline", "execution_start_at", "fence", "fn", "jid", "job_payload",
	"job_payload_json", "lease_ms", "lease_until", "max_attempts", "meta", "omitted", "q", "redelivered", "sid", "tags", "tok", "trace",
}

// ParseQuest parses the payload of a QUEST into a value that does not refer to
// the frame. The error is a [*Violation].
func ParseQuest(payload Raw) (Quest, error) { return parseQuest(payload, new(Quest)) }

// parseQuest is ParseQuest. Texts that are the same as those of previous, another QUEST of
// the connection, share its memory.
func parseQuest(payload Raw, previous *Quest) (Quest, error) {
	r := newFieldReader(payload, questFields...)
	q := Quest{
		Lease: milliseconds(r.optInt("lease_ms", 1, maxInt, 6000)), Beat: milliseconds(r.optInt("beat_ms", 1, maxInt, 2000)),
		Redelivered: r.optBool("redelivered", false), Credits: uint32(r.optInt("credits", 0, maxCount, 0)),
	}
	r.nilIsAbsent = true // for the other fields
	q.JID, q.Queue, q.SID = r.str("jid"), shared(r.text("q"), previous.Queue), shared(r.text("sid"), previous.SID)
	if !r.isAbsent("fn") {
		q.Function = shared(r.text("fn"), previous.Function)
	}
	q.Fence, q.Attempt = r.int("fence", 0, maxInt), uint32(r.int("attempt", 1, maxCount))
	q.MaxAttempts, q.Payload = uint32(r.optInt("max_attempts", 1, maxCount, 0)), slices.Clone(r.optional("job_payload"))
	q.Created, q.RunAt = r.optTime("created_at"), r.optTime("execution_start_at")
	q.AckBy, q.LeaseUntil, q.Deadline = r.optTime("ack_by"), r.optTime("lease_until"), r.optTime("deadline")
	q.Trace, q.Tags, q.Meta = r.optStrings("trace"), r.optTexts("tags"), r.optStrings("meta")
	for key := range r.raw("omitted").Items() {
		name, _ := key.Text()
		q.Omitted = q.Omitted || string(name) == questPayload
	}
	if name := questPayload + JSONSuffix; !r.isAbsent(name) {
		payload, err := FromJSON(r.bin(name))
		if err != nil {
			r.fail("%s: %v", name, err)
		}
		q.Payload = payload
	}
	if token := r.bin("tok"); len(token) == TokenLen {
		q.Token = [TokenLen]byte(token)
	} else {
		r.mismatch("tok", "16 bytes", r.raw("tok"))
	}
	return q, r.err
}

// shared returns known if it is the same as text, else a copy of text.
func shared(text []byte, known string) string {
	if string(text) == known {
		return known
	}
	return string(text)
}
