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
)

// nameTime is how long to wait until a damaged replica is reported. Damage that
// nats-server has not read by then is not detected.
const nameTime = 30 * time.Second

// damageAndReplace damages the streams of a node while it is down, and restarts it.
// The node must exit and log the command that replaces it, or keep running while the
// cluster accepts jobs. Then the node is replaced. What was reported of it meanwhile
// becomes a figure.
func damageAndReplace(ctx context.Context, s *drill.Harness, n *drill.Node, k damageKind) error {
	s.Fault("damage", n.Name+": "+k.what)
	s.Kill(n)
	files, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", k.pattern))
	if err != nil {
		return err
	}
	damaged := 0
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() == 0 {
			continue
		}
		if err := k.damage(f); err != nil {
			return err
		}
		damaged++
	}
	s.Figure("files damaged: "+k.what, damaged)
	acked, logged := s.Acked(), len(n.Log())
	if err := n.Start(); err != nil {
		return err
	}
	var reported []string
	within(ctx, nameTime, func() bool {
		reported = reportedOf(ctx, s, n)
		return len(reported) > 0 || !n.Running()
	})
	if n.Running() {
		s.Figure("reported when "+k.what, fmt.Sprintf("%q", reported))
	} else {
		s.Require(strings.Contains(n.Log()[logged:], "yardmaster cluster replace "+n.Name), "%s exits without logging how to replace it when %s", n.Name, k.what)
		s.Figure("the node exited when "+k.what, true)
	}
	s.Require(within(ctx, 20*time.Second, func() bool { return s.Acked() > acked+20 }), "no jobs are acknowledged when %s", k.what)
	return replaced(ctx, s, n)
}

// reportedOf returns the readiness reasons of another node about n's replicas.
func reportedOf(ctx context.Context, s *drill.Harness, n *drill.Node) []string {
	for _, other := range s.Nodes {
		if other == n {
			continue
		}
		st, err := other.Status(ctx)
		if err == nil {
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
func corruptOnline(ctx context.Context, s *drill.Harness, held *drill.Load) error {
	n := randomNode(s)
	s.Fault("damage", n.Name+": bits of held jobs are flipped while the node runs")
	files, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", "YARD", "streams", "YARD_JOBS_*", "msgs", "*.blk"))
	if err != nil {
		return err
	}
	flipped := 0
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		records := heldRecord.FindAllIndex(content, -1)
		s.Rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		for _, at := range records[:min(len(records), 1+s.Rand.IntN(4))] {
			if err := disk.Flip(f, int64(at[0]+s.Rand.IntN(at[1]-at[0])), 1<<s.Rand.IntN(8)); err != nil {
				return err
			}
			flipped++
		}
	}
	s.Figure("records damaged on a running node", flipped)
	s.Require(flipped > 0, "no record of a held job was found")
	authority, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	s.Kill(authority)
	if err := authority.Start(); err != nil {
		return err
	}
	if _, err := s.AwaitAuthority(ctx); err != nil {
		return err
	}
	if err := runHeld(ctx, s, held); err != nil {
		return err
	}
	s.Figure("reported of records damaged on a running node", fmt.Sprintf("%q", reportedOf(ctx, s, n)))
	return replaced(ctx, s, n)
}

// runHeld resumes the held queue, starts a worker and waits until all its jobs have
// ended.
func runHeld(ctx context.Context, s *drill.Harness, held *drill.Load) error {
	var answer any
	if err := drill.Until(ctx, "the held queue is resumed", func() error {
		return s.Nodes[0].Ask(ctx, "yard.api.v1.queue.resume", map[string]any{"name": heldQueue}, &answer)
	}); err != nil {
		return err
	}
	if _, err := s.AddWorker(drill.Task{Queue: heldQueue, Credits: 8, Hold: time.Millisecond, Nodes: s.Edges()}); err != nil {
		return err
	}
	ended := 0
	ran := within(ctx, 2*time.Minute, func() bool {
		jobs, err := s.EndedJobs(ctx, s.Nodes[0], heldQueue)
		ended = len(jobs)
		return err == nil && ended >= held.Jobs
	})
	s.Require(ran, "%d of %d jobs with a damaged record on one member have ended", ended, held.Jobs)
	return nil
}

// damageGroups flips a bit in each snapshot of the streams' Raft groups on a node
// that has any, while it is down. The node must exit, and is replaced.
func damageGroups(ctx context.Context, s *drill.Harness) error {
	order := slices.Clone(s.Nodes)
	s.Rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, n := range order {
		snapshots, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", "$SYS", "_js_", "S-*", "snapshots", "snap.*"))
		if err != nil {
			return err
		}
		if len(snapshots) == 0 {
			continue
		}
		damage := func(*drill.Node) error {
			var all error
			for _, snapshot := range snapshots {
				if err := flipBits(s, snapshot, 1); err != nil && !errors.Is(err, os.ErrNotExist) {
					all = errors.Join(all, err)
				}
			}
			return all
		}
		return expectReplacement(ctx, s, n, "damage", "bits of the snapshots of streams' Raft groups are flipped", damage, "Snapshot corrupt", "yardmaster cluster replace "+n.Name)
	}
	return errors.New("no Raft group of a stream has a snapshot on any node")
}
