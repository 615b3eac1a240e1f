// Command node is the binary yardmaster: nodes, workers, runners and the
// command line that talks to them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"yardmaster/cli"
)

// version is set by the linker.
var version = "0.0.0-dev"

func main() {
	args := os.Args[1:]
	if file, err := os.Executable(); err == nil && os.Getpid() == firstProcess && len(args) > 0 && args[0] == "node" {
		os.Exit(serveAsInit(file, args))
	}
	os.Exit(run(args))
}

// run carries out the command line and gives the exit code. The first signal
// asks what runs to stop; a second one ends the process.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	file, _ := os.Executable() // without it, a node does without what it needs it for
	return cli.Run(ctx, args, cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, cli.Program{Version: version, File: file})
}
