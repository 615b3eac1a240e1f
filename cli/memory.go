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

// nodeGCPercent is the GOGC of a node. A node allocates much and keeps little;
// with the default of 100, marking took a sixth of its CPU time under load. A
// GOGC in the environment takes precedence.
const nodeGCPercent = 400

// minMemoryLimit is the smallest memory limit that is set, in bytes. With less, a
// node would spend all its time on garbage collection.
const minMemoryLimit = 256 << 20

// tuneMemory configures the garbage collector for a node: collections are rare
// until memory use approaches half of the available memory. GOGC and GOMEMLIMIT
// in the environment take precedence.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(nodeGCPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		if available, known := availableMemory(os.DirFS("/")); known {
			debug.SetMemoryLimit(memoryLimit(available))
		}
	}
}

// memoryLimit returns the memory limit of a node, in bytes.
func memoryLimit(available int64) int64 { return max(available/2, minMemoryLimit) }

// availableMemory returns how much memory this process may use, in bytes: the
// memory of the machine or the smallest limit of its control groups. known is
// false if root has no Linux /proc.
func availableMemory(root fs.FS) (available int64, known bool) {
	available = math.MaxInt64
	for line := range lines(root, "proc/meminfo") { // MemTotal:  4032712 kB
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				available = n << 10
			}
		}
	}
	for line := range lines(root, "proc/self/cgroup") { // 0::/a/b or 9:cpu,memory:/a/b
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) < 3:
		case f[1] == "":
			available = min(available, cgroupLimit(root, "sys/fs/cgroup", f[2], "memory.max"))
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			available = min(available, cgroupLimit(root, "sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes"))
		}
	}
	return available, available < math.MaxInt64
}

// cgroupLimit returns the smallest limit of a control group and its ancestors, in
// bytes, or math.MaxInt64 without a limit. It ignores groups whose files cannot be
// read, such as the ancestors of a container's group.
func cgroupLimit(root fs.FS, top, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		for line := range lines(root, path.Join(top, group, file)) { // "max" does not parse
			if n, err := strconv.ParseInt(line, 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if group == "/" {
			return limit
		}
	}
}

// lines returns an iterator over the trimmed lines of a file. It is empty if the
// file cannot be read.
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
