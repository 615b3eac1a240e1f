package catalogue

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// diskSize is the size of a node's simulated disk in bytes. Its file is sparse.
const diskSize = 4 << 30

// Drills with disks that lose power, hang or are slow.
var disks = []drill.Drill{
	{
		Number: 5, Name: "power-loss", Breaks: "cut the power of one node, of the authority, and of all: data that was not synced is lost",
		Promises: "nothing that was acknowledged is lost, however shortly before",
		Plan:     drill.Layout{Disk: diskSize}, Timeout: 12 * time.Minute,
		Run: func(s *drill.Harness) {
			runRounds(s, 4, func(authority *drill.Node) {
				cutPowerOnce(s, other(s, authority))
				cutPowerOnce(s, s.AwaitAuthority())
				s.Fault("power loss of all", "at once")
				s.CutPower(s.Nodes...)
				began := time.Now()
				s.Heal()
				s.Target("from the loss of power until all nodes are ready", time.Since(began), 15*time.Second)
			})
		},
	},
	{
		Number: 6, Name: "power-loss-and-pause", Breaks: "stop the authority, or cut it off, and cut the power of another node meanwhile",
		Promises: "nothing is lost and nothing forks, although one node has rolled back and one does not answer",
		Plan:     drill.Layout{Disk: diskSize, SeparateHosts: true}, Timeout: 12 * time.Minute,
		Run: func(s *drill.Harness) {
			runRounds(s, 3, func(authority *drill.Node) {
				victim := other(s, authority)
				if s.Rand.IntN(2) == 0 {
					s.Fault("power loss and pause", fmt.Sprintf("%s is stopped, %s loses its power", authority.Name, victim.Name))
					must.Do(authority.Signal(syscall.SIGSTOP))
				} else {
					s.Fault("power loss and partition", fmt.Sprintf("%s is cut off, %s loses its power", authority.Name, victim.Name))
					must.Do(authority.Host.Cut(authority.Host.Others()...))
				}
				s.Pause(0, 4*time.Second)
				s.CutPower(victim)
				must.Do(victim.Disk.Repair())
				must.Do(victim.Start())
				s.Pause(5*time.Second, 15*time.Second)
				s.Heal()
			})
		},
	},
	{
		Number: 13, Name: "slow-disk", Breaks: "freeze the disk of the authority, then of another node, for 50 to 500 ms, again and again",
		Promises: "work is slower, and nothing else happens",
		Plan:     drill.Layout{Disk: diskSize},
		Run: func(s *drill.Harness) {
			runRounds(s, 2, func(authority *drill.Node) {
				for _, n := range []*drill.Node{authority, other(s, authority)} {
					s.Fault("slow disk", n.Name)
					for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
						stallDisk(s, n)
					}
				}
				s.Heal()
			})
		},
	},
	{
		Number: 14, Name: "hung-disk", Breaks: "freeze the disk of the authority, then of another node: writes block indefinitely",
		Promises: "another node takes over the authority within 10 s; the node exits, says why, and takes part again once the disk works",
		Plan:     drill.Layout{Disk: diskSize}, Timeout: 10 * time.Minute,
		Run: func(s *drill.Harness) {
			runRounds(s, 2, func(authority *drill.Node) {
				hangDisk(s, authority, true)
				hangDisk(s, other(s, s.AwaitAuthority()), false)
			})
		},
	},
	{
		Number: 41, Name: "kill-at-snapshot", Breaks: "kill nodes while they write snapshots and truncate their logs",
		Promises: "each restarts from its disk with the same ledger as the other nodes",
		Plan:     drill.Layout{Disk: diskSize, Config: smallSnapshots}, Timeout: 10 * time.Minute,
		Run: killAtSnapshots,
	},
}

// cutPowerOnce cuts the power of one node and restarts it some seconds later.
func cutPowerOnce(s *drill.Harness, n *drill.Node) {
	s.Fault("power loss of one", n.Name)
	s.CutPower(n)
	s.Pause(time.Second, 7*time.Second)
	s.Heal()
}

// stallDisk freezes a node's disk for a moment.
func stallDisk(s *drill.Harness, n *drill.Node) {
	thaw := must.Get(n.Disk.Freeze(10 * time.Second))
	s.Pause(50*time.Millisecond, 500*time.Millisecond)
	must.Do(thaw())
	s.Sleep(50 * time.Millisecond)
}

// hangDisk freezes a node's disk until the node has exited, and for some seconds
// more. If the node is the authority, another node must take over.
func hangDisk(s *drill.Harness, n *drill.Node, isAuthority bool) {
	logged := len(n.Log())
	s.Fault("hung disk", n.Name)
	began := time.Now()
	thaw := must.Get(n.Disk.Freeze(90 * time.Second))
	defer thaw()
	if isAuthority {
		expectOtherAuthority(s, n, "the hang of the authority's disk")
	}
	ended := s.Within(40*time.Second, n.Exiting)
	s.Require(ended, "%s has not exited although its disk hangs for %s", n.Name, time.Since(began))
	s.Target("from the hang of a disk to the node's exit", time.Since(began), 15*time.Second)
	s.Require(strings.Contains(n.Log()[logged:], "write to the log missed its deadline"), "%s does not log why it exits", n.Name)
	s.Pause(time.Second, 5*time.Second)
	must.Do(thaw())
	_ = n.Wait(s.Ctx) // it exits with an error
	s.Heal()
}

// expectOtherAuthority waits until another node than n takes over the authority.
func expectOtherAuthority(s *drill.Harness, n *drill.Node, since string) {
	began := time.Now()
	next := s.AwaitOtherAuthority(30*time.Second, n)
	s.Require(next != nil, "%s keeps the authority after %s", n.Name, since)
	if next != nil {
		s.Target("from "+since+" to another authority", time.Since(began), 10*time.Second)
		s.Logf("%s is the authority now", next.Name)
	}
}

// killAtSnapshots repeatedly kills a node at the moment it is seen writing a
// snapshot, and restarts it.
func killAtSnapshots(s *drill.Harness) {
	s.StartSteadyLoad()
	kills, complete := 0, 0
	for i := range s.Repeats(12) {
		n := randomNode(s)
		before, _ := snapshots(n)
		// A node that lags by more than its leader's log holds receives a snapshot.
		// Either kind is seen by its incomplete directory.
		var now string
		var writing bool
		if !s.Within(20*time.Second, func() bool { now, writing = snapshots(n); return writing || now > before }) {
			s.Logf("%s has taken no snapshot (round %d)", n.Name, i+1)
			continue
		}
		if kills++; !writing {
			complete++
		}
		s.Fault("kill at a snapshot", n.Name)
		if s.Rand.IntN(2) == 0 {
			s.Kill(n)
		} else {
			s.CutPower(n)
		}
		s.Heal()
	}
	s.Figure("kills at snapshots", kills)
	s.Figure("of which just after a complete snapshot", complete)
	s.RequireTried(kills > 0, "no node took a snapshot")
}

// snapshots returns the name of the newest snapshot of a node, and whether the node is
// writing one.
func snapshots(n *drill.Node) (latest string, writing bool) {
	found, _ := os.ReadDir(filepath.Join(n.DataDir, "raft", "snapshots")) // none yet: no names
	for _, d := range found {
		if strings.HasSuffix(d.Name(), ".tmp") {
			writing = true
		} else if taken(d.Name()) > taken(latest) {
			latest = d.Name()
		}
	}
	return latest, writing
}

// taken returns when the snapshot with a name "<term>-<index>-<milliseconds>" was taken, as
// digits whose number does not change. Names do not sort by it: 648 is after 1154.
func taken(snapshot string) string { return snapshot[strings.LastIndexByte(snapshot, '-')+1:] }

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
