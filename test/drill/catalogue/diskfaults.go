package catalogue

import (
	"fmt"
	"os"
	"path/filepath"
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
	s.Require(kills > 0, "no node took a snapshot")
}

// snapshots returns the name of the newest snapshot of a node, and whether the node is
// writing one.
func snapshots(n *drill.Node) (latest string, writing bool) {
	found, _ := os.ReadDir(filepath.Join(n.DataDir, "raft", "snapshots")) // none yet: no names
	for _, d := range found {
		if strings.HasSuffix(d.Name(), ".tmp") {
			writing = true
		} else {
			latest = max(latest, d.Name())
		}
	}
	return latest, writing
}
