package catalogue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// Drills with runners that misbehave or outlive their node.
var runners = []drill.Drill{
	{
		Number: 27, Name: "runners-misbehave", Breaks: "runners are killed, exit with code 0 during a job, are stopped, run beyond the job's timeout, and ignore a cancel",
		Promises: "each job ends as it should; a runner that does not stop is killed soon and replaced",
		Run:      runnersMisbehave,
	},
	{
		Number: 28, Name: "orphan-runners", Breaks: "kill -9 nodes whose runners have forked processes",
		Promises: "2 s later no process started by the node is left", Plan: drill.Layout{Config: forkingRunner},
		Run: func(ctx context.Context, s *drill.Harness) error {
			return killRepeatedly(ctx, s, 6, func(*drill.Node) *drill.Node { return s.Nodes[s.Rand.IntN(len(s.Nodes))] })
		},
	},
	{
		Number: 30, Name: "poison-payload", Breaks: "jobs that crash every runner that takes them, and jobs that always fail",
		Promises: "each is tried a limited number of times and becomes a dead letter; other jobs complete",
		Run:      poisonPayload,
	},
}

// forkingRunner configures a pool whose processes start as a shell that forks. The
// runner is the program that started the shell.
const forkingRunner = `
[rrq.runners.forks]
cmd = ["sh", "-c", "sleep 1000 & exec /proc/$PPID/exe runner"]
pool_size = 2
`

// hangFor is the timeout of the jobs that hang. killSoon is how soon after a cancel
// such a job must have ended: its handler has a grace of one second, and its process
// five more after SIGTERM. The job must not end while its process may be running.
const (
	hangFor  = 700 * time.Millisecond
	killSoon = 8 * time.Second
)

func runnersMisbehave(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for _, queue := range []string{"hangs", "ends"} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return err
		}
	}
	n := s.Repeats(8)
	s.StartLoads(ctx,
		&drill.Load{Queue: "hangs", Function: "demo#hang", Jobs: n, Pace: time.Second, Fields: fmt.Sprintf(`"timeout_ms":%d,"max_attempts":1`, hangFor.Milliseconds())},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"code":0,"times":1}`, Prefix: "zero", Jobs: n, Pace: time.Second},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"times":2}`, Prefix: "one", Jobs: n, Pace: time.Second})
	for i := range s.Repeats(6) {
		n := s.Nodes[s.Rand.IntN(len(s.Nodes))]
		pids, err := poolOf(ctx, n)
		if err != nil || len(pids) == 0 {
			s.Logf("%s has no running runner: %v", n.Name, err)
		} else if i%2 == 0 {
			s.Fault("kill a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGKILL) // it may have exited
		} else {
			s.Fault("stop a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGSTOP)
			if err := s.Sleep(ctx, time.Second); err != nil {
				return err
			}
			_ = syscall.Kill(pids[0], syscall.SIGCONT) // the node may not have replaced it yet
		}
		if err := s.Sleep(ctx, s.RandDuration(time.Second, 2*time.Second)); err != nil {
			return err
		}
	}
	if err := s.Recover(ctx); err != nil {
		return err
	}
	return cancelHanging(ctx, s)
}

// cancelHanging cancels a job whose handler ignores it, and measures how soon the job
// has ended.
func cancelHanging(ctx context.Context, s *drill.Harness) error {
	one := &drill.Load{Queue: "hangs", Function: "demo#hang", Prefix: "deaf", Jobs: 1, Fields: `"max_attempts":1`}
	s.StartLoads(ctx, one)
	id, err := job.KeyID(one.Queue, one.Key(0))
	if err != nil {
		return err
	}
	if err := awaitState(ctx, s, id, "active"); err != nil {
		return err
	}
	asked := time.Now()
	if err := ask(ctx, s, "job.cancel", map[string]any{"id": id}, nil); err != nil {
		return err
	}
	if err := awaitState(ctx, s, id, "failed"); err != nil {
		return err
	}
	s.Target("a cancelled job that ignores the cancel ends after", time.Since(asked), killSoon)
	began := time.Now()
	again := &drill.Load{Queue: drill.RunnerQueue, Prefix: "after", Function: "demo#echo", Jobs: 1}
	s.StartLoads(ctx, again)
	if id, err = job.KeyID(again.Queue, again.Key(0)); err != nil {
		return err
	}
	if err := awaitState(ctx, s, id, "completed"); err != nil {
		return err
	}
	s.Figure("a job afterwards takes", time.Since(began))
	return nil
}

// lossesAtMost is the number of lost dispatches after which a job fails.
const lossesAtMost = 10

func poisonPayload(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, "poison", 0); err != nil {
		return err
	}
	s.Fault("poison", "jobs that kill their runner, and jobs that fail")
	crash := &drill.Load{Queue: "poison", Function: "demo#crash", Prefix: "crash", Jobs: s.Repeats(3)}
	fail := &drill.Load{Queue: "poison", Function: "demo#fail", JobParams: "{}", Prefix: "fail", Jobs: 20, Fields: `"max_attempts":3`}
	crash.JobParams = "{}"
	s.StartLoads(ctx, crash, fail)
	dispatches := map[string]uint32{} // maximum by prefix
	for _, l := range []*drill.Load{crash, fail} {
		for n := range l.Jobs {
			id, err := job.KeyID(l.Queue, l.Key(n))
			if err != nil {
				return err
			}
			if err := awaitState(ctx, s, id, "failed"); err != nil {
				return err
			}
			var view struct {
				Reason                       string
				Attempts, Dispatches, Losses uint32
			}
			if err := ask(ctx, s, "job.show", map[string]any{"id": id}, &view); err != nil {
				return err
			}
			dispatches[l.Prefix] = max(dispatches[l.Prefix], view.Dispatches)
			switch l.Prefix {
			case "crash": // a dispatch declined by a restarting runner is not a loss
				s.Require(strings.HasPrefix(view.Reason, job.ReasonLostTooOften) && view.Losses <= lossesAtMost,
					"%s ended as %q after %d losses, want %s after at most %d", l.Key(n), view.Reason, view.Losses, job.ReasonLostTooOften, lossesAtMost)
			case "fail": // crashes of its runner cost dispatches, but no attempts
				s.Require(view.Attempts == 3, "%s ended at attempt %d, want 3", l.Key(n), view.Attempts)
			}
		}
	}
	s.Figure("maximum dispatches of a job that crashes its runner", dispatches["crash"])
	s.Figure("maximum dispatches of a job that fails at attempt 3", dispatches["fail"])
	var letters struct{ Count int }
	if err := ask(ctx, s, "dlq.stats", map[string]any{"queue": "poison"}, &letters); err != nil {
		return err
	}
	s.Require(letters.Count == crash.Jobs+fail.Jobs, "there are %d dead letters, want %d", letters.Count, crash.Jobs+fail.Jobs)
	return nil
}

// poolOf returns the pids of a node's running runners.
func poolOf(ctx context.Context, n *drill.Node) (pids []int, err error) {
	status, err := n.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range status.Pools {
		for _, m := range p.Members {
			if m.PID > 0 {
				pids = append(pids, m.PID)
			}
		}
	}
	return pids, nil
}

// ask sends an API request, named by noun and verb, to one running node after the
// other until one answers.
func ask(ctx context.Context, s *drill.Harness, verb string, request, answer any) error {
	var err error
	if answer == nil {
		answer = new(any)
	}
	for {
		for _, n := range s.Running() {
			if err = n.Ask(ctx, api.SubjectAPI+"."+verb, request, answer); err == nil {
				return nil
			}
		}
		if s.Sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%s: %w", verb, errors.Join(ctx.Err(), err))
		}
	}
}

// awaitState waits until a job is in a state.
func awaitState(ctx context.Context, s *drill.Harness, id job.ID, state string) error {
	for {
		var view struct{ State, Because string }
		err := ask(ctx, s, "job.show", map[string]any{"id": id}, &view)
		if err == nil && view.State == state {
			return nil
		}
		if s.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("job %s is %s, not %s: %w", id, view.State, state, errors.Join(ctx.Err(), err))
		}
	}
}
