// Package freeport finds loopback ports that stay free until they are used.
//
// A port that a listener on port 0 was given and has closed again may be taken at
// any time, by an outgoing connection or by another process that does the same. The
// ports of this package are below the range from which Linux assigns such ports, and
// each process takes them from a block of its own. It holds the block by listening on
// its first port, so that the kernel frees the block when the process ends.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

const (
	firstPort = 10_000
	blockSize = 500
	blocks    = 44 // up to 31,999; the kernel's range begins at 32,768
)

// block is the block of this process.
var block struct {
	sync.Mutex
	listener net.Listener // on the first port; nil until a block is held
	first    int
	used     int // ports returned
}

// Addresses returns n free loopback addresses in the form "127.0.0.1:port". No other
// process receives them from this package while this process runs, and this process
// does not receive them again before the rest of its 499 ports have been returned. It
// returns an error if every block is held or fewer than n ports are free.
func Addresses(n int) ([]string, error) {
	block.Lock()
	defer block.Unlock()
	if block.listener == nil {
		if err := hold(); err != nil {
			return nil, err
		}
	}
	var free []string
	for range blockSize - 1 {
		if len(free) == n {
			break
		}
		address := loopback(block.first + 1 + block.used%(blockSize-1))
		block.used++
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		free = append(free, address)
	}
	if len(free) < n {
		return nil, fmt.Errorf("found only %d of %d free ports on 127.0.0.1 between %d and %d", len(free), n, block.first+1, block.first+blockSize-1)
	}
	return free, nil
}

// hold takes a block that no other process holds. The caller has locked block.
func hold() error {
	var last error
	for _, i := range rand.Perm(blocks) {
		first := firstPort + i*blockSize
		l, err := net.Listen("tcp", loopback(first))
		if err == nil {
			block.listener, block.first = l, first
			return nil
		}
		last = err
	}
	return fmt.Errorf("other processes hold all %d blocks of ports on 127.0.0.1 from %d on: %w", blocks, firstPort, last)
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
