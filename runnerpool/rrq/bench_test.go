package rrq

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

var benchRequest = Request{
	RequestID: "019aa000-0000-7000-8000-000000000001#1", JobID: "019aa000-0000-7000-8000-000000000001", Function: "mail.send",
	Params: json.RawMessage(`{"due":123456789,"to":"somebody@example.org","pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}`),
	Context: Context{JobID: "019aa000-0000-7000-8000-000000000001", Attempt: 1, EnqueueTime: time.Unix(1_790_000_000, 123456000),
		QueueName: "mail", Deadline: time.Unix(1_790_000_300, 0), WorkerID: "yard_n1_9000", Fence: 42},
}

func BenchmarkAppendRequest(b *testing.B) {
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		var err error
		if out, err = appendRequest(out[:0], &benchRequest); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeOutcome(b *testing.B) {
	framed, err := appendOutcome(nil, &Outcome{JobID: benchRequest.JobID, RequestID: benchRequest.RequestID, Status: Success, Result: benchRequest.Params})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if m, err := decode(framed[frame.HeaderLen:]); err != nil || m.outcome == nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	framed, err := appendRequest(nil, &benchRequest)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if m, err := decode(framed[frame.HeaderLen:]); err != nil || m.request == nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDo measures a request over a socket, with both ends in this process.
func BenchmarkDo(b *testing.B) {
	c := dial(b, serve(b, func(_ context.Context, r *Request) Outcome { return Outcome{Status: Success, Result: r.Params} }))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Do(b.Context(), &benchRequest); err != nil {
			b.Fatal(err)
		}
	}
}
