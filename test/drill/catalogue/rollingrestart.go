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
)

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
	s.Require(len(handovers) > 0, "no stopped node held the authority")
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
