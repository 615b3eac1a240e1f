package runnerpool

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// maxRetries is the upper limit of the yard's own max_attempts.
const maxRetries = 1000

// Validate checks the table as read from a file, without defaults. Every error
// is a [*ConfigError].
func (c Config) Validate() error {
	if c.Management != "" && c.Management != Managed && c.Management != External {
		return keyError("runner_management_mode", c.Management, `use "managed" or "external"`)
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
		{"default_result_ttl_seconds", max(c.ResultTTL, 0)},
	} {
		if !validSeconds(v.value) {
			return keyError(v.key, v.value, "give seconds, 0 or more")
		}
	}
	if limit := job.MaxDuration.Milliseconds(); c.ConnectTimeoutMS > limit {
		return keyError("runner_connect_timeout_ms", c.ConnectTimeoutMS, fmt.Sprintf("use 1 to %d, or 0 for the default", limit))
	}
	if limit := job.MaxGuardTTL.Seconds(); !(c.UniqueTTL >= 0 && c.UniqueTTL <= limit) {
		return keyError("default_unique_job_lock_ttl_seconds", c.UniqueTTL, fmt.Sprintf("use 0 to %v", limit))
	}
	if n := c.DefaultMaxRetries; n != nil && *n > maxRetries {
		return keyError("default_max_retries", *n, fmt.Sprintf("use 0 to %d", maxRetries))
	}
	ports := make(map[int]string)
	for _, name := range c.RunnerNames() {
		if err := c.validateRunner(name, c.Runners[name], ports); err != nil {
			return err
		}
	}
	return c.validateRouting()
}

// ValidateExplicit refuses an explicit 0 for keys whose default applies only if
// they are missing. isSet reports whether the file sets a runner's key. Every
// error is a [*ConfigError].
func (c *Config) ValidateExplicit(isSet func(runner, key string) bool) error {
	for _, name := range c.RunnerNames() {
		r := c.Runners[name]
		if r.PoolSize == 0 && isSet(name, "pool_size") {
			return keyError("runners."+name+".pool_size", 0, "use 1 to 1024, or leave it out for one process for each CPU")
		}
		if r.MaxInFlight == 0 && isSet(name, "max_in_flight") {
			return keyError("runners."+name+".max_in_flight", 0, fmt.Sprintf("use 1 to %d, or leave it out for 1", rrq.MaxInFlight))
		}
	}
	return nil
}

// ValidateStandalone checks a table when no other member could have its
// runners: the default runner and the runners of routes must be configured, or
// all jobs of the routed queues would become dead letters. Every error is a
// [*ConfigError].
func (c *Config) ValidateStandalone() error {
	if _, ok := c.Runners[c.DefaultRunner]; !ok && len(c.Runners) > 0 && c.DefaultRunner != "" {
		return keyError("default_runner_name", c.DefaultRunner, "define [rrq.runners."+c.DefaultRunner+"] or name one that is: "+strings.Join(c.RunnerNames(), ", "))
	}
	keyPrefix, routes := c.writtenRoutes()
	for _, queue := range slices.Sorted(maps.Keys(routes)) {
		if _, ok := c.Runners[routes[queue]]; !ok {
			return keyError(keyPrefix+queue, routes[queue], "define [rrq.runners."+routes[queue]+"] or remove the route: no node has such a runner")
		}
	}
	return nil
}

// validateRouting checks the names of queues, that only one of the two tables
// of routes is used, and that no queue has two routes.
func (c *Config) validateRouting() error {
	if name := c.DefaultQueueName(); job.ValidQueue(name) != nil {
		return keyError("default_queue_name", c.DefaultQueue, queueNameRule)
	}
	if len(c.Routing) > 0 && len(c.Routes) > 0 {
		return keyError("routing", fmt.Sprintf("%d routes", len(c.Routing)), "it is the old name of runner_routes, which is set too: move its entries there")
	}
	keyPrefix, routes := c.writtenRoutes()
	for _, queue := range slices.Sorted(maps.Keys(routes)) {
		switch {
		case routes[queue] == "":
			return keyError(keyPrefix+queue, "", "name a runner")
		case job.ValidQueue(QueueName(queue)) != nil:
			return keyError(keyPrefix+queue, routes[queue], queueNameRule)
		case c.RoutesByQueue()[QueueName(queue)] != routes[queue]:
			return keyError(keyPrefix+queue, routes[queue], "the same queue, written with or without \"rrq:queue:\", goes to another runner too: remove one of the two")
		}
	}
	return c.validateCorrelation()
}

// writtenRoutes returns the routes with the queue names as in the file, and the
// prefix of their keys in an error.
func (c *Config) writtenRoutes() (keyPrefix string, routes map[string]string) {
	if len(c.Routing) > 0 {
		return "routing.", c.Routing
	}
	return "runner_routes.", c.Routes
}

// queueNameRule describes valid queue names.
const queueNameRule = `begin the queue's name, which may have "rrq:queue:" before it, with a letter or digit and use only letters, digits, '_' and '-'`

// validateRunner checks a runner's table, to which defaults were applied. ports
// maps the ports of runners checked before to their names; it adds r's.
func (c *Config) validateRunner(name string, r RunnerConfig, ports map[int]string) error {
	key := "runners." + name + "."
	if job.ValidQueue(name) != nil {
		return keyError("runners", name, "begin the name with a letter or digit and use only letters, digits, '_' and '-'")
	}
	switch {
	case r.Type != "socket":
		return keyError(key+"type", r.Type, `use "socket"`)
	case r.PoolSize < 1 || r.PoolSize > 1024:
		return keyError(key+"pool_size", r.PoolSize, "use 1 to 1024")
	case r.MaxInFlight < 1 || r.MaxInFlight > rrq.MaxInFlight:
		return keyError(key+"max_in_flight", r.MaxInFlight, fmt.Sprintf("use 1 to %d", rrq.MaxInFlight))
	case r.TCPPort < 0 || r.TCPPort > 65535 || r.TCPPort > 0 && r.TCPPort+r.PoolSize-1 > 65535:
		return keyError(key+"tcp_port", r.TCPPort, fmt.Sprintf("%d processes need that many ports up to 65535", r.PoolSize))
	case !validSeconds(r.ResponseTimeout):
		return keyError(key+"response_timeout_seconds", r.ResponseTimeout, "give seconds, 0 or more")
	case !validSeconds(*r.CancelGrace):
		return keyError(key+"cancel_grace_seconds", *r.CancelGrace, "give seconds, 0 or more")
	case !slices.Contains([]string{SocketAuto, SocketBoth, SocketEnv, SocketArg}, r.SocketVia):
		return keyError(key+"socket_via", r.SocketVia, `use "auto", "both", "env" or "arg"`)
	case r.Connections != ConnReuse && r.Connections != ConnPerRequest:
		return keyError(key+"connections", r.Connections, `use "reuse" or "per_request"`)
	}
	for _, pattern := range r.InheritEnv {
		if !isEnvPattern(pattern) {
			return keyError(key+"inherit_env", pattern, `list names of variables, or their beginnings followed by "*"`)
		}
	}
	if c.Management == External {
		return validateExternal(key, r)
	}
	if err := validateCmd(key, r.Cmd); err != nil {
		return err
	}
	for port := r.TCPPort; r.TCPPort > 0 && port < r.TCPPort+r.PoolSize; port++ {
		if other, taken := ports[port]; taken {
			return keyError(key+"tcp_port", r.TCPPort, fmt.Sprintf("port %d already belongs to runner %s: leave pool_size ports to each runner", port, other))
		}
		ports[port] = name
	}
	return nil
}

// validateCmd refuses an empty command, and one that ends where a socket
// address should follow.
func validateCmd(key string, cmd []string) error {
	if len(cmd) == 0 || cmd[0] == "" {
		return keyError(key+"cmd", strings.Join(cmd, " "), "give the program and its arguments as a list of strings")
	}
	if last := cmd[len(cmd)-1]; last == socketArg {
		return keyError(key+"cmd", last, "remove "+socketArg+" from the end; each process gets it with its own socket")
	}
	return nil
}

// validateExternal checks that an external runner has a port, and a host that
// is the loopback or listed in AllowedHosts.
func validateExternal(key string, r RunnerConfig) error {
	if r.TCPPort == 0 {
		return keyError(key+"tcp_port", r.TCPPort, "name the port that the external runner listens on")
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
	return keyError(key+"tcp_host", r.TCPHost, "use the loopback, or list the host in "+key+"allowed_hosts")
}

// keyError returns the [ConfigError] of an invalid value of rrq.<key>.
func keyError(key string, value any, fix string) error {
	return &ConfigError{Key: "rrq." + key, Cause: fmt.Sprintf("is %#v", value), Fix: fix}
}

// validSeconds reports whether s is a valid duration in seconds.
func validSeconds(s float64) bool { return s >= 0 && s <= job.MaxDuration.Seconds() }
