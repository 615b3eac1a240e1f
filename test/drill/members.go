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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// MemberCommand runs a "cluster" command of the program against the node and returns
// its output.
func (n *Node) MemberCommand(ctx context.Context, words ...string) (output string, err error) {
	return n.Command(ctx, append([]string{"cluster"}, words...)...)
}

// Command runs a command of the program against the node and returns its standard
// output and standard error.
func (n *Node) Command(ctx context.Context, words ...string) (output string, err error) {
	cmd := exec.CommandContext(ctx, n.Args[0], append([]string{"--server", n.URL()}, words...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	output = strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s at %s: %w: %s", strings.Join(words, " "), n.Name, err, output)
	}
	return output, err
}

// JoinCommand returns the "cluster" command with which an operator adds this node.
func (n *Node) JoinCommand() []string {
	return []string{"add", n.Name, "--route", n.Route, "--raft", n.Raft}
}

// Members returns the members of the cluster as the node reports them.
func (n *Node) Members(ctx context.Context) (v api.Membership, err error) {
	return v, n.Ask(ctx, api.SubjectAPI+".cluster.members", struct{}{}, &v)
}

// AddNode prepares and starts one more node, configured with the current members
// and itself, and waits until it logs the command that adds it.
func (h *Harness) AddNode(name string) *Node {
	n := must.Get(h.Add(name))
	must.Do(h.WriteConfig(n, h.Nodes...))
	must.Do(n.Start())
	must.Do(n.AwaitLog(h.Ctx, 0, "yardmaster cluster add "+name))
	return n
}

// AwaitLog waits until the node has logged text after the first bytes of its log.
func (n *Node) AwaitLog(ctx context.Context, after int, text string) error {
	return until(ctx, fmt.Sprintf("%s logs %q", n.Name, text), func() error {
		if log := n.Log(); !strings.Contains(log[min(after, len(log)):], text) {
			return errors.New("it has not logged it")
		}
		return nil
	})
}

// RemoveNode removes an exited node from c.Nodes, so that it is not restarted.
func (c *Cluster) RemoveNode(n *Node) {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *Node) bool { return other == n })
}

// AwaitMembersInSync waits until every node reports the same members, each of them
// answering, voting and without lagging replicas, and no change in progress.
func (c *Cluster) AwaitMembersInSync(ctx context.Context) error {
	var want []string
	for _, n := range c.Nodes {
		want = append(want, n.Name)
	}
	slices.Sort(want)
	return until(ctx, "the members are in sync", func() error {
		for _, n := range c.Running() {
			v, err := n.Members(ctx)
			if err != nil {
				return err
			}
			var have []string
			for i := range v.Members {
				m := &v.Members[i]
				if !m.Answers || !m.Voter || len(m.Behind) > 0 {
					text, _ := json.Marshal(m) // plain values
					return fmt.Errorf("%s reports member %s", n.Name, text)
				}
				have = append(have, m.Name)
			}
			slices.Sort(have)
			if v.Change != "" || len(v.Skew) > 0 || !slices.Equal(have, want) {
				return fmt.Errorf("%s reports the members %q, want %q; change %q (%s), differences %q", n.Name, have, want, v.Change, v.Step, v.Skew)
			}
		}
		return nil
	})
}
