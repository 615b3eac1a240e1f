package catalogue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"yardmaster/drill"
)

// nodes die.
var nodes = []drill.Drill{
	{
		Number: 1, Name: "kill-follower", Breaks: "kill -9 a node that does not decide, again and again",
		Promises: "nothing is lost, its running jobs run elsewhere, the others go on",
		Run: func(ctx context.Context, s *drill.Stage) error {
			return killAgainAndAgain(ctx, s, 8, func(authority *drill.Node) *drill.Node { return other(s, authority) })
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
	{
		Number: 2, Name: "kill-early", Breaks: "kill -9 a node of a yard that has just become ready",
		Promises: "what was agreed on in the first second is enough to go on with",
		Run: func(ctx context.Context, s *drill.Stage) error {
			victim := s.Nodes[s.Dice.IntN(len(s.Nodes))]
			s.Kill(victim)
			s.Say("%s is killed before there is any work", victim.Name)
			if err := s.Steady(ctx); err != nil {
				return err
			}
			return s.Rest(ctx, 3*time.Second)
		},
	},
	{
		Number: 3, Name: "kill-lane-leader", Breaks: "kill -9 the leader of each lane in turn, and with one of them JetStream's own leader",
		Promises: "nothing is lost, jobs come in by the other lanes, the lane has another leader within 10 s",
		Run:      killLaneLeaders,
	},
	{
		Number: 4, Name: "kill-all", Breaks: "kill -9 all nodes at once, and start them again",
		Promises: "nothing is lost that was acknowledged a millisecond earlier, ready again within 15 s",
		Run:      killAll,
	},
}

// kill is the name of the fault.
const kill = "kill"

// coldStart is what three nodes may take from their start until all are ready.
const coldStart = 15 * time.Second

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
		if err := s.Whole(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killLaneLeaders kills whoever leads a lane, for each lane.
func killLaneLeaders(ctx context.Context, s *drill.Stage) error {
	s.Within(kill, drill.Limits{Ack: time.Second})
	if err := s.Steady(ctx); err != nil {
		return err
	}
	first, err := s.Nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	var worst time.Duration
	for lane := range first.Lanes {
		if err := s.Rest(ctx, s.Between(time.Second, 3*time.Second)); err != nil {
			return err
		}
		var victim *drill.Node
		err := drill.Until(ctx, fmt.Sprintf("lane %d has a leader", lane), func() error {
			leader, err := laneLeader(ctx, s, lane)
			victim = leader
			return err
		})
		if err != nil {
			return err
		}
		s.Fault(kill, fmt.Sprintf("%s, which leads lane %d", victim.Name, lane))
		s.Kill(victim)
		began := time.Now()
		err = drill.Until(ctx, fmt.Sprintf("lane %d has another leader", lane), func() error {
			_, err := laneLeader(ctx, s, lane)
			return err
		})
		if err != nil {
			return err
		}
		took := time.Since(began)
		worst = max(worst, took)
		s.Say("lane %d has another leader after %s", lane, took.Round(time.Millisecond))
		if err := s.Rest(ctx, s.Between(3*time.Second, 5*time.Second)); err != nil {
			return err
		}
		if err := s.Whole(ctx); err != nil {
			return err
		}
	}
	s.Target("a lane without a leader, longest", worst, 10*time.Second)
	return nil
}

// laneLeader is the running node that leads a lane, as a running node says.
func laneLeader(ctx context.Context, s *drill.Stage, lane int) (*drill.Node, error) {
	up := s.Up()
	status, err := up[0].Status(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(up, func(n *drill.Node) bool { return lane < len(status.Lanes) && n.Name == status.Lanes[lane].Leader })
	if at < 0 {
		return nil, fmt.Errorf("none of those that run leads it, %s says: %+v", up[0].Name, status.Lanes)
	}
	return up[at], nil
}

// killAll takes the whole yard down while jobs come in.
func killAll(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	var worst time.Duration
	for range s.Times(4) {
		if err := s.Rest(ctx, s.Between(2*time.Second, 4*time.Second)); err != nil {
			return err
		}
		s.Fault("kill all", fmt.Sprintf("%d jobs are acknowledged", s.Acked()))
		s.Kill(s.Nodes...)
		began := time.Now()
		if err := s.Heal(ctx); err != nil {
			return err
		}
		worst = max(worst, time.Since(began))
	}
	s.Target("start of all until ready, longest", worst, coldStart)
	return nil
}
