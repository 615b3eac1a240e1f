// Command worker runs jobs of a yard over Overhop: a minimal but complete
// worker. Start a node, then
//
//	go run ./examples/worker --queue mail --credits 8
//	yardmaster enqueue mail echo --params '{"to":"ann"}' --wait
//
// The handlers are in package worker in the worker directory; copy it and
// replace them with your own.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/examples/worker/worker"
)

func main() {
	var o worker.Options
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	o.Flags(flags)
	flags.Parse(os.Args[1:]) // ends the program on an invalid flag

	// The first signal lets running jobs finish; a second one kills the
	// program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := worker.Run(ctx, o, slog.Default()); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}
