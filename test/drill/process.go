package drill

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Exiting reports whether the node's process has exited, or is a zombie whose
// threads wait in the kernel for a disk.
func (n *Node) Exiting() bool { return !n.Running() || statOf(n.PID()) == nil }

// statOf returns the fields of /proc/<pid>/stat from field 3 on, or nil if the
// process has exited.
func statOf(pid int) [][]byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The name may contain spaces.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || string(fields[0]) == "Z" || string(fields[0]) == "X" {
		return nil
	}
	return fields
}

// startTime returns the start time of a process, which distinguishes it from a later
// one with the same pid. It returns "" if the process has exited.
func startTime(pid int) string {
	if fields := statOf(pid); fields != nil {
		return string(fields[19])
	}
	return ""
}

// Tree returns the pids of the node's process and all its descendants.
func (n *Node) Tree() (pids []int, err error) {
	pids = []int{n.PID()}
	for i := 0; i < len(pids); i++ {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pids[i]))
		if err != nil {
			if i == 0 {
				return nil, fmt.Errorf("list the processes of %s: %w", n.Name, err)
			}
			continue // it has exited
		}
		for _, t := range tasks {
			list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pids[i], t.Name())) // it may have exited
			for _, text := range strings.Fields(string(list)) {
				if pid, err := strconv.Atoi(text); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids, nil
}
