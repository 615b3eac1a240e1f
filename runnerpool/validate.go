package runnerpool

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// maxRetries is as much as the yard's own max_attempts may be.
const maxRetries = 1000

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
		{"default_result_ttl_seconds", max(c.ResultTTL, 0)},
	} {
		if !sane(v.value) {
			return wrong(v.key, v.value, "give seconds, 0 or more")
		}
	}
	if most := job.MaxDuration.Milliseconds(); c.ConnectTimeoutMS > most {
		return wrong("runner_connect_timeout_ms", c.ConnectTimeoutMS, fmt.Sprintf("use 1 to %d, or 0 for the default", most))
	}
	if most := job.MaxGuardTime.Seconds(); !(c.UniqueTTL >= 0 && c.UniqueTTL <= most) {
		return wrong("default_unique_job_lock_ttl_seconds", c.UniqueTTL, fmt.Sprintf("use 0 to %v", most))
	}
	if n := c.DefaultMaxRetries; n != nil && *n > maxRetries {
		return wrong("default_max_retries", *n, fmt.Sprintf("use 0 to %d", maxRetries))
	}
	ports := make(map[int]string)
	for _, name := range c.Names() {
		if err := c.validateRunner(name, c.Runners[name], ports); err != nil {
			return err
		}
	}
	return c.validateRouting()
}

// ValidateWritten refuses a 0 that somebody wrote where only a missing key may
// stand for a default; written tells which keys of a runner the file has. Every
// error is a [*ConfigError].
func (c *Config) ValidateWritten(written func(runner, key string) bool) error {
	for _, name := range c.Names() {
		r := c.Runners[name]
		if r.PoolSize == 0 && written(name, "pool_size") {
			return wrong("runners."+name+".pool_size", 0, "use 1 to 1024, or leave it out for one process for each CPU")
		}
		if r.MaxInFlight == 0 && written(name, "max_in_flight") {
			return wrong("runners."+name+".max_in_flight", 0, fmt.Sprintf("use 1 to %d, or leave it out for 1", rrq.MaxInFlight))
		}
	}
	return nil
}

// ValidateAlone checks what the table must hold if there is no other member
// that could have a runner: the default one, and those of the routes, whose
// queues' jobs would all be dead letters. Every error is a [*ConfigError].
func (c *Config) ValidateAlone() error {
	if _, ok := c.Runners[c.DefaultRunner]; !ok && len(c.Runners) > 0 && c.DefaultRunner != "" {
		return wrong("default_runner_name", c.DefaultRunner, "define [rrq.runners."+c.DefaultRunner+"] or name one that is: "+strings.Join(c.Names(), ", "))
	}
	table, routes := c.writtenRoutes()
	for _, queue := range slices.Sorted(maps.Keys(routes)) {
		if _, ok := c.Runners[routes[queue]]; !ok {
			return wrong(table+queue, routes[queue], "define [rrq.runners."+routes[queue]+"] or leave the route away: no node has such a runner")
		}
	}
	return nil
}

func (c *Config) validateRouting() error {
	if name := c.Queue(); job.ValidQueue(name) != nil {
		return wrong("default_queue_name", c.DefaultQueue, validQueue)
	}
	if len(c.Routing) > 0 && len(c.Routes) > 0 {
		return wrong("routing", fmt.Sprintf("%d routes", len(c.Routing)), "it is the former name of runner_routes, which is here too: move its entries there")
	}
	table, routes := c.writtenRoutes()
	for _, queue := range slices.Sorted(maps.Keys(routes)) {
		switch {
		case routes[queue] == "":
			return wrong(table+queue, "", "name a runner")
		case job.ValidQueue(QueueName(queue)) != nil:
			return wrong(table+queue, routes[queue], validQueue)
		case c.Routed()[QueueName(queue)] != routes[queue]:
			return wrong(table+queue, routes[queue], "the same queue, written with or without \"rrq:queue:\", goes to another runner too: leave one of the two away")
		}
	}
	return c.validateCorrelation()
}

// writtenRoutes are the routes as they were written, and what stands before
// their keys.
func (c *Config) writtenRoutes() (table string, routes map[string]string) {
	if len(c.Routing) > 0 {
		return "routing.", c.Routing
	}
	return "runner_routes.", c.Routes
}

// validQueue tells what a queue's name may be.
const validQueue = `begin the queue's name, which may have "rrq:queue:" before it, with a letter or digit and use only letters, digits, '_' and '-'`

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

// validateCmd refuses a command that ends where a socket should follow.
func validateCmd(key string, cmd []string) error {
	if len(cmd) == 0 || cmd[0] == "" {
		return wrong(key+"cmd", strings.Join(cmd, " "), "give the program and its arguments as a list of strings")
	}
	if last := cmd[len(cmd)-1]; last == socketArg {
		return wrong(key+"cmd", last, "leave "+socketArg+" away at the end, each process is given it with its own socket")
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
