package clustertest_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
	"github.com/yardmaster-dev/yardmaster/test/runnerscript"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios yield into their files")

const scenarios = "../../runnerpool/testdata/scenarios"

// raceDetector is true if the race detector is on, which takes minutes for bodies of
// 16 MiB.
var raceDetector bool

// TestScenarios checks that jobs end as scripted with the full runner and with the
// strictest one.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	scripts, err := runnerscript.Load(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	if raceDetector {
		scripts = slices.DeleteFunc(scripts, func(s runnerscript.Script) bool { return s.Name == "large" })
	}
	settings, err := runnerscript.WriteSettings(scenarios, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, runner := range []string{"demo", sequentialRunner} {
		t.Run(runner, func(t *testing.T) {
			t.Parallel()
			witness := filepath.Join(t.TempDir(), "witness")
			if err := os.WriteFile(witness, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			cl := clustertest.Start(t, 3, func(c *config.Config) {
				c.Scheduler, c.RRQ = cfg.Scheduler, cfg.RRQ
				c.RRQ.Runners = map[string]runnerpool.RunnerConfig{"demo": runnerOf(runner, witness)}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			w := runnerscript.Env{Witness: witness, Attempts: cfg.Scheduler.MaxAttempts, Request: anyMember(cl), Overhop: func() string { return cl.Members[0].Node().Addresses().Overhop }}
			for _, p := range runnerscript.Run(ctx, w, scripts) {
				if *rewrite && runner == "demo" && p.Err == nil {
					p.Err = os.WriteFile(p.Path, []byte(p.Got), 0o644)
				} else if differs := p.Diff(false); differs != "" {
					t.Error(differs)
				}
				if p.Err != nil {
					t.Error(p.Err)
				}
			}
			if err := runnerscript.Violations(witness); err != nil {
				t.Error(err)
			}
		})
	}
}

// runnerOf returns the configuration of a pool of the test binary as this runner.
func runnerOf(runner, witness string) runnerpool.RunnerConfig {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	grace := 0.3
	return runnerpool.RunnerConfig{
		Cmd: []string{self}, Env: map[string]string{runnerEnv: runner, "YARD_WITNESS": witness},
		SocketVia: runnerpool.SocketEnv, PoolSize: 3, MaxInFlight: 1, CancelGrace: &grace,
	}
}

// anyMember returns a function that sends requests to the members in turn.
func anyMember(cl *clustertest.Cluster) func(context.Context, string, []byte) ([]byte, error) {
	var turn atomic.Uint32
	return func(ctx context.Context, subject string, question []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return cl.Members[turn.Add(1)%3].Client().Request(ctx, subject, question)
	}
}
