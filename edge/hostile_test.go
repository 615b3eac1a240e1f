package edge

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// The frame limit is the same before and after REGISTER, even if all frames arrive at once. A
// client without REGISTER that does not finish a large frame holds up other such clients
// only, and not for longer than it has for its HELLO.
func TestFrameLimit_BeforeRegister(t *testing.T) {
	const limit = 4 << 20
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: limit}, Limits: LimitsConfig{FrameMemory: limit}}, func(r *harness) {
		hello := func(size int) []byte {
			b, _ := overhop.AppendFields(nil, overhop.THello, "1", fields{"name": strings.Repeat("n", size)})
			return b
		}
		slack := len(hello(limit-100)) - frame.HeaderLen - (limit - 100)
		large := r.connect()
		large.writeAsync(hello(limit - slack + 1))
		large.expectClosed()

		slow := r.connect()
		slow.write(hello(limit - slack)[:limit/2])
		p := r.connect()
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		b = overhop.AppendMessage(b, overhop.TRegister, "2", overhop.EmptyMap)
		b, _ = overhop.AppendFields(b, overhop.TEnqueue, "3", fields{"q": "jobs", "job_payload": strings.Repeat("x", 2<<20)})
		p.writeAsync(b)
		p.expect(overhop.THi, "1")
		p.expect(overhop.TOK, "2")
		p.expect(overhop.TOK, "3")

		waiting := r.connect()
		waiting.writeAsync(overhop.AppendMessage(hello(limit-slack), overhop.TRegister, "2", overhop.EmptyMap))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		slow.nc.Close()
		waiting.expect(overhop.THi, "1")
		waiting.expect(overhop.TOK, "2")
		for _, w := range r.server.deliveries.workers {
			if len(w.name()) > 128 {
				t.Errorf("a name of %d bytes is kept", len(w.name()))
			}
		}
	})
}

// An announced frame of 32 MiB takes no memory before it arrives.
func TestAnnouncedFramesAllocateNothing(t *testing.T) {
	const clients, maxBytes = 1000, 48 << 10 // with the client, its pipe and its reader
	cfg := Config{Wire: WireConfig{MaxEnvelope: overhop.MaxFrameLimit}}
	bubble(t, cfg, func(r *harness) {
		before := int64(heapInUse())
		hello, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		announced := overhop.AppendMessage(hello, overhop.TRegister, "2", overhop.EmptyMap)
		announced = binary.BigEndian.AppendUint32(announced, overhop.MaxFrameLimit)
		for range clients {
			nc := r.ln.dial()
			r.t.Cleanup(func() { nc.Close() })
			nc.SetWriteDeadline(time.Now().Add(time.Second))
			go io.Copy(io.Discard, nc)
			if _, err := nc.Write(append(announced, 0x84)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if each := (int64(heapInUse()) - before) / clients; each > maxBytes {
			t.Errorf("a connection that announced 32 MiB costs %d bytes, at most %d", each, maxBytes)
		} else {
			t.Logf("%d bytes a connection", each)
		}
		if n := r.server.Counts().Registered; n != clients {
			t.Errorf("%d clients are registered, want %d", n, clients)
		}
	})
}

// The answer to a BEAT for very many jobs is bounded.
func TestBeatOfManyJobs(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: overhop.MinFrameLimit}}, func(r *harness) {
		p := r.register(true)
		jobs := make([]any, 3000)
		for i := range jobs {
			jobs[i] = fields{"jid": "q:1", "tok": []byte{}}
		}
		p.expectErr(overhop.TBeat, fields{"jobs": jobs}, overhop.CodeResponseTooLarge)
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

// A trace with very many entries, which would take many times its frame's size,
// is refused.
func TestTraceOfManyEntries(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		trace := map[string]string{}
		for i := range 65 {
			trace[strings.Repeat("k", i)] = ""
		}
		p := r.register(true)
		p.expectErr(overhop.TEnqueue, fields{"q": "jobs", "trace": trace}, violation)
		p.expectClosed()
	})
}

// A refusal has its own code, and details if a program can use them.
func TestAdminRefused(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		jid := p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK).Get("jid")
		p.expectErr(overhop.TRetryJob, fields{"jid": jid}, overhop.CodeJobNotActive)
		r.cluster.complete(r.cluster.onlyJob(), `1`)
		got := p.ask(overhop.TCancel, fields{"jid": jid}, overhop.TErr)
		if str(got.Get("code")) != "JOB_ALREADY_TERMINAL" || str(got.Get("details").Get("status")) != "completed" {
			t.Errorf("CANCEL of an ended job: %s", text(got))
		}
	})
}

// Requests that do not return a job's body do not read it.
func TestPeekReadsNoBodies(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		enqueue := func() fields {
			return fields{"jid": p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK).Get("jid")}
		}
		read := func(of string, want int) {
			r.cluster.mu.Lock()
			defer r.cluster.mu.Unlock()
			if r.cluster.bodyReads != want {
				t.Errorf("%s: %d bodies were read, want %d", of, r.cluster.bodyReads, want)
			}
			r.cluster.bodyReads = 0
		}
		jid := enqueue()
		p.ask(overhop.TJob, jid, overhop.TOK)
		read("JOB", 1)
		p.expectErr(overhop.TRetryJob, jid, overhop.CodeJobNotActive)
		p.ask(overhop.TCancel, jid, overhop.TOK)
		p.ask(overhop.TAwait, fields{"jid": jid["jid"], "timeout_ms": 60_000}, overhop.TOK)
		read("RETRYJOB, CANCEL, AWAIT", 0)
		r.cluster.complete(r.cluster.onlyJob(), `1`)
		if got := p.expect(overhop.TJobEnd, overhop.PushRID); num(got.Get("result")) != 1 {
			t.Errorf("the end has no result: %s", text(got))
		}
		p.expectErr(overhop.TCancel, jid, "JOB_ALREADY_TERMINAL")
		read("JOBEND, CANCEL of an ended job", 0)
		if got := p.ask(overhop.TAwait, fields{"jid": jid["jid"], "timeout_ms": 0}, overhop.TOK); num(got.Get("result")) != 1 {
			t.Errorf("AWAIT of an ended job shows no result: %s", text(got))
		}
		read("AWAIT of an ended job", 1)
		p.ask(overhop.TRmJob, jid, overhop.TOK)
		read("RMJOB", 0)
	})
}
