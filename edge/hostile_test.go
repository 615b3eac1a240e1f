package edge

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/edge/overhop"
)

// A promise of 32 MiB costs what has come of it: nothing.
func TestAnnouncedFramesCostNothing(t *testing.T) {
	const clients, most = 1000, 24 << 10
	cfg := Config{Wire: WireConfig{MaxEnvelope: overhop.MaxFrameLimit}}
	bubble(t, cfg, func(r *rig) {
		before := int64(inUse())
		announced := binary.BigEndian.AppendUint32(nil, overhop.MaxFrameLimit)
		for range clients {
			nc := r.ln.dial()
			r.t.Cleanup(func() { nc.Close() })
			nc.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := nc.Write(append(announced, 0x84)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if each := (int64(inUse()) - before) / clients; each > most {
			t.Errorf("a connection that announced 32 MiB costs %d bytes, at most %d", each, most)
		} else {
			t.Logf("%d bytes a connection", each)
		}
		time.Sleep(15 * time.Second) // unhelloed: they are closed
		synctest.Wait()
		if n := r.server.Counts().Connections; n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// One BEAT for very many jobs does not become an answer of any size.
func TestBeatOfManyJobs(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: overhop.MinFrameLimit}}, func(r *rig) {
		p := r.register(true)
		jobs := make([]any, 3000)
		for i := range jobs {
			jobs[i] = fields{"jid": "q:1", "tok": []byte{}}
		}
		p.refused(overhop.TBeat, fields{"jobs": jobs}, overhop.CodeResponseTooLarge)
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

// A trace of very many entries costs many times its frame.
func TestTraceOfManyEntries(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		trace := map[string]string{}
		for i := range 65 {
			trace[strings.Repeat("k", i)] = ""
		}
		p := r.register(true)
		p.refused(overhop.TEnqueue, fields{"q": "jobs", "trace": trace}, violation)
		p.closed()
	})
}

// What the yard refuses has a code of its own, and details where a program can
// use them.
func TestInterventionsRefused(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(true)
		jid := p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK).Get("jid")
		p.refused(overhop.TRetryJob, fields{"jid": jid}, overhop.CodeJobNotActive)
		r.yard.finish(r.yard.only(), `1`)
		got := p.ask(overhop.TCancel, fields{"jid": jid}, overhop.TErr)
		if str(got.Get("code")) != "JOB_ALREADY_TERMINAL" || str(got.Get("details").Get("status")) != "completed" {
			t.Errorf("CANCEL of an ended job: %s", text(got))
		}
	})
}
