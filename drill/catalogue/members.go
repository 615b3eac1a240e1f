package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"yardmaster/drill"
)

// Members come, go and are replaced.
var members = []drill.Drill{
	{
		Number: 24, Name: "members-come-and-go", Breaks: "two members are let in, two taken out, one replaced; who comes, who goes and who decides are killed meanwhile",
		Promises: "every change comes to its end by itself, nothing is lost, three members with old files start again in step",
		Patience: 20 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			if err := s.Steady(ctx); err != nil {
				return err
			}
			for _, act := range []func(context.Context, *drill.Stage) error{
				wrongOrders, strangers, joinerDies, deciderDiesInAddition, handOvers, founderLeaves, deadMemberLeaves, directoryIsLost, oldFiles,
			} {
				if err := act(ctx, s); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

const (
	letIn   = "add"
	takeOut = "rm"
	putFor  = "replace"
)

// wrongOrders are refused in words.
func wrongOrders(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	for _, wrong := range []struct {
		words string
		order []string
	}{
		{"3 are the fewest", []string{takeOut, "n3"}},
		{"is a member already", append([]string{letIn, "n2"}, s.Nodes[1].Addresses()...)},
		{"needs no replacement", []string{putFor, "n3"}},
		{"nobody answers as a member", []string{letIn, "n9", "--route", "127.0.0.1:1", "--raft", "127.0.0.1:1"}},
		{"no change of members is under way", []string{"cancel"}},
	} {
		said, err := n.Order(ctx, wrong.order...)
		s.Promise(err != nil && strings.Contains(said, wrong.words), "cluster %s is answered with %q, want %q", strings.Join(wrong.order, " "), said, wrong.words)
	}
	return nil
}

// strangers have another secret, or are of another yard: one stays out, the
// other ends by itself, and the yard is as it was.
func strangers(ctx context.Context, s *drill.Stage) error {
	start := func(name, env string) (*drill.Node, error) {
		n, err := s.Add(name)
		if err != nil {
			return nil, err
		}
		n.Env = append(n.Env, env)
		err = errors.Join(s.WriteConfig(n, s.Nodes...), n.Start())
		s.Forget(n)
		return n, err
	}
	other, err := start("n9", "YARD_CLUSTER_NAME=another")
	if err != nil {
		return err
	}
	if err := other.Says(ctx, 0, `belongs to yard "drill"`); err != nil {
		return err
	}
	s.Promise(within(ctx, 20*time.Second, func() bool { return !other.Running() }), "a node of another yard goes on among these members")
	wrong, err := start("n8", "YARD_CLUSTER_SECRET=wrong")
	if err != nil {
		return err
	}
	if err := wrong.Says(ctx, 0, "yardmaster cluster add"); err != nil {
		return err
	}
	said, err := s.Nodes[0].Order(ctx, append([]string{letIn, wrong.Name}, wrong.Addresses()...)...)
	s.Promise(err != nil && strings.Contains(said, "was not let in"), "to let in who has another secret is answered with %q", said)
	s.Say("%s", said)
	s.Kill(wrong)
	return inStep(ctx, s, "strangers are kept out")
}

// joinerDies: who is let in dies meanwhile, and comes again.
func joinerDies(ctx context.Context, s *drill.Stage) error {
	n, err := s.Newcomer(ctx, "n4")
	if err != nil {
		return err
	}
	err = change(ctx, s, s.Nodes[0], append([]string{letIn, n.Name}, n.Addresses()...), func() error {
		said, err := s.Nodes[1].Order(ctx, append([]string{letIn, n.Name}, n.Addresses()...)...)
		s.Promise(err != nil, "to let %s in once more is answered with %q", n.Name, said)
		s.Fault(kill, n.Name+", which is being let in")
		s.Kill(n)
		if err := s.Rest(ctx, s.Between(0, 3*time.Second)); err != nil {
			return err
		}
		return n.Start()
	})
	if err != nil {
		return err
	}
	return inStep(ctx, s, "n4 is let in")
}

// deciderDiesInAddition: a member is let in while who decides is killed.
func deciderDiesInAddition(ctx context.Context, s *drill.Stage) error {
	n, err := s.Newcomer(ctx, "n5")
	if err != nil {
		return err
	}
	if err := withoutDecider(ctx, s, n, append([]string{letIn, n.Name}, n.Addresses()...)); err != nil {
		return err
	}
	return inStep(ctx, s, "n5 is let in")
}

// handOvers measures how long it takes to hand the authority on.
func handOvers(ctx context.Context, s *drill.Stage) error {
	var took []time.Duration
	for i := range s.Times(5) {
		from, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		to := other(s, from)
		began := time.Now()
		said, err := from.Order(ctx, "transfer", "--to", to.Name)
		took = append(took, time.Since(began))
		s.Promise(err == nil, "hand-over %d from %s to %s: %v", i+1, from.Name, to.Name, err)
		s.Say("%s, %s with the program's own start", said, took[i].Round(time.Millisecond))
		if err := s.Rest(ctx, s.Between(time.Second, 2*time.Second)); err != nil {
			return err
		}
	}
	s.Target("hand-over, as its command takes, longest", slices.Max(took), 200*time.Millisecond)
	return inStep(ctx, s, "the authority is handed on")
}

// founderLeaves: a member that was there from the beginning is taken out while
// who decides is killed. Its node ends and says why, and ends again when it is
// started again.
func founderLeaves(ctx context.Context, s *drill.Stage) error {
	n := s.Nodes[0]
	if err := withoutDecider(ctx, s, n, []string{takeOut, n.Name}); err != nil {
		return err
	}
	for i := range 2 {
		gone := within(ctx, 30*time.Second, func() bool { return !n.Running() })
		s.Promise(gone && strings.Contains(n.Log(), "was taken out of the yard"), "%s was taken out and goes on, or does not say so (start %d)", n.Name, i)
		if !gone {
			s.Kill(n)
		}
		if i == 0 {
			how := fmt.Sprint(n.Wait(ctx))
			s.Promise(how == "exit status 3", "%s was taken out, and ended with %s", n.Name, how)
			if err := n.Start(); err != nil {
				return err
			}
		}
	}
	s.Forget(n)
	return inStep(ctx, s, n.Name+" is taken out")
}

// deadMemberLeaves: one that is killed is taken out.
func deadMemberLeaves(ctx context.Context, s *drill.Stage) error {
	at := slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n.Name == "n4" })
	n := s.Nodes[at]
	s.Fault(kill, n.Name+", which is not to come back")
	s.Kill(n)
	s.Forget(n)
	if err := order(ctx, s, s.Nodes[0], takeOut, n.Name); err != nil {
		return err
	}
	return inStep(ctx, s, "a dead member is taken out")
}

// directoryIsLost: a member's directory is deleted, and it is replaced while
// who decides is killed.
func directoryIsLost(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	if err := losesAll(ctx, s, n); err != nil {
		return err
	}
	if err := withoutDecider(ctx, s, n, []string{putFor, n.Name}); err != nil {
		return err
	}
	return inStep(ctx, s, n.Name+" is replaced")
}

// replaced: a member's directory is deleted, and it is let in again with
// nothing.
func replaced(ctx context.Context, s *drill.Stage, n *drill.Node) error {
	if err := losesAll(ctx, s, n); err != nil {
		return err
	}
	if err := order(ctx, s, other(s, n), putFor, n.Name); err != nil {
		return err
	}
	return inStep(ctx, s, n.Name+" is replaced")
}

// oldFiles: all members start again, with files from when each of them came.
func oldFiles(ctx context.Context, s *drill.Stage) error {
	s.Fault("kill all", "they start again with the files that they had")
	s.Kill(s.Nodes...)
	if err := s.Whole(ctx); err != nil {
		return err
	}
	return inStep(ctx, s, "all start again")
}

// losesAll kills a node, deletes its directory and starts it: it waits and
// says what to type.
func losesAll(ctx context.Context, s *drill.Stage, n *drill.Node) error {
	s.Fault(emptied, n.Name+": its directory is deleted")
	s.Kill(n)
	if err := os.RemoveAll(n.DataDir); err != nil {
		return err
	}
	said := len(n.Log())
	if err := n.Start(); err != nil {
		return err
	}
	return n.Says(ctx, said, "yardmaster cluster replace "+n.Name)
}

// order types a verb until the yard takes it up, which may say that it is not
// well enough yet, and waits until it is carried out.
func order(ctx context.Context, s *drill.Stage, at *drill.Node, words ...string) error {
	began := time.Now()
	var said string
	err := drill.Until(ctx, "cluster "+strings.Join(words, " ")+" is carried out", func() (err error) {
		said, err = at.Order(ctx, words...)
		return err
	})
	if err == nil {
		s.Say("%s\n%s", strings.Join(words, " "), said)
		s.Figure("cluster "+words[0]+" "+words[1], time.Since(began))
	}
	return err
}

// change types a verb, and does something once the yard has taken it up.
func change(ctx context.Context, s *drill.Stage, at *drill.Node, words []string, meanwhile func() error) error {
	began := time.Now()
	err := drill.Until(ctx, "cluster "+strings.Join(words, " ")+" begins", func() error {
		_, err := at.Order(ctx, append(words, "--no-wait")...)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Rest(ctx, s.Between(0, 2*time.Second)); err != nil {
		return err
	}
	if v, err := at.Members(ctx); err == nil {
		s.Say("%s: %s", v.Change, v.Step)
	}
	if err := meanwhile(); err != nil {
		return err
	}
	told := ""
	err = drill.Until(ctx, "cluster "+strings.Join(words, " ")+" comes to its end", func() error {
		v, err := at.Members(ctx)
		switch {
		case err != nil:
			return err
		case v.Change != "":
			if step, _, _ := strings.Cut(v.Step, ":"); step != told {
				told = step
				s.Say("%s: %s", v.Change, v.Step)
			}
			return fmt.Errorf("%s: %s", v.Change, v.Step)
		}
		s.Promise(v.Outcome == "", "cluster %s came to nothing: %s", strings.Join(words, " "), v.Outcome)
		return nil
	})
	s.Figure("cluster "+words[0]+" "+words[1], time.Since(began))
	return err
}

// withoutDecider makes a change of a member, and kills who decides meanwhile,
// unless that is the member itself; it comes back some seconds later.
func withoutDecider(ctx context.Context, s *drill.Stage, of *drill.Node, words []string) error {
	decides, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	at := s.Nodes[slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n != decides && n != of })]
	return change(ctx, s, at, words, func() error {
		victim, err := s.AwaitAuthority(ctx)
		if err != nil || victim == of || victim == at {
			return err
		}
		s.Fault(kill, victim.Name+", which decides, during cluster "+words[0])
		s.Kill(victim)
		if err := s.Rest(ctx, s.Between(3*time.Second, 6*time.Second)); err != nil {
			return err
		}
		return victim.Start()
	})
}

// inStep waits until all nodes are ready, the members are in step, and each lane
// is led.
func inStep(ctx context.Context, s *drill.Stage, when string) error {
	began := time.Now()
	if err := errors.Join(s.WaitReady(ctx), s.InStep(ctx)); err != nil {
		return fmt.Errorf("after %s: %w", when, err)
	}
	err := drill.Until(ctx, "all lanes are led", func() error {
		st, err := s.Nodes[0].Status(ctx)
		for i := range st.Lanes {
			if _, failed := laneLeader(ctx, s, i); failed != nil {
				err = errors.Join(err, failed)
			}
		}
		return err
	})
	s.Say("in step after %s, when %s; %d jobs are acknowledged", time.Since(began).Round(time.Millisecond), when, s.Acked())
	return err
}
