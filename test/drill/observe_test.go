package drill

import (
	"testing"
	"time"
)

// TestLives checks that a restart is detected even if the node is next polled after a
// longer uptime than it ever had before.
func TestLives(t *testing.T) {
	start := time.Unix(1000, 0)
	var l lives
	for _, step := range []struct {
		at     time.Duration
		uptime int64
		want   int
	}{
		{0, 4, 0},
		{1 * time.Second, 5, 0},
		{2 * time.Second, 8, 0}, // slow answer
		{4 * time.Second, 8, 0},
		{5 * time.Second, 0, 1},
		{8 * time.Second, 3, 1},
		{30 * time.Second, 20, 2}, // restarted
		{31 * time.Second, 21, 2},
	} {
		if got := l.count(start.Add(step.at), step.uptime); got != step.want {
			t.Errorf("at %v with an uptime of %d s: life %d, want %d", step.at, step.uptime, got, step.want)
		}
	}
}
