package clustertest_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/examples/runner/demo"
	"github.com/yardmaster-dev/yardmaster/internal/clustertest"
	"github.com/yardmaster-dev/yardmaster/internal/runnerscript/sequential"
	"github.com/yardmaster-dev/yardmaster/node"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
)

// runnerEnv turns the test binary into a runner: the demo's, the sequential one or the
// echo runner.
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
	if os.Getenv(runnerEnv) == echoRunner {
		run = func() error { return serveEchoRunner(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// testConfig configures every cluster of these tests: a pool of demo runners on each node,
// and short retries.
func testConfig(c *node.Config) {
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

// testCase is a case that runs on a shared cluster.
type testCase struct {
	name string
	run  func(*testing.T, *clustertest.Cluster)
}

// TestCluster runs many cases on one cluster of three nodes, each with its own queues.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	cl := clustertest.Start(t, 3, testConfig)
	for _, c := range []testCase{
		{"FourWaysIn", enqueueTransports},
		{"Lookups", lookups},
		{"ReadYourWrites", readYourWrites},
		{"Priorities", priorities},
		{"Delayed", delayed},
		{"Producers", producers},
		{"Calls", calls},
		{"Bulk", bulk},
		{"Because", waitReasons},
		{"Explain", explain},
		{"ExplainUndecided", explainUndecided},
		{"Guards", guardKeys},
		{"UniqueOnce", uniqueKeyOnce},
		{"CronTicks", cronTicks},
		{"Limit", queueLimit},
		{"Pause", pausedQueue},
		{"DeadLetter", deadLetter},
		{"Malformed", malformedRecord},
		{"DeadLetters", deadLetters},
		{"AskLetters", deadLetterErrors},
		{"Replays", replays},
		{"Timeout", jobTimeout},
		{"CutConnection", cutConnection},
		{"GivenBack", returnedJob},
		{"Resume", resume},
		{"Stalled", stalledWorker},
		{"TwoHands", twoConnections},
		{"Progress", jobProgress},
		{"Conversations", wireScripts},
		{"Bodies", largePayloads},
		{"Runner", runnerJob},
		{"LargeResults", largeResults},
		{"LargeBody", largeBody},
		{"Cancel", cancelJob},
		{"Contract", contract},
		{"HandOver", authorityTransfer},
		{"Drained", operatorDrain},
		{"Service", service},
		{"Instances", serviceInstances},
		{"Tallied", serviceStats},
		{"OneNode", nodeEndpoints},
		{"Boards", boardRows},
		{"Checked", streamChecks},
		{"Permissions", permissions},
		{"History", history},
		{"Drain", stopHandsWorkersOver}, // last, because it restarts a node
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, cl) })
	}
}
