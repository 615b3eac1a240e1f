package clustertest_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// body returns a payload or result of about size bytes, with values that careless
// conversions change.
func body(size int) overhop.Raw {
	noise := make([]byte, size)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	return overhop.AppendValue(nil, overhop.Fields{
		"high": int64(math.MaxInt64), "low": int64(math.MinInt64), "bytes": noise, "text": "grüße\x00\"",
	})
}

// largePayloads checks that payloads enqueued at one node reach a worker at another
// unchanged, and its results a client at the third.
func largePayloads(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "bodies", 0)
	all := []overhop.Raw{
		overhop.Nil,
		overhop.AppendInt(nil, 7),
		overhop.AppendStr(nil, strings.Repeat("ü", 1<<19)), // representable in JSON
		overhop.AppendValue(nil, []any{int64(math.MinInt64), int64(math.MaxInt64), []byte{0, 255}, "", overhop.EmptyMap}),
		append(bytes.Repeat([]byte{0x91}, job.MaxDepth), 0xc0),
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
	for i, given := range all {
		for _, sent := range []struct {
			how             string
			payload, result overhop.Raw
		}{{"take", given, yes}, {"give", overhop.AppendInt(nil, 1), given}} {
			jid, err := producer.Enqueue(shortContext(t), overhop.Enqueue{
				Queue: "bodies", Function: fmt.Sprintf("%s %d", sent.how, i), Payload: sent.payload,
			})
			if err != nil {
				t.Fatalf("body %d: %v", i, err)
			}
			c.WaitState(t, overhopID(t, jid), "completed")
			record, err := asker.Job(shortContext(t), jid)
			if err != nil {
				t.Fatalf("body %d: %v", i, err)
			}
			// A large body is freed once its job has completed.
			freed := len(sent.payload) > 64<<10 && record.Get("payload").IsNil()
			if got := record.Get("payload"); !freed && !bytes.Equal(got, sent.payload) {
				t.Errorf("body %d, %s: payload of %d bytes became %d: %.60x", i, sent.how, len(sent.payload), len(got), []byte(got))
			}
			if got := record.Get("result"); !bytes.Equal(got, sent.result) {
				t.Errorf("body %d, %s: result of %d bytes became %d: %.60x", i, sent.how, len(sent.result), len(got), []byte(got))
			}
		}
	}
}
