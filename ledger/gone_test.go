package ledger

import (
	"strings"
	"testing"
)

// TestGone_Short: when more jobs are forgotten than ids can be remembered for
// the dedupe horizon, that is a reason not to be ready, and it passes.
func TestGone_Short(t *testing.T) {
	s := newScript(t)
	s.run("> lead n1 until=1000h")
	l := s.ledger
	reasons := func() string {
		return strings.Join(l.Snapshot(Surroundings{Now: l.Now()}).Readiness.Reasons, "\n")
	}
	g := l.jobs.gone
	for i := range 3 * slabSize {
		g.add(jobID(i), l.now)
	}
	g.size = DedupeMax - slabSize // as if as many were there
	if got := reasons(); got != "" {
		t.Fatalf("not full, and not ready: %s", got)
	}
	g.size = DedupeMax + 1
	s.run("> pass @4m")
	if g.has(jobID(0)) || !g.has(jobID(slabSize)) {
		t.Fatal("the oldest ids were to go, and no others")
	}
	const want = "keys of forgotten jobs are known for 4m0s, not for 10m0s: there are more than 9998976; publish no job again that is older"
	if got := reasons(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	s.run("> pass @9m59s")
	if reasons() == "" {
		t.Error("it passes too early")
	}
	s.run("> pass @10m")
	if got := reasons(); got != "" {
		t.Errorf("the oldest id is old enough: %s", got)
	}
}

// TestReplay_MoreDamage: what is not named is counted.
func TestReplay_MoreDamage(t *testing.T) {
	r := replay{more: 3}
	if got := strings.Join(r.reasons(), ""); got != "the replay found damage in 3 more places; the authority's log names them" {
		t.Errorf("%q", got)
	}
}
