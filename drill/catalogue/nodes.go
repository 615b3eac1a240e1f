package catalogue

import (
	"context"
	"fmt"
	"time"

	"yardmaster/drill"
)

// Nodes die.
var nodes = []drill.Drill{
	{
		Number: 1, Name: "kill-follower", Breaks: "kill -9 a node that does not decide, again and again",
		Promises: "nothing is lost, its running jobs run elsewhere, the others go on",
		Run: func(ctx context.Context, s *drill.Stage) error {
			return killAgainAndAgain(ctx, s, 8, func(authority *drill.Node) *drill.Node {
				return other(s, authority)
			})
		},
	},
	{
		Number: 2, Name: "kill-authority", Breaks: "kill -9 the node that decides, again and again",
		Promises: "nothing is lost, another one decides within 3 s, jobs are accepted all the time",
		Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			s.Within(kill, drill.Limits{Dispatch: 3 * time.Second, Ack: time.Second})
			return killAgainAndAgain(ctx, s, 20, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
}

// kill is the name of the fault.
const kill = "kill"

// other is any node but one.
func other(s *drill.Stage, but *drill.Node) *drill.Node {
	for {
		if n := s.Nodes[s.Dice.IntN(len(s.Nodes))]; n != but {
			return n
		}
	}
}

// killAgainAndAgain kills the node that is chosen by who decides, starts it
// again some seconds later, and repeats that when all are ready.
func killAgainAndAgain(ctx context.Context, s *drill.Stage, times int, choose func(authority *drill.Node) *drill.Node) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for i := range s.Times(times) {
		if err := s.Rest(ctx, s.Between(time.Second, 3*time.Second)); err != nil {
			return err
		}
		authority, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		victim := choose(authority)
		s.Fault(kill, fmt.Sprintf("%s, time %d; %s decides", victim.Name, i+1, authority.Name))
		s.Kill(victim)
		if err := s.Rest(ctx, s.Between(4*time.Second, 7*time.Second)); err != nil {
			return err
		}
		if err := s.Heal(ctx); err != nil {
			return err
		}
	}
	return nil
}
