package edge

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUpSocket tells that the other side sends nothing more, even if what it sent
// before is not read yet. It never waits. It is false where a connection is none
// of the system's.
func hungUpSocket(nc net.Conn) (gone bool) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(look, 0)
		gone = err == nil && n > 0
	})
	return gone || err != nil // closed by ourselves
}
