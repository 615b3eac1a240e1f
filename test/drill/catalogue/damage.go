package catalogue

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// smallSnapshots makes Raft snapshots frequent.
const smallSnapshots = "[raft]\nsnapshot_bytes = 65536\n"

// Drills that change the files of a node.
var damage = []drill.Drill{
	{
		Number: 17, Name: "damaged-log", Breaks: "while a node is down, truncate its raft.db, and flip bits of it and of the newest snapshot",
		Promises: "the node exits before it takes part, and says why and which command helps; the other nodes go on; that command makes it a member again",
		Plan:     drill.Layout{Config: smallSnapshots}, Timeout: 10 * time.Minute,
		Run: func(s *drill.Harness) { runRounds(s, 1, func(*drill.Node) { damageLog(s) }) },
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
		Run: func(s *drill.Harness) {
			s.StartSteadyLoad()
			rollBackNode(s)
			rollBackStreams(s)
			removeLanes(s)
		},
	},
	{
		Number: 20, Name: "empty-directory", Breaks: "restart a node with an empty data directory",
		Promises: "it waits and names the command that admits it; the other nodes go on; that command makes it a member again",
		Timeout:  10 * time.Minute,
		Run: func(s *drill.Harness) {
			runRounds(s, 2, func(*drill.Node) {
				n := randomNode(s)
				expectRefusal(s, n, emptied, "its data directory is empty", n.DataDir, func() { must.Do(os.RemoveAll(n.DataDir)) }, replaceHint)
			})
			replaced(s, randomNode(s))
		},
	},
}

const (
	// emptied is the name of the fault of an empty directory. The node does not exit
	// but waits.
	emptied = "empty directory"

	// replaceHint is part of the command that replaces a node, as a node logs it.
	replaceHint = "yardmaster cluster replace"
)

// damageLog damages the Raft log and the snapshot of random nodes.
func damageLog(s *drill.Harness) {
	for i, what := range []string{"raft.db is truncated", "bits of 200 bytes of raft.db are flipped", "a bit of the newest snapshot is flipped"} {
		n := randomNode(s)
		raft := filepath.Join(n.DataDir, "raft")
		expectRefusal(s, n, "damage", what, raft, func() {
			switch i {
			case 0:
				truncateLog(n)
			case 1:
				flipBits(s, filepath.Join(raft, "raft.db"), 200)
			case 2:
				latest, _ := snapshots(n)
				flipBits(s, filepath.Join(raft, "snapshots", latest, "state.bin"), 1)
			}
		}, "is not what it wrote", replaceHint)
	}
	n := randomNode(s)
	expectReplacement(s, n, "damage", "raft.db is truncated", func() { truncateLog(n) }, replaceHint)
}

// expectRefusal keeps a copy of a directory, and expects a node that is killed and
// damaged not to join the cluster. Then it restores the copy and heals the node.
func expectRefusal(s *drill.Harness, n *drill.Node, fault, what, dir string, damage func(), texts ...string) {
	intact := filepath.Join(s.Dir, "intact")
	expectNotJoined(s, n, fault, what, func() {
		must.Do(disk.Replace(intact, dir))
		damage()
	}, texts...)
	must.Do(disk.Replace(dir, intact))
	s.Heal()
}

// expectReplacement is like expectRefusal, but restores nothing: the node is replaced
// with an empty directory.
func expectReplacement(s *drill.Harness, n *drill.Node, fault, what string, damage func(), texts ...string) {
	expectNotJoined(s, n, fault, what+", to be replaced", damage, texts...)
	replaced(s, n)
}

// expectNotJoined kills a node, damages it and restarts it. The node must log the texts
// and not take part: it must exit or, if its directory is empty, wait to be admitted,
// while the other nodes accept jobs. It ends with the node killed.
func expectNotJoined(s *drill.Harness, n *drill.Node, fault, what string, damage func(), texts ...string) {
	s.Fault(fault, n.Name+": "+what)
	s.Kill(n)
	damage()
	logged, began := len(n.Log()), time.Now()
	must.Do(n.Start())
	for _, text := range texts {
		found := s.Within(30*time.Second, func() bool { return strings.Contains(n.Log()[logged:], text) })
		s.Require(found, "%s does not log %q when %s", n.Name, text, what)
	}
	s.Figure("until the node has reported that "+what, time.Since(began))
	if fault != emptied {
		s.Require(s.Within(30*time.Second, func() bool { return !n.Running() }), "%s keeps running although %s", n.Name, what)
	} else if st, err := n.Status(s.Ctx); err == nil {
		s.Require(!st.Readiness.Ready, "%s is ready although %s", n.Name, what)
	}
	if n.Running() {
		s.Kill(n)
	}
	s.RequireAcks(20, 20*time.Second, "while "+what)
}

// truncateLog removes a thousandth of a node's Raft log at its end. Most of the file
// is preallocated space.
func truncateLog(n *drill.Node) {
	file := filepath.Join(n.DataDir, "raft", "raft.db")
	size := must.Get(os.Stat(file)).Size()
	must.Do(disk.Truncate(file, size-size/1000))
}

// flipBits flips a random bit in each of a number of random nonzero bytes of a file.
func flipBits(s *drill.Harness, file string, places int) {
	content := must.Get(os.ReadFile(file))
	for tries := 0; places > 0 && tries < 1000*len(content); tries++ {
		if i := s.Rand.IntN(len(content)); content[i] != 0 {
			must.Do(disk.Flip(file, int64(i), 1<<s.Rand.IntN(8)))
			places--
		}
	}
}

// rollBackNode restores an older copy of one node's directory. The node must refuse
// to start.
func rollBackNode(s *drill.Harness) {
	n, what := randomNode(s), "its directory is an older copy"
	old := filepath.Join(s.Dir, "old")
	s.Kill(n)
	must.Do(disk.Replace(old, n.DataDir))
	s.Heal()
	s.Sleep(5 * time.Second)
	restore := func() { must.Do(disk.Replace(n.DataDir, old)) }
	expectRefusal(s, n, "roll back", what, n.DataDir, restore, replaceHint)
	expectReplacement(s, n, "roll back", what, restore, replaceHint)
}

// rollBackStreams restores older copies of all nodes' streams while the ledger is
// up to date.
func rollBackStreams(s *drill.Harness) {
	each := func(do func(streams, name string) error, name string) {
		for _, n := range s.Nodes {
			must.Do(do(filepath.Join(n.DataDir, "nats"), filepath.Join(s.Dir, name+n.Name)))
		}
	}
	save := func(streams, name string) error { return disk.Replace(name, streams) }
	s.Kill(s.Nodes...)
	each(save, "older-")
	s.Heal()
	s.Sleep(5 * time.Second)
	// Jobs that were accepted into the older streams would be lost when the newer
	// ones are restored.
	must.Do(s.StopLoads())
	s.Fault("roll back", "the streams of all nodes")
	s.Kill(s.Nodes...)
	each(save, "newer-")
	each(disk.Replace, "older-")
	began := time.Now()
	for _, n := range s.Nodes {
		must.Do(n.Start())
	}
	var reasons []string
	found := s.Within(90*time.Second, func() bool {
		st, err := s.Nodes[0].Status(s.Ctx)
		reasons = st.Readiness.Reasons
		return err == nil && !st.Readiness.Ready && slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(r, "lane ") && strings.Contains(r, "went back") })
	})
	s.Require(found, "no readiness reason about the lost records of lanes: %q", reasons)
	s.Figure("until the lost records of lanes were reported", time.Since(began))
	s.Logf("readiness reasons: %q", reasons)
	s.Kill(s.Nodes...)
	each(disk.Replace, "newer-")
	s.Heal()
}
