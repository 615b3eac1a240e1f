package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"yardmaster/drill"
)

// own is a disk of a node's own, in bytes. Its file is sparse.
const own = 4 << 30

// Disks lose their power, hang and are slow.
var disks = []drill.Drill{
	{
		Number: 5, Name: "power-loss", Breaks: "cut the power of one node, of the authority, of all: what no fsync had settled is gone",
		Promises: "nothing that was acknowledged is lost, however short before",
		Plan:     drill.Plan{Disk: own}, Patience: 12 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			return rounds(ctx, s, 4, func(authority *drill.Node) error {
				if err := loseOne(ctx, s, other(s, authority)); err != nil {
					return err
				}
				authority, err := s.AwaitAuthority(ctx)
				if err != nil {
					return err
				}
				if err := loseOne(ctx, s, authority); err != nil {
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
				s.Target("all nodes, from no power to ready", time.Since(began), 15*time.Second)
				return nil
			})
		},
	},
	{
		Number: 6, Name: "power-loss-and-pause", Breaks: "stop the authority, or cut it off, and cut the power of another node meanwhile",
		Promises: "nothing is lost, nothing forks, also with one node that remembers and one that does not answer",
		Plan:     drill.Plan{Disk: own, Apart: true}, Patience: 12 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			return rounds(ctx, s, 3, func(authority *drill.Node) error {
				victim := other(s, authority)
				if s.Dice.IntN(2) == 0 {
					s.Fault("power loss and pause", fmt.Sprintf("%s stands still, %s loses its power", authority.Name, victim.Name))
					if err := authority.Signal(syscall.SIGSTOP); err != nil {
						return err
					}
				} else {
					s.Fault("power loss and partition", fmt.Sprintf("%s is cut off, %s loses its power", authority.Name, victim.Name))
					if err := authority.Host.Cut(s.Net.Others(authority.Host)...); err != nil {
						return err
					}
				}
				if err := s.Rest(ctx, s.Between(0, 4*time.Second)); err != nil {
					return err
				}
				if err := s.CutPower(victim); err != nil {
					return err
				}
				if err := errors.Join(victim.Disk.Mend(), victim.Start(), s.Rest(ctx, s.Between(5*time.Second, 15*time.Second))); err != nil {
					return err
				}
				return s.Heal(ctx)
			})
		},
	},
	{
		Number: 13, Name: "slow-disk", Breaks: "hold the disk of the authority, then of another node, for 50 to 500 ms, again and again",
		Promises: "work is slower, and nothing else is wrong",
		Plan:     drill.Plan{Disk: own},
		Run: func(ctx context.Context, s *drill.Stage) error {
			return rounds(ctx, s, 2, func(authority *drill.Node) error {
				for _, n := range []*drill.Node{authority, other(s, authority)} {
					s.Fault("slow disk", n.Name)
					for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
						if err := hold(ctx, s, n); err != nil {
							return err
						}
					}
				}
				return s.Heal(ctx)
			})
		},
	},
	{
		Number: 14, Name: "hung-disk", Breaks: "the disk of the authority, then of another node, hangs: writes wait for ever",
		Promises: "another node decides within 10 s; the node ends itself, says why, and takes part again once the disk does",
		Plan:     drill.Plan{Disk: own}, Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			return rounds(ctx, s, 2, func(authority *drill.Node) error {
				if err := hang(ctx, s, authority, true); err != nil {
					return err
				}
				authority, err := s.AwaitAuthority(ctx)
				if err != nil {
					return err
				}
				return hang(ctx, s, other(s, authority), false)
			})
		},
	},
	{
		Number: 41, Name: "kill-at-snapshot", Breaks: "kill nodes while they write snapshots and cut their logs",
		Promises: "each starts again from what is on its disk, with the same ledger as the others",
		Plan:     drill.Plan{Disk: own, Config: "[raft]\nsnapshot_bytes = 65536\n"}, Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error { return killAtSnapshots(ctx, s, s.Times(12)) },
	},
}

// rounds gives the yard work, and plays a round some times.
func rounds(ctx context.Context, s *drill.Stage, times int, round func(authority *drill.Node) error) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for range s.Times(times) {
		if err := s.Rest(ctx, s.Between(time.Second, 4*time.Second)); err != nil {
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

// loseOne cuts the power of one node, and gives it back some seconds later.
func loseOne(ctx context.Context, s *drill.Stage, n *drill.Node) error {
	s.Fault("power loss of one", n.Name)
	if err := s.CutPower(n); err != nil {
		return err
	}
	if err := s.Rest(ctx, s.Between(time.Second, 7*time.Second)); err != nil {
		return err
	}
	return s.Heal(ctx)
}

// hold lets a disk hang for a moment.
func hold(ctx context.Context, s *drill.Stage, n *drill.Node) error {
	thaw, err := n.Disk.Freeze(10 * time.Second)
	if err != nil {
		return err
	}
	rest := s.Rest(ctx, s.Between(50*time.Millisecond, 500*time.Millisecond))
	if err := errors.Join(thaw(), rest); err != nil {
		return err
	}
	return s.Rest(ctx, 50*time.Millisecond)
}

// hang freezes a node's disk until the node has ended itself, and for some
// seconds more.
func hang(ctx context.Context, s *drill.Stage, n *drill.Node, decides bool) error {
	said := len(n.Log())
	s.Fault("hung disk", n.Name)
	began := time.Now()
	thaw, err := n.Disk.Freeze(90 * time.Second)
	if err != nil {
		return err
	}
	defer thaw()
	if decides {
		next, err := s.AwaitOther(ctx, n)
		if err != nil {
			return err
		}
		s.Target("from a hung disk to another authority", time.Since(began), 10*time.Second)
		s.Say("%s decides now", next.Name)
	}
	ended := within(ctx, 40*time.Second, func() bool { return n.Ending() })
	s.Promise(ended, "%s has not ended itself with a disk that hangs for %s", n.Name, time.Since(began))
	s.Target("from a hung disk to the node's end", time.Since(began), 15*time.Second)
	why := "write to the log missed its deadline"
	s.Promise(strings.Contains(n.Log()[said:], why), "%s does not say why it has ended", n.Name)
	if err := s.Rest(ctx, s.Between(time.Second, 5*time.Second)); err != nil {
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

// killAtSnapshots kills a node the moment it is seen writing a snapshot, and
// starts it again. A small snapshot size has them follow each other.
func killAtSnapshots(ctx context.Context, s *drill.Stage, times int) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	kills, whole := 0, 0
	for i := range times {
		n := s.Nodes[s.Dice.IntN(len(s.Nodes))]
		before := snapshots(n)
		// A node that is behind by more than its leader keeps takes a snapshot,
		// too; either is seen by the directory that is not complete yet.
		if !within(ctx, 20*time.Second, func() bool { return writing(n) || snapshots(n) > before }) {
			s.Say("%s has taken no snapshot, time %d", n.Name, i+1)
			continue
		}
		if kills++; !writing(n) {
			whole++
		}
		s.Fault("kill at a snapshot", n.Name)
		if s.Dice.IntN(2) == 0 {
			s.Kill(n)
		} else if err := s.CutPower(n); err != nil {
			return err
		}
		if err := s.Heal(ctx); err != nil {
			return err
		}
	}
	s.Figure("kills at snapshots", kills)
	s.Figure("of which the snapshot had just been finished", whole)
	s.Promise(kills > 0, "no node took a snapshot")
	return nil
}

// writing tells that a snapshot is being written.
func writing(n *drill.Node) bool {
	found, _ := os.ReadDir(n.DataDir + "/raft/snapshots") // none yet: not writing
	for _, d := range found {
		if strings.HasSuffix(d.Name(), ".tmp") {
			return true
		}
	}
	return false
}

func snapshots(n *drill.Node) (latest string) {
	found, _ := os.ReadDir(n.DataDir + "/raft/snapshots")
	for _, d := range found {
		if !strings.HasSuffix(d.Name(), ".tmp") {
			latest = max(latest, d.Name())
		}
	}
	return latest
}

// within waits for a fact, and tells whether it came in time.
func within(ctx context.Context, longest time.Duration, fact func() bool) bool {
	for end := time.Now().Add(longest); ctx.Err() == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if fact() {
			return true
		}
	}
	return false
}
