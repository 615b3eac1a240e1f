package seldom

import (
	"testing"
	"time"
)

func TestCounter(t *testing.T) {
	var c Counter
	at := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		after time.Duration
		n     uint64
		say   bool
	}{
		{0, 1, true}, {time.Second, 0, false}, {3 * time.Second, 0, false},
		{Pause - 4*time.Second, 3, true}, {Pause, 1, true},
	} {
		at = at.Add(step.after)
		if n, say := c.Again(at); n != step.n || say != step.say {
			t.Errorf("at %s: %d, %v, want %d, %v", at, n, say, step.n, step.say)
		}
	}
}
