// Command worker runs jobs of a yard over Overhop's TCP protocol: the smallest
// whole worker there is. Start a node, then
//
//	go run ./examples/worker --queue mail --credits 8
//	yardmaster enqueue mail echo --params '{"to":"ann"}' --wait
//
// What a job means is in package worker beside this file; copy that and put
// your own handlers into its table.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"yardmaster/examples/worker/worker"
)

func main() {
	var o worker.Options
	flags := flag.NewFlagSet("worker", flag.ExitOnError)
	o.Flags(flags)
	flags.Parse(os.Args[1:]) // ends the program itself on a wrong flag

	// The first signal lets jobs in hand finish; a second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := worker.Run(ctx, o, slog.Default()); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}
