package runnerpool

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// Management modes.
const (
	Managed  = "managed"  // the node starts and supervises the processes
	External = "external" // somebody else does; the node only connects
)

// Ways to tell a process its socket.
const (
	SocketBoth = "both" // environment and argument
	SocketEnv  = "env"
	SocketArg  = "arg"
)

// Ways to use connections.
const (
	ConnReuse      = "reuse"
	ConnPerRequest = "per_request"
)

// socketEnv and socketArg are how the protocol's runtimes expect their socket.
const (
	socketEnv         = "RRQ_RUNNER_TCP_SOCKET"
	socketArg         = "--tcp-socket"
	socketPlaceholder = "{socket}"
)

// Config is the table [rrq], with the keys RRQ's users know.
type Config struct {
	// DefaultRunner runs jobs that name no runner and come from a queue
	// without route; default "python" if there is such a runner. Without one,
	// such jobs are left to Overhop workers.
	DefaultRunner string `toml:"default_runner_name"`
	// Routes sends whole queues to a runner.
	Routes map[string]string `toml:"runner_routes"`
	// Management is "managed" or "external"; default managed.
	Management string `toml:"runner_management_mode"`
	// DefaultTimeout is the hard timeout of a job that has none, in seconds;
	// default 300.
	DefaultTimeout float64 `toml:"default_job_timeout_seconds"`
	// DefaultMaxRetries is the total number of attempts of a job that names
	// none; 0: the yard's default.
	DefaultMaxRetries uint32 `toml:"default_max_retries"`
	// BaseRetryDelay and MaxRetryDelay bound the backoff between attempts, in
	// seconds; 0: the yard's defaults.
	BaseRetryDelay float64 `toml:"base_retry_delay_seconds"`
	MaxRetryDelay  float64 `toml:"max_retry_delay_seconds"`
	// ConnectTimeoutMS is how long a started process may take until it
	// listens, in milliseconds; ≤ 0: 15000.
	ConnectTimeoutMS int64 `toml:"runner_connect_timeout_ms"`
	// TermGrace lies between SIGTERM and SIGKILL, in seconds; default 5, 0
	// sends both at once.
	TermGrace *float64 `toml:"runner_shutdown_term_grace_seconds"`
	// ShutdownGrace is how long running jobs may finish when the node stops,
	// in seconds; default 10.
	ShutdownGrace *float64 `toml:"worker_shutdown_grace_period_seconds"`
	// Runners are the pools by name.
	Runners map[string]RunnerConfig `toml:"runners"`
	// CronJobs are made again and again, by the authority.
	CronJobs []CronJob `toml:"cron_jobs"`

	// Dir is where the list of running process groups is kept, the node's
	// data directory; "": no list, and nothing is reaped at start.
	Dir string `toml:"-"`
}

// RunnerConfig is a table [rrq.runners.<name>].
type RunnerConfig struct {
	// Type is "socket", the only one there is.
	Type string `toml:"type"`
	// Cmd is the program and its arguments; "{socket}" in one of them stands
	// for the process's host:port.
	Cmd []string `toml:"cmd"`
	// PoolSize is the number of processes; default the number of CPUs. In
	// external mode it is always 1.
	PoolSize int `toml:"pool_size"`
	// MaxInFlight is the number of requests a process runs at once, 1 to 64;
	// default 1.
	MaxInFlight int `toml:"max_in_flight"`
	// Env is added to the node's own environment.
	Env map[string]string `toml:"env"`
	// Cwd is the working directory; "": the node's.
	Cwd string `toml:"cwd"`
	// TCPHost is the host of an external runner; managed ones always listen
	// on 127.0.0.1.
	TCPHost string `toml:"tcp_host"`
	// TCPPort is the port of the first process, the others follow upwards; 0
	// picks free ports at every start.
	TCPPort int `toml:"tcp_port"`
	// AllowedHosts lists the hosts an external runner may have besides the
	// loopback.
	AllowedHosts []string `toml:"allowed_hosts"`
	// ResponseTimeout ends a request that has not been answered after so many
	// seconds as a failed attempt, however late its deadline; 0: never.
	ResponseTimeout float64 `toml:"response_timeout_seconds"`
	// SocketVia is how the process learns its socket: "both", "env" or "arg";
	// default both.
	SocketVia string `toml:"socket_via"`
	// CancelGrace is how long a cancelled handler may take to answer, in
	// seconds; default 1.
	CancelGrace *float64 `toml:"cancel_grace_seconds"`
	// Connections is "reuse" or "per_request", for a runner that closes the
	// connection after its answer; default reuse.
	Connections string `toml:"connections"`
}

// CronJob is a table [[rrq.cron_jobs]].
type CronJob struct {
	// Name of the entry, as a queue's; default what can stand in one of
	// Function, with "-2" and so on behind it if an entry before has that name.
	Name string `toml:"name"`
	// Function is the handler, "runner#handler" or bare.
	Function string `toml:"function_name"`
	// Schedule is a cron expression with seconds; a day of the week is a name
	// or, as RRQ counts, 1 for Sunday to 7 for Saturday.
	Schedule string `toml:"schedule"`
	// Params are given to the handler; default none.
	Params map[string]any `toml:"params"`
	// Queue is where the jobs go; default "default". "rrq:queue:" before a name
	// may be left out.
	Queue string `toml:"queue_name"`
	// Unique lets no job be made while the entry's last one has not ended.
	Unique bool `toml:"unique"`
	// TimeZone is an IANA name; default UTC.
	TimeZone string `toml:"time_zone"`
	// Missed is what happens to ticks while nobody held the authority: "skip"
	// or "once", one job for all of them; default skip.
	Missed string `toml:"missed"`
}

// ConfigError says which key is wrong, why, and what would be right.
type ConfigError struct{ Key, Cause, Fix string }

func (e *ConfigError) Error() string { return e.Key + " " + e.Cause + "; " + e.Fix }

// Names lists the configured runners in order.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Runners)) }

// Policy is p with the retry numbers that the table gives.
func (c *Config) Policy(p job.Policy) job.Policy {
	if c.DefaultMaxRetries > 0 {
		p.MaxAttempts = c.DefaultMaxRetries
	}
	if c.BaseRetryDelay > 0 {
		p.Base = seconds(c.BaseRetryDelay)
	}
	if c.MaxRetryDelay > 0 {
		p.Max = seconds(c.MaxRetryDelay)
	}
	return p
}

// Default is the runner of jobs that name none, or "".
func (c *Config) Default() string {
	if _, ok := c.Runners["python"]; ok && c.DefaultRunner == "" {
		return "python"
	}
	return c.DefaultRunner
}

func (c Config) withDefaults() Config {
	c.DefaultRunner = c.Default()
	c.Management = or(c.Management, Managed)
	c.DefaultTimeout = or(c.DefaultTimeout, 300)
	if c.ConnectTimeoutMS <= 0 {
		c.ConnectTimeoutMS = 15_000
	}
	c.TermGrace = orDefault(c.TermGrace, 5)
	c.ShutdownGrace = orDefault(c.ShutdownGrace, 10)
	runners := make(map[string]RunnerConfig, len(c.Runners))
	for name, r := range c.Runners {
		runners[name] = r.withDefaults(c.Management)
	}
	c.Runners = runners
	return c
}

func (r RunnerConfig) withDefaults(management string) RunnerConfig {
	r.Type = or(r.Type, "socket")
	r.PoolSize = or(r.PoolSize, runtime.NumCPU())
	r.MaxInFlight = or(r.MaxInFlight, 1)
	r.TCPHost = strings.Trim(or(r.TCPHost, "127.0.0.1"), "[]")
	if management == Managed {
		r.TCPHost = "127.0.0.1"
	} else {
		r.PoolSize = 1
	}
	r.SocketVia = or(r.SocketVia, SocketBoth)
	r.CancelGrace = orDefault(r.CancelGrace, 1)
	r.Connections = or(r.Connections, ConnReuse)
	return r
}

// or is v, or def for the zero value.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func orDefault(v *float64, def float64) *float64 {
	if v == nil {
		return &def
	}
	return v
}

// Validate checks the table as it was written; zero values stand for the
// defaults. Every error is a [*ConfigError].
func (c Config) Validate() error {
	if c.Management != "" && c.Management != Managed && c.Management != External {
		return wrong("runner_management_mode", c.Management, `use "managed" or "external"`)
	}
	c = c.withDefaults()
	for _, v := range [...]struct {
		key   string
		value float64
	}{
		{"default_job_timeout_seconds", c.DefaultTimeout},
		{"base_retry_delay_seconds", c.BaseRetryDelay},
		{"max_retry_delay_seconds", c.MaxRetryDelay},
		{"runner_shutdown_term_grace_seconds", *c.TermGrace},
		{"worker_shutdown_grace_period_seconds", *c.ShutdownGrace},
	} {
		if !sane(v.value) {
			return wrong(v.key, v.value, "give seconds, 0 or more")
		}
	}
	ports := make(map[int]string)
	for _, name := range c.Names() {
		if err := c.validateRunner(name, c.Runners[name], ports); err != nil {
			return err
		}
	}
	return c.validateRouting()
}

func (c *Config) validateRouting() error {
	if len(c.Runners) > 0 && c.DefaultRunner != "" {
		if _, ok := c.Runners[c.DefaultRunner]; !ok {
			return wrong("default_runner_name", c.DefaultRunner, "define [rrq.runners."+c.DefaultRunner+"] or name one that is: "+strings.Join(c.Names(), ", "))
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(c.Routes)) {
		if c.Routes[queue] == "" {
			return wrong("runner_routes."+queue, "", "name a runner")
		}
	}
	return nil
}

func (c *Config) validateRunner(name string, r RunnerConfig, ports map[int]string) error {
	key := "runners." + name + "."
	if job.ValidQueue(name) != nil {
		return wrong("runners", name, "begin the name with a letter or digit and use only letters, digits, '_' and '-'")
	}
	switch {
	case r.Type != "socket":
		return wrong(key+"type", r.Type, `use "socket"`)
	case r.PoolSize < 1 || r.PoolSize > 1024:
		return wrong(key+"pool_size", r.PoolSize, "use 1 to 1024")
	case r.MaxInFlight < 1 || r.MaxInFlight > rrq.MaxInFlight:
		return wrong(key+"max_in_flight", r.MaxInFlight, fmt.Sprintf("use 1 to %d", rrq.MaxInFlight))
	case r.TCPPort < 0 || r.TCPPort > 65535 || r.TCPPort > 0 && r.TCPPort+r.PoolSize-1 > 65535:
		return wrong(key+"tcp_port", r.TCPPort, fmt.Sprintf("%d processes need that many ports up to 65535", r.PoolSize))
	case !sane(r.ResponseTimeout):
		return wrong(key+"response_timeout_seconds", r.ResponseTimeout, "give seconds, 0 or more")
	case !sane(*r.CancelGrace):
		return wrong(key+"cancel_grace_seconds", *r.CancelGrace, "give seconds, 0 or more")
	case r.SocketVia != SocketBoth && r.SocketVia != SocketEnv && r.SocketVia != SocketArg:
		return wrong(key+"socket_via", r.SocketVia, `use "both", "env" or "arg"`)
	case r.Connections != ConnReuse && r.Connections != ConnPerRequest:
		return wrong(key+"connections", r.Connections, `use "reuse" or "per_request"`)
	}
	if c.Management == External {
		return validateExternal(key, r)
	}
	if err := validateCmd(key, r.Cmd); err != nil {
		return err
	}
	for port := r.TCPPort; r.TCPPort > 0 && port < r.TCPPort+r.PoolSize; port++ {
		if other, taken := ports[port]; taken {
			return wrong(key+"tcp_port", r.TCPPort, fmt.Sprintf("port %d already belongs to runner %s: leave pool_size ports to each runner", port, other))
		}
		ports[port] = name
	}
	return nil
}

// validateCmd refuses a socket given by hand: a pool gives each process its
// own, and the runtimes do not agree on which of two they take.
func validateCmd(key string, cmd []string) error {
	if len(cmd) == 0 || cmd[0] == "" {
		return wrong(key+"cmd", strings.Join(cmd, " "), "give the program and its arguments as a list of strings")
	}
	for i, arg := range cmd {
		given := strings.HasPrefix(arg, socketArg+"=") && !strings.Contains(arg, socketPlaceholder) ||
			arg == socketArg && (i+1 == len(cmd) || !strings.Contains(cmd[i+1], socketPlaceholder))
		if given {
			return wrong(key+"cmd", arg, "leave "+socketArg+" away, each process is given its own, or write "+socketPlaceholder+" for it")
		}
	}
	return nil
}

func validateExternal(key string, r RunnerConfig) error {
	if r.TCPPort == 0 {
		return wrong(key+"tcp_port", r.TCPPort, "name the port that the external runner listens on")
	}
	if strings.EqualFold(r.TCPHost, "localhost") {
		return nil
	}
	if ip, err := netip.ParseAddr(r.TCPHost); err == nil && ip.IsLoopback() {
		return nil
	}
	for _, host := range r.AllowedHosts {
		if strings.EqualFold(host, r.TCPHost) {
			return nil
		}
	}
	return wrong(key+"tcp_host", r.TCPHost, "use the loopback, or list the host in "+key+"allowed_hosts")
}

func wrong(key string, value any, fix string) error {
	return &ConfigError{Key: "rrq." + key, Cause: fmt.Sprintf("is %#v", value), Fix: fix}
}

// sane tells a number of seconds that fits a duration.
func sane(s float64) bool { return s >= 0 && s <= job.MaxDuration.Seconds() }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
