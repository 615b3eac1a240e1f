package catalogue

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"yardmaster/drill"
)

// pauses let nodes stand still and go on as if nothing had been.
var pauses = []drill.Drill{
	{
		Number: 7, Name: "pause-authority", Breaks: "SIGSTOP the node that decides beyond its lease, then let it go on",
		Promises: "another one decides; nothing that the old one still says has an effect",
		Run: func(ctx context.Context, s *drill.Stage) error {
			s.Within("pause", drill.Limits{Dispatch: 10 * time.Second})
			return pauseAgainAndAgain(ctx, s, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 8, Name: "pause-node", Breaks: "SIGSTOP a node with its runners while it has jobs in hand, beyond their leases",
		Promises: "a job runs twice at once only after its lease ran out; one outcome counts",
		Run: func(ctx context.Context, s *drill.Stage) error {
			return pauseAgainAndAgain(ctx, s, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
}

// pauseAgainAndAgain stops the chosen node with all it has started, for longer
// than any lease.
func pauseAgainAndAgain(ctx context.Context, s *drill.Stage, choose func(authority *drill.Node) *drill.Node) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	// Jobs that are in hand for longer than their leases last without a node.
	if err := s.AddQueue(ctx, "slow", 0); err != nil {
		return err
	}
	for range 2 {
		if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 8, Hold: 12 * time.Second}); err != nil {
			return err
		}
	}
	s.Begin(ctx, &drill.Load{Queue: "slow", Parallel: 1, Pace: time.Second},
		&drill.Load{Queue: drill.RunnerQueue, Prefix: "sleep", Function: "demo#sleep", Params: `{"ms":2000}`, Parallel: 1, Pace: 400 * time.Millisecond})
	for i := range s.Times(4) {
		if err := s.Rest(ctx, s.Between(4*time.Second, 6*time.Second)); err != nil {
			return err
		}
		authority, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		victim := choose(authority)
		family, err := victim.Family()
		if err != nil {
			return err
		}
		s.Fault("pause", fmt.Sprintf("%s with %d processes, time %d; %s decides", victim.Name, len(family), i+1, authority.Name))
		if err := signal(syscall.SIGSTOP, family...); err != nil {
			return err
		}
		if err := s.Rest(ctx, s.Between(14*time.Second, 18*time.Second)); err != nil {
			return err
		}
		if err := signal(syscall.SIGCONT, family...); err != nil {
			return err
		}
		s.Say("%s goes on", victim.Name)
		if err := s.Whole(ctx); err != nil {
			return err
		}
	}
	return nil
}

func signal(what syscall.Signal, pids ...int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, what); err != nil {
			return fmt.Errorf("send %s to process %d: %w", what, pid, err)
		}
	}
	return nil
}
