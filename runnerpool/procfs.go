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

// errStranger tells of a port on which somebody else's process answers.
var errStranger = errors.New("another process listens on the runner's port")

// listener checks that every socket that listens on a loopback port belongs to
// process group pgid. Several nodes may live on one host, and a runner that
// did not get its port must not be taken for a neighbour's that did.
func listener(port, pgid int) error {
	inodes, err := listening(port)
	if err != nil {
		return fmt.Errorf("look for the listener of port %d: %w", port, err)
	}
	if len(inodes) == 0 {
		return fmt.Errorf("port %d: nobody listens any more", port)
	}
	held := make(map[string]bool)
	holdings(pgid, held) // mostly it is the leader that listens
	if !holdsAll(held, inodes) {
		for _, pid := range members(pgid) {
			holdings(pid, held)
		}
	}
	if !holdsAll(held, inodes) {
		return fmt.Errorf("port %d: %w; give each node and runner its own ports", port, errStranger)
	}
	return nil
}

func holdsAll(held map[string]bool, inodes []string) bool {
	return !slices.ContainsFunc(inodes, func(inode string) bool { return !held[inode] })
}

// listening lists the inodes of the sockets a connection to the IPv4 loopback
// could reach.
func listening(port int) ([]string, error) {
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
			// sl local_address rem_address st … uid timeout inode
			col := strings.Fields(lines.Text())
			if len(col) > 9 && col[3] == "0A" && strings.HasSuffix(col[1], suffix) && reachable(col[1]) {
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

// reachable tells a local address that takes connections for 127.0.0.1: the
// address itself, or a wildcard. The kernel writes words in host order.
func reachable(local string) bool {
	host, _, _ := strings.Cut(local, ":")
	b, err := hex.DecodeString(host)
	if err != nil {
		return false
	}
	loopback := bytes.Equal(b, []byte{1, 0, 0, 127}) || bytes.Equal(b, []byte{127, 0, 0, 1}) ||
		len(b) == 16 && strings.HasPrefix(host, "0000000000000000FFFF0000") && strings.HasSuffix(host, "0100007F")
	return loopback || len(bytes.Trim(b, "\x00")) == 0
}

// holdings adds the inodes of a process's sockets to held.
func holdings(pid int, held map[string]bool) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the process has ended, or is not ours to look into
	}
	for _, e := range entries {
		link, err := os.Readlink(dir + "/" + e.Name())
		if inode, ok := strings.CutPrefix(link, "socket:["); ok && err == nil {
			held[strings.TrimSuffix(inode, "]")] = true
		}
	}
}

// members lists the living processes of a group.
func members(pgid int) []int {
	var pids []int
	for pid, s := range processes() {
		if s.group == pgid && s.state != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes walks over all processes that can be seen from here.
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
			if s, ok := stat(pid); ok && !yield(pid, s) {
				return
			}
		}
	}
}

// procStat is what is read of /proc/<pid>/stat.
type procStat struct {
	state byte
	group int
	start uint64 // ticks since boot: with the pid it names a process for good
}

func stat(pid int) (procStat, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	// The second field is the program's name in parentheses, and may hold
	// anything: count from the last one.
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return procStat{}, false
	}
	col := strings.Fields(string(b[at+1:]))
	if len(col) < 20 {
		return procStat{}, false
	}
	group, groupErr := strconv.Atoi(col[2])
	start, startErr := strconv.ParseUint(col[19], 10, 64)
	return procStat{state: col[0][0], group: group, start: start}, groupErr == nil && startErr == nil
}
