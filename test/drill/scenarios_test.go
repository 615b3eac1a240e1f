package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/runnerscript"
)

const scenarios = "../../runnerpool/testdata/scenarios"

// sequentialEnv is the environment variable that turns this program into the sequential
// runner.
const sequentialEnv = "YARD_SEQUENTIAL_RUNNER"

// failure is a fault of a node while it runs the jobs of the scenarios.
type failure struct {
	name      string
	authority bool // kill the authority, otherwise a follower
	back      bool // restart it at once, otherwise when its jobs have ended elsewhere
}

var (
	noFailure       = failure{name: "Calm"}
	authorityKilled = failure{name: "AuthorityKilled", authority: true}
	nodeKilled      = failure{name: "RunnersNodeKilled"}
	nodeRestarted   = failure{name: "RunnersNodeRestarted", back: true}
)

// TestFailover_Scenarios checks that jobs end as scripted when the authority is killed
// while it runs them, and stays down until its runners' jobs have ended elsewhere. No
// runner may outlive its node.
func TestFailover_Scenarios(t *testing.T) {
	playScenarios(t, "sequential", authorityKilled)
}

// TestDrill_Scenarios does the same with every runner and every kind of node.
func TestDrill_Scenarios(t *testing.T) {
	soakTime(t)
	for _, runner := range []string{"go", "python", "sequential"} {
		for _, m := range []failure{noFailure, authorityKilled, nodeKilled, nodeRestarted} {
			t.Run(runner+m.name, func(t *testing.T) { playScenarios(t, runner, m) })
		}
	}
}

// runnerTable returns the configuration of a pool of the runner.
func runnerTable(t *testing.T, runner, program, witness string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs("../../examples/runner-python/runner.py")
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

func playScenarios(t *testing.T, runner string, m failure) {
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
	settings, err := runnerscript.WriteSettings(scenarios, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(settings)
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := runnerscript.Load(scenarios)
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
	cl, err := procs.Start(ctx, procs.Options{Nodes: 3, Dir: dir, Binary: program, Config: string(text) + runnerTable(t, runner, program, witness)})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	s := &scenarioRun{t: t, yard: cl, mishap: m}
	w := runnerscript.Env{Witness: witness, Attempts: cfg.Scheduler.MaxAttempts, Request: s.ask, Overhop: func() string { return s.next().Edge }}
	s.play(ctx, w, scripts)
	runners := runnersOf(ctx, cl)
	if len(runners) == 0 {
		t.Error("no node reports runners")
	}
	cl.Stop()
	awaitEnds(t, runners, orphansGone)
	if err := runnerscript.Violations(witness); err != nil {
		t.Error(err)
	}
}

// unconfigured is the script whose jobs wait until every member has reported.
const unconfigured = "unconfigured"

// play runs all scripts but one with the failure during them, and that one afterwards,
// during which the dead node is restarted.
func (s *scenarioRun) play(ctx context.Context, w runnerscript.Env, scripts []runnerscript.Script) {
	dies := s.mishap != noFailure
	var last []runnerscript.Script
	scripts = slices.DeleteFunc(slices.Clone(scripts), func(script runnerscript.Script) bool {
		if script.Name == unconfigured {
			last = append(last, script)
		}
		return script.Name == unconfigured
	})
	if dies {
		w.OnNow = s.kill
	}
	began := time.Now()
	played := runnerscript.Run(ctx, w, scripts)
	if dies && !s.mishap.back {
		w.OnNow = s.comeBack
	} else {
		w.OnNow = nil
	}
	if dies {
		s.judge(ctx)
	}
	played = append(played, runnerscript.Run(ctx, w, last)...)
	jobs, losses := 0, uint32(0)
	for _, p := range played {
		if differs := p.Diff(dies); differs != "" {
			s.t.Error(differs)
		}
		if p.Err != nil {
			s.t.Error(p.Err)
		}
		jobs, losses = jobs+p.Jobs, losses+p.Losses
	}
	s.t.Logf("%d scripts of %d jobs in %s; %d jobs running at the kill, of which %d ended elsewhere; %d dispatches lost in all; the node was down for %s",
		len(played), jobs, time.Since(began).Round(100*time.Millisecond), len(s.held), s.moved, losses, s.away.Round(100*time.Millisecond))
}

// scenarioRun is a run of the scenarios against a cluster, in which one node is killed.
type scenarioRun struct {
	t      *testing.T
	yard   *procs.Cluster
	mishap failure
	turn   atomic.Uint32
	dead   atomic.Pointer[procs.Node]
	killed time.Time
	away   time.Duration
	held   []job.ID // jobs that were running on the dead node
	moved  int      // jobs of held that ended after another dispatch
}

// next returns the running nodes in turn.
func (s *scenarioRun) next() *procs.Node {
	n := s.yard.Nodes[s.turn.Add(1)%3]
	if n == s.dead.Load() {
		n = s.yard.Nodes[s.turn.Add(1)%3]
	}
	return n
}

func (s *scenarioRun) ask(ctx context.Context, subject string, question []byte) ([]byte, error) {
	return s.next().Request(ctx, subject, question)
}

// kill kills the authority or a follower when it is running some of the jobs. The node is frozen while
// the others are asked for its jobs, because on a busy machine these may end before it is killed.
func (s *scenarioRun) kill(ctx context.Context, jobs []job.ID) error {
	err := until(ctx, "a node is running jobs", func() error {
		owner, err := s.authority(ctx)
		if err != nil {
			return err
		}
		for _, n := range s.yard.Nodes {
			if (n == owner) != s.mishap.authority {
				continue
			}
			s.dead.Store(n)
			if err := n.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			held, err := s.runningOn(ctx, n, jobs)
			if err == nil && len(held) > 0 {
				s.held, s.killed = held, time.Now()
				n.Kill()
				return nil
			}
			s.dead.Store(nil)
			if err := errors.Join(err, n.Signal(syscall.SIGCONT)); err != nil {
				return err
			}
		}
		return errors.New("none is")
	})
	if err == nil && s.mishap.back {
		err = s.start()
	}
	return err
}

// runningOn returns which of the jobs are running on a node.
func (s *scenarioRun) runningOn(ctx context.Context, n *procs.Node, jobs []job.ID) (held []job.ID, err error) {
	for _, id := range jobs {
		v, err := s.show(ctx, id)
		if err != nil {
			return nil, err
		}
		if v.State == "active" && v.Node == n.Name {
			held = append(held, id)
		}
	}
	return held, nil
}

// start restarts the dead node.
func (s *scenarioRun) start() error {
	err := s.dead.Load().Start()
	s.dead.Store(nil)
	s.away = time.Since(s.killed)
	return err
}

// comeBack restarts the dead node once the cluster reports that jobs wait for it, because
// its runners are unknown.
func (s *scenarioRun) comeBack(ctx context.Context, _ []job.ID) error {
	const wait = "jobs wait for runner ghost, which no member with a heartbeat has; no heartbeat yet from: "
	dead := s.dead.Load()
	err := until(ctx, "a readiness reason names the runner that jobs wait for", func() error {
		status, err := s.next().Status(ctx)
		if err != nil || !s.mishap.authority || slices.Contains(status.Readiness.Reasons, wait+dead.Name) {
			return err
		}
		return fmt.Errorf("the readiness reasons are %q", status.Readiness.Reasons)
	})
	if err != nil {
		return err
	}
	return s.start()
}

// judge checks that the jobs that were running on the dead node ended by another
// dispatch. One may have ended before the kill without the other nodes knowing it then.
func (s *scenarioRun) judge(ctx context.Context) {
	const inFlight = 5 * time.Second // within which an outcome that a node sent before it died is committed
	for _, id := range s.held {
		v, err := s.show(ctx, id)
		if err != nil {
			s.t.Error(err)
		}
		if v.Dispatches > 1 && v.Losses > 0 {
			s.moved++
		}
		if dead := s.dead.Load(); dead != nil && v.Node == dead.Name && v.Ended.After(s.killed.Add(inFlight)) {
			s.t.Errorf("job %s ended on the dead node %s, which was killed at %s: %+v", id, v.Node, s.killed, v)
		}
	}
	if s.moved == 0 {
		s.t.Errorf("none of %d jobs was dispatched again", len(s.held))
	}
}

// jobRow is the part of job.show that the test uses.
type jobRow struct {
	State, Node        string
	Dispatches, Losses uint32
	Ended              time.Time `json:"ended_at"`
}

func (s *scenarioRun) show(ctx context.Context, id job.ID) (v jobRow, err error) {
	return v, s.next().Ask(ctx, api.SubjectAPI+".job.show", map[string]any{"id": id}, &v)
}

// authority returns the node that the running nodes report as the authority.
func (s *scenarioRun) authority(ctx context.Context) (*procs.Node, error) {
	status, err := s.next().Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, owner := range s.yard.Nodes {
		if owner.Name == status.Authority.Owner {
			return owner, nil
		}
	}
	return nil, errors.New("no node holds the authority")
}
