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
	s.Require(flipped > 0, "no record of a held job was found")
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
	expectReplacement(s, n, "damage", "bits of the snapshots of streams' Raft groups are flipped", func() {
		for _, snapshot := range streamFiles(n, pattern) {
			flipBits(s, snapshot, 1)
		}
	}, "Snapshot corrupt", replaceHint+" "+n.Name)
}
