package runnerpool

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/yardmaster-dev/yardmaster/job"
)

// An RRQ configuration is accepted unchanged.
func TestConfigOfRRQ(t *testing.T) {
	var file struct {
		RRQ Config `toml:"rrq"`
	}
	meta, err := toml.Decode(`
[rrq]
default_runner_name = "py"
default_job_timeout_seconds = 60
default_max_retries = 3
base_retry_delay_seconds = 0.5
runner_connect_timeout_ms = 2000
runner_shutdown_term_grace_seconds = 0
runner_management_mode = "managed"
[rrq.runner_routes]
mail = "ts"
[rrq.runners.py]
type = "socket"
cmd = ["rrq-runner", "--settings", "app:settings"]
pool_size = 4
max_in_flight = 10
tcp_port = 9000
env = { A = "b" }
cwd = "/tmp"
response_timeout_seconds = 30
[rrq.runners.ts]
cmd = ["node", "runner.js", "--tcp-socket", "{socket}"]
tcp_host = "10.0.0.1"
tcp_port = 9100
pool_size = 1
`, &file)
	if err != nil || len(meta.Undecoded()) > 0 {
		t.Fatalf("%v, undecoded %v", err, meta.Undecoded())
	}
	if err := file.RRQ.Validate(); err != nil {
		t.Fatal(err)
	}
	c := file.RRQ.withDefaults()
	py, ts := c.Runners["py"], c.Runners["ts"]
	if c.DefaultRunnerName() != "py" || *c.TermGrace != 0 || *c.ShutdownGrace != 10 || py.MaxInFlight != 10 || py.SocketVia != SocketAuto ||
		ts.TCPHost != "127.0.0.1" || ts.MaxInFlight != 1 || *ts.CancelGrace != 1 {
		t.Errorf("config is %+v", c)
	}
	if p := c.Policy(job.DefaultPolicy); p.MaxAttempts != 3 || p.BaseDelay != 500*time.Millisecond || p.MaxDelay != time.Hour {
		t.Errorf("policy is %+v", p)
	}
	only := Config{Runners: map[string]RunnerConfig{"python": {Cmd: []string{"x"}}}}
	if only.DefaultRunnerName() != "python" {
		t.Errorf("default runner is %q", only.DefaultRunnerName())
	}
	if other := (Config{Runners: map[string]RunnerConfig{"go": {Cmd: []string{"x"}}}}); other.DefaultRunnerName() != "python" {
		t.Errorf("default runner is %q, though another member may have python", other.DefaultRunnerName())
	}
}

func TestConfigErrorsNameTheKey(t *testing.T) {
	runner := func(change func(*RunnerConfig)) func(*Config) {
		return func(c *Config) {
			r := c.Runners["r"]
			change(&r)
			c.Runners["r"] = r
		}
	}
	for key, change := range map[string]func(*Config){
		"rrq.runner_management_mode":              func(c *Config) { c.Management = "none" },
		"rrq.default_job_timeout_seconds":         func(c *Config) { c.DefaultTimeout = -1 },
		"rrq.runner_shutdown_term_grace_seconds":  func(c *Config) { c.TermGrace = ptr(math.NaN()) },
		"rrq.runner_connect_timeout_ms":           func(c *Config) { c.ConnectTimeoutMS = math.MaxInt64 },
		"rrq.default_max_retries":                 func(c *Config) { n := uint32(1001); c.DefaultMaxRetries = &n },
		"rrq.default_result_ttl_seconds":          func(c *Config) { c.ResultTTL = math.Inf(1) },
		"rrq.default_unique_job_lock_ttl_seconds": func(c *Config) { c.UniqueTTL = 366 * 86400 },
		"rrq.default_queue_name":                  func(c *Config) { c.DefaultQueue = "rrq:queue:a b" },
		"rrq.runner_routes.q":                     func(c *Config) { c.Routes = map[string]string{"q": ""} },
		"rrq.runner_routes.rrq:dlq:q":             func(c *Config) { c.Routes = map[string]string{"rrq:dlq:q": "r"} },
		"rrq.runner_routes.q is \"r\"":            func(c *Config) { c.Routes = map[string]string{"q": "r", "rrq:queue:q": "s"} },
		"rrq.routing.q":                           func(c *Config) { c.Routing = map[string]string{"q": ""} },
		"rrq.routing is":                          func(c *Config) { c.Routes = map[string]string{"q": "r"}; c.Routing = c.Routes },
		"rrq.correlation_mappings.k":              func(c *Config) { c.Correlation = map[string]string{"k": "params.a..b"} },
		"rrq.correlation_mappings is":             func(c *Config) { c.Correlation = map[string]string{strings.Repeat("k", 65): "a"} },
		"rrq.runners":                             func(c *Config) { c.Runners["a b"] = c.Runners["r"] },
		"rrq.runners.r.type":                      runner(func(r *RunnerConfig) { r.Type = "stdio" }),
		"rrq.runners.r.cmd":                       runner(func(r *RunnerConfig) { r.Cmd = nil }),
		"rrq.runners.r.cmd is \"--tcp-socket\"":   runner(func(r *RunnerConfig) { r.Cmd = []string{"x", "--tcp-socket"} }),
		"rrq.runners.r.pool_size":                 runner(func(r *RunnerConfig) { r.PoolSize = -1 }),
		"rrq.runners.r.max_in_flight":             runner(func(r *RunnerConfig) { r.MaxInFlight = 65 }),
		"rrq.runners.r.tcp_port":                  runner(func(r *RunnerConfig) { r.TCPPort, r.PoolSize = 65535, 2 }),
		"rrq.runners.r.response_timeout_seconds":  runner(func(r *RunnerConfig) { r.ResponseTimeout = math.Inf(1) }),
		"rrq.runners.r.socket_via":                runner(func(r *RunnerConfig) { r.SocketVia = "fd" }),
		"rrq.runners.r.inherit_env":               runner(func(r *RunnerConfig) { r.InheritEnv = []string{"A", "*B"} }),
		"rrq.runners.r.cancel_grace_seconds":      runner(func(r *RunnerConfig) { r.CancelGrace = ptr(-1) }),
		"rrq.runners.r.connections":               runner(func(r *RunnerConfig) { r.Connections = "none" }),
		"rrq.runners.s.tcp_port":                  func(c *Config) { c.Runners["s"] = RunnerConfig{Cmd: []string{"x"}, TCPPort: 9001, PoolSize: 1} },
		"rrq.runners.r.tcp_host": func(c *Config) {
			c.Management = External
			c.Runners = map[string]RunnerConfig{"r": {TCPHost: "10.0.0.1", TCPPort: 1, AllowedHosts: []string{"10.0.0.2"}}}
		},
	} {
		c := Config{Runners: map[string]RunnerConfig{"r": {Cmd: []string{"x"}, TCPPort: 9000, PoolSize: 2}}}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		err := c.Validate()
		var typed *ConfigError
		if !errors.As(err, &typed) || !strings.HasPrefix(err.Error(), key) || typed.Fix == "" {
			t.Errorf("%s: error is %v", key, err)
		}
	}
}
