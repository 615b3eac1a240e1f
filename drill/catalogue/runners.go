package catalogue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill"
	"yardmaster/job"
)

// Runners misbehave, or outlive their node.
var runners = []drill.Drill{
	{
		Number: 27, Name: "runners-misbehave", Breaks: "runners are killed, end with code 0 in the middle of a job, stand still, hang beyond their time and take no notice of a cancel",
		Promises: "each job ends as it should; what does not stop is killed soon, and its place is taken again",
		Run:      runnersMisbehave,
	},
	{
		Number: 28, Name: "orphan-runners", Breaks: "kill -9 nodes whose runners have forked others",
		Promises: "2 s later nothing that the node had started is left", Plan: drill.Plan{Config: forkingRunner},
		Run: func(ctx context.Context, s *drill.Stage) error {
			return killAgainAndAgain(ctx, s, 6, func(*drill.Node) *drill.Node { return s.Nodes[s.Dice.IntN(len(s.Nodes))] })
		},
	},
	{
		Number: 30, Name: "poison-payload", Breaks: "jobs kill every runner that takes them, and some fail whoever tries",
		Promises: "each is tried so often and no more, and becomes a dead letter; the jobs beside them complete",
		Run:      poisonPayload,
	},
}

// forkingRunner is a pool whose processes begin as a shell that forks; the
// program is the one that the shell was started by.
const forkingRunner = `
[rrq.runners.forks]
cmd = ["sh", "-c", "sleep 1000 & exec /proc/$PPID/exe runner"]
pool_size = 2
`

// Of a runner's jobs that hang: how long they may run, and how soon after that
// their process must have been killed. A cancelled handler has a second's grace,
// and its process five more after SIGTERM; before that nobody may say that it ended.
const (
	hangFor  = 700 * time.Millisecond
	killSoon = 8 * time.Second
)

func runnersMisbehave(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for _, queue := range []string{"hangs", "ends"} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return err
		}
	}
	n := s.Times(8)
	s.Begin(ctx,
		&drill.Load{Queue: "hangs", Function: "demo#hang", Jobs: n, Pace: time.Second, Fields: fmt.Sprintf(`"timeout_ms":%d,"max_attempts":1`, hangFor.Milliseconds())},
		&drill.Load{Queue: "ends", Function: "demo#crash", Params: `{"code":0,"times":1}`, Prefix: "zero", Jobs: n, Pace: time.Second},
		&drill.Load{Queue: "ends", Function: "demo#crash", Params: `{"times":2}`, Prefix: "one", Jobs: n, Pace: time.Second})
	for i := range s.Times(6) {
		at := s.Nodes[s.Dice.IntN(len(s.Nodes))]
		pids, err := poolOf(ctx, at)
		if err != nil || len(pids) == 0 {
			s.Say("%s has no runner up: %v", at.Name, err)
		} else if i%2 == 0 {
			s.Fault("kill a runner", fmt.Sprintf("%d of %s", pids[0], at.Name))
			_ = syscall.Kill(pids[0], syscall.SIGKILL) // it may have ended by itself
		} else {
			s.Fault("a runner stands still", fmt.Sprintf("%d of %s", pids[0], at.Name))
			_ = syscall.Kill(pids[0], syscall.SIGSTOP)
			if err := s.Rest(ctx, time.Second); err != nil {
				return err
			}
			_ = syscall.Kill(pids[0], syscall.SIGCONT) // if it is still the same: the node need not have given it up yet
		}
		if err := s.Rest(ctx, s.Between(time.Second, 2*time.Second)); err != nil {
			return err
		}
	}
	if err := s.Whole(ctx); err != nil {
		return err
	}
	return cancelHanging(ctx, s)
}

// cancelHanging cancels a job that takes no notice of it, and measures how soon
// it has ended.
func cancelHanging(ctx context.Context, s *drill.Stage) error {
	one := &drill.Load{Queue: "hangs", Function: "demo#hang", Prefix: "deaf", Jobs: 1, Fields: `"max_attempts":1`}
	s.Begin(ctx, one)
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
	s.Target("a cancelled job that takes no notice ends after", time.Since(asked), killSoon)
	began := time.Now()
	again := &drill.Load{Queue: drill.RunnerQueue, Prefix: "after", Function: "demo#echo", Jobs: 1}
	s.Begin(ctx, again)
	if id, err = job.KeyID(again.Queue, again.Key(0)); err != nil {
		return err
	}
	if err := awaitState(ctx, s, id, "completed"); err != nil {
		return err
	}
	s.Figure("a runner's job afterwards takes", time.Since(began))
	return nil
}

// lossesAtMost is after how many losses a job is given up.
const lossesAtMost = 10

func poisonPayload(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, "poison", 0); err != nil {
		return err
	}
	s.Fault("poison", "jobs that kill their runner, and jobs that fail")
	crash := &drill.Load{Queue: "poison", Function: "demo#crash", Prefix: "crash", Jobs: s.Times(3)}
	fail := &drill.Load{Queue: "poison", Function: "demo#fail", Params: "{}", Prefix: "fail", Jobs: 20, Fields: `"max_attempts":3`}
	crash.Params = "{}"
	s.Begin(ctx, crash, fail)
	most := map[string]uint32{}
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
			most[l.Prefix] = max(most[l.Prefix], view.Dispatches)
			switch l.Prefix {
			case "crash": // a dispatch that a runner declined while it started again is no loss
				s.Promise(strings.HasPrefix(view.Reason, job.ReasonLostTooOften) && view.Losses <= lossesAtMost,
					"%s ends as %q after %d losses, want %s after %d", l.Key(n), view.Reason, view.Losses, job.ReasonLostTooOften, lossesAtMost)
			case "fail": // a crash beside it may have cost it dispatches, and no attempts
				s.Promise(view.Attempts == 3, "%s ends at attempt %d, want 3", l.Key(n), view.Attempts)
			}
		}
	}
	s.Figure("dispatches of a job that kills its runner, at most", most["crash"])
	s.Figure("dispatches of a job that fails at attempt 3, at most", most["fail"])
	var letters struct{ Count int }
	if err := ask(ctx, s, "dlq.stats", map[string]any{"queue": "poison"}, &letters); err != nil {
		return err
	}
	s.Promise(letters.Count == crash.Jobs+fail.Jobs, "there are %d dead letters, want %d", letters.Count, crash.Jobs+fail.Jobs)
	return nil
}

// poolOf lists the processes of a node's runners that are up.
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

// ask asks nodes by noun and verb, one after another, until one answers.
func ask(ctx context.Context, s *drill.Stage, verb string, question, answer any) error {
	var err error
	if answer == nil {
		answer = new(any)
	}
	for {
		for _, n := range s.Up() {
			if err = n.Ask(ctx, cluster.SubjectAPI+"."+verb, question, answer); err == nil {
				return nil
			}
		}
		if s.Rest(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%s: %w", verb, errors.Join(ctx.Err(), err))
		}
	}
}

// awaitState waits until a job is in a state.
func awaitState(ctx context.Context, s *drill.Stage, id job.ID, state string) error {
	for {
		var view struct{ State, Because string }
		err := ask(ctx, s, "job.show", map[string]any{"id": id}, &view)
		if err == nil && view.State == state {
			return nil
		}
		if s.Rest(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("job %s is %s, not %s: %w", id, view.State, state, errors.Join(ctx.Err(), err))
		}
	}
}
