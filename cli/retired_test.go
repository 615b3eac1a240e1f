package cli

import (
	"strings"
	"testing"
)

// The retired verbs are accepted with their flags, and fail with the verb to use
// instead, without contacting a node.
func TestRetired(t *testing.T) {
	for _, line := range []string{
		"cluster scrub", "cluster scrub --json", "cluster rebuild YARD_JOBS_0 --node n2", "cluster rebuild YARD_JOBS_0 --node n2 --no-wait --json",
	} {
		got := runLine(t, "", strings.Fields(line)...)
		if got.code != 1 || got.out != "" || !strings.Contains(got.err, "'yardmaster cluster replace <member>'") {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// The verbs that became commands of their own fail with the command to use, whatever
// their flags.
func TestMovedVerbs(t *testing.T) {
	for _, line := range []string{"drill", "drill list --json", "drill run --all --report drills", "bench", "bench --help", "bench --only yard3 -s x"} {
		name := strings.Fields(line)[0]
		got := runLine(t, "", strings.Fields(line)...)
		if got.code != 1 || got.out != "" || !strings.Contains(got.err, "'go run ./test/cmd/"+name+"'") {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// A verb of other implementations of the runtime contract fails with what to use instead.
func TestMuxContract(t *testing.T) {
	for _, line := range []string{"mux-contract", "mux-contract --json", "mux-contract a --state-dir=b"} {
		got := runLine(t, "", strings.Fields(line)...)
		if got.code != 1 || got.out != "" || !strings.Contains(got.err, "'yardmaster schema --json'") {
			t.Errorf("%s: %+v", line, got)
		}
	}
}
