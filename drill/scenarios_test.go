package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill/yard"
	"yardmaster/internal/scenario"
	"yardmaster/job"
	"yardmaster/node"
)

const scenarios = "../runnerpool/testdata/scenarios"

// sequentialEnv makes this program the sequential runner.
const sequentialEnv = "YARD_SEQUENTIAL_RUNNER"

// What may happen to a node while the scenarios' jobs run at it.
type mishap struct {
	name      string
	authority bool // it is the node that decides which dies, else one of the others
	back      bool // it is started again at once, else when its jobs have ended elsewhere
}

var (
	calm            = mishap{name: "Calm"}
	authorityKilled = mishap{name: "AuthorityKilled", authority: true}
	nodeKilled      = mishap{name: "RunnersNodeKilled"}
	nodeRestarted   = mishap{name: "RunnersNodeRestarted", back: true}
)

// TestFailover_Scenarios: what becomes of jobs is the same when the authority
// is killed among them, and stays away until others have done its runners' jobs.
// No runner outlives its node.
func TestFailover_Scenarios(t *testing.T) {
	playScenarios(t, "sequential", authorityKilled)
}

// TestDrill_Scenarios: and whichever runner works, and whichever node dies.
func TestDrill_Scenarios(t *testing.T) {
	soak(t)
	for _, runner := range []string{"go", "python", "sequential"} {
		for _, m := range []mishap{calm, authorityKilled, nodeKilled, nodeRestarted} {
			t.Run(runner+m.name, func(t *testing.T) { playScenarios(t, runner, m) })
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

func playScenarios(t *testing.T, runner string, m mishap) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(scenarios, "yard.toml"))
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
	scripts, err := scenario.Load(scenarios)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	witness := filepath.Join(dir, "witness")
	if err := os.WriteFile(witness, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	y, err := yard.Start(ctx, yard.Options{Nodes: 3, Dir: dir, Binary: program, Config: string(text) + runnerTable(t, runner, program, witness)})
	if err != nil {
		t.Fatal(err)
	}
	defer y.Stop()
	s := &stand{t: t, yard: y, mishap: m}
	w := scenario.World{Witness: witness, Attempts: cfg.Scheduler.MaxAttempts, Ask: s.ask, Overhop: func() string { return s.next().Edge }}
	s.play(ctx, w, scripts)
	runners := runnersOf(ctx, y)
	if len(runners) == 0 {
		t.Error("no node tells of runners")
	}
	y.Stop()
	awaitEnds(t, runners, orphansGone)
	if err := scenario.Complaints(witness); err != nil {
		t.Error(err)
	}
}

// unconfigured is the script whose jobs wait for every member to be heard.
const unconfigured = "unconfigured"

// play plays all scripts but one with the mishap among them, and that one when
// they have ended, while the node that died comes back.
func (s *stand) play(ctx context.Context, w scenario.World, scripts []scenario.Script) {
	dies := s.mishap != calm
	var last []scenario.Script
	scripts = slices.DeleteFunc(slices.Clone(scripts), func(script scenario.Script) bool {
		if script.Name == unconfigured {
			last = append(last, script)
		}
		return script.Name == unconfigured
	})
	if dies {
		w.Now = s.kill
	}
	began := time.Now()
	played := scenario.Play(ctx, w, scripts)
	if dies && !s.mishap.back {
		w.Now = s.comeBack
	} else {
		w.Now = nil
	}
	if dies {
		s.judge(ctx)
	}
	played = append(played, scenario.Play(ctx, w, last)...)
	jobs, losses := 0, uint32(0)
	for _, p := range played {
		if differs := p.Differs(dies); differs != "" {
			s.t.Error(differs)
		}
		if p.Err != nil {
			s.t.Error(p.Err)
		}
		jobs, losses = jobs+p.Jobs, losses+p.Losses
	}
	s.t.Logf("%d scripts of %d jobs in %s; %d jobs in hand at the kill, which %d finished elsewhere; all jobs lost %d runners or nodes; the node was away for %s",
		len(played), jobs, time.Since(began).Round(100*time.Millisecond), len(s.held), s.moved, losses, s.away.Round(100*time.Millisecond))
}

// stand asks the nodes of a yard that live, and kills one.
type stand struct {
	t      *testing.T
	yard   *yard.Yard
	mishap mishap
	turn   atomic.Uint32
	dead   atomic.Pointer[yard.Node]
	killed time.Time
	away   time.Duration
	held   []job.ID // the script's jobs that ran at the dead one
	moved  int      // of them, that ended after another dispatch
}

// next is one of the nodes that live, in turn.
func (s *stand) next() *yard.Node {
	n := s.yard.Nodes[s.turn.Add(1)%3]
	if n == s.dead.Load() {
		n = s.yard.Nodes[s.turn.Add(1)%3]
	}
	return n
}

func (s *stand) ask(ctx context.Context, subject string, question []byte) ([]byte, error) {
	return s.next().Request(ctx, subject, question)
}

// kill ends the authority with SIGKILL, or one of the others, when it has some
// of the jobs in hand.
func (s *stand) kill(ctx context.Context, jobs []job.ID) error {
	err := until(ctx, "a node with jobs in hand is found", func() error {
		owner, err := s.authority(ctx)
		if err != nil {
			return err
		}
		at := map[string][]job.ID{}
		for _, id := range jobs {
			v, err := s.show(ctx, id)
			if err != nil {
				return err
			}
			if v.State == "active" {
				at[v.Node] = append(at[v.Node], id)
			}
		}
		for _, n := range s.yard.Nodes {
			if len(at[n.Name]) > 0 && (n == owner) == s.mishap.authority {
				s.dead.Store(n)
				s.held, s.killed = at[n.Name], time.Now()
				n.Kill()
				return nil
			}
		}
		return fmt.Errorf("jobs run at %v", at)
	})
	if err == nil && s.mishap.back {
		err = s.start()
	}
	return err
}

// start brings the dead node back.
func (s *stand) start() error {
	err := s.dead.Load().Start()
	s.dead.Store(nil)
	s.away = time.Since(s.killed)
	return err
}

// comeBack brings the dead node back when the yard has said, if it cannot know
// what that node has, that jobs wait for it.
func (s *stand) comeBack(ctx context.Context, _ []job.ID) error {
	const wait = "jobs wait for runner ghost, which no member that was heard has; not heard yet: "
	dead := s.dead.Load()
	err := until(ctx, "the yard says for whom jobs wait", func() error {
		status, err := s.next().Status(ctx)
		if err != nil || !s.mishap.authority || slices.Contains(status.Readiness.Reasons, wait+dead.Name) {
			return err
		}
		return fmt.Errorf("reasons are %q", status.Readiness.Reasons)
	})
	if err != nil {
		return err
	}
	return s.start()
}

// judge checks that what ran at the dead node was done by another dispatch.
func (s *stand) judge(ctx context.Context) {
	for _, id := range s.held {
		v, err := s.show(ctx, id)
		if err != nil {
			s.t.Error(err)
		}
		if v.Dispatches > 1 && v.Losses > 0 {
			s.moved++
		}
		if dead := s.dead.Load(); dead != nil && v.Node == dead.Name {
			s.t.Errorf("job %s ended at %s, which is dead: %+v", id, v.Node, v)
		}
	}
	if s.moved == 0 {
		s.t.Errorf("none of %d jobs was given back", len(s.held))
	}
}

// shown is a job as a node shows it.
type shown struct {
	State, Node        string
	Dispatches, Losses uint32
}

func (s *stand) show(ctx context.Context, id job.ID) (v shown, err error) {
	return v, s.next().Ask(ctx, cluster.SubjectAPI+".job.show", map[string]any{"id": id}, &v)
}

// authority is whom the living take for the authority.
func (s *stand) authority(ctx context.Context) (*yard.Node, error) {
	status, err := s.next().Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, owner := range s.yard.Nodes {
		if owner.Name == status.Authority.Owner {
			return owner, nil
		}
	}
	return nil, errors.New("nobody has the authority")
}
