package scheduler

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// message is a message with several records, whose bodies share its bytes.
type message struct{ bytes []byte }

func newMessage(size int) *message { return &message{make([]byte, 0, size)} }

// body appends a text and returns the part of the message that contains it.
func (m *message) body(text string) []byte {
	start := len(m.bytes)
	m.bytes = append(m.bytes, text...)
	return m.bytes[start:len(m.bytes):len(m.bytes)]
}

// alive counts the messages that are reachable: a completed garbage collection clears
// the weak pointers to all others.
func alive(messages []weak.Pointer[byte]) (n int) {
	runtime.GC()
	for _, m := range messages {
		if m.Value() != nil {
			n++
		}
	}
	return n
}

// TestParseRecords_ReleaseTheMessage checks that a parsed record keeps nothing of
// its message in memory, whether an assignment may carry its body or not, and
// also if it is rejected.
func TestParseRecords_ReleaseTheMessage(t *testing.T) {
	number := strings.Repeat("9", 100_000)
	bodies := []string{
		anyJob, `{"params":{"x":"` + strings.Repeat("x", maxCachedBody) + `"}}`, `{"params":`,
		`{"params":{},"priority":` + number + `}`, `{"function":"` + number + `"}`,
	}
	parsed, messages := func() ([]pendingMessage, []weak.Pointer[byte]) {
		m := newMessage(1 << 20)
		records := make([]job.Record, len(bodies))
		for i, body := range bodies {
			records[i] = job.Record{Position: job.Position{Seq: 1, Index: uint8(i)}, Queue: "mail", Stored: time.Unix(1, 0), Body: m.body(body)}
		}
		parsed, _ := parseRecords(slog.New(slog.DiscardHandler), records, "L0", job.Defaults{}, nil)
		return parsed, []weak.Pointer[byte]{weak.Make(&m.bytes[0])}
	}()
	if n := alive(messages); n > 0 {
		t.Error("the message is still reachable")
	}
	if len(parsed) != 1 || len(parsed[0].records) != len(bodies) {
		t.Fatalf("parsed %+v", parsed)
	}
	judged := parsed[0].records
	if got := judged[0]; string(got.record.Body) != anyJob || got.err != nil {
		t.Errorf("body %q, %v", got.record.Body, got.err)
	}
	for i, want := range []string{"", "", "job is not valid JSON", "job is not valid JSON: priority must be a whole number", "function has 100000 bytes"} {
		got := &judged[i]
		if want == "" && got.err != nil || want != "" && (got.err == nil || !strings.HasPrefix(got.err.Error(), want)) {
			t.Errorf("record %d: %.100v, want %q", i, got.err, want)
		}
		if got.err != nil && len(got.err.Error()) > maxReason {
			t.Errorf("record %d: the reason takes %d bytes", i, len(got.err.Error()))
		}
		if i > 0 && got.record.Body != nil || len(got.job.Function) > job.MaxFunctionLen {
			t.Errorf("record %d keeps a body of %d bytes, a function of %d", i, len(got.record.Body), len(got.job.Function))
		}
	}
}

// TestBodies_KeepOnlyThemselvesAlive checks that the bodies of a paused
// queue's jobs stay cached while the messages that brought them, full of other
// jobs, are collected.
func TestBodies_KeepOnlyThemselvesAlive(t *testing.T) {
	const notices = 64
	runHarness(t, 1, func(h *harness) {
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "paused"})
		h.propose(&ledger.PauseQueue{Name: "paused", Paused: true})
		messages := make([]weak.Pointer[byte], notices)
		for i := range messages {
			m := newMessage(512 << 10)
			r := h.lanes.store(0, "paused", "", fmt.Sprintf(`{"params":{"n":%d}}`, i))
			r.Body = m.body(string(r.Body))
			messages[i] = weak.Make(&m.bytes[0])
			h.sched.ReceiveRecords([]job.Record{r})
		}
		h.until("all wait", func() bool { return h.counts().Pending == notices })
		if n := alive(messages); n > 0 {
			t.Errorf("%d of %d messages are still reachable", n, notices)
		}
		kept, counted := 0, 0
		h.sched.current().loop.post(func() {
			cache := &h.sched.current().lanes.bodies
			counted = cache.bytes
			for _, body := range cache.bodies {
				kept += bodyOverhead + cap(body)
				if !json.Valid(body) {
					t.Errorf("body %q", body)
				}
			}
			if len(cache.bodies) != notices {
				t.Errorf("%d bodies are cached", len(cache.bodies))
			}
		})
		h.advance(time.Millisecond)
		if kept != counted {
			t.Errorf("the bodies take %d bytes, counted %d", kept, counted)
		}
	})
}

// TestBodies_OfRefusedJobsAreDropped checks that the body of a job that
// becomes a dead letter, because it asks for one runner too many, is dropped,
// and that the jobs ingested with it run.
func TestBodies_OfRefusedJobsAreDropped(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		for i := range ledger.MaxQueueRunners + 3 {
			h.enqueue("mail", "", fmt.Sprintf(`{"function":"r%d#h"}`, i))
		}
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		plain := h.enqueue("mail", "", anyJob)
		h.until("the plain job ran", func() bool { return h.state(plain) == job.Completed })
		h.until("dead letters", func() bool { return h.streams.itemCount(outbox.DeadLetters) == 3 })
		h.sched.current().loop.post(func() {
			if m := h.sched.current().lanes; len(m.bodies.bodies) != ledger.MaxQueueRunners || len(m.provisional) != 0 {
				t.Errorf("%d bodies and %d provisional waitlists are left, want %d and none", len(m.bodies.bodies), len(m.provisional), ledger.MaxQueueRunners)
			}
		})
		h.advance(time.Millisecond)
	})
}

// TestParseRecords_Panic checks that a record which makes the code panic is rejected under the id that
// it would have had, and that the others of its message are not.
func TestParseRecords_Panic(t *testing.T) {
	records := make([]job.Record, 3)
	for i := range records {
		records[i] = job.Record{Position: job.Position{Seq: 1, Index: uint8(i)}, Queue: "mail", Key: fmt.Sprint("k", i), Stored: time.Unix(1, 0), Body: []byte(anyJob), Last: i == 2}
	}
	checks := 0
	parsed, err := parseRecords(testlog.New(t), records, "L0", job.Defaults{}, func(r *job.Record, _ *job.Spec, _ *job.Job) (Verdict, error) {
		if checks++; r.Key == "k1" {
			panic("k1")
		}
		return Verdict{}, nil
	})
	if err != nil || checks != 3 || len(parsed) != 1 {
		t.Fatalf("%d checks: %+v, %v", checks, parsed, err)
	}
	for i, r := range parsed[0].records {
		id, _ := job.KeyID("mail", records[i].Key)
		if rejected := r.err != nil; rejected != (i == 1) || r.job.ID != id {
			t.Errorf("record %d: %v, id %s, want %s", i, r.err, r.job.ID, id)
		}
	}
}
