package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"yardmaster/cluster"
	"yardmaster/membership"
)

// Order types one of the program's verbs about members at a node, and gives
// what it said, on both streams.
func (n *Node) Order(ctx context.Context, words ...string) (said string, err error) {
	return n.Type(ctx, append([]string{"cluster"}, words...)...)
}

// Type types a verb of the program at a node, and gives what it said, on both
// streams.
func (n *Node) Type(ctx context.Context, words ...string) (said string, err error) {
	cmd := exec.CommandContext(ctx, n.args[0], append([]string{"--server", n.NATS}, words...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	said = strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s at %s: %w: %s", strings.Join(words, " "), n.Name, err, said)
	}
	return said, err
}

// Addresses are what an operator types to have this node let in.
func (n *Node) Addresses() []string { return []string{"--route", n.route, "--raft", n.raft} }

// Members is what a node says of the yard's members.
func (n *Node) Members(ctx context.Context) (v membership.View, err error) {
	return v, n.Ask(ctx, cluster.SubjectAPI+".cluster.members", struct{}{}, &v)
}

// Newcomer lays out and starts one more node, whose file lists the members of
// now and itself, and waits until it says what to type.
func (s *Stage) Newcomer(ctx context.Context, name string) (*Node, error) {
	n, err := s.Add(name)
	if err != nil {
		return nil, err
	}
	if err := s.WriteConfig(n, s.Nodes...); err != nil {
		return nil, err
	}
	if err := n.Start(); err != nil {
		return nil, err
	}
	return n, n.Says(ctx, 0, "yardmaster cluster add "+name)
}

// Says waits until a process has said words, after the first bytes of its log.
func (p *Process) Says(ctx context.Context, after int, words string) error {
	return until(ctx, fmt.Sprintf("%s says %q", p.name, words), func() error {
		if log := p.Log(); !strings.Contains(log[min(after, len(log)):], words) {
			return errors.New("it has not")
		}
		return nil
	})
}

// Forget has the yard do without a node that has ended: it is not started again.
func (y *Yard) Forget(n *Node) {
	y.Nodes = slices.DeleteFunc(y.Nodes, func(other *Node) bool { return other == n })
}

// InStep waits until no change of members is under way at any node, all have the
// same members, each is heard, votes, and none has copies that lag.
func (y *Yard) InStep(ctx context.Context) error {
	var want []string
	for _, n := range y.Nodes {
		want = append(want, n.Name)
	}
	slices.Sort(want)
	return until(ctx, "the members are in step", func() error {
		for _, n := range y.Up() {
			v, err := n.Members(ctx)
			if err != nil {
				return err
			}
			var have []string
			for i := range v.Members {
				m := &v.Members[i]
				if !m.Heard || !m.Voter || len(m.Behind) > 0 {
					text, _ := json.Marshal(m) // plain values
					return fmt.Errorf("%s: %s", n.Name, text)
				}
				have = append(have, m.Name)
			}
			slices.Sort(have)
			if v.Change != "" || len(v.Skew) > 0 || !slices.Equal(have, want) {
				return fmt.Errorf("%s has the members %q of %q, change %q (%s), out of step: %q", n.Name, have, want, v.Change, v.Step, v.Skew)
			}
		}
		return nil
	})
}
