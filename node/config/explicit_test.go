package config

import (
	"strings"
	"testing"
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
