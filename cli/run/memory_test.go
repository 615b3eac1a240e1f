package run

import (
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryLimit(t *testing.T) {
	const gib = 1 << 30
	none := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	for _, tt := range []struct {
		name            string
		machine, cgroup memlimit.Provider
		want            int64 // 0: unknown
	}{
		{"unknown", none, none, 0},
		{"machine", memlimit.Limit(4 * gib), none, 2 * gib},
		{"container", memlimit.Limit(4 * gib), memlimit.Limit(gib), gib / 2},
		{"container without machine", none, memlimit.Limit(gib), gib / 2},
		{"group above the machine's memory", memlimit.Limit(4 * gib), memlimit.Limit(64 * gib), 2 * gib},
		{"smallest", memlimit.Limit(gib), memlimit.Limit(gib / 2), gib / 4},
		{"below the minimum", memlimit.Limit(gib), memlimit.Limit(gib / 8), gib / 4},
	} {
		limit, known := memoryLimit(tt.machine, tt.cgroup)
		if known != (tt.want > 0) || known && limit != tt.want {
			t.Errorf("%s: %d bytes, known: %t; want %d", tt.name, limit, known, tt.want)
		}
	}
}

// TestMemoryLimit_OfThisMachine checks that the limit of the process is found where
// the tests run.
func TestMemoryLimit_OfThisMachine(t *testing.T) {
	if _, known := memoryLimit(memlimit.FromSystem, memlimit.FromCgroup); !known {
		t.Error("the memory of this machine is unknown")
	}
}
