// Package command has what the verbs of the command line have in common: their
// streams and connection, requests to a node, and tables and lists on standard
// output.
package command

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// Streams are the standard input, output and error of the program.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Program describes the executable that calls cli.Run.
type Program struct {
	Version string
	// File is the path of the executable. A node starts it again as the warden
	// of its runners. If File is empty there is no warden, and processes that
	// runners forked survive a killed node until its next start.
	File string
}

// Env is one execution of a command line, as its verb sees it.
type Env struct {
	Streams
	Program Program
	connect.Settings
	JSON bool // --json of the verb
}

// WithJSON adds the flag --json to c and returns c.
func (env *Env) WithJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&env.JSON, "json", "j", false, "show the reply as JSON")
	return c
}

// Query turns c into a verb that sends one request and prints the reply by table or,
// with --json, as JSON, and returns c. request returns the subject and the body of the
// request for the verb's arguments.
func Query[T any](env *Env, c *cobra.Command, table func(io.Writer, *T), request func(args []string) (subject string, body any)) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		subject, body := request(args)
		return Request(c.Context(), env, subject, body, table)
	}
	return env.WithJSON(c)
}

// Request sends one request and prints the reply as [Print] does.
func Request[T any](ctx context.Context, env *Env, subject string, request any, table func(io.Writer, *T)) error {
	reply, err := env.Send(ctx, subject, request)
	if err != nil {
		return err
	}
	return Print(env, reply, table)
}

// Pages sends a request for each page of a list, from the first on, and calls add with each
// page. add returns what the list continues after, "" after the last page. A page that
// continues where it began is the last one, too.
func Pages[T any](ctx context.Context, env *Env, subject string, add func(*T) (after string)) error {
	request := map[string]any{}
	for {
		page, err := connect.Decode[T](env.Send(ctx, subject, request))
		if err != nil {
			return err
		}
		after := add(&page)
		if after == "" || after == request["after"] {
			return nil
		}
		request["after"] = after
	}
}

// Group turns c into a command that only has subcommands, those in verbs, and returns
// c. Without an argument it shows its help; an unknown verb is a usage error.
func Group(c *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.DisableFlagsInUseLine = true
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return usererror.UnknownVerb(c, args[0])
	}
	c.AddCommand(verbs...)
	return c
}

// argNames matches the arguments in a Use line: "<job>", "[function]", "[job]...".
var argNames = regexp.MustCompile(`<[^>]+>(?:\.\.\.)?|\[[^\]]+\](?:\.\.\.)?`)

// CheckArgs returns a usage error if an argument is empty, or if their number is not that
// of the Use line of c, in which "[name]" is optional and "..." allows more.
func CheckArgs(c *cobra.Command, args []string) error {
	names := argNames.FindAllString(c.Use, -1)
	allowsMore := len(names) > 0 && strings.HasSuffix(names[len(names)-1], "...")
	if len(args) > len(names) && !allowsMore {
		return usererror.Usage(c, "%q is one argument too many", args[len(names)])
	}
	if len(args) < len(names) && names[len(args)][0] == '<' {
		return usererror.Usage(c, "%s is missing", strings.Trim(names[len(args)], "<>."))
	}
	if i := slices.Index(args, ""); i >= 0 {
		return usererror.Usage(c, "%s is empty", strings.Trim(names[min(i, len(names)-1)], "<>[]."))
	}
	return nil
}

// JobRequest returns the body of a request about one job. queue is that of a job that is
// named by its key; it may be "".
func JobRequest(id, queue string) map[string]any {
	request := map[string]any{"id": id}
	if queue != "" {
		request["queue"] = queue
	}
	return request
}
