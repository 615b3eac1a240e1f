package ledger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

var limited = job.Guards{Rate: job.Guard{Key: job.GuardKey{'r'}, TTL: time.Second}}

// TestRefusals checks that a copy of a refused record is refused however many were decided since,
// until every lane was ingested past the time at which it was, and that a later call is decided
// again. Entries of an earlier level decide a copy again.
func TestRefusals(t *testing.T) {
	for _, level := range []uint8{level8 - 1, level8} {
		g := newGuardedTest(t, level)
		g.read(0, 1)
		g.enqueue(0, 0, limited)
		refused, d := g.enqueue(0, 1, limited)
		if d.Ingested != IngestedRateLimited {
			t.Fatalf("%+v", d)
		}
		again, d := g.enqueue(0, 2, limited)
		if d.Ingested != IngestedRateLimited {
			t.Fatalf("%+v", d)
		}
		for i := range 3 * slabSize {
			g.enqueue(0, 10+i, limited)
		}
		for range 60 {
			g.apply(time.Minute)
			g.read(0)
		}
		g.restore()
		want := IngestedRateLimited
		if level < level8 {
			want = IngestedWaiting
		}
		if d := g.copy(1, refused); d.Ingested != want {
			t.Errorf("level %d: a late copy is %s", level, ingestedNames[d.Ingested])
		}
		if level < level8 {
			continue
		}
		if n := g.ForgottenIDs().Count; n != recordIDs*(2+3*slabSize) {
			t.Errorf("the refusals count as %d ids", n)
		}
		again.Accepted = again.Accepted.Add(time.Hour)
		if d := g.copy(1, again); d.Ingested != IngestedWaiting {
			t.Errorf("a later call is %s", ingestedNames[d.Ingested])
		}
		if d := g.copy(0, again); d.Ingested != IngestedKnown {
			t.Errorf("its copy is %s", ingestedNames[d.Ingested])
		}
		g.read(1)
		for range 3*slabSize/maxPruned + 1 {
			g.apply(0)
		}
		if n := g.ForgottenIDs().Count; n != 0 || len(g.refused.byID) != 0 {
			t.Errorf("%d ids and %d refusals are kept beyond the horizon", n, len(g.refused.byID))
		}
		if err := checkInvariants(g.Ledger); err != nil {
			t.Error(err)
		}
	}
}

// TestRefusals_Bound checks that refusals slow down and stop the ingestion as ids do, and that the
// lanes that prevent them from being forgotten are ingested.
func TestRefusals_Bound(t *testing.T) {
	g := newGuardedTest(t, Level)
	g.read(0, 1)
	g.enqueue(0, 0, limited)
	g.enqueue(0, 1, limited)
	g.end(0)                                   // an id that is kept for a day
	g.refused.size += MaxDedupeIDs / recordIDs // as if it had that many
	check := func(when string, may ...bool) {
		t.Helper()
		for lane, want := range may {
			if g.MayIngest(uint8(lane)) != want {
				t.Errorf("%s: lane %d may be ingested: %t, want %t", when, lane, !want, want)
			}
		}
	}
	check("with young refusals", false, false)
	for range 12 {
		g.apply(time.Minute)
		g.read(0)
	}
	check("while lane 1 is not read", false, true)
	if w := g.ForgottenIDs().Warning(); !strings.Contains(w, "because lane 1 is ingested only up to") {
		t.Errorf("warning %q", w)
	}
	g.read(1)
	g.refused.size -= MaxDedupeIDs / recordIDs
	g.apply(0)
	check("when it was read", true, true)
	if g.refused.size != 0 {
		t.Errorf("%d refusals are kept", g.refused.size)
	}
}

// TestRefusals_Corrupt checks that a snapshot with an unknown result is refused.
func TestRefusals_Corrupt(t *testing.T) {
	g := newGuardedTest(t, Level)
	g.enqueue(0, 0, limited)
	g.enqueue(0, 1, limited)
	for _, ingested := range []Ingested{0, IngestedKeysFull + 1} {
		g.refused.slabs[0][0].ingested = ingested
		if _, err := Decode(strings.NewReader(string(encoded(t, g.Ledger)))); !errors.Is(err, errCorrupt) {
			t.Errorf("%d: %v", ingested, err)
		}
	}
}

// BenchmarkRefusals measures the memory of the id of a record that was refused, or merged.
func BenchmarkRefusals(b *testing.B) {
	const n = 1_000_000
	for range b.N {
		r, before := newRefusals(), heapInUse()
		for i := range n {
			r.add(refusal{int64(i), int64(i), benchID(i), IngestedRateLimited})
		}
		b.ReportMetric(float64(heapInUse()-before)/n, "bytes/refusal")
		g := newIndexedRing()
		before = heapInUse()
		for i := range n {
			id := benchID(i)
			g.index.add(g, &id, g.addAlias(id, 0, Alias{Job: benchID(n), Queue: "mail"}))
		}
		b.ReportMetric(float64(heapInUse()-before)/n, "bytes/alias")
		if r.size != g.size {
			b.Fatal(r.size, g.size)
		}
	}
}
