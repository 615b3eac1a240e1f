package ledger

import (
	"strings"
	"testing"
)

// TestIDRing_Shortfall checks that the ledger is not ready while more ids were
// forgotten within the dedupe horizon than it can remember.
func TestIDRing_Shortfall(t *testing.T) {
	s := newScript(t)
	s.run("> lead n1 until=1000h")
	l := s.ledger
	reasons := func() string {
		return strings.Join(l.Snapshot(SnapshotContext{Now: l.Now()}).Readiness.Reasons, "\n")
	}
	g := l.jobs.forgotten
	for i := range 3 * slabSize {
		g.add(jobID(i), l.now)
	}
	g.size = MaxDedupeIDs - slabSize // as if it had that many
	if got := reasons(); got != "" {
		t.Fatalf("not ready although the ring is not full: %s", got)
	}
	g.size = MaxDedupeIDs + 1
	s.run("> pass @4m")
	if g.has(jobID(0)) || !g.has(jobID(slabSize)) {
		t.Fatal("only the oldest ids must be dropped")
	}
	const want = "keys of forgotten jobs are known for 4m0s, not for 10m0s: there are more than 9998976; publish no job again that is older"
	if got := reasons(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	s.run("> pass @9m59s")
	if reasons() == "" {
		t.Error("ready too early")
	}
	s.run("> pass @10m")
	if got := reasons(); got != "" {
		t.Errorf("not ready although the oldest id is old enough: %s", got)
	}
}

// TestReplay_MoreDamage checks that damage beyond maxDamage is counted.
func TestReplay_MoreDamage(t *testing.T) {
	r := replay{moreDamage: 3}
	if got := strings.Join(r.reasons(), ""); got != "the replay found damage in 3 more places; the authority's log names them" {
		t.Errorf("%q", got)
	}
}
