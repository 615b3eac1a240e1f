package wire

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

// codec encodes and decodes one kind of message, with its type hidden.
type codec struct {
	name   string
	encode func(any) []byte
	decode func([]byte) (any, error)
}

func newCodec[T Message](name string) codec {
	return codec{name, func(v any) []byte { m := v.(T); return Encode(&m) }, func(b []byte) (any, error) { return Decode[T](b) }}
}

var codecs = []codec{
	newCodec[job.AssignmentBatch]("batch"),
	newCodec[[]job.Answer]("answers"),
	newCodec[job.Report]("report"),
	newCodec[job.ReportAck]("report ack"),
	newCodec[job.Heartbeat]("heartbeat"),
	newCodec[job.HeartbeatAck]("heartbeat ack"),
	newCodec[job.Recall]("recall"),
	newCodec[[]job.Record]("records"),
}

func codecOf(name string) codec {
	for _, c := range codecs {
		if c.name == name {
			return c
		}
	}
	panic("no codec " + name)
}

var (
	moment        = time.Unix(1790000000, 123456789).UTC()
	preEpoch      = time.Date(1969, 12, 31, 23, 0, 0, 5, time.UTC)
	retryAfter    = 1500 * time.Millisecond
	negativeDelay = -time.Second
)

var messages = []struct {
	codec string
	v     any
}{
	{"batch", job.AssignmentBatch{}},
	{"batch", job.AssignmentBatch{Epoch: 1 << 63, Number: 7, Assignments: []job.Assignment{
		{
			Job: job.ID{1, 2, 15: 16}, N: 1<<32 - 1, Attempt: 2, MaxAttempts: 5, Queue: "mail", Function: "runner#handler",
			Kind: job.RRQ, Key: "runner", Worker: "pool/1", Epoch: 9, Fence: 1 << 40, Timeout: time.Hour, Accepted: moment,
			RunAt: preEpoch, Redelivered: true, Position: job.Position{Lane: 15, Seq: 1 << 50}, Body: []byte(`{"function":"x"}`),
			Started: moment, MoveIndex: 1 << 41,
		},
		{Queue: "mail", Kind: job.Overhop, Key: "mail", Worker: "w", Timeout: -1, Body: []byte{}},
		{Queue: "other"},
	}}},
	{"answers", []job.Answer{}},
	{"answers", []job.Answer{job.Taken, job.NoCapacity, job.StaleEpoch, job.Draining, job.BodyLost}},
	{"report", job.Report{Node: "n1"}},
	{"report", job.Report{
		Node: "n1", Incarnation: 3, Rev: 4, Full: true, SeenBatch: 5,
		Offers: []job.Offer{{Kind: job.RRQ, Key: "r", Worker: "p/1", Free: 2}, {Kind: job.Overhop, Key: "mail", Worker: "w", Free: 0}},
		Outcomes: []job.Outcome{
			{Job: job.ID{9}, N: 1, Status: job.Success, Result: job.Value{Data: []byte("1")}, Started: true},
			{Job: job.ID{8}, N: 2, Status: job.Error, Final: true, RetryAfter: &retryAfter,
				Fault: &job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte(`{}`)}},
			{Job: job.ID{7}, N: 3, Status: job.RunCancelled, RetryAfter: &negativeDelay, Result: job.Value{Msgpack: true, Data: []byte{}},
				Blob: &job.Blob{Name: "h.i", Chunks: 3, Size: 1 << 30, SHA256: strings.Repeat("a", 64)}, Fault: &job.Fault{}},
		},
	}},
	{"report", job.Report{Node: "n1", Incarnation: 3, FirstWorkerEvent: 1 << 40, WorkerEvents: []job.WorkerEvent{
		{Worker: "overhop/w", Stalled: true, Detail: job.StalledAck}, {Worker: "rrq/p/1", Detail: ""},
	}}},
	{"report ack", job.ReportAck{Epoch: 3, WantFull: true, Settled: []job.Settled{
		{Stale: true}, {Duplicate: true, State: job.Failed}, {State: job.Delayed, RunAt: moment, Index: 1 << 41},
	}}},
	{"heartbeat", job.Heartbeat{Node: "n1", Incarnation: 1, At: moment, Rev: 2, Running: 3, Draining: true, Runners: []string{"a", ""}, Lanes: []uint8{0, 2}, Edge: "n1:9876"}},
	{"heartbeat", job.Heartbeat{}},
	{"heartbeat ack", job.HeartbeatAck{Epoch: 4, Lease: 6 * time.Second, WantFull: true, LastBatch: 7, Edges: []string{"n2:9876", ""}}},
	{"recall", job.Recall{Job: job.ID{1}, N: 4, Epoch: 5, Reason: job.RecallCancelled}},
	{"recall", job.Recall{Job: job.ID{1}, N: 4, Epoch: 5, Reason: job.RecallCancelled, Message: "not any more"}},
	{"recall", job.Recall{Job: job.ID{1}, N: 4, Epoch: 5, Reason: job.RecallSuperseded, MoveIndex: 1 << 41}},
	{"records", []job.Record{
		{Position: job.Position{Lane: 1, Seq: 2}, Queue: "mail", Key: "k", Stored: moment, Body: []byte("{}")},
		{Position: job.Position{Lane: 1, Seq: 3}, Queue: "mail"},
	}},
}

func TestRoundTrip(t *testing.T) {
	for i, m := range messages {
		t.Run(fmt.Sprintf("%s %d", m.codec, i), func(t *testing.T) {
			c := codecOf(m.codec)
			data := c.encode(m.v)
			got, err := c.decode(data)
			if err != nil {
				t.Fatal(err)
			}
			// Nothing is lost: nil and empty stay distinct, times keep nanoseconds.
			if !reflect.DeepEqual(got, m.v) {
				t.Fatal(cmp.Diff(m.v, got))
			}
			for cut := range data {
				if _, err := c.decode(data[:cut]); err == nil {
					t.Fatalf("the first %d of %d bytes parse as a message", cut, len(data))
				}
			}
			if _, err := c.decode(append(data, 0)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("one byte too many: %v", err)
			}
		})
	}
}

func TestDecode_OtherVersion(t *testing.T) {
	for _, c := range codecs {
		var other *VersionError
		if _, err := c.decode([]byte{99, 0, 0, 0}); !errors.As(err, &other) || other.Got != 99 {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestDecode_OutOfRange(t *testing.T) {
	for _, m := range []struct {
		codec string
		v     any
	}{
		{"report", job.Report{Outcomes: []job.Outcome{{N: 1}}}},
		{"report", job.Report{Outcomes: []job.Outcome{{Status: job.RunCancelled + 1}}}},
		{"report", job.Report{Offers: []job.Offer{{Free: -1}}}},
		{"report", job.Report{Offers: []job.Offer{{Free: 1 << 31}}}},
		{"report ack", job.ReportAck{Settled: []job.Settled{{State: job.State(job.States)}}}},
	} {
		c := codecOf(m.codec)
		if v, err := c.decode(c.encode(m.v)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v decoded as %+v with error %v", m.v, v, err)
		}
	}
}

// TestDecode_BoundsAllocation checks that a message that claims to hold more items
// than its size permits is refused before memory is allocated for them.
func TestDecode_BoundsAllocation(t *testing.T) {
	claim := []byte{version, 0x94, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff} // epoch, number, incarnation, and an array of 2^32-1 assignments
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Decode[job.AssignmentBatch](claim); !errors.Is(err, ErrMalformed) {
		t.Fatalf("decoded with error %v", err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Fatalf("%d bytes allocated for a message of %d", n, len(claim))
	}
}

// TestDecode_SharesMemory checks that a name repeated in all assignments is
// allocated once, and that bodies are not copied.
func TestDecode_SharesMemory(t *testing.T) {
	b := job.AssignmentBatch{Assignments: make([]job.Assignment, 1000)}
	for i := range b.Assignments {
		b.Assignments[i] = job.Assignment{Queue: "mail", Function: "send", Key: "mail", Worker: "w1", Body: []byte("{}")}
	}
	data := Encode(&b)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := Decode[job.AssignmentBatch](data); err != nil {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Fatalf("%v allocations for 1000 assignments", n)
	}
	got, err := Decode[job.AssignmentBatch](data)
	if body := got.Assignments[0].Body; err != nil || cap(body) != 2 {
		t.Fatalf("body with capacity %d, error %v: an append would overwrite the message", cap(body), err)
	}
}

// FuzzDecode checks that no input causes a panic, and that what parses as a message
// encodes to an equal message.
func FuzzDecode(f *testing.F) {
	for _, m := range messages {
		f.Add(codecOf(m.codec).encode(m.v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range codecs {
			v, err := c.decode(b)
			if err != nil {
				continue
			}
			again, err := c.decode(c.encode(v))
			if err != nil || !reflect.DeepEqual(v, again) {
				t.Fatalf("%s: %v\n%s", c.name, err, cmp.Diff(v, again))
			}
		}
	})
}
