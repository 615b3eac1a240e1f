package drill

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

func TestLongest(t *testing.T) {
	moments := []int64{10, 20, 70, 80, 200}
	for _, c := range []struct {
		from, til int64
		want      time.Duration
	}{
		{15, 100, 120}, // the gap from 80 to 200 begins within
		{15, 75, 50},   // the gap from 20 to 70
		{0, 20, 10},
		{75, 80, 10},
		{200, 300, 120}, // the gap ends at the begin of the range
		{201, 300, 0},
	} {
		if got := longest(moments, c.from, c.til); got != c.want {
			t.Errorf("from %d to %d: %d, want %d", c.from, c.til, got, c.want)
		}
	}
	if got := longest(nil, 0, 100); got != 0 {
		t.Errorf("without moments: %d", got)
	}
}

func TestSpread(t *testing.T) {
	var times []time.Duration
	for i := range 200 {
		times = append(times, time.Duration(200-i)*time.Millisecond)
	}
	if got := spread(times); got != (Spread{100, 198, 200}) {
		t.Errorf("%+v", got)
	}
	if got := spread(times[:3]); got != (Spread{199, 200, 200}) {
		t.Errorf("of three values: %+v", got)
	}
}

// TestPlay_Skips checks that a drill that fails, and one whose requirements are missing,
// are reported and do not count as kept.
func TestPlay_Skips(t *testing.T) {
	o := Options{Dir: t.TempDir(), Binary: "/nowhere", Seed: 7}
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir()) // has none of the programs that simulate hosts
	r := Play(t.Context(), o, Drill{Number: 1, Name: "rare", Plan: Layout{SeparateHosts: true}})
	if r.Ended != Skipped || !strings.HasPrefix(r.Skipped, "network namespaces: ") {
		t.Errorf("%+v", r)
	}
	t.Setenv("PATH", path)
	broken := Play(t.Context(), o, Drill{Number: 1, Name: "shut", StartsStopped: true, Run: func(s *Harness) {
		s.Require(true, "kept")
		s.Require(false, "%d promises", 1)
		must.Do(errors.New("cannot continue"))
	}})
	if broken.Ended != NotRun || fmt.Sprint(broken.Broken) != "[1 promises]" || !strings.Contains(broken.Unplayed, "cannot continue") {
		t.Errorf("%+v", broken)
	}
	untried := Report{Number: 2, Drill: "late", Ended: NotTried, Untried: []string{"no moment came"}}
	sum := Summary{Drills: []Report{r, untried}}
	if !sum.Good() {
		t.Error("a drill that was skipped or not tried counts as broken")
	}
	sum.Drills = append(sum.Drills, broken)
	if sum.Good() {
		t.Error("a drill that failed counts as good")
	}
	var text strings.Builder
	if err := sum.WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 1 | rare |", "skipped: network namespaces: ", "| not tried |", "not tried: no moment came", "PROMISE BROKEN: 1 promises", "could not be completed: cannot continue"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing from\n%s", want, text.String())
		}
	}
}

// TestHarness_Seed checks that the same seed leads to the same schedule.
func TestHarness_Seed(t *testing.T) {
	schedule := func(seed uint64) (times []time.Duration) {
		Play(t.Context(), Options{Dir: t.TempDir(), Binary: "/nowhere", Seed: seed}, Drill{Number: 3, Name: "rnd", StartsStopped: true,
			Run: func(s *Harness) {
				for range 20 {
					times = append(times, s.RandDuration(time.Second, 9*time.Second))
				}
				must.Do(errors.New("enough"))
			}})
		return times
	}
	if a, b := schedule(5), schedule(5); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%v, %v", a, b)
	}
	if a, b := schedule(5), schedule(6); fmt.Sprint(a) == fmt.Sprint(b) {
		t.Errorf("%v", a)
	}
}
