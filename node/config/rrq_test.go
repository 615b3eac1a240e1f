package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/runnerpool"
)

// everyRRQKey is a table with every documented key of RRQ.
const everyRRQKey = `
[rrq]
redis_dsn = "redis://localhost:6379/1"
default_queue_name = "rrq:queue:work"
default_dlq_name = "rrq:dlq:default"
default_max_retries = 0
default_job_timeout_seconds = 60
default_lock_timeout_extension_seconds = 60
default_result_ttl_seconds = 86400
default_poll_delay_seconds = 0.1
runner_connect_timeout_ms = 15000
default_unique_job_lock_ttl_seconds = 21600
default_runner_name = "py"
runner_management_mode = "managed"
worker_health_check_interval_seconds = 60
worker_health_check_ttl_buffer_seconds = 10
base_retry_delay_seconds = 5.0
max_retry_delay_seconds = 3600
worker_shutdown_grace_period_seconds = 10.0
runner_shutdown_term_grace_seconds = 5
runner_enable_inflight_cancel_hints = false
capture_runner_output = true
expected_job_ttl = 30
worker_concurrency = 4

[rrq.runners.py]
type = "socket"
cmd = ["runner", "--tcp-socket", "127.0.0.1:9000"]
pool_size = 2
max_in_flight = 4
env = { A = "b" }
cwd = "/"
tcp_host = "127.0.0.1"
tcp_port = 9000
allowed_hosts = ["worker.example"]
response_timeout_seconds = 30

[rrq.ROUTES]
mail = "py"
"rrq:queue:bulk" = "py"

[rrq.correlation_mappings]
tenant_id = "params.tenant.id"

[[rrq.cron_jobs]]
function_name = "tick"
schedule = "0 * * * * *"
params = { payload = "cron payload" }
[[rrq.cron_jobs]]
function_name = "tock"
schedule = "0 * * * * *"
queue_name = "rrq:queue:mail"
unique = true

[rrq.watch]
path = "."
include_patterns = ["*.py"]
ignore_patterns = [".git"]
no_gitignore = false
pre_restart_cmds = [["make"]]
pre_restart_cwd = "."
pre_restart_timeout_seconds = 5
`

// The tables of an rrq.toml are accepted whole, and keys without effect are reported.
func TestLoad_RRQFile(t *testing.T) {
	for _, routes := range []string{"runner_routes", "routing"} {
		c, err := load(t, strings.Replace(everyRRQKey, "ROUTES", routes, 1))
		if err != nil {
			t.Fatal(err)
		}
		routed := c.RRQ.RoutesByQueue()
		if len(routed) != 2 || routed["mail"] != "py" || routed["bulk"] != "py" {
			t.Errorf("routes are %v", routed)
		}
		crons, err := c.Crons()
		if err != nil || crons[0].Queue != "work" || crons[1].Queue != "mail" || !crons[1].NoOverlap {
			t.Errorf("cron entries are %+v, %v", crons, err)
		}
		if d := c.RRQ.Defaults(); d.UniqueTTL != 6*time.Hour || d.ResultTTL != 24*time.Hour {
			t.Errorf("defaults are %+v", d)
		}
		if *c.RRQ.CancelHints || c.Scheduler.MaxAttempts != 1 || c.Scheduler.DefaultTimeout != time.Minute {
			t.Errorf("%+v, %+v", c.RRQ, c.Scheduler)
		}
		ignored := strings.Join(c.RRQ.Ignored, "; ")
		for key, why := range runnerpool.IgnoredKeys {
			if strings.Count(ignored, "rrq."+key+" ("+why+")") != 1 {
				t.Errorf("%s is not reported as ignored: %s", key, ignored)
			}
		}
		if len(c.RRQ.Ignored) != len(runnerpool.IgnoredKeys) {
			t.Errorf("%d keys are reported as ignored, not %d: %s", len(c.RRQ.Ignored), len(runnerpool.IgnoredKeys), ignored)
		}
	}
}

// The error about a misspelt key names the key that was probably meant.
func TestLoad_SuggestsNearestKey(t *testing.T) {
	for text, says := range map[string]string{
		"[rrq]\nredis_dns = \"x\"":                           "unknown key rrq.redis_dns (did you mean rrq.redis_dsn?)",
		"[rrq]\nrunner_route = {}":                           "did you mean rrq.runner_routes?",
		"[rrq]\nwach.path = \".\"":                           "unknown key rrq.wach.path",
		"[rrq.runners.a]\ncmd = [\"x\"]\npoolsize = 1":       "unknown key rrq.runners.a.poolsize (did you mean rrq.runners.a.pool_size?)",
		"[rrq.runners.\"a.b\"]\nmax_inflight = 1":            `(did you mean rrq.runners."a.b".max_in_flight?)`,
		"[[rrq.cron_jobs]]\nfunction = \"f\"":                "unknown key rrq.cron_jobs.function",
		"default_runner_name = \"py\"":                       "(did you mean rrq.default_runner_name?)",
		"redis_dsn = \"x\"":                                  "(did you mean rrq.redis_dsn?)",
		"[runners.a]\ncmd = [\"x\"]":                         "(did you mean rrq.runners.a.cmd?)",
		"[node]\nname = \"a\"\n[server]\ntokn = \"x\"":       "(did you mean server.token?)",
		"[scheduler]\nsomething_else_entirely = 1":           "unknown key scheduler.something_else_entirely; see",
		"[rrq]\ncapture_runner_output = true\nwhatever = 42": "unknown key rrq.whatever; see",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v does not say %q", text, err, says)
		}
	}
}

// Every key of RRQ without effect is documented with its reason.
func TestConfigurationDocument_IgnoredKeys(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	for key, why := range runnerpool.IgnoredKeys {
		if row := "| `rrq." + key + "` | " + why + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("docs/reference/config.md lacks the row %s", row)
		}
	}
}

// The configuration examples in docs/guides/runners.md are valid.
func TestRunnersDocument_Tables(t *testing.T) {
	text, err := os.ReadFile("../../docs/guides/runners.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 2 {
		t.Fatalf("%d tables found", len(blocks))
	}
	for _, block := range blocks {
		if c, err := load(t, block[1]); err != nil || len(c.RRQ.Runners) == 0 {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
}
