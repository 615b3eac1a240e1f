package overhop

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent data may remain unacknowledged by the node's
// host before the connection is closed. Together with the interval of BEATs it
// is less than a lease, so that jobs can be moved to another node in time. A
// node that is slow or hangs is not affected, because its host acknowledges the
// data.
const userTimeout = 3 * time.Second

// setUserTimeout makes the kernel close a connection when the network to the
// node is interrupted. By default it would retransmit for a quarter of an hour.
func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
