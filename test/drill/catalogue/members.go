package catalogue

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with members that are added, removed and replaced.
var members = []drill.Drill{
	{
		Number: 24, Name: "members-come-and-go", Breaks: "add two members, remove two and replace one; kill the added member, the removed member and the authority meanwhile",
		Promises: "every change completes without help, nothing is lost, and three members with old configuration files restart in sync",
		Timeout:  20 * time.Minute,
		Run: func(s *drill.Harness) {
			s.StartSteadyLoad()
			for _, step := range []func(*drill.Harness){
				refusedCommands, foreignNodes, addedMemberDies, authorityDiesDuringAdd, measureHandovers, initialMemberLeaves, deadMemberLeaves, directoryIsLost, oldFiles,
			} {
				step(s)
			}
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
func refusedCommands(s *drill.Harness) {
	n := randomNode(s)
	for _, wrong := range []struct {
		text    string
		command []string
	}{
		{"the minimum is 3", []string{removeTarget, "n3"}},
		{"is a member already", s.Nodes[1].JoinCommand()},
		{"needs no replacement", []string{replaceTarget, "n3"}},
		{"no node answers at", []string{addTarget, "n9", "--route", "127.0.0.1:1", "--raft", "127.0.0.1:1"}},
		{"no change of members is under way", []string{"cancel"}},
	} {
		output, err := n.MemberCommand(s.Ctx, wrong.command...)
		s.Require(err != nil && strings.Contains(output, wrong.text), "cluster %s printed %q, want %q", strings.Join(wrong.command, " "), output, wrong.text)
	}
}

// foreignNodes starts a node of another cluster, which must exit, and one with
// another secret, which must not be admitted. The cluster must not change.
func foreignNodes(s *drill.Harness) {
	start := func(name, env, logs string) *drill.Node {
		n := must.Get(s.Add(name))
		n.Env = append(n.Env, env)
		must.Do(errors.Join(s.WriteConfig(n, s.Nodes...), n.Start()))
		s.RemoveNode(n)
		must.Do(n.AwaitLog(s.Ctx, 0, logs))
		return n
	}
	other := start("n9", "YARD_CLUSTER_NAME=another", `belongs to yard "drill"`)
	s.Require(s.Within(20*time.Second, func() bool { return !other.Running() }), "a node of another cluster keeps running with these members")
	wrong := start("n8", "YARD_CLUSTER_SECRET=wrong", "has another cluster.secret")
	output, err := s.Nodes[0].MemberCommand(s.Ctx, wrong.JoinCommand()...)
	s.Require(err != nil && strings.Contains(output, "has another cluster.secret"), "adding a node with another secret printed %q", output)
	s.Logf("%s", output)
	s.Kill(wrong)
	awaitInSync(s, "foreign nodes were refused")
}

// addedMemberDies adds a member, which is killed and restarted meanwhile.
func addedMemberDies(s *drill.Harness) {
	n := s.AddNode("n4")
	startMemberCommand(s, s.Nodes[0], n.JoinCommand(), func() {
		output, err := s.Nodes[1].MemberCommand(s.Ctx, n.JoinCommand()...)
		s.Require(err != nil, "adding %s twice printed %q", n.Name, output)
		s.Fault(kill, n.Name+", which is being added")
		s.Kill(n)
		s.Pause(0, 3*time.Second)
		must.Do(n.Start())
	})
	awaitInSync(s, "n4 was added")
}

// authorityDiesDuringAdd adds a member while the authority is killed.
func authorityDiesDuringAdd(s *drill.Harness) {
	n := s.AddNode("n5")
	changeWhileAuthorityDies(s, n, n.JoinCommand())
	awaitInSync(s, "n5 was added")
}

// measureHandovers measures how long the command that transfers the authority takes.
func measureHandovers(s *drill.Harness) {
	var took []time.Duration
	for i := range s.Repeats(5) {
		from := s.AwaitAuthority()
		to := other(s, from)
		began := time.Now()
		output, err := from.MemberCommand(s.Ctx, "transfer", "--to", to.Name)
		took = append(took, time.Since(began))
		s.Require(err == nil, "transfer %d of the authority from %s to %s: %v", i+1, from.Name, to.Name, err)
		s.Logf("%s; the command took %s", output, took[i].Round(time.Millisecond))
		s.Pause(time.Second, 2*time.Second)
	}
	s.Target("longest transfer of the authority, including the start of the command", slices.Max(took), 200*time.Millisecond)
	awaitInSync(s, "transfers of the authority")
}

// initialMemberLeaves removes one of the first members while the authority is
// killed. Its node must exit with the reason, and again when it is restarted.
func initialMemberLeaves(s *drill.Harness) {
	n := s.Nodes[0]
	changeWhileAuthorityDies(s, n, []string{removeTarget, n.Name})
	for i := range 2 {
		exited := s.Within(30*time.Second, func() bool { return !n.Running() })
		s.Require(exited && strings.Contains(n.Log(), "was taken out of the yard"), "%s was removed, and keeps running or does not log it (start %d)", n.Name, i)
		if !exited {
			s.Kill(n)
		}
		if i == 0 {
			status := fmt.Sprint(n.Wait(s.Ctx))
			s.Require(status == "exit status 3", "%s was removed, and exited with %s", n.Name, status)
			must.Do(n.Start())
		}
	}
	s.RemoveNode(n)
	awaitInSync(s, n.Name+" was removed")
}

// deadMemberLeaves kills a member and removes it.
func deadMemberLeaves(s *drill.Harness) {
	i := slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n.Name == "n4" })
	n := s.Nodes[i]
	s.Fault(kill, n.Name+", which is not restarted")
	s.Kill(n)
	s.RemoveNode(n)
	memberCommand(s, s.Nodes[0], removeTarget, n.Name)
	awaitInSync(s, "a dead member was removed")
}

// directoryIsLost deletes a member's directory and replaces it while the authority is
// killed.
func directoryIsLost(s *drill.Harness) {
	n := randomNode(s)
	loseDirectory(s, n)
	changeWhileAuthorityDies(s, n, []string{replaceTarget, n.Name})
	awaitInSync(s, n.Name+" was replaced")
}

// replaced deletes a member's directory and replaces the member.
func replaced(s *drill.Harness, n *drill.Node) {
	loseDirectory(s, n)
	memberCommand(s, other(s, n), replaceTarget, n.Name)
	awaitInSync(s, n.Name+" was replaced")
}

// oldFiles restarts all members with the configuration files they started with.
func oldFiles(s *drill.Harness) {
	s.Fault("kill all", "they restart with their old configuration files")
	s.Kill(s.Nodes...)
	s.Recover()
	awaitInSync(s, "the restart of all")
}

// loseDirectory kills a node, deletes its directory and restarts it. It must wait
// and log the command that replaces it.
func loseDirectory(s *drill.Harness, n *drill.Node) {
	s.Fault(emptied, n.Name+": its directory is deleted")
	s.Kill(n)
	must.Do(os.RemoveAll(n.DataDir))
	logged := len(n.Log())
	must.Do(n.Start())
	must.Do(n.AwaitLog(s.Ctx, logged, replaceHint+" "+n.Name))
}

// memberCommand repeats a command that changes members until it succeeds: the cluster
// may refuse it while it is not healthy.
func memberCommand(s *drill.Harness, at *drill.Node, words ...string) {
	began := time.Now()
	var output string
	s.Until("cluster "+strings.Join(words, " ")+" succeeds", func() (err error) {
		output, err = at.MemberCommand(s.Ctx, words...)
		return err
	})
	s.Logf("%s\n%s", strings.Join(words, " "), output)
	if words[len(words)-1] != "--wait=false" {
		s.Figure("cluster "+words[0]+" "+words[1], time.Since(began))
	}
}

// startMemberCommand starts a change of members, calls meanwhile during it, and waits
// until it is complete.
func startMemberCommand(s *drill.Harness, at *drill.Node, words []string, meanwhile func()) {
	began := time.Now()
	memberCommand(s, at, append(words, "--wait=false")...)
	s.Pause(0, 2*time.Second)
	meanwhile()
	lastStep := ""
	s.Until("cluster "+strings.Join(words, " ")+" is complete", func() error {
		v, err := at.Members(s.Ctx)
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
}

// changeWhileAuthorityDies starts a change of the member of and kills the authority
// meanwhile, unless that is the member itself. The killed node is restarted some
// seconds later.
func changeWhileAuthorityDies(s *drill.Harness, of *drill.Node, words []string) {
	authority := s.AwaitAuthority()
	at := s.Nodes[slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n != authority && n != of })]
	startMemberCommand(s, at, words, func() {
		victim := s.AwaitAuthority()
		if victim == of || victim == at {
			return
		}
		s.Fault(kill, victim.Name+", the authority, during cluster "+words[0])
		s.Kill(victim)
		s.Pause(3*time.Second, 6*time.Second)
		must.Do(victim.Start())
	})
}

// awaitInSync waits until all nodes are ready, the members are in sync, and each lane
// has a leader.
func awaitInSync(s *drill.Harness, when string) {
	began := time.Now()
	s.Logf("waiting for members in sync: %s", when)
	s.WaitReady()
	must.Do(s.AwaitMembersInSync(s.Ctx))
	for lane := range must.Get(s.Nodes[0].Status(s.Ctx)).Lanes {
		awaitLaneLeader(s, lane)
	}
	s.Logf("in sync %s after %s; %d jobs acknowledged", time.Since(began).Round(time.Millisecond), when, s.Acked())
}
