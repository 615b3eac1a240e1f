package overhop

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// The files under testdata/frames hold whole frames for other implementers.
func TestGoldenFrames(t *testing.T) {
	now := time.Date(2026, 2, 23, 10, 18, 33, 0, time.UTC)
	quest := Quest{
		JID: "jobs:0190a5b2-0000-7000-8000-000000000001", Queue: "jobs", SID: "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d",
		Token: [16]byte{7: 1, 15: 9}, Fence: 42, Attempt: 1, MaxAttempts: 5, Params: []byte(`{"n":1}`),
		Created: now, RunAt: now, AckBy: now.Add(5 * time.Second), LeaseUntil: now.Add(6 * time.Second),
		Lease: 6 * time.Second, Beat: 2 * time.Second, Credits: 3,
	}
	questFrame, err := AppendQuest(nil, &quest, DefaultFrameLimit)
	if err != nil {
		t.Fatal(err)
	}
	held := Fields{"jid": quest.JID, "tok": quest.Token[:]}
	fields := func(t int64, rid string, p Fields) []byte { b, _ := AppendFields(nil, t, rid, p); return b }
	for name, got := range map[string][]byte{
		"hello":           AppendMessage(nil, THello, "1", EmptyMap),
		"hello-delivery":  fields(THello, "1", Fields{"ext": []string{Delivery}}),
		"hi":              AppendHi(nil, "1", false, ""),
		"hi-delivery":     AppendHi(nil, "1", true, "n1"),
		"register":        AppendMessage(nil, TRegister, "2", EmptyMap),
		"ident":           AppendIdent(nil, 2*time.Second, now),
		"ping":            AppendMessage(nil, TPing, "p", EmptyMap),
		"pong":            AppendPong(nil, "p", now),
		"subscribe":       fields(TSubscribe, "s", Fields{"q": "jobs", "credits": 1}),
		"enqueue":         fields(TEnqueue, "e", Fields{"q": "jobs", "job_payload": Fields{"n": 1}}),
		"err":             AppendErr(nil, "e", CodeQueueNotFound, "queue does not exist", nil),
		"err-unavailable": AppendErr(nil, "e", CodeUnavailable, "no quorum", Fields{"retry_after_ms": 1000}),
		"quest":           questFrame,
		"ack":             fields(TAck, "a", held),
		"done":            fields(TDone, "d", Fields{"jid": quest.JID, "tok": quest.Token[:], "result": Fields{"ok": true}, "credits": 1}),
		"fail": fields(TFail, "f", Fields{
			"jid": quest.JID, "tok": quest.Token[:], "error": Fields{"message": "no", "type": "demo"}, "retry_after_ms": 500,
		}),
	} {
		file := "testdata/frames/" + name + ".hex"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%v; the frame is now\n%x", err, got)
			continue
		}
		want := unhex(t, string(text))
		if !bytes.Equal(got, want) {
			t.Errorf("%s is\n%x, want\n%x", name, got, want)
		}
		var theirs any
		if err := msgpack.Unmarshal(want[4:], &theirs); err != nil {
			t.Errorf("another library refuses %s: %v", name, err)
		}
		e, err := ParseEnvelope(want[4:])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again := AppendMessage(nil, e.T, e.RID, canonical(nil, e.P)); !bytes.Equal(again, want) {
			t.Errorf("%s is not in canonical form", name)
		}
	}
}

// Peers may write keys in any order.
func TestGoldenFrames_Unsorted(t *testing.T) {
	for _, name := range []string{"subscribe", "enqueue"} {
		var frames [2][]byte
		for i, suffix := range []string{"", "-unsorted"} {
			text, err := os.ReadFile("testdata/frames/" + name + suffix + ".hex")
			if err != nil {
				t.Fatal(err)
			}
			e, err := ParseEnvelope(unhex(t, string(text))[4:])
			if err != nil {
				t.Fatal(err)
			}
			frames[i] = AppendMessage(nil, e.T, e.RID, canonical(nil, e.P))
		}
		if !bytes.Equal(frames[0], frames[1]) {
			t.Errorf("%s differs from its unsorted form", name)
		}
	}
}

func TestParseEnvelope_Refuses(t *testing.T) {
	for name, f := range map[string]any{
		"not a map":    []any{},
		"no v":         Fields{"t": 1, "rid": "1", "p": Fields{}},
		"v 1":          Fields{"v": 1, "t": 1, "rid": "1", "p": Fields{}},
		"v text":       Fields{"v": "2", "t": 1, "rid": "1", "p": Fields{}},
		"no t":         Fields{"v": 2, "rid": "1", "p": Fields{}},
		"t text":       Fields{"v": 2, "t": "1", "rid": "1", "p": Fields{}},
		"no rid":       Fields{"v": 2, "t": 1, "p": Fields{}},
		"rid int":      Fields{"v": 2, "t": 1, "rid": 1, "p": Fields{}},
		"rid empty":    Fields{"v": 2, "t": 1, "rid": "", "p": Fields{}},
		"no p":         Fields{"v": 2, "t": 1, "rid": "1"},
		"p nil":        Fields{"v": 2, "t": 1, "rid": "1", "p": nil},
		"p array":      Fields{"v": 2, "t": 1, "rid": "1", "p": []any{}},
		"float beside": Fields{"v": 2, "t": 1, "rid": "1", "p": Fields{}, "x": Raw(unhex(t, "ca00000000"))},
	} {
		_, err := ParseEnvelope(AppendValue(nil, f))
		var codec *CodecError
		var envelope *EnvelopeError
		if !errors.As(err, &codec) && !errors.As(err, &envelope) {
			t.Errorf("%s gave %v", name, err)
		}
	}
	e, err := ParseEnvelope(AppendValue(nil, Fields{"v": 2, "t": 3, "rid": "0", "p": Fields{}, "x": Fields{"y": 1}}))
	if err != nil || e.T != 3 || e.RID != "0" {
		t.Errorf("an unknown field spoils the envelope: %+v, %v", e, err)
	}
}

func TestQuestThereAndBack(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	q := Quest{
		JID: "q:x", Queue: "q", Function: "r#h", SID: "s", Token: [16]byte{1, 2, 3}, Fence: 1 << 60, Attempt: 2, MaxAttempts: 7,
		Payload: unhex(t, "81a162c4020001"), Created: at, RunAt: at, AckBy: at, LeaseUntil: at, Deadline: at,
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

func TestAppendQuest_NotSendable(t *testing.T) {
	for name, q := range map[string]Quest{
		"float":     {Payload: unhex(t, "ca00000000")},
		"two":       {Payload: unhex(t, "c0c0")},
		"deep":      {Payload: unhex(t, strings.Repeat("91", 127)+"c0")},
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
	parse(second(ParseHeld(p)))
	parse(second(ParseNack(p)))
	b, err := ParseBeat(p)
	for item := range b.Jobs.Items() {
		if err == nil {
			_, err = ParseHeld(item)
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
