package catalogue

import (
	"context"
	"fmt"
	"time"

	"yardmaster/drill"
	"yardmaster/drill/hosts"
)

// network is cut, thinned and slowed down.
var network = []drill.Drill{
	{
		Number: 9, Name: "partition", Breaks: "cut one node off from both others: the one that decides, then another one",
		Promises: "nothing is lost, the two go on, the lone one refuses within 2 s and is back soon after",
		Plan:     drill.Plan{Apart: true}, Patience: 8 * time.Minute, Run: partition,
	},
	{
		Number: 10, Name: "one-way", Breaks: "a node hears the others and is not heard, and the other way round",
		Promises: "nothing is lost, work goes on, authority does not wander about",
		Plan:     drill.Plan{Apart: true}, Patience: 8 * time.Minute, Run: oneWay,
	},
	{
		Number: 11, Name: "partial", Breaks: "cut the link between two nodes, while the third reaches both",
		Promises: "nothing is lost, work goes on, authority does not wander about",
		Plan:     drill.Plan{Apart: true}, Patience: 8 * time.Minute, Run: partial,
	},
	{
		Number: 12, Name: "bad-link", Breaks: "a link that comes and goes, one in five packets lost, 100 ± 50 ms between all nodes",
		Promises: "nothing is lost, it only becomes slower",
		Plan:     drill.Plan{Slow: true}, Patience: 8 * time.Minute, Run: badLink,
	},
	{
		Number: 40, Name: "half-cut", Breaks: "cut the messages of the node that decides from the others while Raft lives, and the other way round",
		Promises: "nothing is lost, somebody else decides or the node says why it does not work",
		Plan:     drill.Plan{Apart: true}, Patience: 8 * time.Minute, Run: halfCut,
	},
}

// cutTime is how long a link stays cut.
func cutTime(s *drill.Stage) time.Duration {
	return s.Between(12*time.Second, 18*time.Second)
}

// disturb breaks something for some time, heals it, and says how many jobs were
// acknowledged meanwhile. Authority may change when it is broken and when it is
// healed; more is wandering about.
func disturb(ctx context.Context, s *drill.Stage, fault, detail string, breakIt func() error, meanwhile func() error) error {
	if err := s.Rest(ctx, s.Between(2*time.Second, 4*time.Second)); err != nil {
		return err
	}
	acked, began, since, lasts := s.Acked(), time.Now(), drill.Clock(), cutTime(s)
	s.Fault(fault, detail)
	if err := breakIt(); err != nil {
		return err
	}
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return err
		}
	}
	if err := s.Rest(ctx, lasts-time.Since(began)); err != nil {
		return err
	}
	s.Figure(fault+": meanwhile", fmt.Sprintf("%d jobs acknowledged in %s", s.Acked()-acked, time.Since(began).Round(time.Second)))
	s.Promise(s.Acked() > acked, "%s: no job was acknowledged", fault)
	began = time.Now()
	if err := s.Whole(ctx); err != nil {
		return err
	}
	s.Figure(fault+": ready after healing", time.Since(began))
	s.Settled(fault, since, 4)
	return nil
}

func partition(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for range s.Times(2) {
		for _, authority := range []bool{true, false} {
			victim, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			name := "authority cut off"
			s.Within(name, drill.Limits{Dispatch: 10 * time.Second})
			if !authority {
				victim, name = other(s, victim), "follower cut off"
			}
			err = disturb(ctx, s, name, victim.Name, func() error { return victim.Host.Cut(s.Net.Others(victim.Host)...) }, func() error {
				return refusal(ctx, s, victim)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// refusal asks a node that is cut off to accept jobs: each must be answered
// within two seconds, and refused once it has had the time to notice.
func refusal(ctx context.Context, s *drill.Stage, n *drill.Node) error {
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
			s.Say("%s refuses: %v", n.Name, err)
		}
		if err := s.Rest(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	s.Figure(n.Name+" cut off: first refusal after", refusedAfter)
	s.Target(n.Name+" cut off: answers an enqueue within", worst, 2500*time.Millisecond) // with the time to connect
	s.Promise(refusedAfter > 0, "%s is cut off and accepts jobs", n.Name)
	return nil
}

func oneWay(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for _, heard := range []bool{false, true} {
		for _, authority := range []bool{true, false} {
			victim, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			who := "authority"
			if !authority {
				victim, who = other(s, victim), "follower"
			}
			name, deafen := who+" is not heard", func() error {
				for _, h := range s.Net.Others(victim.Host) {
					if err := h.Deafen(victim.Host); err != nil {
						return err
					}
				}
				return nil
			}
			if heard {
				name, deafen = who+" does not hear", func() error { return victim.Host.Deafen(s.Net.Others(victim.Host)...) }
			}
			if err := disturb(ctx, s, name, victim.Name, deafen, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func partial(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for range s.Times(2) {
		for _, authority := range []bool{true, false} {
			a, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			b, name := other(s, a), "authority and a follower"
			if !authority {
				c := s.Net.Others(a.Host, b.Host)[0]
				a, name = b, "two followers"
				for _, n := range s.Nodes {
					if n.Host == c {
						b = n
					}
				}
			}
			err = disturb(ctx, s, name, a.Name+" and "+b.Name, func() error { return a.Host.Cut(b.Host) }, nil)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func badLink(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	victim := s.Nodes[s.Dice.IntN(len(s.Nodes))]
	err := disturb(ctx, s, "flapping", victim.Name, func() error { return nil }, func() error {
		for range s.Times(6) {
			if err := victim.Host.Cut(s.Net.Others(victim.Host)...); err != nil {
				return err
			}
			if err := s.Rest(ctx, s.Between(200*time.Millisecond, 2500*time.Millisecond)); err != nil {
				return err
			}
			if err := s.Net.Heal(); err != nil {
				return err
			}
			if err := s.Rest(ctx, s.Between(500*time.Millisecond, 2*time.Second)); err != nil {
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
				if err := do(h, s.Net.Others(h)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err = disturb(ctx, s, "loss", "20 of 100 packets", each(func(h *hosts.Host, others []*hosts.Host) error { return h.Lose(20, others...) }), nil)
	if err != nil {
		return err
	}
	// Between two nodes a packet passes two cables.
	return disturb(ctx, s, "delay", "100 ± 50 ms", each(func(h *hosts.Host, _ []*hosts.Host) error {
		return h.Delay(25*time.Millisecond, 75*time.Millisecond)
	}), nil)
}

func halfCut(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for _, half := range []struct {
		name string
		port int
	}{{"messages cut", drill.RoutePort}, {"Raft cut", drill.RaftPort}} {
		victim, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		s.Within(half.name, drill.Limits{Dispatch: 12 * time.Second})
		err = disturb(ctx, s, half.name, victim.Name, func() error {
			return victim.Host.CutPort(half.port, s.Net.Others(victim.Host)...)
		}, func() error { return halfCutSeen(ctx, s, half.name, victim) })
		if err != nil {
			return err
		}
	}
	return nil
}

// halfCutSeen waits until somebody else decides, or the node itself says that
// it is not ready.
func halfCutSeen(ctx context.Context, s *drill.Stage, name string, victim *drill.Node) error {
	began := time.Now()
	soon, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := drill.Until(soon, "another node decides", func() error {
		for _, n := range s.Nodes {
			status, err := n.Status(soon)
			if err == nil && status.Authority.Owner != victim.Name && !status.Authority.Expired {
				return nil
			}
		}
		return fmt.Errorf("%s does", victim.Name)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		s.Target(name+": another node decides after", time.Since(began), 12*time.Second)
	} else {
		s.Figure(name+": another node decides after", "never within 20 s")
	}
	status, asked := victim.Status(ctx)
	if asked != nil {
		s.Say("%s does not answer: %v", victim.Name, asked)
		return nil
	}
	s.Figure(name+": "+victim.Name+" says", fmt.Sprintf("ready %t: %v", status.Readiness.Ready, status.Readiness.Reasons))
	s.Promise(err == nil || !status.Readiness.Ready, "%s: %s still decides and calls itself ready", name, victim.Name)
	return nil
}
