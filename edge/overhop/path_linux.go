package overhop

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unreached is how long what was sent may stay unconfirmed by the node's host
// before the connection is given up. Together with the time between two BEATs
// it is less than a lease: the jobs in hand are brought to another node in time.
// A node that is slow, or stands still, does not matter here: its host confirms.
const unreached = 3 * time.Second

// watchPath has the kernel give up a connection whose way to the node is cut
// although both ends live; by itself it would try for a quarter of an hour.
func watchPath(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unreached.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
