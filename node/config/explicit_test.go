package config

import (
	"strings"
	"testing"
	"time"
)

// An explicit 0 does not count as a missing key.
func TestLoad_ExplicitZeroes(t *testing.T) {
	for _, key := range []string{"pool_size", "max_in_flight"} {
		_, err := load(t, "[rrq.runners.a]\ncmd = [\"x\"]\n"+key+" = 0")
		if says := "rrq.runners.a." + key + " is 0; use 1 to "; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	if _, err := load(t, "[rrq.runners.a]\ncmd = [\"x\"]"); err != nil {
		t.Errorf("missing keys: %v", err)
	}
}

// A key of [scheduler] that is given as 0 is out of range, in the file and in the
// environment.
func TestLoad_SchedulerZeroes(t *testing.T) {
	for _, key := range []struct{ name, zero, says string }{
		{"max_attempts", "0", "scheduler.max_attempts is 0; must be 1 to 1000"},
		{"default_timeout", "0s", "scheduler.default_timeout is 0s; must be 1s to"},
		{"retry_base", "0d", "scheduler.retry_base is 0s; must be 1ms to"},
		{"retry_max", "0s", "scheduler.retry_max is 0s; must be 5s to"},
		{"new_queues_per_minute", "0", "scheduler.new_queues_per_minute is 0; must be 1 to 10000, which is as many queues as a yard may have"},
		{"max_error_bytes", "0", "scheduler.max_error_bytes is 0; must be 4096 to 65536"},
		{"prove_every", "0s", "scheduler.prove_every is 0s; must be 1s to"},
	} {
		t.Run(key.name, func(t *testing.T) {
			value := key.zero
			if key.name != "max_attempts" && key.name != "max_error_bytes" && key.name != "new_queues_per_minute" {
				value = `"` + value + `"`
			}
			if _, err := load(t, "[scheduler]\n"+key.name+" = "+value); err == nil || !strings.Contains(err.Error(), key.says) {
				t.Errorf("file: %v does not say %q", err, key.says)
			}
			t.Setenv(variableName("scheduler."+key.name), key.zero)
			if _, err := load(t, ""); err == nil || !strings.Contains(err.Error(), key.says) {
				t.Errorf("environment: %v does not say %q", err, key.says)
			}
		})
	}
}

// A jitter of 0 counts as given: it means none.
func TestLoad_RetryJitter(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       uint8
	}{
		{"default", "", 50},
		{"none", "[scheduler]\nretry_jitter = 0", 0},
		{"most", "[scheduler]\nretry_jitter = 100", 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := load(t, test.text)
			if err != nil || *c.Scheduler.RetryJitter != test.want {
				t.Errorf("jitter %v, error %v", c.Scheduler.RetryJitter, err)
			}
		})
	}
	const says = "scheduler.retry_jitter is 101; must be 0 to 100"
	if _, err := load(t, "[scheduler]\nretry_jitter = 101"); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%v does not say %q", err, says)
	}
	t.Setenv("YARD_SCHEDULER_RETRY_JITTER", "0")
	if c, err := load(t, ""); err != nil || *c.Scheduler.RetryJitter != 0 {
		t.Errorf("environment: jitter %v, error %v", c.Scheduler.RetryJitter, err)
	}
}

// A duration may have days, whatever else is in the file.
func TestLoad_Days(t *testing.T) {
	const text = `
[scheduler]
default_timeout = "1d"
retry_max = "1d12h"
[limits]
idle_timeout = "2d"
[rrq.runners.python]
cmd = ["python3", "1d"]
[rrq.runners.python.env]
lease = "1d"
`
	c, err := load(t, text+threeMembers+"[node]\nname = \"n2\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Scheduler.DefaultTimeout != 24*time.Hour || c.Scheduler.RetryMax != 36*time.Hour || c.Limits.IdleTimeout != 48*time.Hour {
		t.Errorf("%+v %+v", c.Scheduler, c.Limits)
	}
	if runner := c.RRQ.Runners["python"]; runner.Cmd[1] != "1d" || runner.Env["lease"] != "1d" || len(c.Cluster.Members) != 3 {
		t.Errorf("%+v %+v", runner, c.Cluster.Members)
	}
	t.Setenv("YARD_SCHEDULER_DEFAULT_TIMEOUT", "3d")
	if c, err := load(t, text); err != nil || c.Scheduler.DefaultTimeout != 72*time.Hour {
		t.Errorf("environment: %v, %v", c.Scheduler.DefaultTimeout, err)
	}
	for wrong, says := range map[string]string{
		"[scheduler]\nretry_max = \"10\"":                                 `scheduler.retry_max: "10" has no unit`,
		"[scheduler]\nretry_max = \"1 day\"":                              `scheduler.retry_max: "1 day" is not a duration`,
		"[scheduler]\nretry_max = \"1d\"\ndefault_timeout = true":         `node.toml: scheduler.default_timeout is a boolean`,
		"[scheduler]\nretry_max = \"1d\"\n[node]\nnam = \"n\"":            `node.nam`,
		"[scheduler]\nretry_max = \"1d\"\n[node]\nname = \"a\nb\"\nx = 1": `line 4`,
	} {
		if _, err := load(t, wrong); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v does not say %q", wrong, err, says)
		}
	}
}

// A route to a runner that is not configured is rejected on a single node, where no other
// member can have it.
func TestLoad_RouteToUndefinedRunner(t *testing.T) {
	const members = `
[node]
name = "n1"
[[cluster.members]]
name = "n1"
route = "127.0.0.1:1"
raft = "127.0.0.1:2"
[[cluster.members]]
name = "n2"
route = "127.0.0.1:3"
raft = "127.0.0.1:4"
[[cluster.members]]
name = "n3"
route = "127.0.0.1:5"
raft = "127.0.0.1:6"
`
	for _, table := range []string{"runner_routes", "routing"} {
		text := "[rrq.runners.a]\ncmd = [\"x\"]\n[rrq." + table + "]\nbulk = \"a\"\nmail = \"b\"\n"
		_, err := load(t, text)
		if says := `rrq.` + table + `.mail is "b"; define [rrq.runners.b] or`; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
		if _, err := load(t, text+members); err != nil {
			t.Errorf("among members: %v", err)
		}
		if _, err := load(t, text+"[rrq.runners.b]\ncmd = [\"x\"]"); err != nil {
			t.Errorf("with its runner: %v", err)
		}
	}
}
