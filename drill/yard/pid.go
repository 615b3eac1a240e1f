package yard

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// PID is a process on this machine, ours or not. What the kernel does not tell
// of it, or no longer, is 0.
type PID int

// Self is this process.
func Self() PID { return PID(os.Getpid()) }

// clockTick is the kernel's unit in /proc/<pid>/stat, the same on every Linux.
const clockTick = 10 * time.Millisecond

// CPU is the processor time the process has used.
func (p PID) CPU() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	if err != nil {
		return 0
	}
	// The name may hold spaces; what follows it begins with field 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * clockTick
}

// Memory is what the process has in the machine's memory, in bytes (VmRSS).
func (p PID) Memory() int64 { return p.status("VmRSS") << 10 }

// Threads is how many the process has.
func (p PID) Threads() int { return int(p.status("Threads")) }

// status reads a number of /proc/<pid>/status.
func (p PID) status(name string) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return n
}

// Descriptors is how many files and sockets the process has open.
func (p PID) Descriptors() int {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p))
	if err != nil {
		return 0
	}
	return len(open)
}

// Children is how many processes it has started that are still there, or not
// reaped.
func (p PID) Children() (n int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p))
	if err != nil {
		return 0
	}
	for _, t := range tasks {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p, t.Name()))
		if err == nil {
			n += len(bytes.Fields(list))
		}
	}
	return n
}

// MachineCPU is the processor time that everything on this machine has used,
// with the kernel's own; 0 where the kernel does not tell.
func MachineCPU() (sum time.Duration) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, field := range bytes.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal, then guests,
		// which user has already.
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		ticks, _ := strconv.ParseInt(string(field), 10, 64)
		sum += time.Duration(ticks) * clockTick
	}
	return sum
}
