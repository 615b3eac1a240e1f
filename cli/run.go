package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"

	"yardmaster/edge/overhop"
	"yardmaster/examples/runner/demo"
	"yardmaster/examples/worker/worker"
	"yardmaster/job"
	"yardmaster/node"
	"yardmaster/runnerpool"

	"github.com/spf13/cobra"
)

// The verbs that run until they are stopped.

// nodeFlags are the flags that override one key of the configuration, by the
// environment variable that does the same: a flag is the shortest way to say
// what a variable says, and wins over it.
var nodeFlags = []struct{ flag, variable, help string }{
	{"name", "YARD_NODE_NAME", "`name` of this member"},
	{"data-dir", "YARD_NODE_DATA_DIR", "`directory` of everything the node keeps"},
	{"nats-listen", "YARD_NATS_LISTEN", "`host:port` for NATS clients"},
	{"http-listen", "YARD_HTTP_LISTEN", "`host:port` for HTTP clients, or off"},
	{"raft-listen", "YARD_RAFT_LISTEN", "`host:port` for the other members' Raft"},
	{"edge-listen", "", "`host:port` for Overhop workers"},
	{"log-level", "YARD_NODE_LOG_LEVEL", "`level`: debug, info, warn or error"},
}

func (a *app) nodeVerb() *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "node",
		Short: "Run a node: a yard of its own, or one of several",
		Long: `Runs a node until SIGINT or SIGTERM. Without a configuration file it is a yard
of its own that keeps everything in ./yardmaster-data; a file that lists members
makes it one of three or five. docs/configuration.md lists the keys; variables
YARD_<TABLE>_<KEY> override the file, and the flags below override both.`,
		Example: `  yardmaster node
  yardmaster node --config n1.toml --log-level debug`,
		Args: args(),
	}
	c.Flags().StringVarP(&config, "config", "c", "", "configuration `file`")
	for _, f := range nodeFlags {
		c.Flags().String(f.flag, "", f.help)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := overrideNode(c); err != nil {
			return err
		}
		cfg, err := node.Load(config)
		if err != nil {
			return configProblem(err)
		}
		tuneMemory()
		if file := a.program.File; file != "" {
			cfg.RRQ.Warden = []string{file, wardenName}
		}
		log := logger(a.Err, cfg.Node.LogLevel, cfg.Node.LogFormat)
		return nodeProblem(profiled(c.Context(), a.getenv(profileVariable), func(ctx context.Context) error {
			return runNode(ctx, cfg, a.program.Version, log)
		}))
	}
	c.AddCommand(a.drainVerb(), a.resumeVerb(), a.releaseVerb())
	return c
}

// runNode runs a node, and another one in its place if it says that only a start
// mends what it has.
func runNode(ctx context.Context, cfg node.Config, version string, log *slog.Logger) error {
	for {
		n, err := node.New(cfg, version, log)
		if err != nil {
			return err
		}
		if err = n.Run(ctx); !errors.Is(err, node.ErrAgain) || ctx.Err() != nil {
			return err
		}
		log.Warn("the node starts again in its process", "because", err)
	}
}

// releaseVerb needs no node that answers: a full disk may have ended it.
func (a *app) releaseVerb() *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "release-ballast",
		Short: "Give back the room that a node keeps for when its disk is full",
		Long: `Removes the file "ballast" from a node's data directory, on the node's own host
and whether the node runs or not. A node makes one when it starts and there is
room; docs/self-protection.md says what it is for.`,
		Example: `  yardmaster node release-ballast --config /etc/yardmaster/n1.toml
  yardmaster node release-ballast --data-dir /var/lib/yardmaster`,
		Args: args(),
	}
	c.Flags().StringVarP(&config, "config", "c", "", "configuration `file` of the node")
	c.Flags().String("data-dir", "", "`directory` of everything the node keeps")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := overrideNode(c); err != nil {
			return err
		}
		cfg, err := node.Load(config)
		if err != nil {
			return configProblem(err)
		}
		bytes, err := cfg.ReleaseBallast()
		if err != nil {
			return &problem{what: err.Error(), do: "remove the file by hand"}
		}
		if bytes == 0 {
			return &problem{what: "there is no ballast in " + cfg.Node.DataDir, do: "name the node's directory by --data-dir or its configuration by --config; or free space otherwise"}
		}
		_, err = fmt.Fprintf(a.Out, "%d bytes are free again in %s\n", bytes, cfg.Node.DataDir)
		return err
	}
	return c
}

func overrideNode(c *cobra.Command) error {
	for _, f := range nodeFlags {
		if c.Flags().Lookup(f.flag) == nil || !c.Flags().Changed(f.flag) {
			continue
		}
		value := c.Flags().Lookup(f.flag).Value.String()
		if f.variable != "" {
			if err := os.Setenv(f.variable, value); err != nil {
				return usage(c, fmt.Sprintf("--%s: %v", f.flag, err))
			}
			continue
		}
		host, port, err := net.SplitHostPort(value)
		if err != nil {
			return usage(c, fmt.Sprintf("--%s is %q: must be host:port", f.flag, value))
		}
		if err := errors.Join(os.Setenv("YARD_SERVER_HOST", host), os.Setenv("YARD_SERVER_PORT", port)); err != nil {
			return usage(c, fmt.Sprintf("--%s: %v", f.flag, err))
		}
	}
	return nil
}

// configProblem says where the keys are listed, unless the error says what
// would be right.
func configProblem(err error) error {
	if strings.Contains(err.Error(), "; ") {
		return &problem{what: err.Error()}
	}
	return &problem{what: err.Error(), do: "correct the configuration; docs/configuration.md lists the keys"}
}

func nodeProblem(err error) error {
	var halt *node.HaltError
	if errors.As(err, &halt) {
		return &problem{what: err.Error(), code: halt.Code}
	}
	return endProblem(err, "address", "correct that and start the node again")
}

// endProblem says what to do about why a node or a runner ended. Their own
// errors often know better, behind a semicolon.
func endProblem(err error, another, otherwise string) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "; "):
		return &problem{what: err.Error()}
	case portInUse(err):
		return &problem{what: err.Error(), do: "another program listens there: stop it or choose another " + another}
	}
	return &problem{what: err.Error(), do: otherwise}
}

// portInUse also knows the errors of the NATS server, which are but texts.
func portInUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}

// logger is a node's log; both words have been checked.
func logger(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func (a *app) workerVerb() *cobra.Command {
	var o worker.Options
	c := &cobra.Command{
		Use:   "worker",
		Short: "Run the built-in Overhop worker",
		Long: `Runs a worker that serves queues over Overhop's TCP protocol until SIGINT or
SIGTERM. What it has in hand then it finishes within 10 s or gives back to the
yard, which counts no attempt. It knows the functions

  echo                    end well with the payload as the result
  sleep {"ms": n}         end well after n milliseconds
  fail  {"final": true}   fail; with final, without another attempt
  retry {"times": n}      fail the first n attempts, then end well

and ends any other job well without a result. Its source, examples/worker, is
where to begin with a worker of your own.`,
		Example: `  yardmaster worker --queue mail --credits 8
  yardmaster worker --queue mail --addr 10.0.0.1:9876 --addr 10.0.0.2:9876
  yardmaster worker --queue mail --addr yard.example.org:9876 --tls-ca ca.pem --token "$TOKEN"`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("server") || c.Flags().Changed("context") {
				return usage(c, "--server and --context are for what asks over NATS: name the edges to work for with --addr")
			}
			for _, queue := range o.Queues { // no node would ever take it
				if err := job.ValidQueue(queue); err != nil {
					return usage(c, "--queue: "+err.Error())
				}
			}
			err := worker.Run(c.Context(), o, logger(a.Err, "info", "text"))
			var wrong *worker.OptionError
			if errors.As(err, &wrong) {
				return usage(c, wrong.Error())
			}
			if overhop.ErrorCode(err) == overhop.CodeUnauthorized {
				return &problem{what: err.Error(), do: "give the token of the nodes' configuration, server.token, by --token"}
			}
			if err != nil {
				return &problem{what: err.Error(), do: "look at its queues with 'yardmaster queue list' and name edges with --addr"}
			}
			return nil
		},
	}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	o.Flags(flags)
	c.Flags().AddGoFlagSet(flags)
	return c
}

func (a *app) runnerVerb() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "runner",
		Short: "Run the built-in RRQ runner; a node's pool starts it",
		Long: `Runs a runner that serves one socket by RRQ's protocol. A node starts as many
of them as its configuration says:

  [rrq.runners.demo]
  type = "socket"
  cmd = ["yardmaster", "runner"]
  pool_size = 2

It knows the handlers echo, sleep, fail, retry, crash, hang and big, which a job
names as "demo#echo". Its source, examples/runner, is where to begin with a
runner of your own.`,
		Example: `  yardmaster enqueue mail demo#echo --params '{"to":"ann"}' --wait`,
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			var given []string
			if c.Flags().Changed("tcp-socket") {
				given = []string{"--tcp-socket", socket}
			}
			return runnerProblem(demo.Main(c.Context(), given))
		},
	}
	c.Flags().StringVar(&socket, "tcp-socket", "", "loopback `host:port` to listen on (default $"+demo.SocketEnv+")")
	return c
}

// wardenVerb is a process beside a node, started by it, that ends what its
// runners have forked if the node is killed.
func (a *app) wardenVerb() *cobra.Command {
	return &cobra.Command{
		Use: wardenName + " <life>", Hidden: true, Args: args("life"),
		RunE: func(_ *cobra.Command, args []string) error {
			ended, err := runnerpool.Warden(a.In, args[0])
			if err != nil {
				return endProblem(err, "", "a node starts this verb by itself")
			}
			if ended > 0 {
				logger(a.Err, "info", "text").Warn("node is gone, what its runners had forked ended", "processes", ended)
			}
			return nil
		},
	}
}

const wardenName = "warden"

func runnerProblem(err error) error {
	return endProblem(err, "port by --tcp-socket", "'yardmaster runner --help' shows how it is used")
}
