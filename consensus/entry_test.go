package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// commandKinds returns an empty command of every kind that the ledger knows.
func commandKinds() []ledger.Command {
	var all []ledger.Command
	for k := range 256 {
		if c, ok := ledger.NewCommand(ledger.Kind(k)); ok {
			all = append(all, c)
		}
	}
	return all
}

// fill sets every field to a non-zero value, so that a field that the codec loses is
// detected.
func fill(v reflect.Value, r *rand.Rand) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<32), r.Int64N(1e9)).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", r.IntN(1000)))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(-1 - r.Int64N(100))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1 + r.Uint64N(200))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), r)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), r)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), r)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range 3 {
			elem := reflect.New(v.Type().Elem()).Elem()
			fill(elem, r)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint(i)), elem)
		}
	default:
		panic("fill cannot make a " + v.Type().String())
	}
}

func TestEntry_RoundTrip(t *testing.T) {
	empty := commandKinds()
	if len(empty) < 20 {
		t.Fatalf("the ledger knows only %d commands", len(empty))
	}
	full := commandKinds()
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range full {
		fill(reflect.ValueOf(c).Elem(), r)
	}
	for _, cmds := range [][]ledger.Command{empty, full, nil} {
		want := &ledger.Proposal{At: time.Unix(5, 6).UTC(), Epoch: 1 << 60, Commands: cmds}
		got, err := decodeEntry(encodeEntry(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, c := range full {
		got, err := DecodeCommand(EncodeCommand(c))
		if diff := cmp.Diff(c, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
}

func TestEntry_DetectsBitFlips(t *testing.T) {
	raw := encodeEntry(&ledger.Proposal{At: time.Unix(1, 0), Commands: []ledger.Command{&ledger.RemoveQueue{Name: "mail"}}})
	for i := range len(raw) * 8 {
		bad := bytes.Clone(raw)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := decodeEntry(bad); !errors.Is(err, errInvalidEntry) {
			t.Errorf("bit %d flipped: %v", i, err)
		}
	}
	for n := range raw {
		if _, err := decodeEntry(raw[:n]); !errors.Is(err, errInvalidEntry) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func FuzzDecodeCommand(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range commandKinds() {
		fill(reflect.ValueOf(c).Elem(), r)
		f.Add(EncodeCommand(c)[entryHeaderLen:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		// The fuzzer would never find a valid checksum, so frame its bytes.
		raw := append(make([]byte, entryHeaderLen), body...)
		setHeader(raw)
		c, err := DecodeCommand(raw)
		if err != nil {
			return
		}
		twin, err := DecodeCommand(EncodeCommand(c))
		if diff := cmp.Diff(c, twin); diff != "" || err != nil {
			t.Error(diff, err)
		}
		if _, err := decodeEntry(raw); err == nil && len(body) < 3 {
			t.Error("an entry of two bytes is accepted")
		}
	})
}

// ingestEntry returns an entry as under high load, which ingests, places and settles this
// number of jobs.
func ingestEntry(jobs int) *ledger.Proposal {
	ingest, place, settle := new(ledger.Ingest), new(ledger.Place), new(ledger.Settle)
	at := time.Unix(1_700_000_000, 0)
	for i := range jobs {
		id := job.RecordID("lane", job.Position{Seq: uint64(i)}, at)
		ingest.Jobs = append(ingest.Jobs, job.Job{ID: id, Queue: "default", Function: "send", Position: job.Position{Lane: 1, Seq: uint64(i)}, Accepted: at, Priority: 5})
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 3, Channel: "overhop/worker-7"})
		settle.Settlements = append(settle.Settlements, ledger.Settlement{Job: id, N: 1, Next: job.NextDone})
	}
	return &ledger.Proposal{At: at, Epoch: 7, Commands: []ledger.Command{ingest, place, settle}}
}

func BenchmarkEncodeEntry(b *testing.B) {
	benchmarkEntry(b, func(p *ledger.Proposal, _ []byte) error { encodeEntry(p); return nil })
}

func BenchmarkDecodeEntry(b *testing.B) {
	benchmarkEntry(b, func(_ *ledger.Proposal, raw []byte) error { _, err := decodeEntry(raw); return err })
}

// benchmarkEntry calls step with entries of 64 jobs, as under load, and of 1,000, as after a
// disturbance.
func benchmarkEntry(b *testing.B, step func(p *ledger.Proposal, raw []byte) error) {
	for _, jobs := range []int{64, 1000} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			p := ingestEntry(jobs)
			raw := encodeEntry(p)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if err := step(p, raw); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*jobs), "ns/job")
		})
	}
}
