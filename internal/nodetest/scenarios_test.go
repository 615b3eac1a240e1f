package nodetest_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"yardmaster/internal/nodetest"
	"yardmaster/internal/scenario"
	"yardmaster/node"
	"yardmaster/runnerpool"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios yield into their files")

const scenarios = "../../runnerpool/testdata/scenarios"

// TestScenarios: what becomes of jobs is the same with the runner that has
// everything, and with one that has nothing but what the contract says.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	scripts, err := scenario.Load(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := scenario.Settings(scenarios, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := node.Load(settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, runner := range []string{"demo", sequentialRunner} {
		t.Run(runner, func(t *testing.T) {
			witness := filepath.Join(t.TempDir(), "witness")
			if err := os.WriteFile(witness, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			y := nodetest.Start(t, 3, func(c *node.Config) {
				c.Scheduler, c.RRQ = cfg.Scheduler, cfg.RRQ
				c.RRQ.Runners = map[string]runnerpool.RunnerConfig{"demo": runnerOf(runner, witness)}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w := scenario.World{Witness: witness, Attempts: cfg.Scheduler.MaxAttempts, Ask: anyone(y), Overhop: func() string { return y.Members[0].Node().Addresses().Overhop }}
			for _, p := range scenario.Play(ctx, w, scripts) {
				if *rewrite && runner == "demo" && p.Err == nil {
					p.Err = os.WriteFile(p.Path, []byte(p.Got), 0o644)
				} else if differs := p.Differs(false); differs != "" {
					t.Error(differs)
				}
				if p.Err != nil {
					t.Error(p.Err)
				}
			}
			if err := scenario.Complaints(witness); err != nil {
				t.Error(err)
			}
		})
	}
}

// runnerOf is a pool of the test's own binary, which is that runner.
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

// anyone asks the members in turn.
func anyone(y *nodetest.Yard) func(context.Context, string, []byte) ([]byte, error) {
	var turn atomic.Uint32
	return func(ctx context.Context, subject string, question []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return y.Members[turn.Add(1)%3].Client().Request(ctx, subject, question)
	}
}
