package drill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
)

// Cluster is a set of nodes that run as processes.
type Cluster struct {
	Dir    string // contains all files of the cluster
	Binary string // path of the program
	Nodes  []*Node
	Net    *hosts.Network // nil if all nodes use this host's loopback

	plan    Layout
	disks   []*disk.Disk
	workers []*procs.Process
	kills   []int64 // times, by the host's clock
}

// Node is a member of the cluster, running or not.
type Node struct {
	*procs.Node
	Witness string      // witness file of its runners
	Host    *hosts.Host // nil for this host
	Disk    *disk.Disk  // nil if DataDir is a plain directory
}

// Start starts all nodes and returns when they are ready.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx)
}

// Close kills every process and removes disks and network. Files in Dir are kept.
func (c *Cluster) Close() error {
	var failed error
	for _, d := range c.disks { // no signal reaches a process that waits for a frozen disk
		failed = errors.Join(failed, d.Thaw())
	}
	for _, w := range c.workers {
		w.Kill()
	}
	for _, n := range c.Nodes {
		n.Process.Kill()
	}
	for _, d := range c.disks {
		failed = errors.Join(failed, d.Close())
	}
	if c.Net != nil {
		failed = errors.Join(failed, c.Net.Close())
	}
	return failed
}

// Kill kills nodes simultaneously with SIGKILL, records the time and waits for
// their exit.
func (c *Cluster) Kill(nodes ...*Node) {
	c.kills = append(c.kills, HostClock())
	for _, n := range nodes {
		_ = n.Signal(syscall.SIGKILL) // fails if it has exited already
	}
	for _, n := range nodes {
		n.Process.Kill() // waits for its exit
	}
}

// CutPower simulates a simultaneous loss of power of nodes and their disks: data
// that was not synced is lost. [Harness.Heal] starts them again.
func (c *Cluster) CutPower(nodes ...*Node) error {
	for _, n := range nodes { // no node must see its disk fail
		if err := n.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop %s: %w", n.Name, err)
		}
	}
	for _, n := range nodes {
		if err := n.Disk.ShutDown(); err != nil {
			return err
		}
	}
	c.Kill(nodes...)
	for _, n := range nodes {
		if err := n.Disk.Cut(); err != nil {
			return err
		}
	}
	return nil
}

// Running returns the nodes that are running.
func (c *Cluster) Running() (running []*Node) {
	for _, n := range c.Nodes {
		if n.Running() {
			running = append(running, n)
		}
	}
	return running
}

// URLs returns the NATS URLs of all nodes, separated by commas.
func (c *Cluster) URLs() string {
	var urls []string
	for _, n := range c.Nodes {
		urls = append(urls, n.URL())
	}
	return strings.Join(urls, ",")
}

// Edges returns the Overhop addresses of all nodes.
func (c *Cluster) Edges() (edges []string) {
	for _, n := range c.Nodes {
		edges = append(edges, n.Edge)
	}
	return edges
}

// Authority returns the running node that holds the authority, as the running node
// with the highest epoch reports it.
func (c *Cluster) Authority(ctx context.Context) (*Node, error) {
	var found *Node
	epoch := uint64(0)
	for _, n := range c.Running() {
		s, err := n.Status(ctx)
		if err != nil || s.Authority.Epoch <= epoch || s.Authority.Expired {
			continue
		}
		for _, owner := range c.Running() {
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

// WaitReady waits until every running node reports that it is ready and sees all
// running nodes as up.
func (c *Cluster) WaitReady(ctx context.Context) error {
	return until(ctx, "the cluster is ready", func() error {
		running := c.Running()
		for _, n := range running {
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
			if !s.Readiness.Ready || seen < len(running) {
				return fmt.Errorf("%s sees %d members up; its readiness reasons: %v", n.Name, seen, s.Readiness.Reasons)
			}
		}
		return nil
	})
}

// AddQueue creates a queue through a running node, without a limit if limit is 0.
func (c *Cluster) AddQueue(ctx context.Context, name string, limit int) error {
	var running procs.Cluster
	for _, n := range c.Nodes {
		running.Nodes = append(running.Nodes, n.Node)
	}
	return running.AddQueue(ctx, name, limit)
}

// until polls fact every 50 ms until it returns nil. If ctx ends first, it returns
// the last error, prefixed with what.
func until(ctx context.Context, what string, fact func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fact()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}
