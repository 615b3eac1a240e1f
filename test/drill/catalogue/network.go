package catalogue

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
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

// cutTime returns how long a link stays cut.
func cutTime(s *drill.Harness) time.Duration {
	return s.RandDuration(12*time.Second, 18*time.Second)
}

// withFault injects a fault for some time, heals it, and reports how many jobs were
// acknowledged meanwhile. The authority may change twice when the fault begins and
// twice when it is healed.
func withFault(ctx context.Context, s *drill.Harness, fault, detail string, inject func() error, meanwhile func() error) error {
	if err := s.Sleep(ctx, s.RandDuration(2*time.Second, 4*time.Second)); err != nil {
		return err
	}
	acked, began, since, duration := s.Acked(), time.Now(), drill.HostClock(), cutTime(s)
	s.Fault(fault, detail)
	if err := inject(); err != nil {
		return err
	}
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return err
		}
	}
	if err := s.Sleep(ctx, duration-time.Since(began)); err != nil {
		return err
	}
	s.Figure(fault+": progress", fmt.Sprintf("%d jobs acknowledged in %s", s.Acked()-acked, time.Since(began).Round(time.Second)))
	s.Require(s.Acked() > acked, "%s: no job was acknowledged", fault)
	began = time.Now()
	if err := s.Recover(ctx); err != nil {
		return err
	}
	s.Figure(fault+": ready after healing", time.Since(began))
	s.LimitAuthorityChanges(fault, since, 4)
	return nil
}

func partition(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for range s.Repeats(2) {
		for _, authority := range []bool{true, false} {
			victim, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			name := "authority cut off"
			s.SetTargets(name, drill.Limits{Dispatch: 10 * time.Second})
			if !authority {
				victim, name = other(s, victim), "follower cut off"
			}
			err = withFault(ctx, s, name, victim.Name, func() error { return victim.Host.Cut(s.Net.Except(victim.Host)...) }, func() error {
				return refusal(ctx, s, victim)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// refusal enqueues jobs at a node that is cut off. Each must be answered within two
// seconds, and refused once the node has detected its isolation.
func refusal(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	var worst time.Duration
	began := time.Now()
	refusedAfter := time.Duration(0)
	for i := 0; time.Since(began) < 8*time.Second; i++ {
		asked := time.Now()
		var answer any
		err := n.Ask(ctx, "yard.enqueue.outcast", map[string]any{"id": fmt.Sprintf("outcast-%d-%d", began.UnixNano(), i), "params": map[string]int{"n": i}}, &answer)
		worst = max(worst, time.Since(asked))
		if err != nil && refusedAfter == 0 {
			refusedAfter = time.Since(began)
			s.Logf("%s refuses: %v", n.Name, err)
		}
		if err := s.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	s.Figure(n.Name+" cut off: first refusal after", refusedAfter)
	s.Target(n.Name+" cut off: longest time to answer an enqueue", worst, 2500*time.Millisecond) // including the connect
	s.Require(refusedAfter > 0, "%s accepts jobs although it is cut off", n.Name)
	return nil
}

func oneWay(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for _, receiving := range []bool{false, true} {
		for _, authority := range []bool{true, false} {
			victim, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			role := "authority"
			if !authority {
				victim, role = other(s, victim), "follower"
			}
			name, block := role+" cannot send", func() error {
				for _, h := range s.Net.Except(victim.Host) {
					if err := h.BlockFrom(victim.Host); err != nil {
						return err
					}
				}
				return nil
			}
			if receiving {
				name, block = role+" cannot receive", func() error { return victim.Host.BlockFrom(s.Net.Except(victim.Host)...) }
			}
			if err := withFault(ctx, s, name, victim.Name, block, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func partial(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for range s.Repeats(2) {
		for _, authority := range []bool{true, false} {
			a, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			b, name := other(s, a), "authority and a follower"
			if !authority {
				c := s.Net.Except(a.Host, b.Host)[0]
				a, name = b, "two followers"
				for _, n := range s.Nodes {
					if n.Host == c {
						b = n
					}
				}
			}
			err = withFault(ctx, s, name, a.Name+" and "+b.Name, func() error { return a.Host.Cut(b.Host) }, nil)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func badLink(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	victim := s.Nodes[s.Rand.IntN(len(s.Nodes))]
	err := withFault(ctx, s, "flapping", victim.Name, func() error { return nil }, func() error {
		for range s.Repeats(6) {
			if err := victim.Host.Cut(s.Net.Except(victim.Host)...); err != nil {
				return err
			}
			if err := s.Sleep(ctx, s.RandDuration(200*time.Millisecond, 2500*time.Millisecond)); err != nil {
				return err
			}
			if err := s.Net.Heal(); err != nil {
				return err
			}
			if err := s.Sleep(ctx, s.RandDuration(500*time.Millisecond, 2*time.Second)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	each := func(do func(h *hosts.Host, others []*hosts.Host) error) func() error {
		return func() error {
			for _, h := range s.Net.Hosts {
				if err := do(h, s.Net.Except(h)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err = withFault(ctx, s, "loss", "20 of 100 packets", each(func(h *hosts.Host, others []*hosts.Host) error { return h.DropPackets(20, others...) }), nil)
	if err != nil {
		return err
	}
	// A packet between two nodes passes two delayed links.
	return withFault(ctx, s, "delay", "100 ± 50 ms", each(func(h *hosts.Host, _ []*hosts.Host) error {
		return h.Delay(25*time.Millisecond, 75*time.Millisecond)
	}), nil)
}

func halfCut(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for _, half := range []struct {
		name string
		port int
	}{{"NATS cut", drill.RoutePort}, {"Raft cut", drill.RaftPort}} {
		victim, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		s.SetTargets(half.name, drill.Limits{Dispatch: 12 * time.Second})
		err = withFault(ctx, s, half.name, victim.Name, func() error {
			return victim.Host.CutPort(half.port, s.Net.Except(victim.Host)...)
		}, func() error { return awaitHalfCutNoticed(ctx, s, half.name, victim) })
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitHalfCutNoticed waits for another authority. If there is none, the node must
// report that it is not ready.
func awaitHalfCutNoticed(ctx context.Context, s *drill.Harness, name string, victim *drill.Node) error {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := drill.Until(limited, "there is another authority", func() error {
		for _, n := range s.Nodes {
			status, err := n.Status(limited)
			if err == nil && status.Authority.Owner != victim.Name && !status.Authority.Expired {
				return nil
			}
		}
		return fmt.Errorf("%s is the authority", victim.Name)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		s.Target(name+": another authority after", time.Since(began), 12*time.Second)
	} else {
		s.Figure(name+": another authority after", "not within 20 s")
	}
	status, statusErr := victim.Status(ctx)
	if statusErr != nil {
		s.Logf("%s does not answer: %v", victim.Name, statusErr)
		return nil
	}
	s.Figure(name+": "+victim.Name+" reports", fmt.Sprintf("ready %t: %v", status.Readiness.Ready, status.Readiness.Reasons))
	s.Require(err == nil || !status.Readiness.Ready, "%s: %s is still the authority and reports itself ready", name, victim.Name)
	return nil
}
