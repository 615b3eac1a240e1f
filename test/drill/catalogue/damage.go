package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
		Number: 17, Name: "damaged-log", Breaks: "while a node is down, truncate its Raft log, and flip bits of it and of the newest snapshot",
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
				empty := damagedStart{n, emptied, "its data directory is empty", func() { must.Do(os.RemoveAll(n.DataDir)) }, []string{replaceHint}}
				empty.expectRefusal(s, n.DataDir)
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
	for i, what := range []string{"its Raft log is truncated", "bits of 20 bytes of its Raft log are flipped", "a bit of the newest snapshot is flipped"} {
		n := randomNode(s)
		raft := filepath.Join(n.DataDir, "raft")
		damage := func() {
			switch i {
			case 0:
				truncateLog(n)
			case 1:
				flipBits(s, newestSegment(n), 20)
			case 2:
				latest, _ := snapshots(n)
				flipBits(s, filepath.Join(raft, "snapshots", latest, "state.bin"), 1)
			}
		}
		damagedStart{n, "damage", what, damage, []string{"is not what it wrote", replaceHint}}.expectRefusal(s, raft)
	}
	n := randomNode(s)
	damagedStart{n, "damage", "its Raft log is truncated", func() { truncateLog(n) }, []string{replaceHint}}.expectReplacement(s)
}

// damagedStart is a start of a node whose files were damaged while it was down.
type damagedStart struct {
	node   *drill.Node
	fault  string // name of the fault
	what   string // a clause that describes the damage
	damage func()
	texts  []string // that the node must log
}

// expectRefusal keeps a copy of a directory, and expects a node that is killed and
// damaged not to join the cluster. Then it restores the copy and heals the node.
func (d damagedStart) expectRefusal(s *drill.Harness, dir string) {
	intact, damage := filepath.Join(s.Dir, "intact"), d.damage
	d.damage = func() {
		must.Do(disk.Replace(intact, dir))
		damage()
	}
	d.expectNotJoined(s)
	must.Do(disk.Replace(dir, intact))
	s.Heal()
}

// expectReplacement is like expectRefusal, but restores nothing: the node is replaced
// with an empty directory.
func (d damagedStart) expectReplacement(s *drill.Harness) {
	d.what += ", to be replaced"
	d.expectNotJoined(s)
	replaced(s, d.node)
}

// expectNotJoined kills a node, damages it and restarts it. The node must log the texts
// and not take part: it must exit or, if its directory is empty, wait to be admitted,
// while the other nodes accept jobs. It ends with the node killed.
func (d damagedStart) expectNotJoined(s *drill.Harness) {
	n, what := d.node, d.what
	s.Fault(d.fault, n.Name+": "+what)
	s.Kill(n)
	d.damage()
	logged, began := len(n.Log()), time.Now()
	must.Do(n.Start())
	for _, text := range d.texts {
		found := s.Within(30*time.Second, func() bool { return strings.Contains(n.Log()[logged:], text) })
		s.Require(found, "%s does not log %q when %s", n.Name, text, what)
	}
	s.Figure("until the node has reported that "+what, time.Since(began))
	if d.fault != emptied {
		s.Require(s.Within(30*time.Second, func() bool { return !n.Running() }), "%s keeps running although %s", n.Name, what)
	} else if st, err := n.Status(s.Ctx); err == nil {
		s.Require(!st.Readiness.Ready, "%s is ready although %s", n.Name, what)
	}
	if n.Running() {
		s.Kill(n)
	}
	s.RequireAcks(20, 20*time.Second, "while "+what)
}

// truncateLog removes a thousandth of the newest file of a node's Raft log, at its end.
func truncateLog(n *drill.Node) {
	file := newestSegment(n)
	size := must.Get(os.Stat(file)).Size()
	must.Do(disk.Truncate(file, size/1000))
}

// newestSegment returns the newest file of a node's Raft log.
func newestSegment(n *drill.Node) string {
	files := must.Get(filepath.Glob(filepath.Join(n.DataDir, "raft", "log", "*.wal")))
	if len(files) == 0 {
		must.Do(errors.New("no file of the Raft log of " + n.Name))
	}
	return files[len(files)-1]
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
	rolledBack := damagedStart{n, "roll back", what, restore, []string{replaceHint}}
	rolledBack.expectRefusal(s, n.DataDir)
	rolledBack.expectReplacement(s)
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

// heldQueue is paused, so that its jobs stay in the lanes while these are damaged.
const heldQueue = "held"

// damageStreams damages the streams of one node in every way, one after the other,
// while the jobs of heldQueue wait in the lanes.
func damageStreams(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues(heldQueue)
	setPaused(s, heldQueue, "pause")
	held := &drill.Load{Queue: heldQueue, Jobs: 600, Parallel: 4}
	s.StartLoads(held)
	s.AwaitAcked(held.Jobs, held)
	for _, k := range streamDamage(s) {
		damageAndReplace(s, randomNode(s), k)
		s.Heal()
	}
	damageGroups(s)
	corruptOnline(s, held)
}

// damageKind is a way to damage the files that match a pattern: it flips this number
// of bits or, if that is 0, truncates the file.
type damageKind struct {
	what, pattern string
	bits          int
}

// streamDamage returns the kinds of damage in random order, two of them in a quick
// run.
func streamDamage(s *drill.Harness) []damageKind {
	const lanes, all, groups = "YARD/streams/YARD_JOBS_*/msgs/", "YARD/streams/*/msgs/", "$SYS/_js_/"
	kinds := []damageKind{
		{"bits of the lanes' blocks are flipped", lanes + "*.blk", 3},
		{"the lanes' blocks are truncated", lanes + "*.blk", 0},
		{"bits of all streams' indexes are flipped", all + "index.db", 3},
		{"bits of history's blocks are flipped", "YARD/streams/YARD_EVENTS/msgs/*.blk", 3},
		{"bits of JetStream's snapshot of its streams are flipped", groups + "_meta_/snapshots/snap.*", 1},
		{"bits of JetStream's Raft logs are flipped", groups + "*/msgs/*.blk", 1},
	}
	s.Rand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return kinds[:s.Repeats(len(kinds))]
}

// streamFiles returns the files of a node's streams that match a pattern and are not
// empty.
func streamFiles(n *drill.Node, pattern string) []string {
	files := must.Get(filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", pattern)))
	return slices.DeleteFunc(files, func(f string) bool {
		info, err := os.Stat(f)
		return err != nil || info.Size() == 0
	})
}

// nameTime is how long to wait until a damaged replica is reported. Damage that
// nats-server has not read by then is not detected.
const nameTime = 30 * time.Second

// damageAndReplace damages the streams of a node while it is down, and restarts it.
// The node must exit and log the command that replaces it, or keep running while the
// cluster accepts jobs. Then the node is replaced. What was reported of it meanwhile
// becomes a figure.
func damageAndReplace(s *drill.Harness, n *drill.Node, k damageKind) {
	s.Fault("damage", n.Name+": "+k.what)
	s.Kill(n)
	files := streamFiles(n, k.pattern)
	for _, f := range files {
		if k.bits == 0 {
			must.Do(disk.Truncate(f, 2000))
		} else {
			flipBits(s, f, k.bits)
		}
	}
	s.Figure("files damaged: "+k.what, len(files))
	logged := len(n.Log())
	must.Do(n.Start())
	var reported []string
	s.Within(nameTime, func() bool {
		reported = reportedOf(s, n)
		return len(reported) > 0 || !n.Running()
	})
	if n.Running() {
		s.Figure("reported when "+k.what, fmt.Sprintf("%q", reported))
	} else {
		s.Require(strings.Contains(n.Log()[logged:], replaceHint+" "+n.Name), "%s exits without logging how to replace it when %s", n.Name, k.what)
		s.Figure("the node exited when "+k.what, true)
	}
	s.RequireAcks(20, 20*time.Second, "when "+k.what)
	replaced(s, n)
}

// reportedOf returns the readiness reasons of another node about n's replicas.
func reportedOf(s *drill.Harness, n *drill.Node) []string {
	for _, other := range s.Nodes {
		if st, err := other.Status(s.Ctx); other != n && err == nil {
			return slices.DeleteFunc(st.Readiness.Reasons, func(reason string) bool {
				return !strings.HasPrefix(reason, "node "+n.Name+": its replica of ") && !strings.HasPrefix(reason, "node "+n.Name+": its copy of ")
			})
		}
	}
	return nil
}

// heldRecord matches the subject in the record of a held job.
var heldRecord = regexp.MustCompile(`yard\.lane\.\d+\.[pn]\.` + heldQueue)

// corruptOnline flips a bit in some records of held jobs in the lanes of a running
// node, has the jobs run under another authority, which must read the records, and
// replaces the node.
func corruptOnline(s *drill.Harness, held *drill.Load) {
	n := randomNode(s)
	s.Fault("damage", n.Name+": bits of held jobs are flipped while the node runs")
	flipped := 0
	for _, f := range streamFiles(n, "YARD/streams/YARD_JOBS_*/msgs/*.blk") {
		records := heldRecord.FindAllIndex(must.Get(os.ReadFile(f)), -1)
		s.Rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		for _, at := range records[:min(len(records), 1+s.Rand.IntN(4))] {
			must.Do(disk.Flip(f, int64(at[0]+s.Rand.IntN(at[1]-at[0])), 1<<s.Rand.IntN(8)))
			flipped++
		}
	}
	s.Figure("records damaged on a running node", flipped)
	s.RequireTried(flipped > 0, "no record of a held job was found")
	authority := s.AwaitAuthority()
	s.Kill(authority)
	must.Do(authority.Start())
	s.AwaitAuthority()
	setPaused(s, heldQueue, "resume")
	s.AddWorker(drill.Task{Queue: heldQueue, Credits: 8, Hold: time.Millisecond})
	limited, cancel := context.WithTimeout(s.Ctx, 2*time.Minute)
	defer cancel()
	err := s.Await(limited, held)
	s.Require(err == nil, "jobs with a damaged record on one member have not ended: %v", err)
	s.Figure("reported of records damaged on a running node", fmt.Sprintf("%q", reportedOf(s, n)))
	replaced(s, n)
}

// damageGroups flips a bit in each snapshot of the streams' Raft groups on a node
// that has any, while it is down. The node must exit, and is replaced.
func damageGroups(s *drill.Harness) {
	order := slices.Clone(s.Nodes)
	s.Rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	const pattern = "$SYS/_js_/S-*/snapshots/snap.*"
	i := slices.IndexFunc(order, func(n *drill.Node) bool { return len(streamFiles(n, pattern)) > 0 })
	if i < 0 {
		must.Do(errors.New("no Raft group of a stream has a snapshot on any node"))
	}
	n := order[i]
	damage := func() {
		for _, snapshot := range streamFiles(n, pattern) {
			flipBits(s, snapshot, 1)
		}
	}
	texts := []string{"Snapshot corrupt", replaceHint + " " + n.Name}
	damagedStart{n, "damage", "bits of the snapshots of streams' Raft groups are flipped", damage, texts}.expectReplacement(s)
}
