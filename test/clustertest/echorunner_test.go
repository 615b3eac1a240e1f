package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// echoRunner is the value of runnerEnv for a runner that returns the request it got.
const echoRunner = "tells"

// withEchoRunner configures a pool of one echo runner with this number of slots.
func withEchoRunner(atOnce int) func(*config.Config) {
	return func(c *config.Config) {
		testConfig(c)
		r := c.RRQ.Runners["demo"]
		r.Env, r.MaxInFlight = map[string]string{runnerEnv: echoRunner}, atOnce
		c.RRQ.Runners["demo"] = r
	}
}

func serveEchoRunner(ctx context.Context) error {
	ln, err := net.Listen("tcp", os.Getenv("RRQ_RUNNER_TCP_SOCKET"))
	if err != nil {
		return err
	}
	return rrq.Serve(ctx, ln, func(_ context.Context, r *rrq.Request) rrq.Outcome {
		told, err := json.Marshal(map[string]any{"trace": r.Context.Trace, "worker": r.Context.WorkerID})
		if r.Function == "say" {
			var p struct{ Text string }
			if err = json.Unmarshal(r.Params, &p); err == nil {
				fmt.Println(p.Text)
				fmt.Fprintf(os.Stderr, "{\"request_id\":%q,\"attempt\":%d}\n", r.RequestID, r.Context.Attempt)
			}
		}
		switch {
		case err != nil:
			return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Message: err.Error()}}
		case (r.Function == "again" || r.Function == "say") && r.Context.Attempt < 3:
			after := 0.01
			return rrq.Outcome{Status: rrq.Retry, RetryAfter: &after, Fault: &rrq.Fault{Message: "not yet"}}
		case r.Function == "never":
			return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Message: "no luck", Type: "luck"}}
		}
		return rrq.Outcome{Status: rrq.Success, Result: told}
	})
}

// echoResult is the result of an echo runner.
type echoResult struct {
	Trace  map[string]string
	Worker string
}

func parseEcho(result json.RawMessage) (t echoResult, err error) {
	if len(result) == 0 {
		return t, errors.New("no result")
	}
	return t, json.Unmarshal(result, &t)
}
