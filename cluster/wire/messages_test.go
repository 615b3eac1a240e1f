package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

// codec appends and parses one kind of message, with its type hidden.
type codec struct {
	name   string
	append func(any) []byte
	parse  func([]byte) (any, error)
}

func newCodec[T any](name string, write func([]byte, T) []byte, read func([]byte) (T, error)) codec {
	return codec{name, func(v any) []byte { return write(nil, v.(T)) }, func(b []byte) (any, error) { return read(b) }}
}

func byPointer[T any](write func([]byte, *T) []byte) func([]byte, T) []byte {
	return func(b []byte, v T) []byte { return write(b, &v) }
}

var codecs = []codec{
	newCodec("batch", byPointer(AppendAssignmentBatch), ParseAssignmentBatch),
	newCodec("answers", AppendAnswers, ParseAnswers),
	newCodec("report", byPointer(AppendReport), ParseReport),
	newCodec("report ack", byPointer(AppendReportAck), ParseReportAck),
	newCodec("heartbeat", byPointer(AppendHeartbeat), ParseHeartbeat),
	newCodec("heartbeat ack", byPointer(AppendHeartbeatAck), ParseHeartbeatAck),
	newCodec("recall", byPointer(AppendRecall), ParseRecall),
	newCodec("records", AppendRecords, ParseRecords),
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
	moment        = time.Unix(1790000000, 123456789)
	preEpoch      = time.Date(1969, 12, 31, 23, 0, 0, 5, time.UTC).Local()
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
			{Job: job.ID{7}, N: 3, Status: job.Cancelled, RetryAfter: &negativeDelay, Result: job.Value{Msgpack: true, Data: []byte{}},
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
			data := c.append(m.v)
			got, err := c.parse(data)
			if err != nil {
				t.Fatal(err)
			}
			// Nothing is lost: nil and empty stay distinct, times keep nanoseconds.
			if !reflect.DeepEqual(got, m.v) {
				t.Fatal(cmp.Diff(m.v, got))
			}
			for cut := range data {
				if _, err := c.parse(data[:cut]); err == nil {
					t.Fatalf("the first %d of %d bytes parse as a message", cut, len(data))
				}
			}
			if _, err := c.parse(append(data, 0)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("one byte too many: %v", err)
			}
		})
	}
}

func TestParse_OtherVersion(t *testing.T) {
	for _, c := range codecs {
		var other *VersionError
		if _, err := c.parse([]byte{99, 0, 0, 0}); !errors.As(err, &other) || other.Got != 99 {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestParse_BoundsAllocation checks that a message that claims to hold more items
// than its size permits is refused before memory is allocated for them.
func TestParse_BoundsAllocation(t *testing.T) {
	claim := putUint(append([]byte{version}, make([]byte, 2)...), 1<<40) // epoch 0, number 0, 2^40 assignments
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParseAssignmentBatch(claim); err == nil {
			t.Fatal("message accepted")
		}
	}); n > 5 {
		t.Fatalf("%v allocations for a message of %d bytes", n, len(claim))
	}
}

// TestParseAssignmentBatch_SharesStrings checks that a name repeated in all
// assignments is allocated once.
func TestParseAssignmentBatch_SharesStrings(t *testing.T) {
	b := job.AssignmentBatch{Assignments: make([]job.Assignment, 1000)}
	for i := range b.Assignments {
		b.Assignments[i] = job.Assignment{Queue: "mail", Function: "send", Key: "mail", Worker: "w1", Body: []byte("{}")}
	}
	data := AppendAssignmentBatch(nil, &b)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParseAssignmentBatch(data); err != nil {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Fatalf("%v allocations for 1000 assignments", n)
	}
}

// FuzzParse checks that no input causes a panic, and that what parses as a message
// encodes to an equal message.
func FuzzParse(f *testing.F) {
	for _, m := range messages {
		f.Add(codecOf(m.codec).append(m.v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range codecs {
			v, err := c.parse(b)
			if err != nil {
				continue
			}
			again, err := c.parse(c.append(v))
			if err != nil || !reflect.DeepEqual(v, again) {
				t.Fatalf("%s: %v\n%s", c.name, err, cmp.Diff(v, again))
			}
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	batch := job.AssignmentBatch{Assignments: make([]job.Assignment, 100)}
	for i := range batch.Assignments {
		batch.Assignments[i] = job.Assignment{N: 1, Queue: "mail", Key: "mail", Worker: "w1", Accepted: moment, Body: make([]byte, 256)}
	}
	var data []byte
	for b.Loop() {
		data = AppendAssignmentBatch(data[:0], &batch)
		if _, err := ParseAssignmentBatch(data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/assignment")
}
