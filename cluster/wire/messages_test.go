package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

// codec is one kind of message, with its type hidden.
type codec struct {
	name   string
	append func(any) []byte
	parse  func([]byte) (any, error)
}

func of[T any](name string, write func([]byte, T) []byte, read func([]byte) (T, error)) codec {
	return codec{name, func(v any) []byte { return write(nil, v.(T)) }, func(b []byte) (any, error) { return read(b) }}
}

func byPointer[T any](write func([]byte, *T) []byte) func([]byte, T) []byte {
	return func(b []byte, v T) []byte { return write(b, &v) }
}

var codecs = []codec{
	of("batch", byPointer(AppendBatch), ParseBatch),
	of("answers", AppendAnswers, ParseAnswers),
	of("report", byPointer(AppendReport), ParseReport),
	of("report ack", byPointer(AppendReportAck), ParseReportAck),
	of("beat", byPointer(AppendBeat), ParseBeat),
	of("beat ack", byPointer(AppendBeatAck), ParseBeatAck),
	of("recall", byPointer(AppendRecall), ParseRecall),
	of("records", AppendRecords, ParseRecords),
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
	moment = time.Unix(1790000000, 123456789)
	before = time.Date(1969, 12, 31, 23, 0, 0, 5, time.UTC).Local()
	wait   = 1500 * time.Millisecond
	never  = -time.Second
)

var messages = []struct {
	codec string
	v     any
}{
	{"batch", job.Batch{}},
	{"batch", job.Batch{Epoch: 1 << 63, Number: 7, Assignments: []job.Assignment{
		{
			Job: job.ID{1, 2, 15: 16}, N: 1<<32 - 1, Attempt: 2, MaxAttempts: 5, Queue: "mail", Function: "runner#handler",
			Kind: job.RRQ, Key: "runner", Worker: "pool/1", Epoch: 9, Fence: 1 << 40, Timeout: time.Hour, Accepted: moment,
			RunAt: before, Redelivered: true, Position: job.Position{Lane: 15, Seq: 1 << 50}, Body: []byte(`{"function":"x"}`),
			Started: moment, Moved: 1 << 41,
		},
		{Queue: "mail", Kind: job.Overhop, Key: "mail", Worker: "w", Timeout: -1, Body: []byte{}},
		{Queue: "other"},
	}}},
	{"answers", []job.Answer{}},
	{"answers", []job.Answer{job.Taken, job.NoRoom, job.StaleEpoch, job.Draining, job.BodyLost}},
	{"report", job.Report{Node: "n1"}},
	{"report", job.Report{
		Node: "n1", Incarnation: 3, Rev: 4, Full: true, Seen: 5,
		Offers: []job.Offer{{Kind: job.RRQ, Key: "r", Worker: "p/1", Free: 2}, {Kind: job.Overhop, Key: "mail", Worker: "w", Free: 0}},
		Outcomes: []job.Outcome{
			{Job: job.ID{9}, N: 1, Status: job.Success, Result: job.Value{Data: []byte("1")}, Started: true},
			{Job: job.ID{8}, N: 2, Status: job.Error, Final: true, RetryAfter: &wait,
				Fault: &job.Fault{Message: "m", Type: "t", Code: "c", Details: []byte(`{}`)}},
			{Job: job.ID{7}, N: 3, Status: job.Cancelled, RetryAfter: &never, Result: job.Value{Msgpack: true, Data: []byte{}},
				Blob: &job.Blob{Name: "h.i", Chunks: 3, Size: 1 << 30, SHA256: strings.Repeat("a", 64)}, Fault: &job.Fault{}},
		},
	}},
	{"report", job.Report{Node: "n1", Incarnation: 3, FirstNote: 1 << 40, Notes: []job.Note{
		{Worker: "overhop/w", Stalled: true, Detail: job.StalledAck}, {Worker: "rrq/p/1", Detail: ""},
	}}},
	{"report ack", job.ReportAck{Epoch: 3, WantFull: true, Settled: []job.Settled{
		{Stale: true}, {Dup: true, State: job.Failed}, {State: job.Delayed, RunAt: moment, Index: 1 << 41},
	}}},
	{"beat", job.Beat{Node: "n1", Incarnation: 1, At: moment, Rev: 2, Running: 3, Draining: true, Runners: []string{"a", ""}, Lanes: []uint8{0, 2}, Edge: "n1:9876"}},
	{"beat", job.Beat{}},
	{"beat ack", job.BeatAck{Epoch: 4, Lease: 6 * time.Second, WantFull: true, Batches: 7, Edges: []string{"n2:9876", ""}}},
	{"recall", job.Recall{Job: job.ID{1}, N: 4, Epoch: 5, Reason: job.RecallCancelled}},
	{"recall", job.Recall{Job: job.ID{1}, N: 4, Epoch: 5, Reason: job.RecallSuperseded, Moved: 1 << 41}},
	{"records", []job.Record{
		{Position: job.Position{Lane: 1, Seq: 2}, Queue: "mail", Key: "k", Stored: moment, Body: []byte("{}")},
		{Position: job.Position{Lane: 1, Seq: 3}, Queue: "mail"},
	}},
}

func TestRoundTrip(t *testing.T) {
	for i, m := range messages {
		t.Run(fmt.Sprintf("%s %d", m.codec, i), func(t *testing.T) {
			c := codecOf(m.codec)
			text := c.append(m.v)
			got, err := c.parse(text)
			if err != nil {
				t.Fatal(err)
			}
			// Nothing lost: nil and empty are told apart, times to the nanosecond.
			if !reflect.DeepEqual(got, m.v) {
				t.Fatal(cmp.Diff(m.v, got))
			}
			for cut := range text {
				if _, err := c.parse(text[:cut]); err == nil {
					t.Fatalf("the first %d of %d bytes are taken for a message", cut, len(text))
				}
			}
			if _, err := c.parse(append(text, 0)); !errors.Is(err, ErrMalformed) {
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

// A message that claims to hold more than it could is refused before anything
// is made for it.
func TestParse_Bounded(t *testing.T) {
	claim := putUint(append([]byte{version}, make([]byte, 2)...), 1<<40) // epoch 0, number 0, 2^40 assignments
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParseBatch(claim); err == nil {
			t.Fatal("taken for a message")
		}
	}); n > 5 {
		t.Fatalf("%v allocations for a message of %d bytes", n, len(claim))
	}
}

// Repeated names cost one text for the whole batch.
func TestParseBatch_SharesNames(t *testing.T) {
	b := job.Batch{Assignments: make([]job.Assignment, 1000)}
	for i := range b.Assignments {
		b.Assignments[i] = job.Assignment{Queue: "mail", Function: "send", Key: "mail", Worker: "w1", Body: []byte("{}")}
	}
	text := AppendBatch(nil, &b)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParseBatch(text); err != nil {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Fatalf("%v allocations for 1000 assignments", n)
	}
}

// Whatever the bytes: no panic, and what is taken for a message is written
// again as a message that says the same.
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
	batch := job.Batch{Assignments: make([]job.Assignment, 100)}
	for i := range batch.Assignments {
		batch.Assignments[i] = job.Assignment{N: 1, Queue: "mail", Key: "mail", Worker: "w1", Accepted: moment, Body: make([]byte, 256)}
	}
	var text []byte
	for b.Loop() {
		text = AppendBatch(text[:0], &batch)
		if _, err := ParseBatch(text); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/assignment")
}
