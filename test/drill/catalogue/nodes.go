package catalogue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
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

// Drills that restart nodes as an operator does.
var rolling = []drill.Drill{
	{
		Number: 22, Name: "rolling-restart", Breaks: "SIGTERM each node in turn, including the authority, and restart it when it has exited",
		Promises: "no job is refused for good and none runs twice; publishers that change nodes are at most asked to try again",
		Timeout:  10 * time.Minute, Run: rollingRestart,
	},
}

const (
	restart = "restart"

	// maxStop is the maximum time from SIGTERM to the exit of a node: ten seconds
	// for running jobs, and the time before and after. Supervisors allow 45 s.
	maxStop = 25 * time.Second

	longQueue = "long"
)

// rollingRestart restarts the nodes in turn while short and long jobs run, and checks how
// long each stop and each handover takes.
func rollingRestart(s *drill.Harness) {
	s.SetTargets(restart, drill.Limits{Ack: time.Second})
	s.RequireNoRetries(isRedirect)
	s.AddQueues(longQueue)
	for i := range 3 { // three workers for jobs of one, two and three seconds
		s.AddWorker(drill.Task{Queue: longQueue, Credits: 4, Hold: time.Duration(i+1) * time.Second})
	}
	s.StartSteadyLoad()
	s.StartLoads(&drill.Load{Queue: longQueue, Parallel: 1, Pace: 250 * time.Millisecond},
		&drill.Load{Queue: drill.RunnerQueue, Function: "demo#sleep", JobParams: `{"ms":2000}`, Prefix: "rrq-slow", Parallel: 1, Pace: 700 * time.Millisecond})
	var stops, handovers []time.Duration
	for round := range s.Repeats(2) {
		for _, n := range s.Nodes {
			if s.Quick && round > 0 {
				break
			}
			s.Pause(2*time.Second, 4*time.Second)
			stop, handover := restartOne(s, n)
			stops = append(stops, stop)
			if handover > 0 {
				handovers = append(handovers, handover)
			}
		}
	}
	s.Figure("longest time from SIGTERM to exit", slices.Max(stops))
	s.Require(slices.Max(stops) <= maxStop, "a node took %s to exit", slices.Max(stops))
	s.RequireTried(len(handovers) > 0, "no stopped node held the authority")
	if len(handovers) > 0 {
		s.Target("longest handover by a stopping node", slices.Max(handovers), 200*time.Millisecond)
	}
}

// restartOne stops a node with SIGTERM and restarts it. handover is how long the
// handover of the authority took according to the node's log, 0 if the node did not
// hold it.
func restartOne(s *drill.Harness, n *drill.Node) (stop, handover time.Duration) {
	authority := s.AwaitAuthority()
	logged := len(n.Log())
	s.Fault(restart, fmt.Sprintf("%s; the authority is %s", n.Name, authority.Name))
	began := time.Now()
	must.Do(n.Signal(syscall.SIGTERM))
	err := n.Wait(s.Ctx)
	s.Require(err == nil, "%s exited with %v", n.Name, err)
	stop = time.Since(began)
	s.Logf("%s exited after %s", n.Name, stop.Round(time.Millisecond))
	if authority == n {
		handover, err = handOver(n.Log()[logged:])
		s.Require(err == nil, "%s held the authority when it stopped: %v", n.Name, err)
	}
	s.Recover()
	return stop, handover
}

// handOver reads from a node's log how long its handover took.
func handOver(log string) (time.Duration, error) {
	for line := range strings.Lines(log) {
		if _, rest, ok := strings.Cut(line, "authority transferred"); ok {
			_, took, _ := strings.Cut(rest, "duration=")
			word, _, _ := strings.Cut(strings.TrimSpace(took), " ")
			return time.ParseDuration(word)
		}
	}
	return 0, errors.New("its log has no handover")
}

// isRedirect reports whether a failed publish is part of a clean restart: the node
// asked the publisher to try again or closed the connection, or a lane had no leader
// for a moment, which client libraries retry by themselves.
func isRedirect(reason string) bool {
	return slices.ContainsFunc([]string{
		"429", "503", "try again", "connection refused", "reset by peer", "EOF", "broken pipe", "BYE", "DRAINING", "UNAVAILABLE", "node stops", "is stopping", drill.RetriedByLibrary,
	}, func(word string) bool { return strings.Contains(reason, word) })
}

// Drills that stop nodes with SIGSTOP and resume them.
var pauses = []drill.Drill{
	{
		Number: 7, Name: "pause-authority", Breaks: "SIGSTOP the authority for longer than its lease, then resume it",
		Promises: "another node takes over; nothing that the old authority still sends has an effect",
		Run: func(s *drill.Harness) {
			s.SetTargets("pause", drill.Limits{Dispatch: 10 * time.Second})
			pauseRepeatedly(s, func(authority *drill.Node) *drill.Node { return authority })
		},
	},
	{
		Number: 8, Name: "pause-node", Breaks: "SIGSTOP a node with its runners while it runs jobs, for longer than their leases",
		Promises: "two runs of a job overlap only after the lease of the first has expired; one outcome counts",
		Run: func(s *drill.Harness) {
			pauseRepeatedly(s, func(authority *drill.Node) *drill.Node { return other(s, authority) })
		},
	},
}

// pauseRepeatedly repeatedly stops the node that choose selects, with all its
// processes, for longer than any lease, and resumes it.
func pauseRepeatedly(s *drill.Harness, choose func(authority *drill.Node) *drill.Node) {
	s.AddQueues("slow") // its jobs run for longer than their leases last without their node
	for range 2 {
		s.AddWorker(drill.Task{Queue: "slow", Credits: 8, Hold: 12 * time.Second})
	}
	runRounds(s, 4, func(authority *drill.Node) {
		s.Sleep(3 * time.Second) // until jobs of the queue "slow" run everywhere
		victim := choose(authority)
		pids := victim.Tree()
		s.Fault("pause", fmt.Sprintf("%s with %d processes; the authority is %s", victim.Name, len(pids), authority.Name))
		signal(syscall.SIGSTOP, pids)
		s.Pause(14*time.Second, 18*time.Second)
		signal(syscall.SIGCONT, pids)
		s.Logf("%s resumed", victim.Name)
		s.Recover()
	}, &drill.Load{Queue: "slow", Parallel: 1, Pace: time.Second},
		&drill.Load{Queue: drill.RunnerQueue, Prefix: "sleep", Function: "demo#sleep", JobParams: `{"ms":2000}`, Parallel: 1, Pace: 400 * time.Millisecond})
}

// signal sends a signal to processes.
func signal(sig syscall.Signal, pids []procstat.PID) {
	for _, pid := range pids {
		if err := syscall.Kill(int(pid), sig); err != nil {
			must.Do(fmt.Errorf("send %s to process %d: %w", sig, pid, err))
		}
	}
}
