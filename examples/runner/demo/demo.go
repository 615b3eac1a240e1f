// Package demo is a runner with a handler for everything that can happen to a
// job: echo, sleep, fail, retry, crash, hang, big and hash.
//
// It is the reference for runners in Go, the built-in runner of the binary,
// and what the demo and the drills run. If the environment names a file in
// YARD_WITNESS, each handler's first act is to append a line to it,
//
//	<request id> <job id> <attempt> <fence>
//
// and to sync it to disk, and its last one to append "end <request id>": a
// witness, independent of the yard, of what was run.
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

	"yardmaster/runnerpool/rrq"
)

// SocketEnv names the socket when no --tcp-socket does.
const SocketEnv = "RRQ_RUNNER_TCP_SOCKET"

// WitnessEnv names the file that executions are witnessed in.
const WitnessEnv = "YARD_WITNESS"

// Main serves the handlers on the socket that args or the environment name,
// until ctx ends and the last handler has returned.
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

// loopback reads a socket. Only the node on the same host is to reach a
// runner: there is no password on this wire.
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
