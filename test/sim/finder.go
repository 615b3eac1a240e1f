package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/index"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// startIndex starts the index of a process, from what its disk has of it. Sometimes that is nothing, and the
// index reads all jobs of the ledger.
func (proc *process) startIndex() {
	sim, dir := proc.sim, filepath.Join(proc.sim.disks, proc.name)
	if sim.chance("index lost "+proc.id, 200) {
		if err := os.RemoveAll(dir); err != nil {
			sim.fail("%s: %v", proc.id, err)
		}
	}
	proc.index = index.New(index.Config{Node: proc.name, Dir: dir, Yard: "sim"}, sim.log)
	proc.ledger.RecordChanges(proc.index.Changes())
	proc.index.Follow(slowReader{proc})
	sim.group.Go(func() {
		defer proc.index.Close()
		_ = proc.index.Run(proc.ctx) // it only ends with the process
	})
}

// slowReader is the ledger of a process for its index, which at times does not look at it for a while.
type slowReader struct{ *process }

// Applied implements index.Ledger. The index calls it before it reads changes.
func (r slowReader) Applied() (last uint64, changed <-chan struct{}) {
	if key := "index " + r.id; r.sim.minorFaultsActive() && r.sim.chance(key, 60) {
		select {
		case <-time.After(r.sim.duration("stalls "+key, 50*time.Millisecond, 4*time.Second)):
		case <-r.ctx.Done():
		}
	}
	return r.process.Applied()
}

// finder finds jobs in the index of a process. It may fail, and its answers are late: the ledger
// may have changed since.
type finder struct{ *process }

// FindJobs implements operations.Finder.
func (f finder) FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (ledger.FoundJobs, error) {
	sim, key := f.sim, fmt.Sprintf("find %s %d", f.id, after.Accepted)
	_, err := callAfter(ctx, f.process, key, sim.requestTime(key), func() (struct{}, error) {
		if sim.minorFaultsActive() && sim.chance("fails "+key, 100) {
			return struct{}{}, &job.UnavailableError{Reason: "the index of jobs"}
		}
		return struct{}{}, nil
	})
	if err != nil {
		return ledger.FoundJobs{}, err
	}
	found, err := f.index.FindJobs(ctx, q, after, min(limit, 1+sim.intn("page "+key, maxFound)))
	if err != nil {
		return found, err
	}
	return callAfter(ctx, f.process, "answer "+key, sim.requestTime("answer "+key), func() (ledger.FoundJobs, error) { return found, nil })
}

// maxFound is the largest number of jobs of a page, so that most operations need several.
const maxFound = 20
