package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill/disk"
	"yardmaster/drill/hosts"
	"yardmaster/node"
)

// Yard is nodes as processes.
type Yard struct {
	Dir    string // holds everything
	Binary string // the program to start
	Nodes  []*Node
	Net    *hosts.Network // nil: all nodes are on this host's loopback

	plan    Plan
	disks   []*disk.Disk
	workers []*Process
	kills   []int64 // when, by the host's clock
}

// Node is one member.
type Node struct {
	Name    string
	NATS    string // URL for clients
	Overhop string // host:port for workers
	HTTP    string // URL of its door; it asks for [Token]
	DataDir string
	Witness string      // of its runners
	Host    *hosts.Host // nil: this one
	Disk    *disk.Disk  // nil: its data lies in a directory
	Env     []string    // of its next start, beside this program's

	*Process
	config      string // file
	route, raft string // host:port for the other members
}

// Open starts all nodes and returns when every one is ready.
func (y *Yard) Open(ctx context.Context) error {
	for _, n := range y.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return y.WaitReady(ctx)
}

// Close ends every process, without asking, and takes away what was laid out.
func (y *Yard) Close() error {
	var failed error
	for _, d := range y.disks { // no signal reaches who waits for a frozen disk
		failed = errors.Join(failed, d.Thaw())
	}
	for _, w := range y.workers {
		w.Kill()
	}
	for _, n := range y.Nodes {
		n.Process.Kill()
	}
	for _, d := range y.disks {
		failed = errors.Join(failed, d.Close())
	}
	if y.Net != nil {
		failed = errors.Join(failed, y.Net.Close())
	}
	return failed
}

// Start starts a node, for the first time or again.
func (n *Node) Start() error {
	n.env = n.Env
	return n.Process.Start()
}

// Kill ends nodes with SIGKILL, all at once, and notes when.
func (y *Yard) Kill(nodes ...*Node) {
	y.kills = append(y.kills, Clock())
	for _, n := range nodes {
		n.cmd.Process.Kill()
	}
	for _, n := range nodes {
		n.Process.Kill() // waits for its end
	}
}

// CutPower takes the power from nodes and their disks, all at once: what no
// fsync had settled is gone. [Stage.Heal] brings them back.
func (y *Yard) CutPower(nodes ...*Node) error {
	for _, n := range nodes { // nobody is to see its disk go
		if err := n.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop %s: %w", n.Name, err)
		}
	}
	for _, n := range nodes {
		if err := n.Disk.Lose(); err != nil {
			return err
		}
	}
	y.Kill(nodes...)
	for _, n := range nodes {
		if err := n.Disk.Cut(); err != nil {
			return err
		}
	}
	return nil
}

// Up lists the nodes that run.
func (y *Yard) Up() (up []*Node) {
	for _, n := range y.Nodes {
		if n.Running() {
			up = append(up, n)
		}
	}
	return up
}

// URLs are the NATS addresses of all nodes.
func (y *Yard) URLs() string {
	var urls []string
	for _, n := range y.Nodes {
		urls = append(urls, n.NATS)
	}
	return strings.Join(urls, ",")
}

// Edges are the Overhop addresses of all nodes.
func (y *Yard) Edges() (edges []string) {
	for _, n := range y.Nodes {
		edges = append(edges, n.Overhop)
	}
	return edges
}

// Ask asks one node.
func (n *Node) Ask(ctx context.Context, subject string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := cluster.Dial(ctx, n.NATS, cluster.DialOptions{Name: "drill", Timeout: 2 * time.Second})
	if err != nil {
		return fmt.Errorf("ask %s: %w", n.Name, err)
	}
	defer c.Close()
	raw, err := c.Request(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", n.Name, err)
	}
	return json.Unmarshal(raw, answer)
}

// Status is what a node says of itself.
func (n *Node) Status(ctx context.Context) (s node.Status, err error) {
	return s, n.Ask(ctx, cluster.SubjectStatus, struct{}{}, &s)
}

// Authority asks the running nodes who holds the authority; the highest epoch
// counts.
func (y *Yard) Authority(ctx context.Context) (*Node, error) {
	var found *Node
	epoch := uint64(0)
	for _, n := range y.Up() {
		s, err := n.Status(ctx)
		if err != nil || s.Authority.Epoch <= epoch || s.Authority.Expired {
			continue
		}
		for _, owner := range y.Up() {
			if owner.Name == s.Authority.Owner {
				found, epoch = owner, s.Authority.Epoch
			}
		}
	}
	if found == nil {
		return nil, errors.New("no running node holds the authority")
	}
	return found, nil
}

// WaitReady waits until every running node says that it is ready and sees all
// that run.
func (y *Yard) WaitReady(ctx context.Context) error {
	return until(ctx, "the yard is ready", func() error {
		up := y.Up()
		for _, n := range up {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			seen := 0
			for _, m := range s.Members {
				if m.State == "up" {
					seen++
				}
			}
			if !s.Readiness.Ready || seen < len(up) {
				return fmt.Errorf("%s sees %d up and says %v", n.Name, seen, s.Readiness.Reasons)
			}
		}
		return nil
	})
}

// AddQueue makes a queue, at a node that runs; limit 0 is none.
func (y *Yard) AddQueue(ctx context.Context, name string, limit int) error {
	question := map[string]any{"name": name}
	if limit > 0 {
		question["concurrency_limit"] = limit
	}
	return until(ctx, "queue "+name+" is made", func() error {
		up := y.Up()
		if len(up) == 0 {
			return errors.New("no node runs")
		}
		var made any
		err := up[0].Ask(ctx, cluster.SubjectAPI+".queue.add", question, &made)
		var refused *cluster.APIError
		if errors.As(err, &refused) && refused.Code == "409" { // an earlier try did it
			return nil
		}
		return err
	})
}

// Until looks for a fact every 50 ms until there is no error or ctx ends; the
// error then says what was missing.
func Until(ctx context.Context, what string, fact func() error) error { return until(ctx, what, fact) }

// until looks for a fact until ctx ends, and then says what was missing.
func until(ctx context.Context, what string, fact func() error) error {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		err := fact()
		if err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
