package nodetest_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// body is a payload or a result of about size bytes, with what a careless hop
// would spoil.
func body(size int) overhop.Raw {
	noise := make([]byte, size)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	return overhop.AppendValue(nil, overhop.Fields{
		"high": int64(math.MaxInt64), "low": int64(math.MinInt64), "bytes": noise, "text": "grüße\x00\"",
	})
}

// bodies: what a producer sends at one node comes to a worker at another, and
// its result to whoever asks at the third, all as it was.
func bodies(t *testing.T, y *nodetest.Yard) {
	a, b, c := y.Members[0], y.Members[1], y.Members[2]
	a.AddQueue(t, "bodies", 0)
	all := []overhop.Raw{
		overhop.Nil,
		overhop.AppendInt(nil, 7),
		overhop.AppendStr(nil, strings.Repeat("ü", 1<<19)), // JSON carries it
		overhop.AppendValue(nil, []any{int64(math.MinInt64), int64(math.MaxInt64), []byte{0, 255}, "", overhop.EmptyMap}),
		append(bytes.Repeat([]byte{0x91}, 123), 0xc0), // as deep as a page of jobs can show it
		body(0), body(1), body(64 << 10), body(1 << 20), body(6 << 20),
	}
	b.Worker(t, "bodies", 2, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		var how string
		var i int
		if _, err := fmt.Sscanf(q.Function, "%s %d", &how, &i); err != nil {
			return nil, err
		}
		if how == "give" {
			return all[i], nil
		}
		payload := q.Payload
		if len(payload) == 0 {
			payload = overhop.Nil
		}
		return overhop.AppendBool(nil, bytes.Equal(payload, all[i])), nil
	})
	producer, asker := a.Overhop(t, overhop.Options{}), c.Overhop(t, overhop.Options{})
	yes := overhop.AppendBool(nil, true)
	for i, sent := range all {
		for _, job := range []struct {
			how             string
			payload, result overhop.Raw
		}{{"take", sent, yes}, {"give", overhop.AppendInt(nil, 1), sent}} {
			jid, err := producer.Enqueue(soon(t), overhop.Enqueue{
				Queue: "bodies", Function: fmt.Sprintf("%s %d", job.how, i), Payload: job.payload,
			})
			if err != nil {
				t.Fatalf("body %d: %v", i, err)
			}
			c.WaitState(t, overhopID(t, jid), "completed")
			record, err := asker.Job(soon(t), jid)
			if err != nil {
				t.Fatalf("body %d: %v", i, err)
			}
			if got := record.Get("payload"); !bytes.Equal(got, job.payload) {
				t.Errorf("body %d, %s: payload of %d bytes became %d: %.60x", i, job.how, len(job.payload), len(got), []byte(got))
			}
			if got := record.Get("result"); !bytes.Equal(got, job.result) {
				t.Errorf("body %d, %s: result of %d bytes became %d: %.60x", i, job.how, len(job.result), len(got), []byte(got))
			}
		}
	}
}
