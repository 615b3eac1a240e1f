package ledger

import (
	"bufio"
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/yardmaster-dev/yardmaster/job"
)

// libraryJob has the fields of a waiting job in a snapshot, for msgpack/v5, which
// encodes exported fields only.
type libraryJob struct {
	ID                             job.ID
	Function                       string
	Accepted, Due                  int64
	Lane                           uint8
	Seq                            uint64
	N, Attempt                     uint32
	Priority, State, Losses, Flags uint8
}

// BenchmarkLibrary compares the codec of snapshots with msgpack/v5, on a ledger of
// 100,000 waiting jobs. Its jobs are encoded and decoded by the one and then by the
// other, so that both run under the same load of the machine; neither inserts what it
// decodes into a ledger. ADR 37 has the result and what follows from it.
func BenchmarkLibrary(b *testing.B) {
	const jobs = 100_000
	msgpack.Register(job.ID{}, func(e *msgpack.Encoder, v reflect.Value) error {
		id := v.Interface().(job.ID)
		return e.EncodeBytes(id[:])
	}, func(d *msgpack.Decoder, v reflect.Value) error {
		if _, err := d.DecodeBytesLen(); err != nil {
			return err
		}
		return d.ReadFull(v.Addr().Interface().(*job.ID)[:])
	})
	l, _ := filledLedger(b, jobs)
	var stored []*storedJob
	l.queues.byName.Scan(func(_ string, q *queue) bool {
		q.waitlists.Scan(func(_ string, wl *waitlist) bool {
			wl.jobs.Scan(func(item orderItem) bool { stored = append(stored, l.jobs.at(item.number)); return true })
			return true
		})
		return true
	})
	if len(stored) != jobs {
		b.Fatalf("%d jobs wait", len(stored))
	}
	var own, library bytes.Buffer
	var took [4]time.Duration
	for b.Loop() {
		own.Reset()
		library.Reset()
		for i, step := range []func() error{
			func() error {
				e := newEncoder(&own)
				for _, r := range stored {
					e.record(r, nil, nil, formatVersion)
				}
				return e.flush()
			},
			func() error { return libraryEncode(&library, stored) },
			func() error {
				d := newDecoder(bytes.NewReader(own.Bytes()))
				for range stored {
					d.record(new(storedJob), l.queues.get("mail"), &l.jobs, formatVersion)
				}
				return d.err
			},
			func() error { return libraryDecode(library.Bytes(), len(stored)) },
		} {
			start := time.Now()
			if err := step(); err != nil {
				b.Fatal(err)
			}
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of both says nothing
	for i, metric := range []string{"own-encode-ns/job", "library-encode-ns/job", "own-decode-ns/job", "library-decode-ns/job"} {
		b.ReportMetric(float64(took[i])/float64(b.N*jobs), metric)
	}
	b.ReportMetric(float64(own.Len())/jobs, "own-B/job")
	b.ReportMetric(float64(library.Len())/jobs, "library-B/job")
}

func libraryEncode(to *bytes.Buffer, stored []*storedJob) error {
	w := bufio.NewWriterSize(to, 64<<10)
	e := msgpack.NewEncoder(w)
	e.UseArrayEncodedStructs(true)
	e.UseCompactInts(true)
	for _, r := range stored {
		if err := e.Encode(&libraryJob{
			ID: r.id, Function: r.function, Accepted: r.accepted, Due: r.due, Lane: r.lane, Seq: r.seq, N: r.n, Attempt: r.attempt,
			Priority: r.priority, State: uint8(r.state), Losses: r.losses, Flags: uint8(r.flags),
		}); err != nil {
			return err
		}
	}
	return w.Flush()
}

func libraryDecode(raw []byte, jobs int) error {
	d := msgpack.NewDecoder(bytes.NewReader(raw))
	for range jobs {
		if err := d.Decode(new(libraryJob)); err != nil {
			return err
		}
	}
	return nil
}
