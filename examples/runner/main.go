// Command runner is an RRQ runner: a process with handlers that a node starts
// and sends requests to. To use it, configure a pool:
//
//	[rrq.runners.demo]
//	cmd = ["./runner"]
//	pool_size = 2
//	tcp_port = 9000
//
// The handlers are in package demo. A runner of your own needs a handler and
// rrq.Serve.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/examples/runner/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo.Main(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}
