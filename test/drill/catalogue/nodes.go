package catalogue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// Drills with nodes that die.
var nodes = []drill.Drill{
	{
		Number: 1, Name: "kill-follower", Breaks: "kill -9 a node other than the authority, again and again",
		Promises: "nothing is lost, its running jobs run elsewhere, the other nodes go on",
		Run: func(ctx context.Context, s *drill.Harness) error {
			return killRepeatedly(ctx, s, 8, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
	{
		Number: 2, Name: "kill-authority", Breaks: "kill -9 the authority, again and again",
		Promises: "nothing is lost, another node takes over within 3 s, jobs are accepted all the time",
		Timeout:  10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			s.SetTargets(kill, drill.Limits{Dispatch: 3 * time.Second, Ack: time.Second})
			return killRepeatedly(ctx, s, 20, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 2, Name: "kill-early", Breaks: "kill -9 a node of a cluster that has just become ready",
		Promises: "what was agreed on in the first second is enough to go on",
		Run: func(ctx context.Context, s *drill.Harness) error {
			victim := s.Nodes[s.Rand.IntN(len(s.Nodes))]
			s.Kill(victim)
			s.Logf("%s killed before there is any load", victim.Name)
			if err := s.StartSteadyLoad(ctx); err != nil {
				return err
			}
			return s.Sleep(ctx, 3*time.Second)
		},
	},
	{
		Number: 3, Name: "kill-lane-leader", Breaks: "kill -9 the leader of each lane in turn, one of which is also JetStream's meta leader",
		Promises: "nothing is lost, jobs are accepted by the other lanes, the lane has another leader within 10 s",
		Run:      killLaneLeaders,
	},
	{
		Number: 4, Name: "kill-all", Breaks: "kill -9 all nodes at once, and restart them",
		Promises: "nothing is lost that was acknowledged a millisecond earlier, all nodes are ready within 15 s",
		Run:      killAll,
	},
}

// kill is the name of the fault of a killed node.
const kill = "kill"

// coldStart is the target for the time from the start of three nodes until all are
// ready.
const coldStart = 15 * time.Second

// other returns a random node other than n.
func other(s *drill.Harness, except *drill.Node) *drill.Node {
	for {
		if n := s.Nodes[s.Rand.IntN(len(s.Nodes))]; n != except {
			return n
		}
	}
}

// killRepeatedly starts the steady load and repeatedly kills the node that choose
// selects, restarts it some seconds later, and waits until all nodes are ready.
func killRepeatedly(ctx context.Context, s *drill.Harness, times int, choose func(authority *drill.Node) *drill.Node) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for i := range s.Repeats(times) {
		if err := s.Sleep(ctx, s.RandDuration(time.Second, 3*time.Second)); err != nil {
			return err
		}
		authority, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		victim := choose(authority)
		s.Fault(kill, fmt.Sprintf("%s, round %d; the authority is %s", victim.Name, i+1, authority.Name))
		s.Kill(victim)
		if err := s.Sleep(ctx, s.RandDuration(4*time.Second, 7*time.Second)); err != nil {
			return err
		}
		if err := s.Recover(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killLaneLeaders kills the leader of each lane in turn.
func killLaneLeaders(ctx context.Context, s *drill.Harness) error {
	s.SetTargets(kill, drill.Limits{Ack: time.Second})
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	first, err := s.Nodes[0].Status(ctx)
	if err != nil {
		return err
	}
	var worst time.Duration
	for lane := range first.Lanes {
		if err := s.Sleep(ctx, s.RandDuration(time.Second, 3*time.Second)); err != nil {
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
		s.Logf("lane %d has another leader after %s", lane, took.Round(time.Millisecond))
		if err := s.Sleep(ctx, s.RandDuration(3*time.Second, 5*time.Second)); err != nil {
			return err
		}
		if err := s.Recover(ctx); err != nil {
			return err
		}
	}
	s.Target("longest time of a lane without a leader", worst, 10*time.Second)
	return nil
}

// laneLeader returns the running node that leads a lane, as the first running node
// reports it.
func laneLeader(ctx context.Context, s *drill.Harness, lane int) (*drill.Node, error) {
	running := s.Running()
	status, err := running[0].Status(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(running, func(n *drill.Node) bool { return lane < len(status.Lanes) && n.Name == status.Lanes[lane].Leader })
	if i < 0 {
		return nil, fmt.Errorf("no running node leads lane %d; %s reports %+v", lane, running[0].Name, status.Lanes)
	}
	return running[i], nil
}

// killAll repeatedly kills all nodes under load and restarts them.
func killAll(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	var worst time.Duration
	for range s.Repeats(4) {
		if err := s.Sleep(ctx, s.RandDuration(2*time.Second, 4*time.Second)); err != nil {
			return err
		}
		s.Fault("kill all", fmt.Sprintf("%d jobs acknowledged", s.Acked()))
		s.Kill(s.Nodes...)
		began := time.Now()
		if err := s.Heal(ctx); err != nil {
			return err
		}
		worst = max(worst, time.Since(began))
	}
	s.Target("longest time from the restart of all nodes until ready", worst, coldStart)
	return nil
}
