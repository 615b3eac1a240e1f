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

	"yardmaster/drill"
	"yardmaster/drill/disk"
)

// small has snapshots follow each other soon.
const small = "[raft]\nsnapshot_bytes = 65536\n"

// What lies on a node's disk changes behind its back.
var damage = []drill.Drill{
	{
		Number: 17, Name: "damaged-log", Breaks: "raft.db cut short, bytes of it and of the newest snapshot turned, while the node is down",
		Promises: "the node stops before it takes part, says why and what to type; the others go on; what it says lets it in again",
		Plan:     drill.Plan{Config: small}, Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			return rounds(ctx, s, 1, func(*drill.Node) error {
				for _, hurt := range []struct {
					what string
					how  func(raft string) error
				}{
					{"raft.db is cut short", func(raft string) error { return cutToLittle(filepath.Join(raft, "raft.db")) }},
					{"200 bytes of raft.db are turned", func(raft string) error { return turn(s, filepath.Join(raft, "raft.db"), 200) }},
					{"a byte of the newest snapshot is turned", func(raft string) error {
						return turn(s, filepath.Join(raft, "snapshots", latest(raft), "state.bin"), 1)
					}},
				} {
					if err := stops(ctx, s, anyone(s), "damage", hurt.what, "raft", func(n *drill.Node) error { return hurt.how(filepath.Join(n.DataDir, "raft")) },
						"is not what it wrote", "yardmaster cluster replace"); err != nil {
						return err
					}
				}
				return replacedWhole(ctx, s, anyone(s), "damage", "raft.db is cut short", func(n *drill.Node) error {
					return cutToLittle(filepath.Join(n.DataDir, "raft", "raft.db"))
				}, "yardmaster cluster replace")
			})
		},
	},
	{
		Number: 18, Name: "damaged-streams", Breaks: "JetStream's blocks, indexes and snapshots, of streams' groups too, on one node, turned and cut short while it is down; records of its lanes while it runs",
		Promises: "no job is passed over; each damaged message is found, and nothing else; 'cluster rebuild' makes every copy whole again",
		Plan:     drill.Plan{Config: scrubbing}, Patience: 15 * time.Minute,
		Run: damageStreams,
	},
	{
		Number: 19, Name: "rolled-back", Breaks: "an older copy of one node's directory is put back; then of every node's streams; in a yard beside, a lane is removed, and another made anew, by somebody with all rights",
		Promises: "the node refuses to start, and what it says lets it in again; streams that lack what the ledger has folded make the yard unready, with the reason; a lane that is gone or another one takes no job in, its jobs wait, and all others run, each with its own body",
		Plan:     drill.Plan{Config: small}, Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			if err := s.Steady(ctx); err != nil {
				return err
			}
			if err := rollBackNode(ctx, s); err != nil {
				return err
			}
			if err := rollBackStreams(ctx, s); err != nil {
				return err
			}
			return strangeStreams(ctx, s)
		},
	},
	{
		Number: 20, Name: "empty-directory", Breaks: "a node comes back with an empty data directory",
		Promises: "it waits at the door and says what to type; the others go on; what it says lets it in",
		Patience: 10 * time.Minute,
		Run: func(ctx context.Context, s *drill.Stage) error {
			err := rounds(ctx, s, 2, func(*drill.Node) error {
				return stops(ctx, s, anyone(s), emptied, "all is gone", "", func(n *drill.Node) error { return os.RemoveAll(n.DataDir) },
					"yardmaster cluster replace")
			})
			if err != nil {
				return err
			}
			return replaced(ctx, s, anyone(s))
		},
	},
}

// emptied is the fault of a node that comes with nothing: it waits.
const emptied = "empty directory"

// stops kills a node, keeps a copy of what is below its directory, hurts it,
// and starts it: it must stay out and say the words, while the others take
// jobs. Then the copy, which is as new as can be, is put back.
func stops(ctx context.Context, s *drill.Stage, n *drill.Node, fault, what, below string, hurt func(*drill.Node) error, words ...string) error {
	s.Fault(fault, n.Name+": "+what)
	s.Kill(n)
	dir, whole := filepath.Join(n.DataDir, below), filepath.Join(s.Dir, "whole")
	if err := errors.Join(disk.Replace(whole, dir), hurt(n)); err != nil {
		return err
	}
	if err := refused(ctx, s, n, what, fault != emptied, words...); err != nil {
		return err
	}
	if err := disk.Replace(dir, whole); err != nil {
		return err
	}
	return s.Heal(ctx)
}

// replacedWhole hurts a node like [stops], and puts nothing back: what it says is
// typed, and it comes again with nothing.
func replacedWhole(ctx context.Context, s *drill.Stage, n *drill.Node, fault, what string, hurt func(*drill.Node) error, words ...string) error {
	s.Fault(fault, n.Name+": "+what)
	s.Kill(n)
	if err := hurt(n); err != nil {
		return err
	}
	if err := refused(ctx, s, n, what+", to be replaced", true, words...); err != nil {
		return err
	}
	return replaced(ctx, s, n)
}

// anyone is any node.
func anyone(s *drill.Stage) *drill.Node { return s.Nodes[s.Dice.IntN(len(s.Nodes))] }

// refused starts a node that must not take part. It ends, or it waits to be let
// in.
func refused(ctx context.Context, s *drill.Stage, n *drill.Node, what string, ends bool, words ...string) error {
	said, acked, began := len(n.Log()), s.Acked(), time.Now()
	if err := n.Start(); err != nil {
		return err
	}
	for _, w := range words {
		told := within(ctx, 30*time.Second, func() bool { return strings.Contains(n.Log()[said:], w) })
		s.Promise(told, "%s does not say %q when %s", n.Name, w, what)
	}
	s.Figure("until the node said so: "+what, time.Since(began))
	if ends {
		s.Promise(within(ctx, 30*time.Second, func() bool { return !n.Running() }), "%s goes on although %s", n.Name, what)
	} else if st, err := n.Status(ctx); err == nil {
		s.Promise(!st.Readiness.Ready, "%s is ready although %s", n.Name, what)
	}
	if n.Running() {
		s.Kill(n)
	}
	s.Promise(within(ctx, 20*time.Second, func() bool { return s.Acked() > acked+20 }), "the others do not go on while %s", what)
	return nil
}

// cutToLittle leaves a thousandth of a file, most of which is room in advance.
func cutToLittle(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return disk.Cutoff(file, info.Size()-info.Size()/1000)
}

// turn turns a bit in so many places of a file that hold something.
func turn(s *drill.Stage, file string, places int) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for tries := 0; places > 0 && tries < 1000*len(content); tries++ {
		at := s.Dice.IntN(len(content))
		if content[at] == 0 {
			continue
		}
		if err := disk.Flip(file, int64(at), 1<<s.Dice.IntN(8)); err != nil {
			return err
		}
		places--
	}
	return nil
}

// latest is the name of the newest snapshot in raft's directory.
func latest(raft string) (name string) {
	found, _ := os.ReadDir(filepath.Join(raft, "snapshots"))
	for _, d := range found {
		if !strings.HasSuffix(d.Name(), ".tmp") {
			name = max(name, d.Name())
		}
	}
	return name
}

// heldQueue holds jobs that wait in their lanes while those are damaged.
const heldQueue = "held"

// damageStreams damages one node's streams in every way, one after the other,
// while jobs lie in them that have not run.
func damageStreams(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
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
	s.Begin(ctx, held)
	if !within(ctx, time.Minute, func() bool { return held.Acked() == held.Jobs }) {
		return errors.New("the jobs that are to be held are not accepted")
	}
	ways := streamDamage(s)
	for _, w := range ways {
		n := anyone(s)
		s.Fault("damage", n.Name+": "+w.what)
		s.Kill(n)
		whole := filepath.Join(s.Dir, "whole")
		files, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", w.where))
		if err = errors.Join(err, disk.Replace(whole, n.DataDir)); err != nil {
			return err
		}
		hurt := 0
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.Size() == 0 {
				continue
			}
			if err := w.how(f); err != nil {
				return err
			}
			hurt++
		}
		s.Figure("files damaged: "+w.what, hurt)
		if err := errors.Join(mended(ctx, s, n, w.what, whole), s.Heal(ctx)); err != nil {
			return fmt.Errorf("%s: %w", w.what, err)
		}
	}
	if err := rot(ctx, s); err != nil {
		return err
	}
	if err := damageGroups(ctx, s); err != nil {
		return fmt.Errorf("streams' groups: %w", err)
	}
	if err := s.Nodes[0].Ask(ctx, "yard.api.v1.queue.resume", map[string]any{"name": heldQueue}, &answer); err != nil {
		return err
	}
	_, err := s.AddWorker(drill.Task{Queue: heldQueue, Credits: 8, Hold: time.Millisecond, Nodes: s.Edges()})
	return err
}

// mended starts a node whose streams were damaged. What JetStream does not mend by
// itself is found, and made anew. A node that cannot start says by which command it
// is replaced; then its directory is put back as it was.
func mended(ctx context.Context, s *drill.Stage, n *drill.Node, what, whole string) error {
	said, began := len(n.Log()), time.Now()
	if err := n.Start(); err != nil {
		return err
	}
	var wrong map[string]int
	var err error
	if !within(ctx, 5*time.Second, func() bool { return !n.Running() }) {
		if wrong, err = damagedAt(ctx, s, n, began); err != nil {
			return err
		}
		s.Figure("messages that JetStream left out, and that were found: "+what, fmt.Sprint(wrong))
		return rebuild(ctx, s, n, wrong)
	}
	s.Promise(strings.Contains(n.Log()[said:], "yardmaster cluster replace "+n.Name), "%s ends, and does not say how it is replaced, when %s", n.Name, what)
	s.Figure("until the node said that it cannot start: "+what, time.Since(began))
	return disk.Replace(n.DataDir, whole)
}

// way is one way to damage the files of a pattern.
type way struct {
	what, where string
	how         func(file string) error
}

func streamDamage(s *drill.Stage) []way {
	const lanes, all, groups = "YARD/streams/YARD_JOBS_*/msgs/", "YARD/streams/*/msgs/", "$SYS/_js_/"
	ways := []way{
		{"bits of the lanes' blocks are turned", lanes + "*.blk", func(f string) error { return turn(s, f, 3) }},
		{"the lanes' blocks are cut short", lanes + "*.blk", func(f string) error { return disk.Cutoff(f, 2000) }},
		{"bits of all streams' indexes are turned", all + "index.db", func(f string) error { return turn(s, f, 3) }},
		{"bits of history's blocks are turned", "YARD/streams/YARD_EVENTS/msgs/*.blk", func(f string) error { return turn(s, f, 3) }},
		{"bits of JetStream's snapshot of its streams are turned", groups + "_meta_/snapshots/snap.*", func(f string) error { return turn(s, f, 1) }},
		{"bits of JetStream's own logs are turned", groups + "*/msgs/*.blk", func(f string) error { return turn(s, f, 1) }},
	}
	s.Dice.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	return ways[:s.Times(len(ways))]
}

// rollBackNode puts an older copy of one node's directory back: it must not
// start.
func rollBackNode(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	old := filepath.Join(s.Dir, "old")
	s.Kill(n)
	if err := errors.Join(disk.Replace(old, n.DataDir), s.Heal(ctx), s.Rest(ctx, 5*time.Second)); err != nil {
		return err
	}
	back := func(n *drill.Node) error { return disk.Replace(n.DataDir, old) }
	err := stops(ctx, s, n, "roll back", "its directory is an older copy", "", back, "yardmaster cluster replace")
	if err != nil {
		return err
	}
	return replacedWhole(ctx, s, n, "roll back", "its directory is an older copy", back, "yardmaster cluster replace")
}

// rollBackStreams puts older copies of all nodes' streams back, under a ledger
// that has folded more.
func rollBackStreams(ctx context.Context, s *drill.Stage) error {
	copies := func(name string) error {
		for _, n := range s.Nodes {
			if err := disk.Replace(filepath.Join(s.Dir, name+n.Name), filepath.Join(n.DataDir, "nats")); err != nil {
				return err
			}
		}
		return nil
	}
	put := func(name string) error {
		for _, n := range s.Nodes {
			if err := disk.Replace(filepath.Join(n.DataDir, "nats"), filepath.Join(s.Dir, name+n.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	s.Kill(s.Nodes...)
	if err := errors.Join(copies("older-"), s.Heal(ctx), s.Rest(ctx, 5*time.Second)); err != nil {
		return err
	}
	// What is accepted into streams that went back goes with them when the right
	// ones are there again.
	if err := s.Still(); err != nil {
		return err
	}
	s.Fault("roll back", "the streams of all nodes")
	s.Kill(s.Nodes...)
	if err := errors.Join(copies("newer-"), put("older-")); err != nil {
		return err
	}
	began := time.Now()
	for _, n := range s.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	var reasons []string
	told := within(ctx, 90*time.Second, func() bool {
		st, err := s.Nodes[0].Status(ctx)
		if err != nil {
			return false
		}
		reasons = st.Readiness.Reasons
		return !st.Readiness.Ready && slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(r, "lane ") && strings.Contains(r, "went back") })
	})
	s.Promise(told, "nobody says that the lanes have lost their ends: %q", reasons)
	s.Figure("until the lanes' lost ends were told", time.Since(began))
	s.Say("the yard says %q", reasons)
	s.Kill(s.Nodes...)
	if err := put("newer-"); err != nil {
		return err
	}
	return s.Heal(ctx)
}
