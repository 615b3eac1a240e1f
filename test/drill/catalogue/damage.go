package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
)

// smallSnapshots makes Raft snapshots frequent.
const smallSnapshots = "[raft]\nsnapshot_bytes = 65536\n"

// Drills that change the files of a node.
var damage = []drill.Drill{
	{
		Number: 17, Name: "damaged-log", Breaks: "while a node is down, truncate its raft.db, and flip bits of it and of the newest snapshot",
		Promises: "the node exits before it takes part, and says why and which command helps; the other nodes go on; that command makes it a member again",
		Plan:     drill.Layout{Config: smallSnapshots}, Timeout: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			return runRounds(ctx, s, 1, func(*drill.Node) error {
				for _, d := range []struct {
					what   string
					damage func(raft string) error
				}{
					{"raft.db is truncated", func(raft string) error { return truncateTo(filepath.Join(raft, "raft.db")) }},
					{"bits of 200 bytes of raft.db are flipped", func(raft string) error { return flipBits(s, filepath.Join(raft, "raft.db"), 200) }},
					{"a bit of the newest snapshot is flipped", func(raft string) error {
						return flipBits(s, filepath.Join(raft, "snapshots", latest(raft), "state.bin"), 1)
					}},
				} {
					if err := expectRefusal(ctx, s, randomNode(s), "damage", d.what, "raft", func(n *drill.Node) error { return d.damage(filepath.Join(n.DataDir, "raft")) },
						"is not what it wrote", "yardmaster cluster replace"); err != nil {
						return err
					}
				}
				return expectReplacement(ctx, s, randomNode(s), "damage", "raft.db is truncated", func(n *drill.Node) error {
					return truncateTo(filepath.Join(n.DataDir, "raft", "raft.db"))
				}, "yardmaster cluster replace")
			})
		},
	},
	{
		Number: 18, Name: "damaged-streams", Breaks: "while a node is down, flip bits of and truncate JetStream's blocks, indexes and snapshots, also of its Raft groups; flip bits of records in its lanes while it runs",
		Promises: "no job is lost or skipped; the node exits and names the command that replaces it, or continues while other replicas serve what it cannot read; 'cluster replace' makes every replica complete again",
		Timeout:  20 * time.Minute,
		Run:      damageStreams,
	},
	{
		Number: 19, Name: "rolled-back", Breaks: "restore an older copy of one node's directory; then of all nodes' streams; in a second cluster, remove a lane, and recreate another, with full privileges",
		Promises: "the node refuses to start, and the command it names makes it a member again; streams older than the ledger make the cluster unready, with the reason; a removed or recreated lane accepts no jobs, its jobs wait, and all other jobs run, each with its own body",
		Plan:     drill.Layout{Config: smallSnapshots}, Timeout: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			if err := s.StartSteadyLoad(ctx); err != nil {
				return err
			}
			if err := rollBackNode(ctx, s); err != nil {
				return err
			}
			if err := rollBackStreams(ctx, s); err != nil {
				return err
			}
			return removeLanes(ctx, s)
		},
	},
	{
		Number: 20, Name: "empty-directory", Breaks: "restart a node with an empty data directory",
		Promises: "it waits and names the command that admits it; the other nodes go on; that command makes it a member again",
		Timeout:  10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Harness) error {
			err := runRounds(ctx, s, 2, func(*drill.Node) error {
				return expectRefusal(ctx, s, randomNode(s), emptied, "its data directory is empty", "", func(n *drill.Node) error { return os.RemoveAll(n.DataDir) },
					"yardmaster cluster replace")
			})
			if err != nil {
				return err
			}
			return replaced(ctx, s, randomNode(s))
		},
	},
}

// emptied is the name of the fault of an empty directory. The node does not exit but
// waits.
const emptied = "empty directory"

// expectRefusal kills a node, keeps a copy of the files in the directory below,
// damages them and restarts the node: it must not take part and must log the texts,
// while the other nodes accept jobs. Then it restores the copy and heals the node.
func expectRefusal(ctx context.Context, s *drill.Harness, n *drill.Node, fault, what, below string, damage func(*drill.Node) error, texts ...string) error {
	s.Fault(fault, n.Name+": "+what)
	s.Kill(n)
	dir, intact := filepath.Join(n.DataDir, below), filepath.Join(s.Dir, "intact")
	if err := errors.Join(disk.Replace(intact, dir), damage(n)); err != nil {
		return err
	}
	if err := expectNotJoined(ctx, s, n, what, fault != emptied, texts...); err != nil {
		return err
	}
	if err := disk.Replace(dir, intact); err != nil {
		return err
	}
	return s.Heal(ctx)
}

// expectReplacement damages a node like [expectRefusal], but restores nothing: the
// node is replaced with an empty directory.
func expectReplacement(ctx context.Context, s *drill.Harness, n *drill.Node, fault, what string, damage func(*drill.Node) error, texts ...string) error {
	s.Fault(fault, n.Name+": "+what)
	s.Kill(n)
	if err := damage(n); err != nil {
		return err
	}
	if err := expectNotJoined(ctx, s, n, what+", to be replaced", true, texts...); err != nil {
		return err
	}
	return replaced(ctx, s, n)
}

// randomNode returns a random node.
func randomNode(s *drill.Harness) *drill.Node { return s.Nodes[s.Rand.IntN(len(s.Nodes))] }

// expectNotJoined starts a node that must log the texts and not take part: if exits
// is set it must exit, otherwise wait to be admitted. It ends with the node killed.
func expectNotJoined(ctx context.Context, s *drill.Harness, n *drill.Node, what string, exits bool, texts ...string) error {
	logged, acked, began := len(n.Log()), s.Acked(), time.Now()
	if err := n.Start(); err != nil {
		return err
	}
	for _, text := range texts {
		found := within(ctx, 30*time.Second, func() bool { return strings.Contains(n.Log()[logged:], text) })
		s.Require(found, "%s does not log %q when %s", n.Name, text, what)
	}
	s.Figure("until the node has reported that "+what, time.Since(began))
	if exits {
		s.Require(within(ctx, 30*time.Second, func() bool { return !n.Running() }), "%s keeps running although %s", n.Name, what)
	} else if st, err := n.Status(ctx); err == nil {
		s.Require(!st.Readiness.Ready, "%s is ready although %s", n.Name, what)
	}
	if n.Running() {
		s.Kill(n)
	}
	s.Require(within(ctx, 20*time.Second, func() bool { return s.Acked() > acked+20 }), "no jobs are acknowledged while %s", what)
	return nil
}

// truncateTo removes a thousandth of a file at its end. Most of the file is
// preallocated space.
func truncateTo(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return disk.Truncate(file, info.Size()-info.Size()/1000)
}

// flipBits flips a random bit in each of a number of random nonzero bytes of a file.
func flipBits(s *drill.Harness, file string, places int) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for tries := 0; places > 0 && tries < 1000*len(content); tries++ {
		i := s.Rand.IntN(len(content))
		if content[i] == 0 {
			continue
		}
		if err := disk.Flip(file, int64(i), 1<<s.Rand.IntN(8)); err != nil {
			return err
		}
		places--
	}
	return nil
}

// latest returns the name of the newest snapshot in a Raft directory.
func latest(raft string) (name string) {
	found, _ := os.ReadDir(filepath.Join(raft, "snapshots"))
	for _, d := range found {
		if !strings.HasSuffix(d.Name(), ".tmp") {
			name = max(name, d.Name())
		}
	}
	return name
}

// heldQueue is paused, so that its jobs stay in the lanes while these are damaged.
const heldQueue = "held"

// damageStreams damages the streams of one node in every way, one after the other,
// while the jobs of heldQueue wait in the lanes.
func damageStreams(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, heldQueue, 0); err != nil {
		return err
	}
	var answer any
	if err := s.Nodes[0].Ask(ctx, "yard.api.v1.queue.pause", map[string]any{"name": heldQueue}, &answer); err != nil {
		return err
	}
	held := &drill.Load{Queue: heldQueue, Jobs: 600, Parallel: 4}
	s.StartLoads(ctx, held)
	if !within(ctx, time.Minute, func() bool { return held.Acked() == held.Jobs }) {
		return errors.New("the jobs of the held queue were not acknowledged in time")
	}
	for _, k := range streamDamage(s) {
		if err := errors.Join(damageAndReplace(ctx, s, randomNode(s), k), s.Heal(ctx)); err != nil {
			return fmt.Errorf("%s: %w", k.what, err)
		}
	}
	if err := damageGroups(ctx, s); err != nil {
		return fmt.Errorf("Raft groups of the streams: %w", err)
	}
	return corruptOnline(ctx, s, held)
}

// damageKind is a way to damage the files that match a pattern.
type damageKind struct {
	what, pattern string
	damage        func(file string) error
}

// streamDamage returns the kinds of damage in random order, two of them in a quick
// run.
func streamDamage(s *drill.Harness) []damageKind {
	const lanes, all, groups = "YARD/streams/YARD_JOBS_*/msgs/", "YARD/streams/*/msgs/", "$SYS/_js_/"
	kinds := []damageKind{
		{"bits of the lanes' blocks are flipped", lanes + "*.blk", func(f string) error { return flipBits(s, f, 3) }},
		{"the lanes' blocks are truncated", lanes + "*.blk", func(f string) error { return disk.Truncate(f, 2000) }},
		{"bits of all streams' indexes are flipped", all + "index.db", func(f string) error { return flipBits(s, f, 3) }},
		{"bits of history's blocks are flipped", "YARD/streams/YARD_EVENTS/msgs/*.blk", func(f string) error { return flipBits(s, f, 3) }},
		{"bits of JetStream's snapshot of its streams are flipped", groups + "_meta_/snapshots/snap.*", func(f string) error { return flipBits(s, f, 1) }},
		{"bits of JetStream's Raft logs are flipped", groups + "*/msgs/*.blk", func(f string) error { return flipBits(s, f, 1) }},
	}
	s.Rand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return kinds[:s.Repeats(len(kinds))]
}

// rollBackNode restores an older copy of one node's directory. The node must refuse
// to start.
func rollBackNode(ctx context.Context, s *drill.Harness) error {
	n := randomNode(s)
	old := filepath.Join(s.Dir, "old")
	s.Kill(n)
	if err := errors.Join(disk.Replace(old, n.DataDir), s.Heal(ctx), s.Sleep(ctx, 5*time.Second)); err != nil {
		return err
	}
	restore := func(n *drill.Node) error { return disk.Replace(n.DataDir, old) }
	err := expectRefusal(ctx, s, n, "roll back", "its directory is an older copy", "", restore, "yardmaster cluster replace")
	if err != nil {
		return err
	}
	return expectReplacement(ctx, s, n, "roll back", "its directory is an older copy", restore, "yardmaster cluster replace")
}

// rollBackStreams restores older copies of all nodes' streams while the ledger is
// up to date.
func rollBackStreams(ctx context.Context, s *drill.Harness) error {
	save := func(name string) error {
		for _, n := range s.Nodes {
			if err := disk.Replace(filepath.Join(s.Dir, name+n.Name), filepath.Join(n.DataDir, "nats")); err != nil {
				return err
			}
		}
		return nil
	}
	restore := func(name string) error {
		for _, n := range s.Nodes {
			if err := disk.Replace(filepath.Join(n.DataDir, "nats"), filepath.Join(s.Dir, name+n.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	s.Kill(s.Nodes...)
	if err := errors.Join(save("older-"), s.Heal(ctx), s.Sleep(ctx, 5*time.Second)); err != nil {
		return err
	}
	// Jobs that were accepted into the older streams would be lost when the newer
	// ones are restored.
	if err := s.StopLoads(); err != nil {
		return err
	}
	s.Fault("roll back", "the streams of all nodes")
	s.Kill(s.Nodes...)
	if err := errors.Join(save("newer-"), restore("older-")); err != nil {
		return err
	}
	began := time.Now()
	for _, n := range s.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	var reasons []string
	found := within(ctx, 90*time.Second, func() bool {
		st, err := s.Nodes[0].Status(ctx)
		if err != nil {
			return false
		}
		reasons = st.Readiness.Reasons
		return !st.Readiness.Ready && slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(r, "lane ") && strings.Contains(r, "went back") })
	})
	s.Require(found, "no readiness reason about the lost records of lanes: %q", reasons)
	s.Figure("until the lost records of lanes were reported", time.Since(began))
	s.Logf("readiness reasons: %q", reasons)
	s.Kill(s.Nodes...)
	if err := restore("newer-"); err != nil {
		return err
	}
	return s.Heal(ctx)
}
