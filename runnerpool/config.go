package runnerpool

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
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
	// without route; default "python". Where no member has it, such jobs are
	// left to Overhop workers.
	DefaultRunner string `toml:"default_runner_name"`
	// DefaultQueue is where cron entries without a queue go; default "default".
	// "rrq:queue:" before a name may be left out, here as elsewhere.
	DefaultQueue string `toml:"default_queue_name"`
	// Routes sends whole queues to a runner; see [Config.Routed].
	Routes map[string]string `toml:"runner_routes"`
	// Routing is the former name of Routes.
	Routing map[string]string `toml:"routing"`
	// Management is "managed" or "external"; default managed.
	Management string `toml:"runner_management_mode"`
	// DefaultTimeout is the hard timeout of a job that has none, in seconds;
	// default 300.
	DefaultTimeout float64 `toml:"default_job_timeout_seconds"`
	// DefaultMaxRetries is the total number of attempts of a job that names
	// none, as RRQ counts: 0 is one attempt, like 1. Default: the yard's.
	DefaultMaxRetries *uint32 `toml:"default_max_retries"`
	// ResultTTL is how long a result is shown of a job that does not say, in
	// seconds; 0 or less: while the yard keeps it.
	ResultTTL float64 `toml:"default_result_ttl_seconds"`
	// UniqueTTL is how long a unique key lives whose job does not say, in
	// seconds; 0: 6 hours.
	UniqueTTL float64 `toml:"default_unique_job_lock_ttl_seconds"`
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
	// CancelHints has a handler that is to stop told so by a cancel frame;
	// without, one that has its process to itself is ended with it. Default
	// true.
	CancelHints *bool `toml:"runner_enable_inflight_cancel_hints"`
	// Correlation names what of a job's params goes into its
	// correlation_context: the key there, and a path of names with dots.
	Correlation map[string]string `toml:"correlation_mappings"`
	// Runners are the pools by name.
	Runners map[string]RunnerConfig `toml:"runners"`
	// CronJobs are made again and again, by the authority.
	CronJobs []CronJob `toml:"cron_jobs"`

	// Dir is where the list of running process groups is kept, the node's
	// data directory; "": no list, and nothing is reaped at start.
	Dir string `toml:"-"`
	// Warden is the command, to be followed by one more argument, of a process
	// that calls [Warden] with its standard input and that argument; none:
	// what runners forked outlives a node that is killed, until its next start.
	Warden []string `toml:"-"`
	// Idle are the keys of the file that RRQ knows and that do nothing here,
	// with the reason why, to be said once.
	Idle []string `toml:"-"`
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
	// Queue is where the jobs go; default [Config.DefaultQueue].
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
	if c.DefaultMaxRetries != nil {
		p.MaxAttempts = max(*c.DefaultMaxRetries, 1)
	}
	if c.BaseRetryDelay > 0 {
		p.Base = seconds(c.BaseRetryDelay)
	}
	if c.MaxRetryDelay > 0 {
		p.Max = seconds(c.MaxRetryDelay)
	}
	return p
}

// Defaults are what the table gives to jobs.
func (c *Config) Defaults() job.Defaults {
	return job.Defaults{UniqueTTL: seconds(c.UniqueTTL), ResultTTL: max(seconds(c.ResultTTL), 0)}
}

// Default is the runner of jobs that name none. Other members may have it, and
// this one not.
func (c *Config) Default() string { return or(c.DefaultRunner, "python") }

// queuePrefix begins a queue's name as RRQ stores it.
const queuePrefix = "rrq:queue:"

// QueueName is a queue's name in the yard, however RRQ's users write it.
func QueueName(name string) string { return strings.TrimPrefix(name, queuePrefix) }

// Routed is which queues go to which runner, by the queue's name in the yard.
func (c *Config) Routed() map[string]string {
	routes := make(map[string]string, len(c.Routes)+len(c.Routing))
	for _, written := range [...]map[string]string{c.Routing, c.Routes} {
		for _, queue := range slices.Sorted(maps.Keys(written)) { // in order: of two names of one queue, always the same counts
			routes[QueueName(queue)] = written[queue]
		}
	}
	return routes
}

// Queue is where cron entries go that name no queue.
func (c *Config) Queue() string { return or(QueueName(c.DefaultQueue), "default") }

func (c Config) withDefaults() Config {
	c.Management = or(c.Management, Managed)
	c.DefaultTimeout = or(c.DefaultTimeout, 300)
	if c.ConnectTimeoutMS <= 0 {
		c.ConnectTimeoutMS = 15_000
	}
	c.TermGrace = orDefault(c.TermGrace, 5)
	c.ShutdownGrace = orDefault(c.ShutdownGrace, 10)
	c.CancelHints = orDefault(c.CancelHints, true)
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
	r.TCPHost = or(strings.Trim(strings.TrimSpace(r.TCPHost), "[]"), "127.0.0.1")
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

// port is that of a pool's i-th process; 0: any free one.
func (r *RunnerConfig) port(i int) int {
	if r.TCPPort == 0 {
		return 0
	}
	return r.TCPPort + i
}

// or is v, or def for the zero value.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func orDefault[T any](v *T, def T) *T {
	if v == nil {
		return &def
	}
	return v
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
