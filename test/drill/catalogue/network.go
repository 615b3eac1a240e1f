package catalogue

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with links that are cut, lossy or slow.
var network = []drill.Drill{
	{
		Number: 9, Name: "partition", Breaks: "cut one node off from both others: first the authority, then a follower",
		Promises: "nothing is lost, the majority goes on, the minority refuses jobs within 2 s and is ready soon after healing",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 8 * time.Minute, Run: partition,
	},
	{
		Number: 10, Name: "one-way", Breaks: "drop the packets that a node sends, then those that it receives",
		Promises: "nothing is lost, work goes on, the authority does not change repeatedly",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 8 * time.Minute, Run: oneWay,
	},
	{
		Number: 11, Name: "partial", Breaks: "cut the link between two nodes while the third reaches both",
		Promises: "nothing is lost, work goes on, the authority does not change repeatedly",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 8 * time.Minute, Run: partial,
	},
	{
		Number: 12, Name: "bad-link", Breaks: "a flapping link, 20 % packet loss, then 100 ± 50 ms delay between all nodes",
		Promises: "nothing is lost, work is only slower",
		Plan:     drill.Layout{SlowLinks: true}, Timeout: 8 * time.Minute, Run: badLink,
	},
	{
		Number: 40, Name: "half-cut", Breaks: "cut the NATS routes of the authority while its Raft connections stay up, then the other way round",
		Promises: "nothing is lost; another node takes over the authority, or the node reports that it is not ready",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 8 * time.Minute, Run: halfCut,
	},
}

// withFault injects a fault for some time, heals it, and reports how many jobs were
// acknowledged meanwhile. The authority may change twice when the fault begins and
// twice when it is healed.
func withFault(s *drill.Harness, fault, detail string, inject func()) {
	s.Pause(2*time.Second, 4*time.Second)
	acked, began, since, duration := s.Acked(), time.Now(), drill.HostClock(), s.RandDuration(12*time.Second, 18*time.Second)
	s.Fault(fault, detail)
	inject()
	s.Sleep(duration - time.Since(began))
	s.Figure(fault+": progress", fmt.Sprintf("%d jobs acknowledged in %s", s.Acked()-acked, time.Since(began).Round(time.Second)))
	s.Require(s.Acked() > acked, "%s: no job was acknowledged", fault)
	began = time.Now()
	s.Recover()
	s.Figure(fault+": ready after healing", time.Since(began))
	s.LimitAuthorityChanges(fault, since, 4)
}

// eachRole calls do with the authority and with another node.
func eachRole(s *drill.Harness, do func(role string, victim *drill.Node)) {
	do("authority", s.AwaitAuthority())
	do("follower", other(s, s.AwaitAuthority()))
}

// partition cuts a node off from both others, in both roles.
func partition(s *drill.Harness) {
	s.StartSteadyLoad()
	s.SetTargets("authority cut off", drill.Limits{Dispatch: 10 * time.Second})
	for range s.Repeats(2) {
		eachRole(s, func(role string, victim *drill.Node) {
			withFault(s, role+" cut off", victim.Name, func() {
				must.Do(victim.Host.Cut(victim.Host.Others()...))
				expectRefusals(s, victim)
			})
		})
	}
}

// expectRefusals enqueues jobs at a node that is cut off. Each must be answered within
// two seconds, and refused once the node has detected its isolation.
func expectRefusals(s *drill.Harness, n *drill.Node) {
	var worst time.Duration
	began := time.Now()
	refusedAfter := time.Duration(0)
	for i := 0; time.Since(began) < 8*time.Second; i++ {
		asked := time.Now()
		err := n.Ask(s.Ctx, "yard.enqueue.outcast", map[string]any{"id": fmt.Sprintf("outcast-%d-%d", began.UnixNano(), i), "params": map[string]int{"n": i}}, new(any))
		worst = max(worst, time.Since(asked))
		if err != nil && refusedAfter == 0 {
			refusedAfter = time.Since(began)
			s.Logf("%s refuses: %v", n.Name, err)
		}
		s.Sleep(200 * time.Millisecond)
	}
	s.Figure(n.Name+" cut off: first refusal after", refusedAfter)
	s.Target(n.Name+" cut off: longest time to answer an enqueue", worst, 2500*time.Millisecond) // including the connect
	s.Require(refusedAfter > 0, "%s accepts jobs although it is cut off", n.Name)
}

// oneWay drops the packets in one direction, for both directions and both roles.
func oneWay(s *drill.Harness) {
	s.StartSteadyLoad()
	eachRole(s, func(role string, victim *drill.Node) {
		withFault(s, role+" cannot send", victim.Name, func() {
			for _, h := range victim.Host.Others() {
				must.Do(h.BlockFrom(victim.Host))
			}
		})
	})
	eachRole(s, func(role string, victim *drill.Node) {
		withFault(s, role+" cannot receive", victim.Name, func() { must.Do(victim.Host.BlockFrom(victim.Host.Others()...)) })
	})
}

// partial cuts the link of one pair of nodes at a time.
func partial(s *drill.Harness) {
	s.StartSteadyLoad()
	cut := func(name string, a, b *drill.Node) {
		withFault(s, name, a.Name+" and "+b.Name, func() { must.Do(a.Host.Cut(b.Host)) })
	}
	for range s.Repeats(2) {
		a := s.AwaitAuthority()
		cut("authority and a follower", a, other(s, a))
		a = s.AwaitAuthority()
		followers := slices.DeleteFunc(slices.Clone(s.Nodes), func(n *drill.Node) bool { return n == a })
		cut("two followers", followers[0], followers[1])
	}
}

// badLink makes links unreliable in three ways, one after the other.
func badLink(s *drill.Harness) {
	s.StartSteadyLoad()
	victim := randomNode(s)
	withFault(s, "flapping", victim.Name, func() {
		for range s.Repeats(6) {
			must.Do(victim.Host.Cut(victim.Host.Others()...))
			s.Pause(200*time.Millisecond, 2500*time.Millisecond)
			must.Do(s.Net.Heal())
			s.Pause(500*time.Millisecond, 2*time.Second)
		}
	})
	withFault(s, "loss", "20 of 100 packets", func() {
		for _, h := range s.Net.Hosts {
			must.Do(h.DropPackets(20, h.Others()...))
		}
	})
	// A packet between two nodes passes two delayed links.
	withFault(s, "delay", "100 ± 50 ms", func() {
		for _, h := range s.Net.Hosts {
			must.Do(h.Delay(25*time.Millisecond, 75*time.Millisecond))
		}
	})
}

// halfCut cuts only the NATS routes, and then only the Raft connections, of the
// authority.
func halfCut(s *drill.Harness) {
	s.StartSteadyLoad()
	for i, name := range []string{"NATS cut", "Raft cut"} {
		port := [...]int{drill.RoutePort, drill.RaftPort}[i]
		victim := s.AwaitAuthority()
		s.SetTargets(name, drill.Limits{Dispatch: 12 * time.Second})
		withFault(s, name, victim.Name, func() {
			must.Do(victim.Host.CutPort(port, victim.Host.Others()...))
			awaitHalfCutNoticed(s, name, victim)
		})
	}
}

// awaitHalfCutNoticed waits for another authority. If there is none, the node must
// report that it is not ready.
func awaitHalfCutNoticed(s *drill.Harness, name string, victim *drill.Node) {
	began := time.Now()
	replaced := s.Within(20*time.Second, func() bool {
		return slices.ContainsFunc(s.Nodes, func(n *drill.Node) bool {
			status, err := n.Status(s.Ctx)
			return err == nil && status.Authority.Owner != victim.Name && !status.Authority.Expired
		})
	})
	if replaced {
		s.Target(name+": another authority after", time.Since(began), 12*time.Second)
	} else {
		s.Figure(name+": another authority after", "not within 20 s")
	}
	status, err := victim.Status(s.Ctx)
	if err != nil {
		s.Logf("%s does not answer: %v", victim.Name, err)
		return
	}
	s.Figure(name+": "+victim.Name+" reports", fmt.Sprintf("ready %t: %v", status.Readiness.Ready, status.Readiness.Reasons))
	s.Require(replaced || !status.Readiness.Ready, "%s: %s is still the authority and reports itself ready", name, victim.Name)
}
