package catalogue

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// The sizes of disks that fill up, in bytes. A node refuses jobs when less than a
// tenth of its disk is free, and gives up the authority below a twentieth.
const (
	smallDisk = 1 << 30
	lowSpace  = smallDisk * 75 / 1000 // free space between the two limits
	noSpace   = smallDisk * 25 / 1000 // free space below both
)

var full = []drill.Drill{{
	Number: 15, Name: "disk-full", Breaks: "fill the disk of one node, of the authority, of all, and of one node to the last byte",
	Promises: "jobs are refused before anything is damaged, and other nodes accept them; free space is enough to go on",
	Plan:     drill.Layout{Disk: smallDisk, Config: "[raft]\nsnapshot_bytes = 1048576\n"}, Timeout: 12 * time.Minute,
	Run: func(ctx context.Context, s *drill.Harness) error {
		return runRounds(ctx, s, 1, func(authority *drill.Node) error {
			if err := fillOne(ctx, s, other(s, authority), lowSpace, "a disk is low"); err != nil {
				return err
			}
			if err := fillAuthority(ctx, s); err != nil {
				return err
			}
			if err := fillAll(ctx, s); err != nil {
				return err
			}
			return fillCompletely(ctx, s)
		})
	},
}}

// reportsDisk reports whether the readiness of n has a reason about the disk of the
// node about.
func reportsDisk(ctx context.Context, n, about *drill.Node) bool {
	st, err := n.Status(ctx)
	return err == nil && slices.ContainsFunc(st.Readiness.Reasons, func(r string) bool {
		return strings.Contains(r, about.Name) && (strings.Contains(r, "free space") || strings.Contains(r, "room"))
	})
}

// fillOne fills a node's disk up to left bytes. The node must report it, and jobs
// must still be accepted.
func fillOne(ctx context.Context, s *drill.Harness, n *drill.Node, left int64, what string) error {
	s.Fault(what, n.Name)
	if err := n.Disk.Fill(left); err != nil {
		return err
	}
	s.Require(within(ctx, 15*time.Second, func() bool { return reportsDisk(ctx, n, n) }), "%s does not report that its disk is full", n.Name)
	acked := s.Acked()
	s.Require(within(ctx, 15*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are acknowledged while %s", what)
	return freeSpace(ctx, s, n)
}

// freeSpace frees the filled space of nodes. They must recover without a restart.
func freeSpace(ctx context.Context, s *drill.Harness, nodes ...*drill.Node) error {
	for _, n := range nodes {
		if err := n.Disk.FreeSpace(); err != nil {
			return err
		}
	}
	began, acked := time.Now(), s.Acked()
	for _, n := range nodes {
		s.Require(n.Running(), "%s has exited", n.Name)
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := s.WaitReady(limited)
	s.Require(err == nil, "free space was not enough to recover: %v", err)
	s.Require(within(ctx, 30*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are acknowledged after space was freed")
	s.Figure("from freed space to all nodes ready", time.Since(began))
	return ctx.Err()
}

// fillAuthority fills the disk of the authority below both limits. Another node must
// take over.
func fillAuthority(ctx context.Context, s *drill.Harness) error {
	n, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	s.Fault("the authority's disk is critical", n.Name)
	if err := n.Disk.Fill(noSpace); err != nil {
		return err
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	next, err := s.AwaitOtherAuthority(limited, n)
	s.Require(err == nil, "%s keeps the authority although its disk is critical: %v", n.Name, err)
	if err == nil {
		s.Target("from a full disk to another authority", time.Since(began), 10*time.Second)
		s.Logf("%s is the authority now", next.Name)
	}
	return freeSpace(ctx, s, n)
}

// fillAll fills the disks of all nodes. Jobs must be refused quickly.
func fillAll(ctx context.Context, s *drill.Harness) error {
	s.Fault("all disks are low", "at once")
	for _, n := range s.Nodes {
		if err := n.Disk.Fill(lowSpace); err != nil {
			return err
		}
	}
	n := randomNode(s)
	s.Require(within(ctx, 15*time.Second, func() bool { return reportsDisk(ctx, n, n) }), "%s does not report that the disks are full", n.Name)
	var answer any
	began := time.Now()
	var err error
	refused := within(ctx, 15*time.Second, func() bool {
		began = time.Now()
		err = n.Ask(ctx, "yard.enqueue.probe", map[string]any{"function": "probe"}, &answer)
		return err != nil && strings.Contains(err.Error(), "room")
	})
	s.Require(refused, "jobs are accepted although all disks are low")
	s.Target("from a request to its refusal", time.Since(began), 2*time.Second)
	s.Logf("jobs are refused: %v", err)
	return freeSpace(ctx, s, s.Nodes...)
}

// fillCompletely fills a node's disk to the last byte. Whether it exits or not, it
// must recover with its data once space is free.
func fillCompletely(ctx context.Context, s *drill.Harness) error {
	n := randomNode(s)
	s.Fault("a disk is completely full", n.Name)
	if err := n.Disk.Fill(0); err != nil {
		return err
	}
	acked := s.Acked()
	s.Require(within(ctx, 30*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are acknowledged while a disk is full")
	if err := s.Sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	s.Logf("%s is running: %t", n.Name, n.Running())
	if err := n.Disk.FreeSpace(); err != nil {
		return err
	}
	if within(ctx, time.Second, func() bool { return !n.Running() }) {
		return s.Heal(ctx) // restarts it, as a supervisor would
	}
	return s.WaitReady(ctx)
}
