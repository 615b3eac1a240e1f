package catalogue

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// connectionOf finds the connection of a process to the Overhop listener of a node.
// It returns the node and the local port.
func connectionOf(s *drill.Harness, pid int) (*drill.Node, uint16, error) {
	sockets := make(map[string]bool) // inodes
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, 0, fmt.Errorf("read the sockets of a worker: %w", err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil && strings.HasPrefix(to, "socket:[") {
			sockets[strings.Trim(to, "socket:[]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		return nil, 0, fmt.Errorf("read the sockets of a worker: %w", err)
	}
	const established = "01"
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != established || !sockets[f[9]] {
			continue
		}
		local, err1 := socketAddress(f[1])
		remote, err2 := socketAddress(f[2])
		if err1 != nil || err2 != nil {
			continue
		}
		for _, n := range s.Nodes {
			if n.Edge == remote.String() {
				return n, local.Port(), nil
			}
		}
	}
	return nil, 0, fmt.Errorf("process %d has no connection to a node", pid)
}

// socketAddress parses an address in the kernel's format: "0100007F:1F90".
func socketAddress(text string) (a netip.AddrPort, err error) {
	host, port, _ := strings.Cut(text, ":")
	h, err := hex.DecodeString(host)
	if err != nil || len(h) != 4 {
		return a, fmt.Errorf("malformed address %q", text)
	}
	p, err := hex.DecodeString(port)
	if err != nil || len(p) != 2 {
		return a, fmt.Errorf("malformed address %q", text)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{h[3], h[2], h[1], h[0]}), binary.BigEndian.Uint16(p)), nil
}
