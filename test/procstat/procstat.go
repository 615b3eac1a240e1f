// Package procstat reads what the kernel reports about processes: processor time,
// memory, threads and open files.
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// PID is the id of any process on this machine. Its methods return 0 for values
// that the kernel does not, or no longer, report.
type PID int

// Self returns the id of this process.
func Self() PID { return PID(os.Getpid()) }

// clockTick is the unit of processor times in /proc, the same on every Linux.
const clockTick = 10 * time.Millisecond

// CPU returns the processor time used by the process.
func (p PID) CPU() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	if err != nil {
		return 0
	}
	// The name may contain spaces; the fields after it begin with field 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * clockTick
}

// Memory returns the resident memory of the process (VmRSS) in bytes.
func (p PID) Memory() int64 { return p.status("VmRSS") << 10 }

// Threads returns the number of threads of the process.
func (p PID) Threads() int { return int(p.status("Threads")) }

// status returns a number from /proc/<pid>/status.
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

// Descriptors returns the number of open files and sockets of the process.
func (p PID) Descriptors() int {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p))
	if err != nil {
		return 0
	}
	return len(open)
}

// Children returns the number of child processes, including those that have exited
// and are not reaped.
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

// MachineCPU returns the processor time used by everything on this machine,
// including the kernel.
func MachineCPU() (sum time.Duration) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, field := range bytes.Fields(line) {
		// The fields are cpu user nice system idle iowait irq softirq steal, and
		// then guest times, which user includes.
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		ticks, _ := strconv.ParseInt(string(field), 10, 64)
		sum += time.Duration(ticks) * clockTick
	}
	return sum
}
