package ledger

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// indexedRing is a ring whose ids are the only ones of an index.
type indexedRing struct {
	*idRing
	index *idIndex
}

func newIndexedRing() indexedRing { return indexedRing{new(idRing), newIDIndex()} }

func (g indexedRing) ids() int              { return g.size }
func (g indexedRing) has(place uint32) bool { return g.idAt(place) != nil }

func (g indexedRing) add(id job.ID, now int64, removed bool) {
	g.index.add(g, &id, g.idRing.add(id, now, removed))
}

func (g indexedRing) hasID(id job.ID) bool {
	_, ok := g.index.find(g, &id)
	return ok
}

func (g indexedRing) wasRemoved(id job.ID) bool {
	place, ok := g.index.find(g, &id)
	return ok && g.idRing.wasRemoved(place)
}

// TestIDRing compares a ring, through growth, trims and an encoding, with the ids that
// it must have.
func TestIDRing(t *testing.T) {
	const perSecond = 997
	g, random := newIndexedRing(), rand.New(rand.NewPCG(1, 2))
	added, removed, trimmed := 0, 0, int64(0)
	now := func() int64 { return int64(added/perSecond) * int64(time.Second) }
	check := func() {
		t.Helper()
		if g.size != added-removed {
			t.Fatalf("%d ids, want %d", g.size, added-removed)
		}
		for i := max(0, removed-5000); i < added+1000; i++ {
			if want := i >= removed && i < added; g.hasID(benchID(i)) != want {
				t.Fatalf("has(%d) is %t with ids %d to %d", i, !want, removed, added)
			}
			if want := i >= removed && i < added && i%3 == 0; g.wasRemoved(benchID(i)) != want {
				t.Fatalf("wasRemoved(%d) is %t", i, !want)
			}
		}
	}
	for round := range 12 {
		for range 5000 + random.IntN(20_000) {
			g.add(benchID(added), now(), added%3 == 0)
			added++
		}
		before := now() - int64(random.IntN(60))*int64(time.Second)
		g.trim(before)
		trimmed = max(trimmed, before)
		for len(g.slabs) > 0 && removed < added && g.slabs[0].ids[0] != benchID(removed) {
			removed++
		}
		if len(g.slabs) > 0 && g.slabs[0].at < before || removed > 0 && int64((removed-1)/perSecond)*int64(time.Second) >= trimmed {
			t.Fatalf("trimmed to id %d, before %s", removed, time.Duration(before))
		}
		check()
		if round == 6 {
			decoded := New()
			decoded.jobs.forgotten = g.idRing
			decoded = decodedCopy(t, decoded)
			g = indexedRing{decoded.jobs.forgotten, decoded.jobs.byID}
			check()
		}
	}
	for range 100 << shardBits {
		g.add(benchID(added), now(), added%3 == 0)
		added++
	}
	g.trim(now() + 1)
	removed = added
	check()
	before := largeShards(g)
	for range 4 << shardBits { // few shards get no id
		g.add(benchID(added), now(), added%3 == 0)
		added++
	}
	if after := largeShards(g); before < 50 || after > before/4 {
		t.Errorf("%d large shards after a peak, and %d after more ids", before, after)
	}
	check()
}

// largeShards returns how many shards have more slots than are kept when few ids are left.
func largeShards(g indexedRing) (n int) {
	for i := range g.index.shards {
		if len(g.index.shards[i].slots) > 64 {
			n++
		}
	}
	return n
}

// TestIDRing_FewIDs checks that few ids are forgotten as early as many, and that a ring
// that must not forget any does not fill up with short slabs.
func TestIDRing_FewIDs(t *testing.T) {
	g, minute := newIndexedRing(), int64(time.Minute)
	for i := range 20 {
		g.add(benchID(i), int64(i)*minute, false)
	}
	g.trim(10 * minute)
	if g.hasID(benchID(9)) || !g.hasID(benchID(10)) || g.size != 10 {
		t.Errorf("%d ids", g.size)
	}
	const n = 3 * maxShortSlabs
	for i := range n {
		g.add(benchID(20+i), int64(20+i)*minute, false)
	}
	if len(g.slabs) > maxShortSlabs+n/slabSize+1 {
		t.Errorf("%d slabs for %d ids", len(g.slabs), g.size)
	}
	if !g.hasID(benchID(10)) || !g.hasID(benchID(20+n-1)) {
		t.Error("an id is missing")
	}
}

// TestIDRing_SlabNumbersWrap checks that slots of removed ids are not taken for others
// when the numbers of slabs begin again.
func TestIDRing_SlabNumbersWrap(t *testing.T) {
	g := newIndexedRing()
	g.first = ^uint32(0) - 2
	for i := range 3 * maxSlabs {
		g.add(benchID(i), int64(i)*slabSpan, false) // one slab each
		g.trim(int64(i-10) * slabSpan)
		if !g.hasID(benchID(max(0, i-10))) || g.hasID(benchID(i-11)) || g.hasID(benchID(i+1)) {
			t.Fatalf("at %d: %d ids", i, g.size)
		}
	}
	if g.size != 11 {
		t.Errorf("%d ids", g.size)
	}
}

func decodedCopy(t *testing.T, l *Ledger) *Ledger {
	t.Helper()
	var buf bytes.Buffer
	if err := l.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	encoding := bytes.Clone(buf.Bytes())
	decoded, err := Decode(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if err := decoded.Encode(&buf); err != nil || !bytes.Equal(buf.Bytes(), encoding) {
		t.Fatalf("decoding changes the ledger: %v", err)
	}
	return decoded
}

// BenchmarkIDRing measures a ring of ten million ids: memory, and the time to look for,
// add and remove an id and to copy and decode the ring.
func BenchmarkIDRing(b *testing.B) {
	const n, perSecond = 10_000_000, 20_000
	ids := make([]job.ID, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	refill := func() {
		for i := range ids {
			_, _ = random.Read(ids[i][:])
		}
	}
	var add, has, turn, longest, copied, decode time.Duration
	var perID float64
	for range b.N {
		g := newIndexedRing()
		before, count := heapInUse(), 0
		at := func() int64 { return int64(count) * int64(time.Second) / perSecond }
		fill := func(total int, trim bool) (spent time.Duration) {
			for end := count + total; count < end; {
				refill()
				for i := 0; i < len(ids) && count < end; i += 64 {
					start := time.Now()
					for k := i; k < i+64 && count < end; k++ {
						g.add(ids[k], at(), k%100 == 0)
						count++
					}
					if trim {
						g.trim(at() - n/perSecond*int64(time.Second))
					}
					took := time.Since(start)
					spent += took
					longest = max(longest, took)
				}
			}
			return spent
		}
		add += fill(n, false)
		perID = float64(heapInUse()-before) / n
		refill()
		start := time.Now()
		for i := range ids {
			if g.hasID(ids[i]) {
				b.Fatal("an unknown id was found")
			}
		}
		has += time.Since(start)
		turn += fill(n, true)
		if g.size < n || g.size > n+2*slabSize {
			b.Fatalf("%d ids", g.size)
		}
		start = time.Now()
		c := g.copy()
		copied += time.Since(start)
		runtime.KeepAlive(c)
		l := New()
		l.jobs.forgotten = g.idRing
		var buf bytes.Buffer
		if err := l.Encode(&buf); err != nil {
			b.Fatal(err)
		}
		start = time.Now()
		if _, err := Decode(&buf); err != nil {
			b.Fatal(err)
		}
		decode += time.Since(start)
	}
	per := float64(b.N)
	b.ReportMetric(perID, "bytes/id")
	b.ReportMetric(float64(add.Nanoseconds())/per/n, "ns/add")
	b.ReportMetric(float64(turn.Nanoseconds())/per/n, "ns/add+trim")
	b.ReportMetric(float64(longest.Microseconds()), "µs-longest-64-adds")
	b.ReportMetric(float64(has.Nanoseconds())/per/float64(len(ids)), "ns/has")
	b.ReportMetric(float64(copied.Microseconds())/per, "µs/copy")
	b.ReportMetric(float64(decode.Milliseconds())/per, "ms/decode")
}

// TestReplay_MoreDamage checks that damage beyond maxDamage is counted.
func TestReplay_MoreDamage(t *testing.T) {
	r := replay{moreDamage: 3}
	if got := strings.Join(r.reasons(), ""); got != "the replay found damage in 3 more places; the authority's log names them" {
		t.Errorf("%q", got)
	}
}

// TestDecode_IDTwice checks that a snapshot in which an id is that of a job and forgotten, or
// forgotten twice, is refused: the index by id would find one of the two.
func TestDecode_IDTwice(t *testing.T) {
	for _, what := range []string{"once", "forgotten and a job", "forgotten twice"} {
		l, stamp := filledLedger(t, 1000)
		now, forgotten := stamp.At.UnixNano(), job.ID{15: 1}
		l.dispatches.jobs.forgotten.add(forgotten, now, false)
		switch what {
		case "forgotten and a job":
			l.dispatches.jobs.forgotten.add(benchJob(7).ID, now, false)
		case "forgotten twice":
			l.dispatches.jobs.forgotten.add(forgotten, now, false)
		}
		var snapshot bytes.Buffer
		if err := l.Encode(&snapshot); err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(&snapshot); errors.Is(err, errCorrupt) != (what != "once") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
