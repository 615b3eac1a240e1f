package clustertest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// producers checks the options of producers in the body and in headers, by request and by
// plain publish.
func producers(t *testing.T, cl *clustertest.Cluster) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "producers", 0)
	nc, js := connect(t, b)

	// Delays count from the storage of the record, over all transports.
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
	if _, err := js.PublishMsg(shortContext(t), plain); err != nil {
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

	// Invalid headers are refused.
	asked.Header.Set("Yard-Delay", "soon")
	if answer, err := nc.RequestMsg(asked, 10*time.Second); err != nil || answer.Header.Get("Nats-Service-Error-Code") != "400" {
		t.Error(answer, err)
	}
	plain.Header.Set("Nats-Msg-Id", "never")
	plain.Header.Set("Yard-Delay", "soon")
	if _, err := js.PublishMsg(shortContext(t), plain); err != nil {
		t.Fatal(err)
	}
	if j := b.WaitState(t, "never", "failed"); !strings.Contains(j.Reason, `Yard-Delay is "soon"`) || j.Attempts != 0 {
		t.Errorf("%+v", j)
	}

	// The key of a plain publish may be in its body, at every node; a field that no job has is
	// refused, and so are two keys.
	for _, m := range cl.Members {
		_, js := connect(t, m)
		for range 2 {
			if _, err := js.Publish(shortContext(t), "yard.jobs.producers", []byte(`{"id":"plain-body","params":{},"delay_ms":3600000}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for key, want := range map[string]string{"misspelt": `no key "max_attemps"; the nearest is max_attempts`, "first-key": "name different jobs"} {
		invalid := nats.NewMsg("yard.jobs.producers")
		invalid.Header.Set("Nats-Msg-Id", key)
		invalid.Data = []byte(`{"params":{},"max_attemps":1}`)
		if key == "first-key" {
			invalid.Data = []byte(`{"params":{},"id":"second-key"}`)
		}
		if _, err := js.PublishMsg(shortContext(t), invalid); err != nil {
			t.Fatal(err)
		}
		cl.Eventually("the dead letter of "+key, func() error {
			var letters api.DeadLetterPage
			if err := b.API("dlq.list", api.DeadLetterRequest{Queue: "producers"}, &letters); err != nil {
				return err
			}
			for _, l := range letters.Letters {
				if strings.Contains(l.Reason, want) {
					return nil
				}
			}
			return fmt.Errorf("none of %d letters has the reason %q", len(letters.Letters), want)
		})
	}
	var page api.JobList
	if err := b.API("job.list", api.JobListRequest{Queues: []string{"producers"}, States: []string{"delayed"}}, &page); err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, j := range page.Jobs {
		if j.Key == "plain-body" {
			named++
		}
	}
	if named != 1 {
		t.Errorf("six publishes under one key in the body became %d jobs of %d", named, len(page.Jobs))
	}

	// A trace context in the body or in headers reaches the worker.
	quests := make(chan overhop.Quest, 4)
	w := b.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(shortContext(t), "producers", 8); err != nil {
		t.Fatal(err)
	}
	traced := nats.NewMsg("yard.jobs.producers")
	traced.Header.Set("traceparent", parent)
	for _, body := range []string{`{"params":{},"trace_context":{"mine":"yes"}}`, `{"params":{}}`} {
		traced.Data = []byte(body)
		if _, err := js.PublishMsg(shortContext(t), traced); err != nil {
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

	// A result is kept as long as its producer requested.
	for _, ttl := range []int64{0, 1, 3_600_000} {
		id := a.Enqueue(t, "producers", fmt.Sprintf(`{"params":{},"result_ttl_ms":%d}`, ttl)).String()
		q := nextQuest(t, quests)
		w.Done(&q, overhop.AppendValue(nil, int64(7)), 0, func(overhop.Raw, error) {})
		j := a.WaitOutcome(t, id)
		if ttl != 1 {
			if string(j.Result) != "7" || j.ResultGone != "" || j.ResultBytes != 1 {
				t.Errorf("with %d ms: %+v", ttl, j)
			}
			continue
		}
		for _, m := range cl.Members {
			m.WaitState(t, id, "completed")
			cl.Eventually("its result is gone at "+m.Name, func() error {
				if j := m.Job(t, id); j.ResultGone != "result_expired" || len(j.Result) > 0 {
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
	case <-shortContext(t).Done():
		t.Fatal("no job arrived")
		return overhop.Quest{}
	}
}
