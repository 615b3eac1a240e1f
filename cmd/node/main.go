// Command node is the program yardmaster: nodes, workers, runners, and the
// command line for them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/cli"
)

// version is set by the linker.
var version = "0.0.0-dev"

func main() {
	args := os.Args[1:]
	if file, err := os.Executable(); err == nil && os.Getpid() == initPID && len(args) > 0 && args[0] == "node" {
		os.Exit(serveAsInit(file, args))
	}
	os.Exit(run(args))
}

// run executes the command line and returns the exit code. The first SIGINT or
// SIGTERM stops a running verb gracefully; the second one kills the process.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	file, _ := os.Executable() // without it a node runs without a warden
	return cli.Run(ctx, args, cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, cli.Program{Version: version, File: file})
}
