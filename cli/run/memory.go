package run

import (
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// minMemoryLimit is the smallest memory limit that is set, in bytes. With less, a
// node would spend all its time on garbage collection.
const minMemoryLimit = 256 << 20

// setMemoryLimit sets the memory limit of a node, if one is known and GOMEMLIMIT is not in
// the environment.
func setMemoryLimit() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, known := memoryLimit(memlimit.FromSystem, memlimit.FromCgroup); known {
		debug.SetMemoryLimit(limit)
	}
}

// memoryLimit returns the memory limit of a node, in bytes: half of the smallest limit
// that a source reports, but at least minMemoryLimit. known is false if no source
// reports a limit.
func memoryLimit(sources ...memlimit.Provider) (limit int64, known bool) {
	available := uint64(math.MaxUint64)
	for _, source := range sources {
		if bytes, err := source(); err == nil { // an error means that the source has no limit
			available, known = min(available, bytes), true
		}
	}
	return max(int64(available/2), minMemoryLimit), known
}
