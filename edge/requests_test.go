package edge

import (
	"encoding/hex"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

type fields = overhop.Fields

const (
	violation = overhop.CodeProtocolViolation
	someJob   = "jobs:00000000-0000-4000-8000-000000000001"
)

// A producer's payload is returned unchanged, and is stored in the form that
// represents it exactly.
func TestEnqueue(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		for _, c := range []struct {
			payload         any
			params, msgpack string
		}{
			{fields{"n": int64(1) << 60}, `{"n":1152921504606846976}`, ""},
			{fields{}, `{}`, ""},
			{[]any{1}, "", "9101"},
			{fields{"b": []byte{0xff}}, "", "81a162c401ff"},
			{"text", "", "a474657874"},
			{nil, "", "c0"},
		} {
			jid := str(p.ask(overhop.TEnqueue, fields{"q": "jobs", "job_payload": c.payload}, overhop.TOK).Get("jid"))
			spec := r.cluster.specs[len(r.cluster.specs)-1]
			if string(spec.Params) != c.params || hex.EncodeToString(spec.Payload) != c.msgpack {
				t.Errorf("%v became params %s payload %x", c.payload, spec.Params, spec.Payload)
			}
			record := p.ask(overhop.TJob, fields{"jid": jid}, overhop.TOK)
			if want := string(overhop.AppendValue(nil, c.payload)); string(record.Get("payload")) != want {
				t.Errorf("payload %v came back as %s", c.payload, text(record))
			}
			if str(record.Get("jid")) != jid || str(record.Get("status")) != "waiting" || num(record.Get("runtime").Get("attempts_so_far")) != 0 {
				t.Errorf("record is %s", text(record))
			}
		}
		p.ask(overhop.TEnqueue, fields{
			"q": "jobs", "fn": "r#h", "priority": 9, "timeout_ms": 1500, "max_attempts": 3, "retry_interval_ms": int64(1) << 62,
			"scheduled_at": "2030-01-01T00:00:00+02:00", "trace": map[string]string{"traceparent": "x"}, "key": "k",
		}, overhop.TOK)
		spec := r.cluster.specs[len(r.cluster.specs)-1]
		if spec.Function != "r#h" || *spec.Priority != 9 || *spec.TimeoutMS != 1500 || *spec.MaxAttempts != 3 ||
			*spec.RetryInterval != job.MaxDuration.Milliseconds() || spec.Trace["traceparent"] != "x" ||
			!spec.RunAt.Equal(time.Date(2029, 12, 31, 22, 0, 0, 0, time.UTC)) || spec.Payload != nil {
			t.Errorf("spec is %+v", spec)
		}
		upper := strings.ToUpper(someJob[5:])
		if got := p.ask(overhop.TJob, fields{"jid": "jobs:" + upper}, overhop.TOK); got.Len() != 0 {
			t.Errorf("another spelling of a job is %s", text(got))
		}
		seed := r.register(false)
		seed.ask(overhop.TEnqueue, fields{"q": "jobs", "fn": 7, "priority": "high", "unique_key": "k"}, overhop.TOK)
	})
}

func TestLsJobPages(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(false)
		for range 20 {
			p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK)
			time.Sleep(time.Millisecond) // fake time, for different created_at
		}
		for page, want := range map[int]int{1: 15, 2: 5, 3: 0} {
			got := p.ask(overhop.TLsJob, fields{"q": "jobs", "status": "waiting", "page": page}, overhop.TOK)
			if got.Get("jobs").Len() != want || num(got.Get("page_size")) != 15 {
				t.Errorf("page %d has %d jobs, want %d", page, got.Get("jobs").Len(), want)
			}
		}
	})
}

// Answers keep the order of their requests, whenever they are ready, and a
// request that reads the yard waits for the requests before it.
func TestAnswersInOrder(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p := r.register(true)
		r.cluster.holdReplies = true
		for _, rid := range []string{"1", "2", "3"} {
			p.send(overhop.TEnqueue, rid, fields{"q": "jobs"})
		}
		p.send(overhop.TUnsubscribe, "4", fields{"sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"})
		p.send(overhop.TQStats, "5", fields{"q": "jobs"})
		p.expectNothing()
		r.cluster.heldReplies[2]()
		p.expectNothing()
		r.cluster.heldReplies[0]()
		p.expect(overhop.TOK, "1")
		p.expectNothing()
		r.cluster.heldReplies[1]()
		p.expect(overhop.TOK, "2")
		p.expect(overhop.TOK, "3")
		p.expect(overhop.TErr, "4")
		p.expect(overhop.TOK, "5")
	})
}

// A client that does not read is cut off, and does not delay others.
func TestSlowReader(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{WriteTimeout: time.Second}}, func(r *harness) {
		nc := r.ln.dial()
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		b, _ = overhop.AppendFields(b, overhop.TRegister, "2", nil)
		nc.SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
		other := r.register(false)
		other.ask(overhop.TPing, nil, overhop.TPong)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := nc.Write(b); err == nil {
			t.Error("the client that does not read is still connected")
		}
	})
}

var _ net.Listener = (*pipeListener)(nil)

// A list of queues that does not fit into a frame of the configured size is refused: the
// contract has no pages, and a client closes the connection on a larger frame.
func TestLsQueue_ExceedsFrameLimit(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: overhop.MinFrameLimit}}, func(h *harness) {
		const count = 900
		for i := range count {
			name := fmt.Sprintf("queue-%03d-%s", i, strings.Repeat("x", 100))
			if _, err := h.cluster.AddQueue(t.Context(), name, job.QueueConfig{}); err != nil {
				t.Fatal(err)
			}
		}
		refusal := h.register(false).ask(overhop.TLsQueue, nil, overhop.TErr)
		if code, text := str(refusal.Get("code")), str(refusal.Get("msg")); code != "RESPONSE_TOO_LARGE" || !strings.Contains(text, "`yardmaster queue list`") {
			t.Errorf("the list is refused with %s: %s", code, text)
		}
	})
}
