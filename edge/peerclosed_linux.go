package edge

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerClosed reports whether either side has closed the connection. It does not
// block, and detects that the peer has closed its side even if data that the
// peer sent before is unread. It returns false for a connection that is not a
// socket.
func peerClosed(netConn net.Conn) bool {
	closed := false
	isSocket, err := withDescriptor(netConn, func(fd int) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(poll, 0)
		closed = err == nil && n > 0
	})
	return isSocket && (closed || err != nil)
}

// receivedAll reports whether the peer's host has acknowledged everything that
// was written to the connection. A connection that is not a socket has no send
// buffer.
func receivedAll(netConn net.Conn) bool {
	all := false
	isSocket, err := withDescriptor(netConn, func(fd int) {
		unacknowledged, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		all = err == nil && unacknowledged == 0
	})
	return !isSocket || all && err == nil
}

// withDescriptor calls f with the file descriptor of a connection that is a
// socket. The error means that the socket is closed on this side.
func withDescriptor(netConn net.Conn, f func(fd int)) (isSocket bool, err error) {
	socket, ok := netConn.(syscall.Conn)
	if !ok {
		return false, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true, err
	}
	return true, raw.Control(func(fd uintptr) { f(int(fd)) })
}
