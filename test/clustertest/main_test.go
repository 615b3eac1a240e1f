package clustertest_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/examples/runner/demo"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
	"github.com/yardmaster-dev/yardmaster/test/runnerscript/sequential"
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
		// Clusters wait most of the time, so that each core can run several. The
		// flag -parallel overrides it.
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
			panic(err)
		}
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
func testConfig(c *config.Config) {
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

// runCases runs cases on one cluster of three nodes, each with its own queues.
func runCases(t *testing.T, cases []testCase) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	cl := clustertest.Start(t, 3, testConfig)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, cl) })
	}
}

// TestQueues tests what producers and queues do.
func TestQueues(t *testing.T) {
	runCases(t, []testCase{
		{"Transports", enqueueTransports},
		{"Lookups", lookups},
		{"ReadYourWrites", readYourWrites},
		{"Priorities", priorities},
		{"Delayed", delayed},
		{"Producers", producers},
		{"Calls", calls},
		{"Bulk", bulk},
		{"WaitReasons", waitReasons},
		{"Explain", explain},
		{"ExplainUndecided", explainUndecided},
		{"GuardKeys", guardKeys},
		{"UniqueKeyOnce", uniqueKeyOnce},
		{"CronTicks", cronTicks},
		{"Limit", queueLimit},
		{"Pause", pausedQueue},
		{"DeadLetter", deadLetter},
		{"MalformedRecord", malformedRecord},
		{"DeadLetters", deadLetters},
		{"DeadLetterErrors", deadLetterErrors},
		{"Replays", replays},
		{"LargePayloads", largePayloads},
		{"LargeBody", largeBody},
		{"History", history},
	})
}

// TestWorkers tests what workers and runners do.
func TestWorkers(t *testing.T) {
	runCases(t, []testCase{
		{"Timeout", jobTimeout},
		{"CutConnection", cutConnection},
		{"ReturnedJob", returnedJob},
		{"Resume", resume},
		{"StalledWorker", stalledWorker},
		{"TwoConnections", twoConnections},
		{"Progress", jobProgress},
		{"Conversations", wireScripts},
		{"Runner", runnerJob},
		{"LargeResults", largeResults},
		{"ClientContent", clientContent},
		{"Cancel", cancelJob},
		{"StopHandsWorkersOver", stopHandsWorkersOver}, // last, because it restarts a node
	})
}

// TestOperators tests what operators and their tools do.
func TestOperators(t *testing.T) {
	runCases(t, []testCase{
		{"Contract", contract},
		{"AuthorityTransfer", authorityTransfer},
		{"Drain", operatorDrain},
		{"Service", service},
		{"ServiceInstances", serviceInstances},
		{"ServiceStats", serviceStats},
		{"NodeEndpoints", nodeEndpoints},
		{"Boards", boardRows},
		{"StreamChecks", streamChecks},
		{"Permissions", permissions},
		{"History", history},
	})
}
