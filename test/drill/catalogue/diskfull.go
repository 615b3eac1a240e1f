package catalogue

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
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
	Run: func(s *drill.Harness) {
		runRounds(s, 1, func(authority *drill.Node) {
			fillOne(s, other(s, authority))
			fillAuthority(s)
			fillAll(s)
			fillCompletely(s)
		})
	},
}}

// fill fills the disks of nodes up to left bytes each.
func fill(nodes []*drill.Node, left int64) {
	for _, n := range nodes {
		must.Do(n.Disk.Fill(left))
	}
}

// expectReported requires that the readiness of n has a reason about its disk.
func expectReported(s *drill.Harness, n *drill.Node) {
	found := s.Within(15*time.Second, func() bool {
		st, err := n.Status(s.Ctx)
		return err == nil && slices.ContainsFunc(st.Readiness.Reasons, func(r string) bool {
			return strings.Contains(r, n.Name) && strings.Contains(r, "free space")
		})
	})
	s.Require(found, "%s does not report that its disk is full", n.Name)
}

// fillOne fills a node's disk below the first limit. The node must report it, and jobs
// must still be accepted.
func fillOne(s *drill.Harness, n *drill.Node) {
	s.Fault("a disk is low", n.Name)
	fill([]*drill.Node{n}, lowSpace)
	expectReported(s, n)
	s.RequireAcks(50, 15*time.Second, "while a disk is low")
	freeSpace(s, n)
}

// freeSpace frees the filled space of nodes. They must recover without a restart.
func freeSpace(s *drill.Harness, nodes ...*drill.Node) {
	for _, n := range nodes {
		must.Do(n.Disk.FreeSpace())
		s.Require(n.Running(), "%s has exited", n.Name)
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(s.Ctx, time.Minute)
	defer cancel()
	err := s.Cluster.WaitReady(limited)
	s.Require(err == nil, "free space was not enough to recover: %v", err)
	s.RequireAcks(50, 30*time.Second, "after space was freed")
	s.Figure("from freed space to all nodes ready", time.Since(began))
}

// fillAuthority fills the disk of the authority below both limits. Another node must
// take over.
func fillAuthority(s *drill.Harness) {
	n := s.AwaitAuthority()
	s.Fault("the authority's disk is critical", n.Name)
	fill([]*drill.Node{n}, noSpace)
	expectOtherAuthority(s, n, "a full disk")
	freeSpace(s, n)
}

// fillAll fills the disks of all nodes. Jobs must be refused quickly.
func fillAll(s *drill.Harness) {
	s.Fault("all disks are low", "at once")
	fill(s.Nodes, lowSpace)
	n := randomNode(s)
	expectReported(s, n)
	var began time.Time
	var err error
	refused := s.Within(15*time.Second, func() bool {
		began = time.Now()
		err = n.Ask(s.Ctx, "yard.enqueue.probe", map[string]any{"function": "probe"}, new(any))
		return err != nil && strings.Contains(err.Error(), "not enough free space")
	})
	s.Require(refused, "jobs are accepted although all disks are low")
	s.Target("from a request to its refusal", time.Since(began), 2*time.Second)
	s.Logf("jobs are refused: %v", err)
	freeSpace(s, s.Nodes...)
}

// fillCompletely fills a node's disk to the last byte. Whether it exits or not, it
// must recover with its data once space is free.
func fillCompletely(s *drill.Harness) {
	n := randomNode(s)
	s.Fault("a disk is completely full", n.Name)
	fill([]*drill.Node{n}, 0)
	s.RequireAcks(50, 30*time.Second, "while a disk is full")
	s.Sleep(5 * time.Second)
	s.Logf("%s is running: %t", n.Name, n.Running())
	must.Do(n.Disk.FreeSpace())
	if s.Within(time.Second, func() bool { return !n.Running() }) {
		s.Heal() // restarts it, as a supervisor would
	}
	s.WaitReady()
}
