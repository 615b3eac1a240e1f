// Package command runs the commands of drills and benchmarks.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/program"
)

// failure is an error of what a command does, not of its command line.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// Fail returns err as a failure of what a command does, nil if err is nil.
func Fail(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err.Error()}
}

// Main runs a command and exits with 1 after an error of [Fail] and with 2 after another
// error. Its context ends with SIGINT and SIGTERM; a second signal kills the process.
func Main(command *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	command.SilenceErrors, command.SilenceUsage, command.CompletionOptions.DisableDefaultCmd = true, true, true
	err := command.ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", command.Name(), err)
	if errors.As(err, new(*failure)) {
		os.Exit(1)
	}
	os.Exit(2)
}

// Hidden returns a hidden command with one argument that run receives. A drill or a
// benchmark starts its own program with it.
func Hidden(use string, run func(context.Context, string) error) *cobra.Command {
	return &cobra.Command{Use: use, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return Fail(run(c.Context(), args[0])) }}
}

// With calls run with the path of the program, which it may build in a temporary
// directory.
func With(run func(path string) error) error {
	dir, err := os.MkdirTemp("", "yardmaster-program-")
	if err != nil {
		return Fail(fmt.Errorf("make a directory for the program: %w", err))
	}
	defer os.RemoveAll(dir)
	path, err := program.Find(dir)
	if err != nil {
		return Fail(err)
	}
	return run(path)
}
