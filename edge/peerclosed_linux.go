package edge

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerClosed reports whether the peer has closed its side of nc, even if data
// it sent before is unread. It does not block. It returns false for a
// connection that is not a socket.
func peerClosed(nc net.Conn) (closed bool) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		closed = err == nil && n > 0
	})
	return closed || err != nil // the socket is closed on this side
}

// receivedAll reports whether the peer's host has acknowledged everything that
// was written to nc. A connection that is not a socket has no send buffer.
func receivedAll(nc net.Conn) (all bool) {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		all = err == nil && left == 0
	})
	return all && err == nil
}
