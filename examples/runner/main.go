// Command runner is an RRQ runner: a process of handlers that a yard's node
// starts and feeds. Point a pool at it:
//
//	[rrq.runners.demo]
//	cmd = ["./runner"]
//	pool_size = 2
//	tcp_port = 9000
//
// Everything of interest is in package demo; a runner of your own needs a
// handler and rrq.Serve.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"yardmaster/examples/runner/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo.Main(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}
