package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/yardmaster-dev/yardmaster/job"
)

// libraryEncoder and libraryDecoder are what msgpack/v5 offers for the messages of
// this package: structs as arrays, compact numbers, and reused buffers.
type libraryEncoder struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

type libraryDecoder struct {
	src bytes.Reader
	dec *msgpack.Decoder
}

func newLibrary() (*libraryEncoder, *libraryDecoder) {
	// Without this, the library encodes ids as text of 36 bytes.
	msgpack.Register(job.ID{}, func(e *msgpack.Encoder, v reflect.Value) error {
		id := v.Interface().(job.ID)
		return e.EncodeBytes(id[:])
	}, func(d *msgpack.Decoder, v reflect.Value) error {
		if _, err := d.DecodeBytesLen(); err != nil {
			return err
		}
		return d.ReadFull(v.Addr().Interface().(*job.ID)[:])
	})
	e := &libraryEncoder{enc: msgpack.NewEncoder(nil)}
	return e, &libraryDecoder{dec: msgpack.NewDecoder(nil)}
}

func (e *libraryEncoder) encode(v any) ([]byte, error) {
	e.buf.Reset()
	e.enc.Reset(&e.buf)
	e.enc.UseArrayEncodedStructs(true)
	e.enc.UseCompactInts(true)
	err := e.enc.Encode(v)
	return e.buf.Bytes(), err
}

func (d *libraryDecoder) decode(data []byte, v any) error {
	d.src.Reset(data)
	d.dec.Reset(&d.src)
	return d.dec.Decode(v)
}

// BenchmarkLibrary compares the codec of this package with msgpack/v5, for the
// messages that every job causes: each is encoded and decoded by the one and then by
// the other, so that both run under the same load of the machine. The metrics are
// nanoseconds per job. ADR 37 has the result and what follows from it.
func BenchmarkLibrary(b *testing.B) {
	batch, report, records := loadMessages(64)
	b.Run("batch", func(b *testing.B) { compareLibrary(b, 64, batch) })
	b.Run("report", func(b *testing.B) { compareLibrary(b, 64, report) })
	b.Run("records", func(b *testing.B) { compareLibrary(b, 64, records) })
}

// loadMessages returns the messages that this number of jobs causes under high load.
func loadMessages(jobs int) (job.AssignmentBatch, job.Report, []job.Record) {
	batch := job.AssignmentBatch{Epoch: 7, Number: 1000, Incarnation: 3}
	report := job.Report{Node: "n1", Incarnation: 3, Rev: 2000, SeenBatch: 1000, Offers: []job.Offer{{Kind: job.Overhop, Key: "mail", Worker: "worker-7", Free: 64}}}
	var records []job.Record
	body := []byte(strings.Repeat("x", 256))
	for i := range uint64(jobs) {
		id := job.RecordID("lane", job.Position{Seq: i}, moment)
		at := job.Position{Lane: 1, Seq: 1_000_000 + i}
		batch.Assignments = append(batch.Assignments, job.Assignment{
			Job: id, N: 1, Attempt: 1, MaxAttempts: 5, Queue: "mail", Function: "send", Kind: job.Overhop, Key: "mail", Worker: "worker-7",
			Epoch: 7, Fence: 1_000_000 + i, Timeout: time.Minute, Accepted: moment, RunAt: moment, Position: at, Body: body,
		})
		report.Outcomes = append(report.Outcomes, job.Outcome{Job: id, N: 1, Status: job.Success, Result: job.Value{Data: body[:32]}, Started: true})
		records = append(records, job.Record{Position: at, Queue: "mail", Key: id.String(), Stored: moment, Body: body})
	}
	return batch, report, records
}

// BenchmarkMessage encodes and decodes the messages that 64 jobs cause.
func BenchmarkMessage(b *testing.B) {
	batch, report, records := loadMessages(64)
	benchmarkMessage(b, "batch", &batch)
	benchmarkMessage(b, "report", &report)
	benchmarkMessage(b, "records", &records)
}

func benchmarkMessage[T Message](b *testing.B, name string, v *T) {
	data := Encode(v)
	b.Run(name+"/encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Encode(v)
		}
	})
	b.Run(name+"/decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Decode[T](data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func compareLibrary[T Message](b *testing.B, jobs int, v T) {
	var own, library time.Duration
	enc, dec := newLibrary()
	var data, libraryData []byte
	for b.Loop() {
		start := time.Now()
		data = Encode(&v)
		_, err := Decode[T](data)
		between := time.Now()
		if err != nil {
			b.Fatal(err)
		}
		var got T
		libraryData, err = enc.encode(&v)
		if err == nil {
			// The library copies bodies; this package shares the message's memory.
			err = dec.decode(libraryData, &got)
		}
		own, library = own+between.Sub(start), library+time.Since(between)
		if err != nil {
			b.Fatal(err)
		}
	}
	perJob := float64(b.N * jobs)
	b.ReportMetric(0, "ns/op") // the sum of both says nothing
	b.ReportMetric(float64(own)/perJob, "own-ns/job")
	b.ReportMetric(float64(library)/perJob, "library-ns/job")
	b.ReportMetric(float64(len(data))/float64(jobs), "own-B/job")
	b.ReportMetric(float64(len(libraryData))/float64(jobs), "library-B/job")
}
