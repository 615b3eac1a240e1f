package runnerpool

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
)

// errForeignListener means that a process outside the runner's group listens on
// its port.
var errForeignListener = errors.New("another process listens on the runner's port")

// checkListener checks that every socket listening on a loopback port belongs
// to process group pgid. Several nodes may share a host, and the process of
// another node that has the port must not be used as the runner.
func checkListener(port, pgid int) error {
	inodes, err := listeningInodes(port)
	if err != nil {
		return fmt.Errorf("look for the listener of port %d: %w", port, err)
	}
	if len(inodes) == 0 {
		return fmt.Errorf("port %d: nothing listens any more", port)
	}
	owned := make(map[string]bool) // inodes of the group's sockets
	addSocketInodes(pgid, owned)   // usually the leader listens
	if !containsAll(owned, inodes) {
		for _, pid := range groupMembers(pgid) {
			addSocketInodes(pid, owned)
		}
	}
	if !containsAll(owned, inodes) {
		return fmt.Errorf("port %d: %w; give each node and runner its own ports", port, errForeignListener)
	}
	return nil
}

func containsAll(set map[string]bool, inodes []string) bool {
	return !slices.ContainsFunc(inodes, func(inode string) bool { return !set[inode] })
}

// listeningInodes returns the inodes of the listening sockets that a connection
// to the port on the IPv4 loopback could reach.
func listeningInodes(port int) ([]string, error) {
	const listening = "0A" // TCP_LISTEN
	suffix := fmt.Sprintf(":%04X", port)
	var inodes []string
	for _, table := range [...]string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6 here
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if !bytes.Contains(lines.Bytes(), []byte(suffix)) {
				continue // there may be thousands of connections
			}
			// sl local_address rem_address st … uid timeout inode
			col := strings.Fields(lines.Text())
			if len(col) > 9 && col[3] == listening && strings.HasSuffix(col[1], suffix) && acceptsLoopback(col[1]) {
				inodes = append(inodes, col[9])
			}
		}
		err = errors.Join(lines.Err(), f.Close())
		if err != nil {
			return nil, err
		}
	}
	return inodes, nil
}

// acceptsLoopback reports whether a socket with the local address, in hex as in
// /proc/net/tcp and tcp6, accepts connections to 127.0.0.1: it is that address,
// its IPv4-mapped form, or a wildcard. The kernel writes words in host order.
func acceptsLoopback(local string) bool {
	host, _, _ := strings.Cut(local, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return false
	}
	loopback := bytes.Equal(b, []byte{1, 0, 0, 127}) || bytes.Equal(b, []byte{127, 0, 0, 1}) ||
		len(b) == 16 && strings.HasPrefix(host, "0000000000000000FFFF0000") && strings.HasSuffix(host, "0100007F")
	return loopback || len(bytes.Trim(b, "\x00")) == 0
}

// addSocketInodes adds the inodes of a process's sockets to set.
func addSocketInodes(pid int, set map[string]bool) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the process has ended or cannot be inspected
	}
	for _, e := range entries {
		link, err := os.Readlink(dir + "/" + e.Name())
		if inode, ok := strings.CutPrefix(link, "socket:["); ok && err == nil {
			set[strings.TrimSuffix(inode, "]")] = true
		}
	}
}

// groupMembers returns the living processes of a group.
func groupMembers(pgid int) []int {
	var pids []int
	for pid, s := range processes() {
		if s.group == pgid && s.state != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes iterates over all visible processes.
func processes() iter.Seq2[int, procStat] {
	return func(yield func(int, procStat) bool) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if s, ok := readStat(pid); ok && !yield(pid, s) {
				return
			}
		}
	}
}

// procStat holds fields of /proc/<pid>/stat.
type procStat struct {
	state byte
	group int
	start uint64 // ticks since boot; unique together with the pid
}

// readStat returns the status of a process, and false if the process does not
// exist or its status cannot be read.
func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	// The second field is the program's name in parentheses, which may contain
	// any character: the fields are counted from the last parenthesis.
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return procStat{}, false
	}
	col := strings.Fields(string(b[at+1:])) // from the third field, the state
	if len(col) < 20 {
		return procStat{}, false
	}
	group, groupErr := strconv.Atoi(col[2])               // pgrp
	start, startErr := strconv.ParseUint(col[19], 10, 64) // starttime
	return procStat{state: col[0][0], group: group, start: start}, groupErr == nil && startErr == nil
}
