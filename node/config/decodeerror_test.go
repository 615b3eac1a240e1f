package config

import (
	"strings"
	"testing"
)

// The error about a value of a wrong type uses TOML's words and names what is valid.
func TestLoad_WrongTypes(t *testing.T) {
	for text, says := range map[string]string{
		"[rrq.runners.a]\ncmd = \"x\"":                    `line 2: rrq.runners.a.cmd is text; must be a list, such as ["a", "b"]`,
		"[rrq.runners.a]\ncmd = [\"x\", 1]":               `rrq.runners.a.cmd is a list with a whole number; must be a list whose values are each text in quotes`,
		"[rrq.runners.a.env]\nA = 1":                      `rrq.runners.a.env.A is a whole number; must be text in quotes, such as "a"`,
		"[rrq.runners.\"a.b\"]\npool_size = \"2\"":        `rrq.runners."a.b".pool_size is text; must be a whole number, such as 5`,
		"[rrq]\ndefault_job_timeout_seconds = \"5m\"":     `rrq.default_job_timeout_seconds is text; must be a number without a unit`,
		"[rrq]\nrunner_enable_inflight_cancel_hints = 1":  `rrq.runner_enable_inflight_cancel_hints is a whole number; must be true or false`,
		"[rrq]\nrunners = \"a\"":                          `rrq.runners is not a table; it must be one`,
		"[rrq.runners.a]\nenv = \"A=b\"":                  `rrq.runners.a.env is not a table; it must be one`,
		"[rrq.runners]\na = \"x\"":                        `rrq.runners.a is text; must be a table`,
		"[scheduler]\ndefault_timeout = 1.5":              `scheduler.default_timeout is a number with a fraction; must be text with a unit, such as "30s" or "1d"`,
		"[scheduler]\ndefault_timeout = 5":                `scheduler.default_timeout is a whole number; must be text with a unit, such as "30s" or "1d"`,
		"[scheduler]\nmax_attempts = -1":                  `(last key "scheduler.max_attempts"): -1 is out of range`,
		"[http]\nlisten = 4280":                           `http.listen is a whole number; must be text in quotes`,
		"[cluster]\nmembers = [\"n1\"]":                   `cluster.members is a list with text; must be a list whose values are each a table`,
		"[limits]\nread_timeout = true\n[node]\nname = 1": `must be text`,
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v does not say %q", text, err, says)
		}
		if err != nil && (strings.Contains(err.Error(), ": toml:") || strings.Contains(err.Error(), "destination") || strings.Contains(err.Error(), "uint")) {
			t.Errorf("%q: %v mentions Go types", text, err)
		}
	}
}
