package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"yardmaster/drill/yard"
	"yardmaster/internal/scenario"
	"yardmaster/node"
)

const scenarios = "../runnerpool/testdata/scenarios"

// sequentialEnv makes this program the sequential runner.
const sequentialEnv = "YARD_SEQUENTIAL_RUNNER"

// What may die while the scenarios' jobs run.
const (
	nothing      = "Calm"
	theDecider   = "AuthorityKilled"
	somebodyElse = "RunnersNodeKilled"
)

// TestFailover_Scenarios: what becomes of jobs is the same when the authority
// is killed among them.
func TestFailover_Scenarios(t *testing.T) {
	playScenarios(t, "sequential", theDecider)
}

// TestDrill_Scenarios: and whichever runner works, and whichever node dies.
func TestDrill_Scenarios(t *testing.T) {
	soak(t)
	for _, runner := range []string{"go", "python", "sequential"} {
		for _, dies := range []string{nothing, theDecider, somebodyElse} {
			t.Run(runner+dies, func(t *testing.T) { playScenarios(t, runner, dies) })
		}
	}
}

// runnerTable is the pool of one of the runners.
func runnerTable(t *testing.T, runner, program, witness string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs("../examples/runner-python/runner.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := map[string]string{
		"go":         fmt.Sprintf("cmd = [%q, \"runner\"]\n", program),
		"python":     fmt.Sprintf("cmd = [\"python3\", %q]\n", python),
		"sequential": fmt.Sprintf("cmd = [%q]\nsocket_via = \"env\"\n", self),
	}[runner]
	return fmt.Sprintf(`
[rrq.runners.demo]
pool_size = 3
max_in_flight = 1
cancel_grace_seconds = 0.3
env = { YARD_WITNESS = %q, %s = %q }
%s`, witness, sequentialEnv, map[bool]string{true: "1"}[runner == "sequential"], cmd)
}

func playScenarios(t *testing.T, runner, dies string) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(scenarios, "yard.toml")
	text, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := node.Load(settings)
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := scenario.Load(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	witness := filepath.Join(dir, "witness")
	if err := os.WriteFile(witness, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	y, err := yard.Start(ctx, yard.Options{Nodes: 3, Dir: dir, Binary: program, Config: string(text) + runnerTable(t, runner, program, witness)})
	if err != nil {
		t.Fatal(err)
	}
	defer y.Stop()
	s := &stand{yard: y}
	w := scenario.World{Witness: witness, Attempts: cfg.Scheduler.MaxAttempts, Ask: s.ask}
	if dies != nothing {
		w.Now = func(ctx context.Context) error { return s.kill(ctx, t, dies == theDecider) }
	}
	began := time.Now()
	for _, p := range scenario.Play(ctx, w, scripts) {
		if differs := p.Differs(dies != nothing); differs != "" {
			t.Error(differs)
		}
		if p.Err != nil {
			t.Error(p.Err)
		}
	}
	if err := scenario.Complaints(witness); err != nil {
		t.Error(err)
	}
	if dies != nothing && s.held == 0 {
		t.Error("nothing ran where a node was killed")
	}
	t.Logf("%d scripts in %s; %d jobs ran at the node that was killed", len(scripts), time.Since(began).Round(100*time.Millisecond), s.held)
}

// stand asks the nodes of a yard that live, and kills one.
type stand struct {
	yard *yard.Yard
	turn atomic.Uint32
	dead atomic.Pointer[yard.Node]
	held int // jobs at the dead one
}

func (s *stand) ask(ctx context.Context, subject string, question []byte) ([]byte, error) {
	n := s.yard.Nodes[s.turn.Add(1)%3]
	if n == s.dead.Load() {
		n = s.yard.Nodes[s.turn.Add(1)%3]
	}
	return n.Request(ctx, subject, question)
}

// kill ends the authority with SIGKILL, or one of the others that has jobs in
// hand, and starts it again when the authority knows of no more jobs there: at
// once after a change of authority, else when its lease has ended. A job for a
// runner that nobody has waits until every member has said so.
func (s *stand) kill(ctx context.Context, t *testing.T, authority bool) error {
	if err := s.killOne(ctx, authority); err != nil {
		return err
	}
	dead := s.dead.Load()
	t.Logf("killed %s with %d jobs in hand", dead.Name, s.held)
	err := until(ctx, "the dead node's jobs are given back", func() error {
		owner, err := s.authority(ctx)
		if err != nil {
			return err
		}
		status, err := owner.Status(ctx)
		if err != nil {
			return err
		}
		if len(status.Nodes) == 0 {
			return fmt.Errorf("%s has not looked yet", owner.Name)
		}
		for _, told := range status.Nodes {
			if told.Name == dead.Name && told.Running > 0 {
				return fmt.Errorf("%+v", told)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dead.Start()
}

// authority is whom the living take for the authority.
func (s *stand) authority(ctx context.Context) (*yard.Node, error) {
	for _, n := range s.yard.Nodes {
		if n == s.dead.Load() {
			continue
		}
		status, err := n.Status(ctx)
		if err != nil {
			return nil, err
		}
		for _, owner := range s.yard.Nodes {
			if owner.Name == status.Authority.Owner && owner != s.dead.Load() {
				return owner, nil
			}
		}
	}
	return nil, errors.New("no living node has the authority")
}

func (s *stand) killOne(ctx context.Context, authority bool) error {
	return until(ctx, "a node with jobs in hand is found", func() error {
		owner, err := s.authority(ctx)
		if err != nil {
			return err
		}
		status, err := owner.Status(ctx)
		if err != nil {
			return err
		}
		for _, n := range s.yard.Nodes {
			for _, told := range status.Nodes {
				if told.Name != n.Name || told.Running == 0 || (n == owner) != authority {
					continue
				}
				s.dead.Store(n)
				s.held = told.Running
				n.Kill()
				return nil
			}
		}
		return fmt.Errorf("nodes are %+v", status.Nodes)
	})
}
