package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// diskSize is the size of a node's simulated disk in bytes. Its file is sparse.
const diskSize = 4 << 30

// Drills with disks that lose power, hang or are slow.
var disks = []drill.Drill{
	{
		Number: 5, Name: "power-loss", Breaks: "cut the power of one node, of the authority, and of all: data that was not synced is lost",
		Promises: "nothing that was acknowledged is lost, however shortly before",
		Plan:     drill.Layout{Disk: diskSize}, Timeout: 12 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			return runRounds(ctx, s, 4, func(authority *drill.Node) error {
				if err := cutPowerOnce(ctx, s, other(s, authority)); err != nil {
					return err
				}
				authority, err := s.AwaitAuthority(ctx)
				if err != nil {
					return err
				}
				if err := cutPowerOnce(ctx, s, authority); err != nil {
					return err
				}
				s.Fault("power loss of all", "at once")
				if err := s.CutPower(s.Nodes...); err != nil {
					return err
				}
				began := time.Now()
				if err := s.Heal(ctx); err != nil {
					return err
				}
				s.Target("from the loss of power until all nodes are ready", time.Since(began), 15*time.Second)
				return nil
			})
		},
	},
	{
		Number: 6, Name: "power-loss-and-pause", Breaks: "stop the authority, or cut it off, and cut the power of another node meanwhile",
		Promises: "nothing is lost and nothing forks, although one node has rolled back and one does not answer",
		Plan:     drill.Layout{Disk: diskSize, SeparateHosts: true}, Timeout: 12 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			return runRounds(ctx, s, 3, func(authority *drill.Node) error {
				victim := other(s, authority)
				if s.Rand.IntN(2) == 0 {
					s.Fault("power loss and pause", fmt.Sprintf("%s is stopped, %s loses its power", authority.Name, victim.Name))
					if err := authority.Signal(syscall.SIGSTOP); err != nil {
						return err
					}
				} else {
					s.Fault("power loss and partition", fmt.Sprintf("%s is cut off, %s loses its power", authority.Name, victim.Name))
					if err := authority.Host.Cut(s.Net.Except(authority.Host)...); err != nil {
						return err
					}
				}
				if err := s.Sleep(ctx, s.RandDuration(0, 4*time.Second)); err != nil {
					return err
				}
				if err := s.CutPower(victim); err != nil {
					return err
				}
				if err := errors.Join(victim.Disk.Repair(), victim.Start(), s.Sleep(ctx, s.RandDuration(5*time.Second, 15*time.Second))); err != nil {
					return err
				}
				return s.Heal(ctx)
			})
		},
	},
	{
		Number: 13, Name: "slow-disk", Breaks: "freeze the disk of the authority, then of another node, for 50 to 500 ms, again and again",
		Promises: "work is slower, and nothing else happens",
		Plan:     drill.Layout{Disk: diskSize},
		Run: func(ctx context.Context, s *drill.Harness) error {
			return runRounds(ctx, s, 2, func(authority *drill.Node) error {
				for _, n := range []*drill.Node{authority, other(s, authority)} {
					s.Fault("slow disk", n.Name)
					for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
						if err := stallDisk(ctx, s, n); err != nil {
							return err
						}
					}
				}
				return s.Heal(ctx)
			})
		},
	},
	{
		Number: 14, Name: "hung-disk", Breaks: "freeze the disk of the authority, then of another node: writes block indefinitely",
		Promises: "another node takes over the authority within 10 s; the node exits, says why, and takes part again once the disk works",
		Plan:     drill.Layout{Disk: diskSize}, Timeout: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			return runRounds(ctx, s, 2, func(authority *drill.Node) error {
				if err := hangDisk(ctx, s, authority, true); err != nil {
					return err
				}
				authority, err := s.AwaitAuthority(ctx)
				if err != nil {
					return err
				}
				return hangDisk(ctx, s, other(s, authority), false)
			})
		},
	},
	{
		Number: 41, Name: "kill-at-snapshot", Breaks: "kill nodes while they write snapshots and truncate their logs",
		Promises: "each restarts from its disk with the same ledger as the other nodes",
		Plan:     drill.Layout{Disk: diskSize, Config: "[raft]\nsnapshot_bytes = 65536\n"}, Timeout: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error { return killAtSnapshots(ctx, s, s.Repeats(12)) },
	},
}

// runRounds starts the steady load and calls round with the current authority, times
// times or fewer in a quick run.
func runRounds(ctx context.Context, s *drill.Harness, times int, round func(authority *drill.Node) error) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for range s.Repeats(times) {
		if err := s.Sleep(ctx, s.RandDuration(time.Second, 4*time.Second)); err != nil {
			return err
		}
		authority, err := s.AwaitAuthority(ctx)
		if err != nil {
			return err
		}
		if err := round(authority); err != nil {
			return err
		}
	}
	return nil
}

// cutPowerOnce cuts the power of one node and restarts it some seconds later.
func cutPowerOnce(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	s.Fault("power loss of one", n.Name)
	if err := s.CutPower(n); err != nil {
		return err
	}
	if err := s.Sleep(ctx, s.RandDuration(time.Second, 7*time.Second)); err != nil {
		return err
	}
	return s.Heal(ctx)
}

// stallDisk freezes a node's disk for a moment.
func stallDisk(ctx context.Context, s *drill.Harness, n *drill.Node) error {
	thaw, err := n.Disk.Freeze(10 * time.Second)
	if err != nil {
		return err
	}
	sleepErr := s.Sleep(ctx, s.RandDuration(50*time.Millisecond, 500*time.Millisecond))
	if err := errors.Join(thaw(), sleepErr); err != nil {
		return err
	}
	return s.Sleep(ctx, 50*time.Millisecond)
}

// hangDisk freezes a node's disk until the node has exited, and for some seconds
// more. If the node is the authority, another node must take over.
func hangDisk(ctx context.Context, s *drill.Harness, n *drill.Node, isAuthority bool) error {
	logged := len(n.Log())
	s.Fault("hung disk", n.Name)
	began := time.Now()
	thaw, err := n.Disk.Freeze(90 * time.Second)
	if err != nil {
		return err
	}
	defer thaw()
	if isAuthority {
		next, err := s.AwaitOtherAuthority(ctx, n)
		if err != nil {
			return err
		}
		s.Target("from the hang of the authority's disk to another authority", time.Since(began), 10*time.Second)
		s.Logf("%s is the authority now", next.Name)
	}
	ended := within(ctx, 40*time.Second, func() bool { return n.Exiting() })
	s.Require(ended, "%s has not exited although its disk hangs for %s", n.Name, time.Since(began))
	s.Target("from the hang of a disk to the node's exit", time.Since(began), 15*time.Second)
	reason := "write to the log missed its deadline"
	s.Require(strings.Contains(n.Log()[logged:], reason), "%s does not log why it exits", n.Name)
	if err := s.Sleep(ctx, s.RandDuration(time.Second, 5*time.Second)); err != nil {
		return err
	}
	if err := thaw(); err != nil {
		return err
	}
	if err := n.Wait(ctx); ctx.Err() != nil {
		return err
	}
	return s.Heal(ctx)
}

// killAtSnapshots repeatedly kills a node at the moment it is seen writing a
// snapshot, and restarts it.
func killAtSnapshots(ctx context.Context, s *drill.Harness, times int) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	kills, complete := 0, 0
	for i := range times {
		n := s.Nodes[s.Rand.IntN(len(s.Nodes))]
		before := snapshots(n)
		// A node that lags by more than its leader's log holds receives a snapshot.
		// Either kind is seen by its incomplete directory.
		if !within(ctx, 20*time.Second, func() bool { return writing(n) || snapshots(n) > before }) {
			s.Logf("%s has taken no snapshot (round %d)", n.Name, i+1)
			continue
		}
		if kills++; !writing(n) {
			complete++
		}
		s.Fault("kill at a snapshot", n.Name)
		if s.Rand.IntN(2) == 0 {
			s.Kill(n)
		} else if err := s.CutPower(n); err != nil {
			return err
		}
		if err := s.Heal(ctx); err != nil {
			return err
		}
	}
	s.Figure("kills at snapshots", kills)
	s.Figure("of which just after a complete snapshot", complete)
	s.Require(kills > 0, "no node took a snapshot")
	return nil
}

// writing reports whether a node is writing a snapshot.
func writing(n *drill.Node) bool {
	found, _ := os.ReadDir(n.DataDir + "/raft/snapshots") // none yet: not writing
	for _, d := range found {
		if strings.HasSuffix(d.Name(), ".tmp") {
			return true
		}
	}
	return false
}

// snapshots returns the name of the newest snapshot of a node.
func snapshots(n *drill.Node) (latest string) {
	found, _ := os.ReadDir(n.DataDir + "/raft/snapshots")
	for _, d := range found {
		if !strings.HasSuffix(d.Name(), ".tmp") {
			latest = max(latest, d.Name())
		}
	}
	return latest
}

// within polls fact until it returns true or the limit has passed, and reports
// whether it did.
func within(ctx context.Context, limit time.Duration, fact func() bool) bool {
	for end := time.Now().Add(limit); ctx.Err() == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if fact() {
			return true
		}
	}
	return false
}
