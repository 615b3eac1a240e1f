// Package procstat reads what the kernel reports about processes: processor time,
// memory, threads and open files.
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// PID is the id of any process on this machine. Its methods return 0 for values
// that the kernel does not, or no longer, report.
type PID int

// Self returns the id of this process.
func Self() PID { return PID(os.Getpid()) }

// clockTick is the unit of processor times in /proc, the same on every Linux.
const clockTick = 10 * time.Millisecond

// stat returns the fields of /proc/<pid>/stat from field 3 on, or nil if there is no
// such process.
func (p PID) stat() [][]byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	if err != nil {
		return nil
	}
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name may contain spaces
}

// CPU returns the processor time used by the process.
func (p PID) CPU() time.Duration { return p.ticks(11, 13) }

// TreeCPU returns the processor time used by the process and its descendants, including
// those that have exited and that their parents have waited for.
func (p PID) TreeCPU() (sum time.Duration) {
	for _, q := range p.Tree() {
		sum += q.ticks(11, 15)
	}
	return sum
}

// ticks returns the sum of the fields of stat from index from up to, but not including, end.
// Fields 11 and 12 are the user and system time of the process, 13 and 14 those of children
// that have exited.
func (p PID) ticks(from, end int) time.Duration {
	fields := p.stat()
	if len(fields) < end {
		return 0
	}
	var sum int64
	for _, field := range fields[from:end] {
		n, _ := strconv.ParseInt(string(field), 10, 64)
		sum += n
	}
	return time.Duration(sum) * clockTick
}

// StartTime returns the start time of the process, which distinguishes it from a later
// one with the same id. It returns "" if the process has exited, also if it is a zombie
// whose threads wait in the kernel.
func (p PID) StartTime() string {
	fields := p.stat()
	if len(fields) < 20 || string(fields[0]) == "Z" || string(fields[0]) == "X" {
		return ""
	}
	return string(fields[19])
}

// Exiting reports whether the process has exited, or is exiting while some of its
// threads wait in the kernel, for example for a disk. If the first thread waits, the
// process is not a zombie yet, but a SIGKILL is pending.
func (p PID) Exiting() bool {
	pending, _ := strconv.ParseUint(p.status("SigPnd"), 16, 64)
	return p.StartTime() == "" || pending&(1<<(syscall.SIGKILL-1)) != 0
}

// Memory returns the resident memory of the process (VmRSS) in bytes.
func (p PID) Memory() int64 { return p.number("VmRSS") << 10 }

// Threads returns the number of threads of the process.
func (p PID) Threads() int { return int(p.number("Threads")) }

// number returns a number from /proc/<pid>/status.
func (p PID) number(name string) int64 {
	n, _ := strconv.ParseInt(p.status(name), 10, 64)
	return n
}

// status returns the first word of a line of /proc/<pid>/status, "" if there is none.
func (p PID) status(name string) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
	if err != nil {
		return ""
	}
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	if fields := bytes.Fields(rest); len(fields) > 0 {
		return string(fields[0])
	}
	return ""
}

// Descriptors returns the number of open files and sockets of the process.
func (p PID) Descriptors() int {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p))
	if err != nil {
		return 0
	}
	return len(open)
}

// Children returns the child processes, including those that have exited and are not
// reaped.
func (p PID) Children() (children []PID) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p))
	for _, name := range lists {
		list, _ := os.ReadFile(name) // the thread may have ended
		for _, field := range bytes.Fields(list) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				children = append(children, PID(child))
			}
		}
	}
	return children
}

// Tree returns the process and all its descendants.
func (p PID) Tree() []PID {
	tree := []PID{p}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, tree[i].Children()...)
	}
	return tree
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
