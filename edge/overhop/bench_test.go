package overhop

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// benchMessage is a message of a job's path. Its fields are sorted by name.
type benchMessage struct {
	t      int64
	rid    string
	fields []benchField
}

type benchField struct {
	name  string
	value any // int, string, []byte, bool, nil or Raw
}

// jobMessages returns the seven messages of a job from ENQUEUE to the answer to
// DONE, with a job payload of 256 bytes.
func jobMessages() []benchMessage {
	const jid = "jobs:0190a5b2-0000-7000-8000-000000000001"
	at := time.Date(2026, 2, 23, 10, 18, 33, 123456789, time.UTC).Format(time.RFC3339Nano)
	token := make([]byte, TokenLen)
	payload := Fields{"to": "someone@example.org", "n": 1234567, "text": string(bytes.Repeat([]byte("x"), 200))}.Raw()
	return []benchMessage{
		{TEnqueue, "17", []benchField{{"job_payload", payload}, {"key", "auto-ABCDEFGHIJKLMNOPQRSTUVWXYZ"}, {"q", "jobs"}}},
		{TOK, "17", []benchField{{"jid", jid}}},
		{TQuest, PushRID, []benchField{
			{"ack_by", at}, {"attempt", 1}, {"beat_ms", 2000}, {"created_at", at}, {"credits", 31}, {"deadline", nil},
			{"execution_start_at", at}, {"fence", 1 << 40}, {"jid", jid}, {"job_payload", payload}, {"lease_ms", 6000},
			{"lease_until", at}, {"max_attempts", nil}, {"q", "jobs"}, {"redelivered", false},
			{"sid", "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"}, {"tok", token},
		}},
		{TAck, "18", []benchField{{"jid", jid}, {"tok", token}}},
		{TOK, "18", []benchField{{"lease_until", at}}},
		{TDone, "19", []benchField{{"credits", 1}, {"jid", jid}, {"result", Nil}, {"tok", token}}},
		{TOK, "19", []benchField{{"status", "completed"}}},
	}
}

// BenchmarkJobMessages measures the encoding, checking and reading of a job's
// messages with this package's codec and with vmihailenco/msgpack. A request is
// checked twice, because [Client] checks what it sends. ADR 36 uses the
// results.
func BenchmarkJobMessages(b *testing.B) {
	messages := jobMessages()
	var library libraryCodec
	library.reset()
	for _, m := range messages {
		hand := appendBench(nil, m)
		if other, err := library.encode(m); err != nil || !bytes.Equal(hand, other) {
			b.Fatalf("t=%d is encoded as\n%x (%v), want\n%x", m.t, other, err, hand)
		}
	}
	rounds := []struct {
		name  string
		round func(benchMessage) (sum int)
		spent time.Duration
	}{
		{name: "hand", round: func(m benchMessage) int { return handRound(b, m) }},
		{name: "library", round: func(m benchMessage) int { return library.round(b, m) }},
	}
	for b.Loop() {
		sums := [2]int{}
		for i := range rounds {
			start := time.Now()
			for range 100 {
				for _, m := range messages {
					sums[i] += rounds[i].round(m)
				}
			}
			rounds[i].spent += time.Since(start)
		}
		if sums[0] != sums[1] {
			b.Fatalf("the codecs read different values: %d", sums)
		}
	}
	for _, r := range rounds {
		b.ReportMetric(float64(r.spent.Nanoseconds())/float64(b.N*100), r.name+"-ns/job")
	}
	b.ReportMetric(float64(rounds[1].spent)/float64(rounds[0].spent), "ratio")
}

var benchBuffer []byte

func appendBench(b []byte, m benchMessage) []byte {
	b, mark := Begin(b)
	b = AppendMap(b, len(m.fields))
	for _, f := range m.fields {
		b = AppendValue(AppendStr(b, f.name), f.value)
	}
	b, _ = End(b, mark, m.t, m.rid)
	return b
}

// handRound encodes a message, checks it, parses its envelope and reads its
// fields. It returns the sum of what it has read.
func handRound(b *testing.B, m benchMessage) (sum int) {
	benchBuffer = appendBench(benchBuffer[:0], m)
	payload := benchBuffer[frame.HeaderLen:]
	if m.t <= 100 {
		if err := Check(payload); err != nil {
			b.Fatal(err)
		}
	}
	t, rid, p, err := parseEnvelope(payload)
	if err != nil {
		b.Fatal(err)
	}
	sum = int(t) + len(rid)
	for key, v := range p.Pairs() {
		sum += len(key)
		switch v.Kind() {
		case KindInt:
			n, _ := v.Int()
			sum += int(n)
		case KindStr:
			s, _ := v.Str()
			sum += len(s)
		case KindBin:
			s, _ := v.Bin()
			sum += len(s)
		case KindMap:
			sum += len(v)
		}
	}
	return sum
}

// libraryCodec does the same with vmihailenco/msgpack. It applies the rules of
// [Check] and, like [Raw], reads in place.
type libraryCodec struct {
	enc *msgpack.Encoder
	out bytes.Buffer
	dec *msgpack.Decoder
	in  bytes.Reader
	src []byte
}

func (c *libraryCodec) reset() {
	c.enc, c.dec = msgpack.NewEncoder(&c.out), msgpack.NewDecoder(&c.in)
}

func (c *libraryCodec) read(src []byte) {
	c.src = src
	c.in.Reset(src)
	c.dec.ResetReader(&c.in)
}

func (c *libraryCodec) at() int { return len(c.src) - c.in.Len() }

func (c *libraryCodec) round(b *testing.B, m benchMessage) (sum int) {
	whole, err := c.encode(m)
	if err != nil {
		b.Fatal(err)
	}
	payload := whole[frame.HeaderLen:]
	if m.t <= 100 {
		if err := c.check(payload); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.check(payload); err != nil {
		b.Fatal(err)
	}
	if sum, err = c.envelope(payload); err != nil {
		b.Fatal(err)
	}
	return sum
}

// encode ignores the errors of the encoder, which writes into memory.
func (c *libraryCodec) encode(m benchMessage) ([]byte, error) {
	c.out.Reset()
	c.out.Write(make([]byte, frame.HeaderLen))
	e := c.enc
	e.EncodeMapLen(4)
	e.EncodeString("p")
	e.EncodeMapLen(len(m.fields))
	for _, f := range m.fields {
		e.EncodeString(f.name)
		switch v := f.value.(type) {
		case nil:
			e.EncodeNil()
		case bool:
			e.EncodeBool(v)
		case int:
			e.EncodeInt(int64(v))
		case string:
			e.EncodeString(v)
		case Raw:
			c.out.Write(v)
		case []byte:
			e.EncodeBytes(v)
		}
	}
	e.EncodeString("rid")
	e.EncodeString(m.rid)
	e.EncodeString("t")
	e.EncodeInt(m.t)
	e.EncodeString("v")
	err := e.EncodeInt(Version)
	frame.End(c.out.Bytes(), 0)
	return c.out.Bytes(), err
}

func (c *libraryCodec) check(src []byte) error {
	c.read(src)
	if err := c.checkValue(MaxDepth); err != nil {
		return err
	}
	if c.in.Len() > 0 {
		return c.fail("trailing bytes")
	}
	return nil
}

func (c *libraryCodec) fail(reason string) error { return &CodecError{Offset: c.at(), Reason: reason} }

func (c *libraryCodec) checkValue(depth int) error {
	code, err := c.dec.PeekCode()
	if err != nil {
		return c.fail("cut off")
	}
	switch kind := kindOf(code); kind {
	case KindArray, KindMap:
		return c.checkContainer(kind, depth)
	case KindStr, KindBin:
		n, err := c.dec.DecodeBytesLen()
		if err != nil || n > c.in.Len() {
			return c.fail("cut off")
		}
		if body := c.src[c.at():][:n]; kind == KindStr && !utf8.Valid(body) {
			return c.fail("text is not UTF-8")
		}
		_, err = c.in.Seek(int64(n), io.SeekCurrent)
		return err
	case KindInt:
		if n, err := c.dec.DecodeUint64(); err != nil {
			return c.fail("cut off")
		} else if code == msgpcode.Uint64 && n > math.MaxInt64 {
			return c.fail("integer beyond int64")
		}
		return nil
	case KindNil, KindBool:
		return c.dec.Skip()
	}
	return c.fail("not an allowed type")
}

func (c *libraryCodec) checkContainer(kind Kind, depth int) error {
	if depth == 0 {
		return c.fail("nested too deep")
	}
	length := c.dec.DecodeArrayLen
	if kind == KindMap {
		length = c.dec.DecodeMapLen
	}
	n, err := length()
	if err != nil {
		return c.fail("cut off")
	}
	for range n {
		if kind == KindMap {
			if key, err := c.dec.PeekCode(); err == nil && !msgpcode.IsString(key) {
				return c.fail("map key is not text")
			}
			if err := c.checkValue(depth); err != nil {
				return err
			}
		}
		if err := c.checkValue(depth - 1); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(code byte) Kind {
	switch {
	case msgpcode.IsFixedNum(code) || code >= msgpcode.Uint8 && code <= msgpcode.Int64:
		return KindInt
	case msgpcode.IsString(code):
		return KindStr
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32:
		return KindMap
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		return KindArray
	case msgpcode.IsBin(code):
		return KindBin
	case code == msgpcode.Nil:
		return KindNil
	case code == msgpcode.True || code == msgpcode.False:
		return KindBool
	}
	return 0
}

// envelope reads a checked envelope, and then the fields of its payload.
func (c *libraryCodec) envelope(src []byte) (sum int, err error) {
	c.read(src)
	n, err := c.dec.DecodeMapLen()
	var payload []byte
	for range n {
		key := c.text()
		switch string(key) {
		case "t":
			t, _ := c.dec.DecodeInt()
			sum += t
		case "v":
			if v, _ := c.dec.DecodeInt(); v != Version {
				return 0, c.fail("version " + strconv.Itoa(v))
			}
		case "rid":
			sum += len(c.text())
		case "p":
			start := c.at()
			if err := c.dec.Skip(); err != nil {
				return 0, err
			}
			payload = src[start:c.at()]
		default:
			err = c.dec.Skip()
		}
	}
	if err != nil {
		return 0, err
	}
	c.read(payload)
	n, err = c.dec.DecodeMapLen()
	for range n {
		sum += len(c.text())
		code, _ := c.dec.PeekCode()
		switch kindOf(code) {
		case KindInt:
			v, _ := c.dec.DecodeInt64()
			sum += int(v)
		case KindStr:
			s, _ := c.dec.DecodeString()
			sum += len(s)
		case KindBin:
			sum += len(c.text())
		case KindMap:
			start := c.at()
			err = c.dec.Skip()
			sum += c.at() - start
		default:
			err = c.dec.Skip()
		}
	}
	return sum, err
}

// text reads text or binary in place.
func (c *libraryCodec) text() []byte {
	n, _ := c.dec.DecodeBytesLen()
	start := c.at()
	c.in.Seek(int64(n), io.SeekCurrent)
	return c.src[start : start+n]
}
