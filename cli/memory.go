package cli

import (
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// A node trades memory for time, and has to know where that ends.

// nodeGC is how much garbage a node lets gather, in percent of what it keeps:
// it allocates much and keeps little, and at the default of 100 marking took a
// sixth of its time under load. GOGC in the environment wins.
const nodeGC = 400

// leastMemory is the smallest limit that is set, in bytes: below it a node
// would do nothing but collect.
const leastMemory = 256 << 20

// tuneMemory sets how a node collects its garbage: rarely, but more often the
// nearer it comes to half of the memory there is. What the environment says wins.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(nodeGC)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		if there, known := memoryThere(os.DirFS("/")); known {
			debug.SetMemoryLimit(memoryLimit(there))
		}
	}
}

// memoryLimit is a node's share of the memory there is, in bytes.
func memoryLimit(there int64) int64 { return max(there/2, leastMemory) }

// memoryThere is how much memory this process may use, in bytes: what the
// machine has, or what a control group leaves of it. It is not known where root
// does not say it as Linux does.
func memoryThere(root fs.FS) (there int64, known bool) {
	there = math.MaxInt64
	for line := range lines(root, "proc/meminfo") { // MemTotal:  4032712 kB
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				there = n << 10
			}
		}
	}
	for line := range lines(root, "proc/self/cgroup") { // 0::/a/b or 9:cpu,memory:/a/b
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) < 3:
		case f[1] == "":
			there = min(there, groupMemory(root, "sys/fs/cgroup", f[2], "memory.max"))
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			there = min(there, groupMemory(root, "sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes"))
		}
	}
	return there, there < math.MaxInt64
}

// groupMemory is the smallest limit of a control group and of those it lies
// in, in bytes. Groups that cannot be seen from here, as from a container, do
// not count; the container's own is then the topmost.
func groupMemory(root fs.FS, top, group, file string) int64 {
	least := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		for line := range lines(root, path.Join(top, group, file)) { // "max" is no number
			if n, err := strconv.ParseInt(line, 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
		}
		if group == "/" {
			return least
		}
	}
}

// lines are those of a file; none if it cannot be read.
func lines(root fs.FS, name string) func(yield func(string) bool) {
	text, _ := fs.ReadFile(root, name)
	return func(yield func(string) bool) {
		for line := range bytes.Lines(text) {
			if !yield(string(bytes.TrimSpace(line))) {
				return
			}
		}
	}
}
