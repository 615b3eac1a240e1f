package lanes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPressureOf(t *testing.T) {
	const ms = time.Millisecond
	half, most, full := Fill{50, 100}, Fill{86, 100}, Fill{100, 100}
	for _, tt := range []struct {
		name         string
		load         Load
		delay, large time.Duration
		refused      bool
		causes       []string
	}{
		{"no load", Load{}, 0, 0, false, nil},
		{"tolerated lag", Load{Lag: 250 * ms, Records: 9000}, 0, 0, false, nil},
		{"some lag", Load{Lag: 450 * ms, Records: 9000}, 100 * ms, 100 * ms, false, []string{"9000 wait, the oldest for 500ms"}},
		{"an election", Load{Lag: 10 * time.Second}, MaxAckDelay, MaxAckDelay, false, []string{"faster than"}},
		{"too much lag", Load{Lag: RefuseLag}, MaxAckDelay, MaxAckDelay, true, []string{"'yardmaster status' names the reason"}},
		{"streams half full", Load{Lane: half, Bodies: half, IDs: most}, 0, 0, false, nil},
		{"lane filling", Load{LaneNumber: 3, Lane: most}, 640 * ms, 640 * ms, false, []string{"lane 3 is 86 % full of jobs that have not ended: add workers"}},
		{"lane full", Load{Lane: full}, MaxAckDelay, MaxAckDelay, false, []string{"100 % full"}},
		{"bodies filling", Load{Bodies: most}, 0, 640 * ms, false, []string{"large bodies is 86 % full"}},
		{"ids at the bound", Load{IDs: full}, MaxAckDelay, MaxAckDelay, false, []string{"100 % of the ids"}},
		{"unknown bound", Load{Lane: Fill{Used: 1 << 40}}, 0, 0, false, nil},
		{"two causes", Load{Lag: 450 * ms, Lane: most}, 640 * ms, 640 * ms, false, []string{"faster than", "86 % full"}},
	} {
		p := PressureOf(tt.load)
		if !near(p.Delay, tt.delay) || !near(p.LargeDelay, tt.large) || (p.Refusal != "") != tt.refused {
			t.Errorf("%s: delays %s and %s, refusal %q", tt.name, p.Delay, p.LargeDelay, p.Refusal)
		}
		if !slices.EqualFunc(p.Causes, tt.causes, strings.Contains) || len(p.Warnings()) != len(tt.causes) {
			t.Errorf("%s: causes %q, warnings %q", tt.name, p.Causes, p.Warnings())
		}
	}
}

// near reports whether two durations are equal but for rounding.
func near(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond }

// TestPressureOf_Properties checks that nothing is delayed at a low load, that a delay is
// within its bound and never falls as a load rises, and that it rises more slowly than time
// passes: otherwise no job would be acknowledged while the lag grows.
func TestPressureOf_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fill := func(name string) Fill {
			return Fill{rapid.Uint64Range(0, 120).Draw(t, name), rapid.SampledFrom([]uint64{0, 100}).Draw(t, name+" bound")}
		}
		load := Load{Lag: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "lag")), Lane: fill("lane"), Bodies: fill("bodies"), IDs: fill("ids")}
		p := PressureOf(load)
		lowStreams := load.Lane.share() <= 0.5 && load.Bodies.share() <= 0.5
		if load.Lag <= 250*time.Millisecond && lowStreams && load.IDs.share() <= 0.9 && p.LargeDelay != 0 {
			t.Fatalf("delayed by %s at a low load", p.LargeDelay)
		}
		if p.Delay < 0 || p.LargeDelay < p.Delay || p.LargeDelay > MaxAckDelay {
			t.Fatalf("delays %s and %s", p.Delay, p.LargeDelay)
		}
		if (p.LargeDelay > 0) != (len(p.Causes) > 0) || p.Refusal != "" && p.Delay != MaxAckDelay {
			t.Fatalf("%+v", p)
		}
		more := load
		step := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "step"))
		more.Lag += step
		if rise := PressureOf(more).Delay - p.Delay; rise < 0 || rise > step/2+1 {
			t.Fatalf("the delay rises by %s while the lag rises by %s", rise, step)
		}
	})
}

func TestIngestLag(t *testing.T) {
	began := time.Now()
	var l ingestLag
	for i, step := range []struct {
		at             time.Duration
		last, ingested uint64
		want           time.Duration
	}{
		{0, 10, 10, 0},
		{1, 20, 10, 0}, // new records, just stored
		{2, 30, 10, 1},
		{5, 30, 19, 4},
		{6, 30, 20, 4}, // those of the second sample are left
		{7, 30, 30, 0},
		{8, 40, 45, 0}, // the ledger is ahead of what the node has seen
		{9, 50, 45, 0},
		{12, 50, 45, 3},
		{13, 5, 0, 0}, // another stream
		{14, 5, 0, 1},
	} {
		if got := l.observe(began.Add(step.at*time.Second), step.last, step.ingested); got != step.want*time.Second {
			t.Errorf("step %d: %s, want %d s", i, got, step.want)
		}
	}
	for i := range uint64(5000) { // a lane that is never ingested
		l.observe(began.Add(time.Hour+time.Duration(i)*TickInterval), 6+i, 0)
	}
	if len(l.samples) > maxSamples {
		t.Errorf("%d samples", len(l.samples))
	}
}
