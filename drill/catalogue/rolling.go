package catalogue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"yardmaster/drill"
)

// rolling: nodes are stopped and started as an operator does it.
var rolling = []drill.Drill{
	{
		Number: 22, Name: "rolling-restart", Breaks: "SIGTERM each node in turn, the authority too, and start it again when it has ended",
		Promises: "no job is refused for good and none runs a second time; publishers that move hear at most that they should come again",
		Patience: 10 * time.Minute, Run: rollingRestart,
	},
}

const (
	restart = "restart"

	// stopMost is what a node may take to end: what runs its ten seconds, and
	// what comes before and after. Supervisors leave it 45.
	stopMost = 25 * time.Second

	longQueue = "long"
)

func rollingRestart(ctx context.Context, s *drill.Stage) error {
	s.Within(restart, drill.Limits{Ack: time.Second})
	s.Smooth(movable)
	if err := s.AddQueue(ctx, longQueue, 0); err != nil {
		return err
	}
	for i := range 3 { // three workers for jobs of one, two and three seconds
		if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: longQueue, Credits: 4, Hold: time.Duration(i+1) * time.Second}); err != nil {
			return err
		}
	}
	if err := s.Steady(ctx); err != nil {
		return err
	}
	loads := []*drill.Load{
		{Queue: longQueue, Parallel: 1, Pace: 250 * time.Millisecond},
		{Queue: drill.RunnerQueue, Function: "demo#sleep", Params: `{"ms":2000}`, Prefix: "rrq-slow", Parallel: 1, Pace: 700 * time.Millisecond},
	}
	s.Begin(ctx, loads...)
	var stops, hands []time.Duration
	for round := range s.Times(2) {
		for _, n := range s.Nodes {
			if s.Quick && round > 0 {
				break
			}
			if err := s.Rest(ctx, s.Between(2*time.Second, 4*time.Second)); err != nil {
				return err
			}
			stop, hand, err := restartOne(ctx, s, n)
			if err != nil {
				return err
			}
			stops = append(stops, stop)
			if hand > 0 {
				hands = append(hands, hand)
			}
		}
	}
	s.Figure("a node has ended after, at most", slices.Max(stops))
	s.Promise(slices.Max(stops) <= stopMost, "a node took %s to end", slices.Max(stops))
	s.Promise(len(hands) > 0, "no node that stopped had the authority")
	if len(hands) > 0 {
		s.Target("hand-over of a node that stops, longest", slices.Max(hands), 200*time.Millisecond)
	}
	return nil
}

// restartOne stops a node as its supervisor would and starts it again. hand is
// what handing over the authority took, by the node's own word; 0 if it was not
// there.
func restartOne(ctx context.Context, s *drill.Stage, n *drill.Node) (stop, hand time.Duration, err error) {
	authority, err := s.AwaitAuthority(ctx)
	if err != nil {
		return 0, 0, err
	}
	before := len(n.Log())
	s.Fault(restart, fmt.Sprintf("%s; %s decides", n.Name, authority.Name))
	began := time.Now()
	if err := n.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, err
	}
	if err := n.Wait(ctx); err != nil {
		s.Promise(false, "%s ended with %v", n.Name, err)
	}
	stop = time.Since(began)
	said := n.Log()[before:]
	s.Say("%s has ended after %s", n.Name, stop.Round(time.Millisecond))
	if authority == n {
		if hand, err = handOver(said); err != nil {
			s.Promise(false, "%s decided, and stopped: %v", n.Name, err)
		}
	}
	return stop, hand, s.Whole(ctx)
}

// handOver reads from a node's log how long its hand-over took.
func handOver(log string) (time.Duration, error) {
	for line := range strings.Lines(log) {
		if _, rest, ok := strings.Cut(line, "the authority is handed over"); ok {
			_, took, _ := strings.Cut(rest, "took=")
			word, _, _ := strings.Cut(strings.TrimSpace(took), " ")
			return time.ParseDuration(word)
		}
	}
	return 0, errors.New("its log tells of no hand-over")
}

// movable tells that a publisher was only told to come again, lost its node
// and goes to another, or met a lane between two leaders, which its library did
// not even tell it.
func movable(why string) bool {
	return slices.ContainsFunc([]string{
		"429", "503", "try again", "connection refused", "reset by peer", "EOF", "broken pipe", "BYE", "DRAINING", "UNAVAILABLE", "node stops", "is stopping", drill.RepeatedByLibrary,
	}, func(word string) bool { return strings.Contains(why, word) })
}
