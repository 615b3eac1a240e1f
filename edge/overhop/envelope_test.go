package overhop

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

func TestQuest_RoundTrip(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	q := Quest{
		JID: "q:x", Queue: "q", Function: "r#h", SID: "s", Token: [16]byte{1, 2, 3}, Fence: 1 << 60, Attempt: 2, MaxAttempts: 7,
		Payload: decodeHex(t, "81a162c4020001"), Created: at, RunAt: at, AckBy: at, LeaseUntil: at, Deadline: at,
		Lease: time.Second, Beat: time.Millisecond, Redelivered: true, Credits: 9, Trace: map[string]string{"traceparent": "00-1"},
	}
	b, err := AppendQuest(nil, &q, DefaultFrameLimit)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ParseEnvelope(b[4:])
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseQuest(e.P)
	if diff := cmp.Diff(q, back); err != nil || diff != "" {
		t.Errorf("%v (-sent +read):\n%s", err, diff)
	}
}

// A payload that does not fit into the frame is omitted if the worker can read it.
func TestAppendQuest_Omitted(t *testing.T) {
	binary := AppendBin(nil, make([]byte, MinFrameLimit-10)) // fits without the other fields
	for name, q := range map[string]Quest{
		"params": {Params: []byte(`{"x":"` + strings.Repeat("x", MinFrameLimit) + `"}`), JSON: true}, "payload": {Payload: binary},
	} {
		q.Content, q.JID, q.Queue, q.SID, q.Attempt, q.Lease, q.Beat = true, "q:x", "q", "s", 1, time.Second, time.Second
		b, err := AppendQuest(nil, &q, MinFrameLimit)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		e, err := ParseEnvelope(b[4:])
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseQuest(e.P); err != nil || !back.Omitted || len(back.Payload) > 0 || back.JID != "q:x" {
			t.Errorf("%s: %+v, %v", name, back, err)
		}
	}
}

func TestAppendQuest_NotSendable(t *testing.T) {
	for name, q := range map[string]Quest{
		"float":     {Payload: decodeHex(t, "ca00000000")},
		"two":       {Payload: decodeHex(t, "c0c0")},
		"deep":      {Payload: decodeHex(t, strings.Repeat("91", 127)+"c0")},
		"deep JSON": {Params: []byte(strings.Repeat("[", 127) + strings.Repeat("]", 127))},
		"large":     {Params: []byte(`{"x":"` + strings.Repeat("x", MinFrameLimit) + `"}`)},
	} {
		b, err := AppendQuest([]byte("before"), &q, MinFrameLimit)
		if !errors.Is(err, ErrNotSendable) || string(b) != "before" {
			t.Errorf("%s gave %d bytes and %v", name, len(b), err)
		}
	}
	deepest := Quest{Params: []byte(strings.Repeat("[", 126) + strings.Repeat("]", 126))}
	b, err := AppendQuest(nil, &deepest, MinFrameLimit)
	if err != nil || Check(b[4:]) != nil {
		t.Errorf("126 levels gave %v, %v", err, Check(b[4:]))
	}
}

// Whatever comes in a payload, parsing it ends with a value or a violation,
// and costs memory in proportion to its size.
func FuzzRequests(f *testing.F) {
	f.Add(AppendValue(nil, Fields{"q": "jobs", "credits": 1, "sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d", "jid": "q:1", "tok": []byte{1}}))
	f.Add(AppendValue(nil, Fields{"lines": []any{"a", Fields{"msg": "b"}}, "jobs": []any{1}, "error": Fields{"message": "m"}, "config": Fields{}}))
	f.Add(AppendValue(nil, Fields{"q": "q", "trace": map[string]string{"a": "b"}, "statuses": []any{"new"}, "timeout_ms": 1, "ext": []any{Delivery}}))
	for _, v := range vectors(f, "frames") {
		e, err := ParseEnvelope(v.frame[frame.HeaderLen:])
		if err != nil {
			f.Fatal(v.name, err)
		}
		f.Add([]byte(e.P))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b) != nil || Raw(b).Kind() != KindMap {
			return
		}
		parseAll(t, b)
	})
}

// parseAll reads p as the payload of every message there is.
func parseAll(t testing.TB, p Raw) {
	parse := func(err error) {
		var v *Violation
		if err != nil && !errors.As(err, &v) {
			t.Fatalf("%x gave %v, which is no violation", p[:min(len(p), 100)], err)
		}
	}
	_ = parseHello(p)
	_ = parseErr(p)
	parse(ParseEmpty(p))
	parse(second(ParseQueueName(p)))
	parse(second(ParseSubscribe(p)))
	parse(second(ParseCredit(p)))
	parse(second(ParseUnsubscribe(p)))
	parse(second(ParseAddQueue(p)))
	parse(second(ParseEnqueue(p, true)))
	parse(second(ParseEnqueue(p, false)))
	parse(second(ParseJobRef(p)))
	parse(second(ParseListJobs(p)))
	parse(second(ParseLeaseRef(p)))
	parse(second(ParseNack(p)))
	b, err := ParseBeat(p)
	for item := range b.Jobs.Items() {
		if err == nil {
			_, err = ParseLeaseRef(item)
		}
	}
	parse(err)
	parse(second(ParseProgress(p)))
	parse(second(ParseLog(p)))
	parse(second(ParseDone(p)))
	parse(second(ParseFail(p)))
	parse(third(ParseAwait(p)))
	parse(second(ParseGoodbye(p)))
	parse(third(ParseCancel(p)))
	parse(third(ParseClrQueue(p)))
	parse(third(ParseObliterate(p)))
	parse(second(ParseQuest(p)))
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }
