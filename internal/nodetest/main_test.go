package nodetest_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"yardmaster/examples/runner/demo"
	"yardmaster/internal/nodetest"
	"yardmaster/internal/scenario/sequential"
	"yardmaster/node"
	"yardmaster/runnerpool"
)

// runnerEnv makes the test's own binary a runner process: the demo's, or the
// sequential one.
const (
	runnerEnv        = "YARD_TEST_RUNNER"
	sequentialRunner = "sequential"
)

func TestMain(m *testing.M) {
	switch os.Getenv(runnerEnv) {
	case "":
		os.Exit(m.Run())
	case sequentialRunner:
		fmt.Fprintln(os.Stderr, sequential.Main(os.Args[1:]))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	run := func() error { return demo.Main(ctx, nil) }
	if os.Getenv(runnerEnv) == tellingRunner {
		run = func() error { return tell(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settings are those of every yard here: a pool of demo runners on each node,
// and retries that do not keep a test waiting.
func settings(c *node.Config) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	grace := 0.3
	c.Scheduler.RetryBase, c.Scheduler.RetryMax = 20*time.Millisecond, 100*time.Millisecond
	c.Scheduler.MaxAttempts = 3
	c.RRQ = runnerpool.Config{
		TermGrace: &grace,
		Routes:    map[string]string{"routed": "demo"},
		CronJobs:  []runnerpool.CronJob{{Function: "process", Schedule: "0 0 4 * * *", TimeZone: "Europe/Berlin"}},
		Runners: map[string]runnerpool.RunnerConfig{"demo": {
			Cmd: []string{self}, Env: map[string]string{runnerEnv: "1"}, SocketVia: runnerpool.SocketEnv,
			PoolSize: 1, MaxInFlight: 4, CancelGrace: &grace,
		}},
	}
}

// episode is one of those that a yard is started for.
type episode struct {
	name string
	run  func(*testing.T, *nodetest.Yard)
}

// TestYard is one yard of three for many cases, each with queues of its own.
func TestYard(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y := nodetest.Start(t, 3, settings)
	for _, c := range []episode{
		{"FourWaysIn", fourWaysIn},
		{"Lookups", lookups},
		{"ReadYourWrites", readYourWrites},
		{"Priorities", priorities},
		{"Delayed", delayed},
		{"Producers", producers},
		{"Calls", calls},
		{"Bulk", bulk},
		{"Because", because},
		{"Explain", explain},
		{"ExplainUndecided", explainUndecided},
		{"Guards", guards},
		{"UniqueOnce", uniqueOnce},
		{"CronTicks", cronTicks},
		{"Limit", limit},
		{"Pause", pause},
		{"DeadLetter", deadLetter},
		{"Malformed", malformed},
		{"DeadLetters", deadLetters},
		{"AskLetters", askLetters},
		{"Replays", replays},
		{"Timeout", timeout},
		{"CutConnection", cutConnection},
		{"GivenBack", givenBack},
		{"Resume", resume},
		{"Stalled", stalled},
		{"TwoHands", twoHands},
		{"Progress", progress},
		{"Conversations", conversations},
		{"Bodies", bodies},
		{"Runner", runner},
		{"LargeResults", largeResults},
		{"LargeBody", largeBody},
		{"Cancel", cancel},
		{"Contract", contract},
		{"HandOver", handOver},
		{"Drained", drained},
		{"Service", service},
		{"Instances", instances},
		{"Tallied", tallied},
		{"OneNode", oneNode},
		{"Boards", boards},
		{"Checked", checked},
		{"Permissions", permissions},
		{"History", history},
		{"Drain", drain}, // last: it stops a node, and starts it again
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, y) })
	}
}
