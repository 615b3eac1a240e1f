package runnerpool

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Management modes.
const (
	Managed  = "managed"  // the node starts and supervises the processes
	External = "external" // another program starts them; the node only connects
)

// Values of [RunnerConfig].SocketVia: how a process is passed its socket
// address.
const (
	SocketAuto = "auto" // both; if the process then exits before it listens, env
	SocketBoth = "both" // environment and argument
	SocketEnv  = "env"
	SocketArg  = "arg"
)

// Values of [RunnerConfig].Connections.
const (
	ConnReuse      = "reuse"
	ConnPerRequest = "per_request"
)

// These are how the runtimes of the protocol receive their socket address.
// socketPlaceholder stands for it in cmd.
const (
	socketEnv         = "RRQ_RUNNER_TCP_SOCKET"
	socketArg         = "--tcp-socket"
	socketPlaceholder = "{socket}"
)

// Config is the table [rrq], with the keys of RRQ.
type Config struct {
	// DefaultRunner runs jobs that name no runner and whose queue has no route;
	// default "python". If no member has this runner, Overhop workers run such
	// jobs.
	DefaultRunner string `toml:"default_runner_name"`
	// DefaultQueue is the queue of cron entries that name none; default
	// "default". As in all queue names, the prefix "rrq:queue:" is optional.
	DefaultQueue string `toml:"default_queue_name"`
	// Routes maps queues to runners; see [Config.RoutesByQueue].
	Routes map[string]string `toml:"runner_routes"`
	// Routing is the former name of Routes.
	Routing map[string]string `toml:"routing"`
	// Management is "managed" or "external"; default managed.
	Management string `toml:"runner_management_mode"`
	// DefaultTimeout is the timeout, in seconds, of jobs that set none; default
	// 300.
	DefaultTimeout float64 `toml:"default_job_timeout_seconds"`
	// DefaultMaxRetries is the maximum number of attempts of jobs that set
	// none. As in RRQ it counts attempts: 0 means one, like 1. Default: the
	// yard's.
	DefaultMaxRetries *uint32 `toml:"default_max_retries"`
	// ResultTTL is how long results are shown of jobs that do not set it, in
	// seconds; 0 or less: as long as the yard keeps them.
	ResultTTL float64 `toml:"default_result_ttl_seconds"`
	// UniqueTTL is how long unique keys are held of jobs that do not set it, in
	// seconds; 0: 6 hours.
	UniqueTTL float64 `toml:"default_unique_job_lock_ttl_seconds"`
	// BaseRetryDelay and MaxRetryDelay bound the backoff between attempts, in
	// seconds; 0: the yard's defaults.
	BaseRetryDelay float64 `toml:"base_retry_delay_seconds"`
	MaxRetryDelay  float64 `toml:"max_retry_delay_seconds"`
	// ConnectTimeoutMS is how long a process may take from its start until it
	// listens, and how long an external runner may be away until it is reported as
	// stalled, in milliseconds; 0 or less: 15000.
	ConnectTimeoutMS int64 `toml:"runner_connect_timeout_ms"`
	// TermGrace is the time between SIGTERM and SIGKILL, in seconds; default 5.
	// 0 sends both at once.
	TermGrace *float64 `toml:"runner_shutdown_term_grace_seconds"`
	// ShutdownGrace is how long running jobs may take to finish when the node
	// stops, in seconds; default 10.
	ShutdownGrace *float64 `toml:"worker_shutdown_grace_period_seconds"`
	// CancelHints makes the node send a cancel frame to a handler that must
	// stop. Without it, a process that runs no other request is killed instead.
	// Default true.
	CancelHints *bool `toml:"runner_enable_inflight_cancel_hints"`
	// Correlation maps keys of a job's correlation_context to the values they
	// get: dotted paths into the job's params.
	Correlation map[string]string `toml:"correlation_mappings"`
	// Runners holds the pools by runner name.
	Runners map[string]RunnerConfig `toml:"runners"`
	// CronJobs are jobs that the authority creates on a schedule.
	CronJobs []CronJob `toml:"cron_jobs"`

	// Dir is the directory of the file that lists running process groups: the
	// node's data directory. "": no list, and nothing is reaped at start.
	Dir string `toml:"-"`
	// Warden is the command of a process that calls [Warden] with its standard
	// input and one more argument, which is appended. Empty: processes forked
	// by runners survive the death of the node until its next start.
	Warden []string `toml:"-"`
	// Ignored describes the keys in the file that RRQ knows and that have no
	// effect here, for a log message at start.
	Ignored []string `toml:"-"`
}

// RunnerConfig is a table [rrq.runners.<name>].
type RunnerConfig struct {
	// Type must be "socket".
	Type string `toml:"type"`
	// Cmd is the program and its arguments. "{socket}" in an argument is
	// replaced by the process's host:port.
	Cmd []string `toml:"cmd"`
	// PoolSize is the number of processes; default the number of CPUs. In
	// external mode it is always 1.
	PoolSize int `toml:"pool_size"`
	// MaxInFlight is the number of requests that a process runs at once, 1 to
	// 64; default 1.
	MaxInFlight int `toml:"max_in_flight"`
	// Env is added to what a process inherits of the node's environment.
	Env map[string]string `toml:"env"`
	// InheritEnv lists further variables of the node's environment that a process
	// inherits; "X*" stands for all names that begin with X. Default: none but the
	// usual ones, which hold no credentials of the yard.
	InheritEnv []string `toml:"inherit_env"`
	// Cwd is the working directory; "": the node's.
	Cwd string `toml:"cwd"`
	// TCPHost is the host of an external runner. Managed processes always
	// listen on 127.0.0.1.
	TCPHost string `toml:"tcp_host"`
	// TCPPort is the port of the first process; the others use the ports that
	// follow. 0 chooses free ports at every start.
	TCPPort int `toml:"tcp_port"`
	// AllowedHosts lists the hosts, other than the loopback, that an external
	// runner may use.
	AllowedHosts []string `toml:"allowed_hosts"`
	// ResponseTimeout is the time, in seconds, after which a request without an
	// answer is a failed attempt, even before its deadline; 0: no limit.
	ResponseTimeout float64 `toml:"response_timeout_seconds"`
	// SocketVia is how the process is passed its socket address: "auto", "both",
	// "env" or "arg"; default auto.
	SocketVia string `toml:"socket_via"`
	// CancelGrace is how long a cancelled handler may take to answer, in
	// seconds; default 1.
	CancelGrace *float64 `toml:"cancel_grace_seconds"`
	// Connections is "reuse", or "per_request" for a runner that closes the
	// connection after each answer; default reuse.
	Connections string `toml:"connections"`
}

// CronJob is a table [[rrq.cron_jobs]].
type CronJob struct {
	// Name is the entry's name, with the characters of a queue name. Default:
	// Function with other characters removed, and "-2" and so on appended if an
	// earlier entry has the name.
	Name string `toml:"name"`
	// Function is the handler, "runner#handler" or bare.
	Function string `toml:"function_name"`
	// Schedule is a cron expression with seconds. A day of the week is a name
	// or, as in RRQ, a number from 1 for Sunday to 7 for Saturday.
	Schedule string `toml:"schedule"`
	// Params are the params of the jobs; default none.
	Params map[string]any `toml:"params"`
	// Queue is the queue of the jobs; default [Config.DefaultQueue].
	Queue string `toml:"queue_name"`
	// Unique skips a tick while the entry's last job has not ended.
	Unique bool `toml:"unique"`
	// TimeZone is an IANA name; default UTC.
	TimeZone string `toml:"time_zone"`
	// Missed is what happens to ticks that passed while no node held the
	// authority: "skip", or "once" for one job in place of all of them; default
	// skip.
	Missed string `toml:"missed"`
}

// ConfigError reports an invalid key: the key, what is wrong, and how to fix
// it.
type ConfigError struct{ Key, Cause, Fix string }

func (e *ConfigError) Error() string { return e.Key + " " + e.Cause + "; " + e.Fix }

// RunnerNames returns the names of the configured runners, sorted.
func (c *Config) RunnerNames() []string { return slices.Sorted(maps.Keys(c.Runners)) }

// Policy returns p with the retry settings of the table. Settings that the table
// lacks stay as they are in p.
func (c *Config) Policy(p job.Policy) job.Policy {
	if c.DefaultMaxRetries != nil {
		p.MaxAttempts = max(*c.DefaultMaxRetries, 1)
	}
	if c.BaseRetryDelay > 0 {
		p.BaseDelay = seconds(c.BaseRetryDelay)
	}
	if c.MaxRetryDelay > 0 {
		p.MaxDelay = seconds(c.MaxRetryDelay)
	}
	return p
}

// Defaults returns the defaults that the table sets for jobs.
func (c *Config) Defaults() job.Defaults {
	return job.Defaults{UniqueTTL: seconds(c.UniqueTTL), ResultTTL: max(seconds(c.ResultTTL), 0)}
}

// DefaultRunnerName returns the runner of jobs that name none. It need not be
// configured on this node.
func (c *Config) DefaultRunnerName() string { return cmp.Or(c.DefaultRunner, "python") }

// queuePrefix is the prefix with which RRQ stores queue names.
const queuePrefix = "rrq:queue:"

// QueueName returns the name of a queue in the yard, without RRQ's prefix.
func QueueName(name string) string { return strings.TrimPrefix(name, queuePrefix) }

// RoutesByQueue returns the runner of each queue that has a route, by the
// queue's name in the yard. It merges both tables; Routes overrides Routing.
func (c *Config) RoutesByQueue() map[string]string {
	routes := make(map[string]string, len(c.Routes)+len(c.Routing))
	for _, table := range [...]map[string]string{c.Routing, c.Routes} {
		for _, queue := range slices.Sorted(maps.Keys(table)) { // sorted, because of two spellings of a queue the last one wins
			routes[QueueName(queue)] = table[queue]
		}
	}
	return routes
}

// DefaultQueueName returns the queue of cron entries that name none.
func (c *Config) DefaultQueueName() string { return cmp.Or(QueueName(c.DefaultQueue), "default") }

// withDefaults returns c with the default of every key that is not set, of its
// runners' too. Afterwards no pointer in it is nil.
func (c Config) withDefaults() Config {
	c.Management = cmp.Or(c.Management, Managed)
	c.DefaultTimeout = cmp.Or(c.DefaultTimeout, 300) // seconds, as are the graces
	if c.ConnectTimeoutMS <= 0 {
		c.ConnectTimeoutMS = 15_000
	}
	c.TermGrace = cmp.Or(c.TermGrace, new(5.0))
	c.ShutdownGrace = cmp.Or(c.ShutdownGrace, new(10.0))
	c.CancelHints = cmp.Or(c.CancelHints, new(true))
	runners := make(map[string]RunnerConfig, len(c.Runners))
	for name, r := range c.Runners {
		runners[name] = r.withDefaults(c.Management)
	}
	c.Runners = runners
	return c
}

// withDefaults returns r with the default of every key that is not set, and
// with the values that the management mode dictates: a managed runner listens
// on the loopback, an external one is a pool of one process.
func (r RunnerConfig) withDefaults(management string) RunnerConfig {
	const loopback = "127.0.0.1"
	r.Type = cmp.Or(r.Type, "socket")
	r.PoolSize = cmp.Or(r.PoolSize, runtime.NumCPU())
	r.MaxInFlight = cmp.Or(r.MaxInFlight, 1)
	r.TCPHost = cmp.Or(strings.Trim(strings.TrimSpace(r.TCPHost), "[]"), loopback)
	if management == Managed {
		r.TCPHost = loopback
	} else {
		r.PoolSize = 1
	}
	r.SocketVia = cmp.Or(r.SocketVia, SocketAuto)
	r.CancelGrace = cmp.Or(r.CancelGrace, new(1.0)) // seconds
	r.Connections = cmp.Or(r.Connections, ConnReuse)
	return r
}

// port returns the port of a pool's i-th process; 0: any free port.
func (r *RunnerConfig) port(i int) int {
	if r.TCPPort == 0 {
		return 0
	}
	return r.TCPPort + i
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// IgnoredKeys maps the keys of [rrq] that RRQ knows and that have no effect here
// to the reason. They are accepted, so that RRQ's users can keep their table.
var IgnoredKeys = map[string]string{
	"redis_dsn":                              "a yard has no Redis: jobs lie in JetStream",
	"default_dlq_name":                       "a yard has one place for dead letters, which know their queues",
	"default_lock_timeout_extension_seconds": "there are no locks: the ledger decides who runs a job",
	"default_poll_delay_seconds":             "nothing is polled: jobs are handed to runners as they come",
	"expected_job_ttl":                       "there are no locks: the ledger decides who runs a job",
	"worker_health_check_interval_seconds":   "nodes report their health by themselves; see 'yardmaster status'",
	"worker_health_check_ttl_buffer_seconds": "nodes report their health by themselves; see 'yardmaster status'",
	"worker_concurrency":                     "pool_size and max_in_flight of the runners set it",
	"capture_runner_output":                  "what runners print always goes to the node's log and to the job's",
	"watch":                                  "runners are not restarted when files change",
}
