package logthrottle

import (
	"testing"
	"time"
)

func TestThrottle(t *testing.T) {
	var c Throttle
	at := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		after time.Duration
		n     uint64
		ok    bool
	}{
		{0, 1, true}, {time.Second, 0, false}, {3 * time.Second, 0, false},
		{Interval - 4*time.Second, 3, true}, {Interval, 1, true},
	} {
		at = at.Add(step.after)
		if n, ok := c.Allow(at); n != step.n || ok != step.ok {
			t.Errorf("at %s: %d, %v, want %d, %v", at, n, ok, step.n, step.ok)
		}
	}
}
