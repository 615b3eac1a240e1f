// Package demo is an RRQ runner with handlers for everything that can happen to
// a job: echo, sleep, fail, retry, crash, hang, big and hash.
//
// It is the reference for runners in Go, the runner built into the yardmaster
// program, and used by the demo and the drills. If the environment variable
// YARD_WITNESS names a file, each handler begins by appending a line to it,
//
//	<dispatch id> <job id> <attempt> <fence>
//
// and syncing it to disk, and ends by appending "end <dispatch id>". The file is
// a record of what was run that does not depend on the yard.
package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// SocketEnv is the environment variable with the default of --tcp-socket.
const SocketEnv = "RRQ_RUNNER_TCP_SOCKET"

// WitnessEnv is the environment variable with the path of the witness file.
const WitnessEnv = "YARD_WITNESS"

// Main serves the handlers on the socket given by args or the environment. It
// returns when ctx has ended and the last handler has returned.
func Main(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("runner", flag.ContinueOnError)
	socket := flags.String("tcp-socket", os.Getenv(SocketEnv), "loopback `host:port` to listen on; default $"+SocketEnv)
	if err := flags.Parse(args); err != nil {
		return err
	}
	addr, err := loopback(*socket)
	if err != nil {
		return err
	}
	w, err := openWitness(os.Getenv(WitnessEnv))
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr.String())
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	return errors.Join(rrq.Serve(ctx, ln, w.handle), w.close())
}

// loopback parses a socket address. It must be on the loopback, because the
// protocol has no authentication.
func loopback(socket string) (netip.AddrPort, error) {
	if socket == "" {
		return netip.AddrPort{}, errors.New("no socket given; start it from a runner pool, or with --tcp-socket 127.0.0.1:9000")
	}
	if rest, ok := strings.CutPrefix(socket, "localhost:"); ok {
		socket = "127.0.0.1:" + rest
	}
	addr, err := netip.ParseAddrPort(socket)
	if err != nil || addr.Port() == 0 {
		return addr, fmt.Errorf("socket %q is not host:port with a port from 1 to 65535", socket)
	}
	if !addr.Addr().IsLoopback() {
		return addr, fmt.Errorf("socket %s is not on the loopback; use 127.0.0.1", socket)
	}
	return addr, nil
}
