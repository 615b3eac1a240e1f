package nodetest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// producers: what a producer may say beside what is to be done, in the body or
// in headers, by request or by a plain publish.
func producers(t *testing.T, y *nodetest.Yard) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a, b := y.Members[0], y.Members[1]
	a.AddQueue(t, "producers", 0)
	nc, js := connect(t, b)

	// Delays count from when the record was stored, on any way in.
	began := time.Now()
	a.Enqueue(t, "producers", `{"id":"later-body","params":{},"delay_ms":3600000}`)
	asked := nats.NewMsg("yard.enqueue.producers")
	asked.Header.Set("Yard-Delay", "1h")
	asked.Data = []byte(`{"id":"later-asked","params":{}}`)
	if answer, err := nc.RequestMsg(asked, 10*time.Second); err != nil || answer.Header.Get("Nats-Service-Error") != "" {
		t.Fatal(answer, err)
	}
	plain := nats.NewMsg("yard.jobs.producers")
	plain.Header.Set("Nats-Msg-Id", "later-plain")
	plain.Header.Set("Yard-Delay", "1h")
	plain.Header.Set("Traceparent", parent)
	plain.Header.Set("tracestate", "a=1")
	plain.Data = []byte(`{"params":{"n":12345678901234567890}}`)
	if _, err := js.PublishMsg(soon(t), plain); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"later-body", "later-asked", "later-plain"} {
		j := b.WaitState(t, id, "delayed")
		if late := j.RunAt.Sub(began); late < 59*time.Minute || late > 61*time.Minute {
			t.Errorf("%s is due after %s", id, late)
		}
	}
	j := a.Job(t, "later-plain")
	if j.Trace["traceparent"] != parent || j.Trace["tracestate"] != "a=1" || string(j.Params) != `{"n":12345678901234567890}` {
		t.Errorf("a plain publish became %+v", j)
	}

	// What the headers say has to be right.
	asked.Header.Set("Yard-Delay", "soon")
	if answer, err := nc.RequestMsg(asked, 10*time.Second); err != nil || answer.Header.Get("Nats-Service-Error-Code") != "400" {
		t.Error(answer, err)
	}
	plain.Header.Set("Nats-Msg-Id", "never")
	plain.Header.Set("Yard-Delay", "soon")
	if _, err := js.PublishMsg(soon(t), plain); err != nil {
		t.Fatal(err)
	}
	if j := b.WaitState(t, "never", "failed"); !strings.Contains(j.Reason, `Yard-Delay is "soon"`) || j.Attempts != 0 {
		t.Errorf("%+v", j)
	}

	// A trace reaches the worker, from the body and from headers.
	quests := make(chan overhop.Quest, 4)
	w := b.Overhop(t, overhop.Options{Quests: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(soon(t), "producers", 8); err != nil {
		t.Fatal(err)
	}
	traced := nats.NewMsg("yard.jobs.producers")
	traced.Header.Set("traceparent", parent)
	for _, body := range []string{`{"params":{},"trace_context":{"mine":"yes"}}`, `{"params":{}}`} {
		traced.Data = []byte(body)
		if _, err := js.PublishMsg(soon(t), traced); err != nil {
			t.Fatal(err)
		}
		q := nextQuest(t, quests)
		want := map[string]string{"traceparent": parent}
		if strings.Contains(body, "mine") {
			want = map[string]string{"mine": "yes"}
		}
		if fmt.Sprint(q.Trace) != fmt.Sprint(want) {
			t.Errorf("%s came with %v, want %v", body, q.Trace, want)
		}
		w.Done(&q, nil, 0, func(overhop.Raw, error) {})
	}

	// A result is shown as long as its producer wants.
	for _, ttl := range []int64{0, 1, 3_600_000} {
		id := a.Enqueue(t, "producers", fmt.Sprintf(`{"params":{},"result_ttl_ms":%d}`, ttl)).String()
		q := nextQuest(t, quests)
		w.Done(&q, overhop.AppendValue(nil, int64(7)), 0, func(overhop.Raw, error) {})
		j := a.WaitOutcome(t, id)
		if ttl != 1 {
			if string(j.Result) != "7" || j.ResultGone {
				t.Errorf("with %d ms: %+v", ttl, j)
			}
			continue
		}
		for _, m := range y.Members {
			m.WaitState(t, id, "completed")
			y.Eventually("its result is gone at "+m.Name, func() error {
				if j := m.Job(t, id); !j.ResultGone || len(j.Result) > 0 {
					return fmt.Errorf("%+v with %s", j, json.RawMessage(j.Result))
				}
				return nil
			})
		}
	}
}

func nextQuest(t *testing.T, quests chan overhop.Quest) overhop.Quest {
	t.Helper()
	select {
	case q := <-quests:
		return q
	case <-soon(t).Done():
		t.Fatal("no job comes")
		return overhop.Quest{}
	}
}
