// Package program is the program yardmaster: nodes, workers, runners, and the command line
// for them.
package program

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/cli"
)

// Main runs the program with the arguments of the process and exits. version is the version of
// the build; if it is "", Main uses the version of the module, which "go install" records.
func Main(version string) {
	args := os.Args[1:]
	if file, err := os.Executable(); err == nil && os.Getpid() == initPID && len(args) > 0 && args[0] == "node" {
		os.Exit(serveAsInit(file, args))
	}
	if version == "" {
		version = moduleVersion()
	}
	os.Exit(run(args, version))
}

// moduleVersion returns the version of the module that "go install" has built, such as "v1.2.0";
// "0.0.0-dev" for other builds.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.0.0-dev"
}

// run executes the command line and returns the exit code. The first SIGINT or
// SIGTERM stops a running verb gracefully; the second one kills the process.
func run(args []string, version string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	file, _ := os.Executable() // without it a node runs without a warden
	return cli.Run(ctx, args, cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, cli.Program{Version: version, File: file})
}
