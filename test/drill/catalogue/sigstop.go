package catalogue

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// Drills that stop nodes with SIGSTOP and resume them.
var pauses = []drill.Drill{
	{
		Number: 7, Name: "pause-authority", Breaks: "SIGSTOP the authority for longer than its lease, then resume it",
		Promises: "another node takes over; nothing that the old authority still sends has an effect",
		Run: func(ctx context.Context, s *drill.Harness) error {
			s.SetTargets("pause", drill.Limits{Dispatch: 10 * time.Second})
			return pauseRepeatedly(ctx, s, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 8, Name: "pause-node", Breaks: "SIGSTOP a node with its runners while it runs jobs, for longer than their leases",
		Promises: "two runs of a job overlap only after the lease of the first has expired; one outcome counts",
		Run: func(ctx context.Context, s *drill.Harness) error {
			return pauseRepeatedly(ctx, s, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
}

// pauseRepeatedly repeatedly stops the node that choose selects, with all its
// processes, for longer than any lease, and resumes it.
func pauseRepeatedly(ctx context.Context, s *drill.Harness, choose func(authority *drill.Node) *drill.Node) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	// Jobs that run for longer than their leases last without their node.
	if err := s.AddQueue(ctx, "slow", 0); err != nil {
		return err
	}
	for range 2 {
		if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 8, Hold: 12 * time.Second}); err != nil {
			return err
		}
	}
	s.StartLoads(ctx, &drill.Load{Queue: "slow", Parallel: 1, Pace: time.Second},
		&drill.Load{Queue: drill.RunnerQueue, Prefix: "sleep", Function: "demo#sleep", JobParams: `{"ms":2000}`, Parallel: 1, Pace: 400 * time.Millisecond})
	for i := range s.Repeats(4) {
		if err := s.Sleep(ctx, s.RandDuration(4*time.Second, 6*time.Second)); err != nil {
			return err
		}
		authority, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		victim := choose(authority)
		pids, err := victim.Tree()
		if err != nil {
			return err
		}
		s.Fault("pause", fmt.Sprintf("%s with %d processes, round %d; the authority is %s", victim.Name, len(pids), i+1, authority.Name))
		if err := signal(syscall.SIGSTOP, pids...); err != nil {
			return err
		}
		if err := s.Sleep(ctx, s.RandDuration(14*time.Second, 18*time.Second)); err != nil {
			return err
		}
		if err := signal(syscall.SIGCONT, pids...); err != nil {
			return err
		}
		s.Logf("%s resumed", victim.Name)
		if err := s.Recover(ctx); err != nil {
			return err
		}
	}
	return nil
}

// signal sends a signal to processes.
func signal(sig syscall.Signal, pids ...int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			return fmt.Errorf("send %s to process %d: %w", sig, pid, err)
		}
	}
	return nil
}
