package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// library encodes commands by msgpack/v5's own reflection: structs as arrays,
// compact numbers, and reused buffers.
type library struct {
	enc *msgpack.Encoder
	dec *msgpack.Decoder
	buf bytes.Buffer
	src bytes.Reader
}

func newLibrary() *library {
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
	return &library{enc: msgpack.NewEncoder(nil), dec: msgpack.NewDecoder(nil)}
}

func (l *library) encode(p *ledger.Proposal) ([]byte, error) {
	l.buf.Reset()
	l.enc.Reset(&l.buf)
	l.enc.UseArrayEncodedStructs(true)
	l.enc.UseCompactInts(true)
	err := errors.Join(l.enc.EncodeInt(p.At.UnixNano()), l.enc.EncodeUint(p.Epoch), l.enc.EncodeArrayLen(len(p.Commands)))
	for _, c := range p.Commands {
		err = errors.Join(err, l.enc.EncodeUint(uint64(c.Kind())), l.enc.Encode(c))
	}
	return bytes.Clone(l.buf.Bytes()), err
}

func (l *library) decode(raw []byte) (*ledger.Proposal, error) {
	l.src.Reset(raw)
	l.dec.Reset(&l.src)
	at, err := l.dec.DecodeInt64()
	if err != nil {
		return nil, err
	}
	p := &ledger.Proposal{At: time.Unix(0, at)}
	if p.Epoch, err = l.dec.DecodeUint64(); err != nil {
		return nil, err
	}
	n, err := l.dec.DecodeArrayLen()
	for range n {
		kind, err := l.dec.DecodeUint8()
		if err != nil {
			return nil, err
		}
		c, ok := ledger.NewCommand(ledger.Kind(kind))
		if !ok {
			return nil, fmt.Errorf("kind %d", kind)
		}
		if err := l.dec.Decode(c); err != nil {
			return nil, err
		}
		p.Commands = append(p.Commands, c)
	}
	return p, err
}

// BenchmarkLibrary compares the codec of this package with msgpack/v5's own
// reflection, on an entry that ingests, places and settles 64 jobs. It is encoded
// and decoded by the one and then by the other, so that both run under the same load
// of the machine. The metrics are nanoseconds and bytes per job. ADR 37 has the
// result and what follows from it.
func BenchmarkLibrary(b *testing.B) {
	const jobs = 64
	p, l := ingestEntry(jobs), newLibrary()
	var took [4]time.Duration
	var raw, libraryRaw []byte
	for b.Loop() {
		var err error
		for i, step := range []func() error{
			func() error { raw = encodeEntry(p); return nil },
			func() error { libraryRaw, err = l.encode(p); return err },
			func() error { _, err = decodeEntry(raw); return err },
			func() error { _, err = l.decode(libraryRaw); return err },
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
	b.ReportMetric(float64(len(raw))/jobs, "own-B/job")
	b.ReportMetric(float64(len(libraryRaw))/jobs, "library-B/job")
}
