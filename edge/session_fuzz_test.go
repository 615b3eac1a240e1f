package edge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/job"
)

// FuzzSession sends arbitrary input to a server and compares its answers with a
// simple implementation of the protocol's tables: every request gets one
// answer, in order and under its rid, and the connection ends exactly when the
// tables say so. Afterwards the server holds nothing of it.
func FuzzSession(f *testing.F) {
	f.Add(script(0))
	f.Add(script(1))
	f.Add(script(2))
	f.Add(append(script(0), raw([]byte("GET / HTTP/1.1\r\n\r\n"))...))
	f.Add(append(script(1), raw([]byte{0, 0, 0, 0})...))
	f.Add(append(script(1), raw([]byte{0, 0x80, 0, 1, 0x81})...))
	f.Add(append(script(1), payload([]byte{0x81, 0xa1, 'v', 0x02})...))
	for t := range handlers {
		f.Add(append(script(2), ask(byte(t), overhop.EmptyMap)...))
		f.Add(append(script(2), ask(byte(t), fuzzFields)...))
		f.Add(append(script(1), ask(byte(t), fuzzFields)...))
	}
	q := overhop.AppendValue(nil, fields{"q": "jobs", "credits": 2})
	held := overhop.AppendValue(nil, fuzzHeld())
	for _, t := range []byte{overhop.TAck, overhop.TNack, overhop.TBeat, overhop.TDone, overhop.TFail, overhop.TProgress} {
		f.Add(slices.Concat(script(2), ask(overhop.TSubscribe, q), ask(t, held), ask(overhop.TPing, overhop.EmptyMap), ask(t, held),
			ask(overhop.TGoodbye, overhop.EmptyMap)))
	}
	for _, golden := range vectors(f, "frames") {
		f.Add(append(script(2), raw(golden)...))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		if len(said) > 64<<10 {
			return
		}
		stream := decode(said)
		want := expect(stream)
		bubble(t, Config{}, func(r *harness) { converse(r, stream, want) })
	})
}

// converse sends the stream and compares the answers.
func converse(r *harness, stream []byte, want verdict) {
	t := r.t
	r.executor.onOffer = func(o job.Offer) { // one job, for the first worker with capacity
		a := job.Assignment{Job: someJobID, N: 1, Attempt: 1, Queue: "jobs", Kind: job.Overhop, Key: "jobs", Worker: o.Worker}
		if o.Free > 0 && o.Key == "jobs" {
			go r.server.Start(a, job.Spec{Params: []byte(`{"n":1}`)})
		}
	}
	p := r.connect()
	go func() {
		for piece := range slices.Chunk(stream, 1000) {
			if _, err := p.nc.Write(piece); err != nil {
				return
			}
		}
	}()
	synctest.Wait()
	got, open := p.received()
	for i, g := range got {
		if i == len(want.answers) {
			t.Fatalf("answer %d is t=%d rid=%q %s, want none", i, g.T, g.RID, text(g.P))
		}
		w := want.answers[i]
		code := overhop.Code(str(g.P.Get("code")))
		domain := g.T == overhop.TErr && code != violation
		if g.RID != w.rid || g.T != w.t && !(w.t == overhop.TOK && domain) || w.t == overhop.TErr && domain {
			t.Fatalf("answer %d is t=%d rid=%q %s, want t=%d rid=%q", i, g.T, g.RID, text(g.P), w.t, w.rid)
		}
	}
	switch {
	case want.parting: // closes as soon as it has no jobs
	case len(got) < len(want.answers):
		t.Fatalf("%d answers, want %d; then t=%d", len(got), len(want.answers), want.answers[len(got)].t)
	case open == want.closed:
		t.Fatalf("connection is open: %t; want closed: %t", open, want.closed)
	}
	p.nc.Close()
	time.Sleep(5 * time.Minute) // beyond every lease and grace
	synctest.Wait()
	r.server.deliveries.mu.Lock()
	defer r.server.deliveries.mu.Unlock()
	if n := len(r.server.conns) + len(r.server.deliveries.dispatches) + len(r.server.connsByHost); n > 0 {
		t.Fatalf("%d connections, dispatches and addresses are kept", n)
	}
}

// received returns the answers that have arrived, without pushes, and whether
// the connection is still open.
func (p *peer) received() (answers []overhop.Envelope, open bool) {
	for {
		select {
		case e, ok := <-p.frames:
			if !ok {
				return answers, false
			}
			if e.T < overhop.TQuest {
				answers = append(answers, e)
			}
		default:
			return answers, true
		}
	}
}

// verdict is the expected reaction to a stream. An expected OK may be an ERR
// that leaves the connection open; an expected ERR is a violation.
type verdict struct {
	answers []answer
	closed  bool
	parting bool // GOODBYE was sent: later requests may remain unanswered
}

type answer struct {
	t   int64
	rid string
}

// expect returns the verdict on a stream by the protocol's description. It
// shares only the parsers of single payloads with the server.
func expect(stream []byte) (v verdict) {
	const fresh, helloed, registered = 0, 1, 2
	state, delivery := fresh, false
	for len(stream) >= 4 {
		size := binary.BigEndian.Uint32(stream)
		if size == 0 || size > overhop.DefaultFrameLimit {
			v.closed = true
			return v
		}
		if uint64(len(stream)-4) < uint64(size) {
			return v
		}
		e, err := overhop.ParseEnvelope(stream[4 : 4+size])
		if err != nil {
			v.closed = true
			return v
		}
		stream = stream[4+size:]
		t := int64(overhop.TErr)
		switch {
		case state == fresh && e.T == overhop.THello:
			state, t = helloed, overhop.THi
			for ext := range e.P.Get("ext").Items() {
				delivery = delivery || str(ext) == overhop.Delivery
			}
		case state == helloed && e.T == overhop.TRegister && e.P.Len() == 0:
			state, t = registered, overhop.TOK
		case state == registered && allowed(e, delivery):
			if t = overhop.TOK; e.T == overhop.TPing {
				t = overhop.TPong
			}
		}
		v.answers = append(v.answers, answer{t, e.RID})
		v.parting = v.parting || e.T == overhop.TGoodbye && t == overhop.TOK
		if t == overhop.TErr {
			v.closed = true
			return v
		}
	}
	return v
}

// allowed reports whether a request of a registered client is not a violation.
func allowed(e overhop.Envelope, delivery bool) bool {
	if e.T >= overhop.TAck && !delivery {
		return false
	}
	read := readers[e.T]
	if read == nil {
		return false
	}
	var violates *overhop.Violation
	return !errors.As(read(e.P, delivery), &violates)
}

type reader func(p overhop.Raw, delivery bool) error

func only[T any](parse func(overhop.Raw) (T, error)) reader {
	return func(p overhop.Raw, _ bool) error { _, err := parse(p); return err }
}

func two[T, U any](parse func(overhop.Raw) (T, U, error)) reader {
	return func(p overhop.Raw, _ bool) error { _, _, err := parse(p); return err }
}

func nothing(p overhop.Raw, _ bool) error { return overhop.ParseEmpty(p) }

var readers = map[int64]reader{
	overhop.TPing: nothing, overhop.TLsQueue: nothing, overhop.TStatus: nothing,
	overhop.TQueue: only(overhop.ParseQueueName), overhop.TRmQueue: only(overhop.ParseQueueName),
	overhop.TPause: only(overhop.ParseQueueName), overhop.TResume: only(overhop.ParseQueueName), overhop.TQStats: only(overhop.ParseQueueName),
	overhop.TSubscribe: only(overhop.ParseSubscribe), overhop.TUnsubscribe: only(overhop.ParseUnsubscribe), overhop.TCredit: only(overhop.ParseCredit),
	overhop.TAddQueue: only(overhop.ParseAddQueue),
	overhop.TEnqueue:  func(p overhop.Raw, d bool) error { _, err := overhop.ParseEnqueue(p, d); return err },
	overhop.TJob:      only(overhop.ParseJobRef), overhop.TRmJob: only(overhop.ParseJobRef), overhop.TRetryJob: only(overhop.ParseJobRef),
	overhop.TLsJob: only(overhop.ParseListJobs), overhop.TAck: only(overhop.ParseLeaseRef), overhop.TNack: only(overhop.ParseNack),
	overhop.TBeat: readBeat, overhop.TProgress: only(overhop.ParseProgress), overhop.TLog: only(overhop.ParseLog),
	overhop.TDone: only(overhop.ParseDone), overhop.TFail: only(overhop.ParseFail), overhop.TAwait: two(overhop.ParseAwait),
	overhop.TGoodbye: only(overhop.ParseGoodbye), overhop.TCancel: two(overhop.ParseCancel),
	overhop.TClrQueue: two(overhop.ParseClrQueue), overhop.TObliterate: two(overhop.ParseObliterate),
	overhop.TSetQueue: only(overhop.ParseSetQueue),
	overhop.TSetJob:   only(overhop.ParseSetJob),
	overhop.TContent:  only(overhop.ParseContent),
	overhop.TAPI:      only(overhop.ParseAPI),
}

func readBeat(p overhop.Raw, _ bool) error {
	b, err := overhop.ParseBeat(p)
	for item := range b.Jobs.Items() {
		if err == nil {
			_, err = overhop.ParseLeaseRef(item)
		}
	}
	return err
}

// The fuzzer's input is a list of pieces: a byte for the kind, two for the
// length, and the bytes. It reaches deeper than frames would, because a changed
// length leaves the rest in place.
const (
	rawPiece     = 0xff // bytes as they are
	payloadPiece = 0xfe // a frame with these bytes as its payload
	// Any other kind is t of an envelope, and the bytes its p if they are a map.
)

func piece(kind byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(b))), b...)
}
func raw(b []byte) []byte              { return piece(rawPiece, b) }
func payload(b []byte) []byte          { return piece(payloadPiece, b) }
func ask(t byte, p overhop.Raw) []byte { return piece(t, p) }
func isMap(b []byte) bool {
	return overhop.CheckDepth(b, overhop.MaxDepth-1) == nil && overhop.Raw(b).Kind() == overhop.KindMap
}
func decode(said []byte) (stream []byte) {
	for rid := 1; len(said) >= 3; rid++ {
		kind, size := said[0], int(binary.BigEndian.Uint16(said[1:]))
		body := said[3:min(3+size, len(said))]
		said = said[3+len(body):]
		switch {
		case kind == rawPiece:
			stream = append(stream, body...)
		case kind == payloadPiece:
			stream = frame.Append(stream, body)
		case isMap(body):
			stream = overhop.AppendMessage(stream, int64(kind), strconv.Itoa(rid), body)
		default:
			stream = overhop.AppendMessage(stream, int64(kind), strconv.Itoa(rid), overhop.EmptyMap)
		}
	}
	return stream
}

// script returns the beginning of a conversation: nothing for level 0, a plain
// client's handshake for 1, and for 2 one with the delivery extension.
func script(level int) []byte {
	hello := overhop.EmptyMap
	if level == 2 {
		hello = overhop.AppendValue(nil, fields{"ext": []string{overhop.Delivery}})
	}
	if level == 0 {
		return nil
	}
	return append(ask(overhop.THello, hello), ask(overhop.TRegister, overhop.EmptyMap)...)
}

// fuzzHeld returns a payload that holds the token of the only job, and the keys
// of all messages about a job.
func fuzzHeld() fields {
	tokens := tokens{secret: func() []byte { return newMemCluster().secret }}
	tokens.known()
	tok := tokens.mint(job.DispatchID{Job: someJobID, N: 1})
	return fields{"jid": someJob, "tok": tok[:], "error": fields{"message": "m"}, "result": 1, "credits": 1, "percent": 5}
}

var fuzzFields = overhop.Raw(overhop.AppendValue(nil, fields{
	"q": "jobs", "name": "more", "status": "waiting", "sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d", "jid": someJob, "tok": bytes.Repeat([]byte{1}, 16),
	"credits": 1, "timeout_ms": 1, "error": fields{"message": "m"}, "lines": []any{"a", fields{"msg": "b"}}, "page": 1, "notify": true, "force": true,
}))
