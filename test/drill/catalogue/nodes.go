package catalogue

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with nodes that die.
var nodes = []drill.Drill{
	{
		Number: 1, Name: "kill-follower", Breaks: "kill -9 a node other than the authority, again and again",
		Promises: "nothing is lost, its running jobs run elsewhere, the other nodes go on",
		Run: func(s *drill.Harness) {
			killRepeatedly(s, 8, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
	{
		Number: 2, Name: "kill-authority", Breaks: "kill -9 the authority, again and again",
		Promises: "nothing is lost, another node takes over within 3 s, jobs are accepted all the time",
		Timeout:  10 * time.Minute,
		Run: func(s *drill.Harness) {
			s.SetTargets(kill, drill.Limits{Dispatch: 3 * time.Second, Ack: time.Second})
			killRepeatedly(s, 20, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 2, Name: "kill-early", Breaks: "kill -9 a node of a cluster that has just become ready",
		Promises: "what was agreed on in the first second is enough to go on",
		Run: func(s *drill.Harness) {
			victim := randomNode(s)
			s.Kill(victim)
			s.Logf("%s killed before there is any load", victim.Name)
			s.StartSteadyLoad()
			s.Sleep(3 * time.Second)
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

// randomNode returns a random node.
func randomNode(s *drill.Harness) *drill.Node { return s.Nodes[s.Rand.IntN(len(s.Nodes))] }

// other returns a random node other than except.
func other(s *drill.Harness, except *drill.Node) *drill.Node {
	for {
		if n := randomNode(s); n != except {
			return n
		}
	}
}

// runRounds starts the steady load and more loads, and calls round with the current
// authority, times times or fewer in a quick run.
func runRounds(s *drill.Harness, times int, round func(authority *drill.Node), more ...*drill.Load) {
	s.StartSteadyLoad()
	s.StartLoads(more...)
	for range s.Repeats(times) {
		s.Pause(time.Second, 4*time.Second)
		round(s.AwaitAuthority())
	}
}

// killRepeatedly repeatedly kills the node that choose selects, restarts it some
// seconds later, and waits until all nodes are ready.
func killRepeatedly(s *drill.Harness, times int, choose func(authority *drill.Node) *drill.Node) {
	runRounds(s, times, func(authority *drill.Node) {
		victim := choose(authority)
		s.Fault(kill, victim.Name+"; the authority is "+authority.Name)
		s.Kill(victim)
		s.Pause(4*time.Second, 7*time.Second)
		s.Recover()
	})
}

// killLaneLeaders kills the leader of each lane in turn.
func killLaneLeaders(s *drill.Harness) {
	s.SetTargets(kill, drill.Limits{Ack: time.Second})
	s.StartSteadyLoad()
	first := must.Get(s.Nodes[0].Status(s.Ctx))
	var worst time.Duration
	for lane := range first.Lanes {
		s.Pause(time.Second, 3*time.Second)
		victim := awaitLaneLeader(s, lane)
		s.Fault(kill, fmt.Sprintf("%s, which leads lane %d", victim.Name, lane))
		s.Kill(victim)
		began := time.Now()
		awaitLaneLeader(s, lane)
		took := time.Since(began)
		worst = max(worst, took)
		s.Logf("lane %d has another leader after %s", lane, took.Round(time.Millisecond))
		s.Pause(3*time.Second, 5*time.Second)
		s.Recover()
	}
	s.Target("longest time of a lane without a leader", worst, 10*time.Second)
}

// awaitLaneLeader waits until a running node leads a lane, as the first running node
// reports it, and returns that node.
func awaitLaneLeader(s *drill.Harness, lane int) (leader *drill.Node) {
	s.Until(fmt.Sprintf("lane %d has a leader", lane), func() error {
		running := s.Running()
		status, err := running[0].Status(s.Ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(running, func(n *drill.Node) bool { return lane < len(status.Lanes) && n.Name == status.Lanes[lane].Leader })
		if i < 0 {
			return fmt.Errorf("no running node leads lane %d; %s reports %+v", lane, running[0].Name, status.Lanes)
		}
		leader = running[i]
		return nil
	})
	return leader
}

// killAll repeatedly kills all nodes under load and restarts them.
func killAll(s *drill.Harness) {
	var worst time.Duration
	runRounds(s, 4, func(*drill.Node) {
		s.Fault("kill all", fmt.Sprintf("%d jobs acknowledged", s.Acked()))
		s.Kill(s.Nodes...)
		began := time.Now()
		s.Heal()
		worst = max(worst, time.Since(began))
	})
	s.Target("longest time from the restart of all nodes until ready", worst, coldStart)
}
