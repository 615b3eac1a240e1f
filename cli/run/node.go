// Package run has the verbs that run processes: node, worker, runner and demo.
package run

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/examples/runner/demo"
	"github.com/yardmaster-dev/yardmaster/examples/worker/worker"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/node"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool"

	"github.com/spf13/cobra"
)

// nodeFlags are the flags that override a key of the configuration, with the environment
// variable of that key. A flag sets the variable and so takes precedence over it.
var nodeFlags = []struct{ flag, variable, help string }{
	{"name", "YARD_NODE_NAME", "`name` of this member"},
	{"data-dir", "YARD_NODE_DATA_DIR", "data `directory` of the node"},
	{"nats-listen", "YARD_NATS_LISTEN", "`host:port` for NATS clients"},
	{"http-listen", "YARD_HTTP_LISTEN", "`host:port` for HTTP clients, or off"},
	{"raft-listen", "YARD_RAFT_LISTEN", "`host:port` for the Raft connections of the other members"},
	{"edge-listen", "YARD_SERVER_HOST, YARD_SERVER_PORT", "`host:port` for Overhop workers"},
	{"log-level", "YARD_NODE_LOG_LEVEL", "`level`: debug, info, warn or error"},
}

// Node returns the verb node.
func Node(env *command.Env) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "node",
		Short: "Run a node, standalone or as a member of a yard",
		Long: `Runs a node until SIGINT or SIGTERM. Without a configuration file the node is a
standalone yard with the data directory ./yardmaster-data; with a file that lists
members it is one of three or five. docs/reference/config.md lists the keys;
variables YARD_<TABLE>_<KEY> override the file, the flags below override both.`,
		Example: `  yardmaster node
  yardmaster node --config n1.toml --log-level debug`,
	}
	c.Flags().StringVarP(&config, "config", "c", "", "configuration `file`")
	for _, f := range nodeFlags {
		c.Flags().String(f.flag, "", f.help)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := loadConfig(c, config)
		if err != nil {
			return err
		}
		setMemoryLimit()
		if file := env.Program.File; file != "" {
			cfg.RRQ.Warden = []string{file, wardenName}
		}
		log := logger(env.Err, cfg.Node.LogLevel, cfg.Node.LogFormat)
		return nodeProblem(withProfiling(c.Context(), env.Getenv(profileEnv), func(ctx context.Context) error {
			return runNode(ctx, cfg, env.Program.Version, log)
		}))
	}
	c.AddCommand(releaseVerb(env))
	return c
}

// runNode runs a node until ctx ends or the node fails. It starts a new node in the same
// process if one ends with [node.ErrRestart].
func runNode(ctx context.Context, cfg config.Config, version string, log *slog.Logger) error {
	for {
		n, err := node.New(cfg, version, log)
		if err != nil {
			return err
		}
		if err = n.Run(ctx); !errors.Is(err, node.ErrRestart) || ctx.Err() != nil {
			return err
		}
		log.Info("node restarting in the same process")
	}
}

// releaseVerb returns the verb 'node release-ballast', which removes a node's ballast
// file to free disk space. The verb works without a running node, because a full disk
// may have stopped it.
func releaseVerb(env *command.Env) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "release-ballast",
		Short: "Free the disk space that a node reserves for emergencies",
		Long: `Removes the file "ballast" from a node's data directory. Run it on the node's
host; the node may be running or stopped. A node creates the file when it starts
and has enough disk space; docs/guides/operate.md explains its use.`,
		Example: `  yardmaster node release-ballast --config /etc/yardmaster/n1.toml
  yardmaster node release-ballast --data-dir /var/lib/yardmaster`,
	}
	c.Flags().StringVarP(&config, "config", "c", "", "configuration `file` of the node")
	c.Flags().String("data-dir", "", "data `directory` of the node")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := loadConfig(c, config)
		if err != nil {
			return err
		}
		freed, err := cfg.FileSystem().ReleaseBallast()
		if err != nil {
			return usererror.New(err.Error(), "remove the file by hand")
		}
		if freed == 0 {
			return usererror.New("there is no ballast in "+cfg.Node.DataDir,
				"name the node's directory with --data-dir or its configuration with --config; or free disk space by other means")
		}
		err = command.Printf(env.Out, "%d bytes freed in %s\n", freed, cfg.Node.DataDir)
		return err
	}
	return c
}

// loadConfig returns the configuration of a node. The environment overrides the file, and
// the flags of c override both. file may be "".
func loadConfig(c *cobra.Command, file string) (config.Config, error) {
	if err := setNodeEnv(c); err != nil {
		return config.Config{}, err
	}
	cfg, err := config.Load(file)
	switch {
	case err == nil:
		return cfg, nil
	case strings.Contains(err.Error(), "; "): // states its own remedy
		return cfg, usererror.New(err.Error(), "")
	}
	return cfg, usererror.New(err.Error(), "correct the configuration; docs/reference/config.md lists the keys")
}

// setNodeEnv sets the environment variables that the given flags in nodeFlags stand for.
// --edge-listen stands for two, a host and a port.
func setNodeEnv(c *cobra.Command) error {
	for _, f := range nodeFlags {
		if !c.Flags().Changed(f.flag) {
			continue
		}
		value := c.Flags().Lookup(f.flag).Value.String()
		variables := map[string]string{f.variable: value}
		if f.flag == "edge-listen" {
			host, port, err := net.SplitHostPort(value)
			if err != nil {
				return usererror.Usage(c, "--%s is %q: must be host:port", f.flag, value)
			}
			variables = map[string]string{"YARD_SERVER_HOST": host, "YARD_SERVER_PORT": port}
		}
		for name, value := range variables {
			if err := os.Setenv(name, value); err != nil {
				return usererror.Usage(c, "--%s: %v", f.flag, err)
			}
		}
	}
	return nil
}

// nodeProblem returns the user error for a node that ended with err. It keeps the exit
// code that err may contain; for an err of nil it returns nil.
func nodeProblem(err error) error {
	if exit, ok := errors.AsType[*node.ExitError](err); ok {
		return &usererror.Error{Msg: err.Error(), Code: exit.Code}
	}
	return processError(err, "address", "correct that and start the node again")
}

// processError returns the user error for a process that ended with err, or nil if err is
// nil. If a port is in use, the remedy is to choose another one; setting is how to do
// that. Any other error has remedy, unless it contains "; " and so states its own.
func processError(err error, setting, remedy string) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "; "):
		return usererror.New(err.Error(), "")
	case portInUse(err):
		return usererror.New(err.Error(), "another program listens there: stop it or choose another "+setting)
	}
	return usererror.New(err.Error(), remedy)
}

// portInUse reports whether err means that a port is in use. It also compares the
// text, because the NATS server does not wrap the error.
func portInUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}

// logger returns a logger to w. level and format are valid values of the
// configuration.
func logger(w io.Writer, level, format string) *slog.Logger {
	var minimum slog.Level
	if err := minimum.UnmarshalText([]byte(level)); err != nil {
		minimum = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: minimum}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Worker returns the verb worker.
func Worker(env *command.Env) *cobra.Command {
	var o worker.Options
	c := &cobra.Command{
		Use:   "worker",
		Short: "Run the built-in Overhop worker",
		Long: `Runs a worker that serves queues over the Overhop TCP protocol until SIGINT or
SIGTERM. It then finishes its active jobs within 10 s or releases them to the
yard, which does not count the attempt. It has the functions

  echo                    succeed with the payload as the result
  sleep {"ms": n}         succeed after n milliseconds
  fail  {"final": true}   fail; with final, without another attempt
  retry {"times": n}      fail the first n attempts, then succeed

completes a job that names no function, and fails any other. Its source,
examples/worker, is a starting point for your own worker.`,
		Example: `  yardmaster worker --queue mail --credits 8
  yardmaster worker --queue mail --addr 10.0.0.1:9876 --addr 10.0.0.2:9876
  yardmaster worker --queue mail --addr yard.example.org:9876 --tlsca ca.pem --token "$TOKEN"`,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("server") || c.Flags().Changed("context") {
				return usererror.Usage(c, "--server and --context are for NATS: name the edges with --addr")
			}
			ca, cert, key := env.TLSFlags()
			o.TLSCA, o.TLSCert, o.TLSKey = cmp.Or(ca, o.TLSCA), cmp.Or(cert, o.TLSCert), cmp.Or(key, o.TLSKey)
			for _, queue := range o.Queues { // every node would refuse it
				if err := job.ValidQueue(queue); err != nil {
					return usererror.Usage(c, "--queue: %v", err)
				}
			}
			err := worker.Run(c.Context(), o, logger(env.Err, "info", "text"))
			if invalid, ok := errors.AsType[*worker.OptionError](err); ok {
				return usererror.Usage(c, "%v", invalid)
			}
			if overhop.ErrorCode(err) == overhop.CodeUnauthorized {
				return usererror.New(err.Error(), "give the token in the nodes' configuration, server.token, with --token")
			}
			if err != nil {
				return usererror.New(err.Error(), "'yardmaster queue list' shows the queues; name the edges with --addr")
			}
			return nil
		},
	}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	o.Flags(flags)
	c.Flags().AddGoFlagSet(flags)
	for former, name := range map[string]string{"tls-ca": "tlsca", "tls-cert": "tlscert", "tls-key": "tlskey"} {
		command.Deprecate(c, c.Flags().Lookup(former), "--"+name)
	}
	return c
}

// Runner returns the verb runner.
func Runner(env *command.Env) *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "runner",
		Short: "Run the built-in RRQ runner; usually started by a node",
		Long: `Runs a runner that serves one socket with the RRQ protocol. A node starts as many
of them as its configuration says:

  [rrq.runners.demo]
  type = "socket"
  cmd = ["yardmaster", "runner"]
  pool_size = 2

It has the handlers echo, sleep, fail, retry, crash, hang and big, which a job
names as "demo#echo". Its source, examples/runner, is a starting point for your
own runner.`,
		Example: `  yardmaster enqueue mail demo#echo --params '{"to":"ann"}' --wait`,
		RunE: func(c *cobra.Command, _ []string) error {
			var args []string
			if c.Flags().Changed("tcp-socket") {
				args = []string{"--tcp-socket", socket}
			}
			return processError(demo.Main(c.Context(), args), "port with --tcp-socket", "'yardmaster runner --help' shows how it is used")
		},
	}
	c.Flags().StringVar(&socket, "tcp-socket", "", "loopback `host:port` to listen on (default $"+demo.SocketEnv+")")
	return c
}

// Warden returns the hidden verb of the warden, a process that a node starts
// and that ends the processes forked by its runners if the node is killed.
func Warden(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: wardenName + " <life>", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			ended, err := runnerpool.Warden(env.In, args[0])
			if err != nil {
				return processError(err, "", "only a node starts this verb")
			}
			if ended > 0 {
				logger(env.Err, "info", "text").Warn("node is gone, ended the processes of its runners", "count", ended)
			}
			return nil
		},
	}
}

const wardenName = "warden"
