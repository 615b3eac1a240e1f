package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// Drills with members that are added, removed and replaced.
var members = []drill.Drill{
	{
		Number: 24, Name: "members-come-and-go", Breaks: "add two members, remove two and replace one; kill the added member, the removed member and the authority meanwhile",
		Promises: "every change completes without help, nothing is lost, and three members with old configuration files restart in sync",
		Timeout:  20 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			if err := s.StartSteadyLoad(ctx); err != nil {
				return err
			}
			for _, step := range []func(context.Context, *drill.Harness) error{
				refusedCommands, foreignNodes, addedMemberDies, authorityDiesDuringAdd, measureHandovers, initialMemberLeaves, deadMemberLeaves, directoryIsLost, oldFiles,
			} {
				if err := step(ctx, s); err != nil {
					return err
				}
			}
			return nil
		},
	},
}

// The "cluster" commands that change members.
const (
	addTarget     = "add"
	removeTarget  = "rm"
	replaceTarget = "replace"
)

// refusedCommands checks that invalid changes of members are refused with a reason.
func refusedCommands(ctx context.Context, s *drill.Harness) error {
	n := randomNode(s)
	for _, wrong := range []struct {
		text    string
		command []string
	}{
		{"the minimum is 3", []string{removeTarget, "n3"}},
		{"is a member already", append([]string{addTarget, "n2"}, s.Nodes[1].JoinFlags()...)},
		{"needs no replacement", []string{replaceTarget, "n3"}},
		{"no node answers at", []string{addTarget, "n9", "--route", "127.0.0.1:1", "--raft", "127.0.0.1:1"}},
		{"no change of members is under way", []string{"cancel"}},
	} {
		output, err := n.MemberCommand(ctx, wrong.command...)
		s.Require(err != nil && strings.Contains(output, wrong.text), "cluster %s printed %q, want %q", strings.Join(wrong.command, " "), output, wrong.text)
	}
	return nil
}

// foreignNodes starts a node of another cluster, which must exit, and one with
// another secret, which must not be admitted. The cluster must not change.
func foreignNodes(ctx context.Context, s *drill.Harness) error {
	start := func(name, env string) (*drill.Node, error) {
		n, err := s.Add(name)
		if err != nil {
			return nil, err
		}
		n.Env = append(n.Env, env)
		err = errors.Join(s.WriteConfig(n, s.Nodes...), n.Start())
		s.RemoveNode(n)
		return n, err
	}
	other, err := start("n9", "YARD_CLUSTER_NAME=another")
	if err != nil {
		return err
	}
	if err := other.AwaitLog(ctx, 0, `belongs to yard "drill"`); err != nil {
		return err
	}
	s.Require(within(ctx, 20*time.Second, func() bool { return !other.Running() }), "a node of another cluster keeps running with these members")
	wrong, err := start("n8", "YARD_CLUSTER_SECRET=wrong")
	if err != nil {
		return err
	}
	if err := wrong.AwaitLog(ctx, 0, "yardmaster cluster add"); err != nil {
		return err
	}
	output, err := s.Nodes[0].MemberCommand(ctx, append([]string{addTarget, wrong.Name}, wrong.JoinFlags()...)...)
	s.Require(err != nil && strings.Contains(output, "was not admitted"), "adding a node with another secret printed %q", output)
	s.Logf("%s", output)
	s.Kill(wrong)
	return awaitInSync(ctx, s, "foreign nodes were refused")
}

// addedMemberDies adds a member, which is killed and restarted meanwhile.
func addedMemberDies(ctx context.Context, s *drill.Harness) error {
	n, err := s.AddNode(ctx, "n4")
	if err != nil {
		return err
	}
	err = startMemberCommand(ctx, s, s.Nodes[0], append([]string{addTarget, n.Name}, n.JoinFlags()...), func() error {
		output, err := s.Nodes[1].MemberCommand(ctx, append([]string{addTarget, n.Name}, n.JoinFlags()...)...)
		s.Require(err != nil, "adding %s twice printed %q", n.Name, output)
		s.Fault(kill, n.Name+", which is being added")
		s.Kill(n)
		if err := s.Sleep(ctx, s.RandDuration(0, 3*time.Second)); err != nil {
			return err
		}
		return n.Start()
	})
	if err != nil {
		return err
	}
	return awaitInSync(ctx, s, "n4 was added")
}

// authorityDiesDuringAdd adds a member while the authority is killed.
func authorityDiesDuringAdd(ctx context.Context, s *drill.Harness) error {
	n, err := s.AddNode(ctx, "n5")
	if err != nil {
		return err
	}
	if err := changeWhileAuthorityDies(ctx, s, n, append([]string{addTarget, n.Name}, n.JoinFlags()...)); err != nil {
		return err
	}
	return awaitInSync(ctx, s, "n5 was added")
}

// measureHandovers measures how long the command that transfers the authority takes.
func measureHandovers(ctx context.Context, s *drill.Harness) error {
	var took []time.Duration
	for i := range s.Repeats(5) {
		from, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		to := other(s, from)
		began := time.Now()
		output, err := from.MemberCommand(ctx, "transfer", "--to", to.Name)
		took = append(took, time.Since(began))
		s.Require(err == nil, "transfer %d of the authority from %s to %s: %v", i+1, from.Name, to.Name, err)
		s.Logf("%s; the command took %s", output, took[i].Round(time.Millisecond))
		if err := s.Sleep(ctx, s.RandDuration(time.Second, 2*time.Second)); err != nil {
			return err
		}
	}
	s.Target("longest transfer of the authority, including the start of the command", slices.Max(took), 200*time.Millisecond)
	return awaitInSync(ctx, s, "transfers of the authority")
}

// initialMemberLeaves removes one of the first members while the authority is
// killed. Its node must exit with the reason, and again when it is restarted.
func initialMemberLeaves(ctx context.Context, s *drill.Harness) error {
	n := s.Nodes[0]
	if err := changeWhileAuthorityDies(ctx, s, n, []string{removeTarget, n.Name}); err != nil {
		return err
	}
	for i := range 2 {
		exited := within(ctx, 30*time.Second, func() bool { return !n.Running() })
		s.Require(exited && strings.Contains(n.Log(), "was taken out of the yard"), "%s was removed, and keeps running or does not log it (start %d)", n.Name, i)
		if !exited {
			s.Kill(n)
		}
		if i == 0 {
			status := fmt.Sprint(n.Wait(ctx))
			s.Require(status == "exit status 3", "%s was removed, and exited with %s", n.Name, status)
			if err := n.Start(); err != nil {
				return err
			}
		}
	}
	s.RemoveNode(n)
	return awaitInSync(ctx, s, n.Name+" was removed")
}

// deadMemberLeaves kills a member and removes it.
func deadMemberLeaves(ctx context.Context, s *drill.Harness) error {
	i := slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n.Name == "n4" })
	n := s.Nodes[i]
	s.Fault(kill, n.Name+", which is not restarted")
	s.Kill(n)
	s.RemoveNode(n)
	if err := memberCommand(ctx, s, s.Nodes[0], removeTarget, n.Name); err != nil {
		return err
	}
	return awaitInSync(ctx, s, "a dead member was removed")
}

// directoryIsLost deletes a member's directory and replaces it while the authority is
// killed.
func directoryIsLost(ctx context.Context, s *drill.Harness) error {
	n := randomNode(s)
	if err := loseDirectory(ctx, s, n); err != nil {
		return err
	}
	if err := changeWhileAuthorityDies(ctx, s, n, []string{replaceTarget, n.Name}); err != nil {
		return err
	}
	return awaitInSync(ctx, s, n.Name+" was replaced")
}

// replaced deletes a member's directory and replaces the member.
func replaced(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	if err := loseDirectory(ctx, s, n); err != nil {
		return err
	}
	if err := memberCommand(ctx, s, other(s, n), replaceTarget, n.Name); err != nil {
		return err
	}
	return awaitInSync(ctx, s, n.Name+" was replaced")
}

// oldFiles restarts all members with the configuration files they started with.
func oldFiles(ctx context.Context, s *drill.Harness) error {
	s.Fault("kill all", "they restart with their old configuration files")
	s.Kill(s.Nodes...)
	if err := s.Recover(ctx); err != nil {
		return err
	}
	return awaitInSync(ctx, s, "the restart of all")
}

// loseDirectory kills a node, deletes its directory and restarts it. It must wait
// and log the command that replaces it.
func loseDirectory(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	s.Fault(emptied, n.Name+": its directory is deleted")
	s.Kill(n)
	if err := os.RemoveAll(n.DataDir); err != nil {
		return err
	}
	logged := len(n.Log())
	if err := n.Start(); err != nil {
		return err
	}
	return n.AwaitLog(ctx, logged, "yardmaster cluster replace "+n.Name)
}

// memberCommand repeats a command that changes members until it succeeds: the cluster
// may refuse it while it is not healthy.
func memberCommand(ctx context.Context, s *drill.Harness, at *drill.Node, words ...string) error {
	began := time.Now()
	var output string
	err := drill.Until(ctx, "cluster "+strings.Join(words, " ")+" succeeds", func() (err error) {
		output, err = at.MemberCommand(ctx, words...)
		return err
	})
	if err == nil {
		s.Logf("%s\n%s", strings.Join(words, " "), output)
		s.Figure("cluster "+words[0]+" "+words[1], time.Since(began))
	}
	return err
}

// startMemberCommand starts a change of members, calls meanwhile during it, and waits
// until it is complete.
func startMemberCommand(ctx context.Context, s *drill.Harness, at *drill.Node, words []string, meanwhile func() error) error {
	began := time.Now()
	err := drill.Until(ctx, "cluster "+strings.Join(words, " ")+" is accepted", func() error {
		_, err := at.MemberCommand(ctx, append(words, "--no-wait")...)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Sleep(ctx, s.RandDuration(0, 2*time.Second)); err != nil {
		return err
	}
	if v, err := at.Members(ctx); err == nil {
		s.Logf("%s: %s", v.Change, v.Step)
	}
	if err := meanwhile(); err != nil {
		return err
	}
	lastStep := ""
	err = drill.Until(ctx, "cluster "+strings.Join(words, " ")+" is complete", func() error {
		v, err := at.Members(ctx)
		switch {
		case err != nil:
			return err
		case v.Change != "":
			if step, _, _ := strings.Cut(v.Step, ":"); step != lastStep {
				lastStep = step
				s.Logf("%s: %s", v.Change, v.Step)
			}
			return fmt.Errorf("%s: %s", v.Change, v.Step)
		}
		s.Require(v.Outcome == "", "cluster %s failed: %s", strings.Join(words, " "), v.Outcome)
		return nil
	})
	s.Figure("cluster "+words[0]+" "+words[1], time.Since(began))
	return err
}

// changeWhileAuthorityDies starts a change of the member of and kills the authority
// meanwhile, unless that is the member itself. The killed node is restarted some
// seconds later.
func changeWhileAuthorityDies(ctx context.Context, s *drill.Harness, of *drill.Node, words []string) error {
	authority, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	at := s.Nodes[slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n != authority && n != of })]
	return startMemberCommand(ctx, s, at, words, func() error {
		victim, err := s.AwaitAuthority(ctx)
		if err != nil || victim == of || victim == at {
			return err
		}
		s.Fault(kill, victim.Name+", the authority, during cluster "+words[0])
		s.Kill(victim)
		if err := s.Sleep(ctx, s.RandDuration(3*time.Second, 6*time.Second)); err != nil {
			return err
		}
		return victim.Start()
	})
}

// awaitInSync waits until all nodes are ready, the members are in sync, and each lane
// has a leader.
func awaitInSync(ctx context.Context, s *drill.Harness, when string) error {
	began := time.Now()
	if err := errors.Join(s.WaitReady(ctx), s.AwaitMembersInSync(ctx)); err != nil {
		return fmt.Errorf("after %s: %w", when, err)
	}
	err := drill.Until(ctx, "all lanes have a leader", func() error {
		st, err := s.Nodes[0].Status(ctx)
		for i := range st.Lanes {
			if _, failed := laneLeader(ctx, s, i); failed != nil {
				err = errors.Join(err, failed)
			}
		}
		return err
	})
	s.Logf("in sync %s after %s; %d jobs acknowledged", time.Since(began).Round(time.Millisecond), when, s.Acked())
	return err
}
