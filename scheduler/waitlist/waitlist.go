// Package waitlist merges ordered lists of waiting jobs, so that the scheduler can
// place the jobs of several queues in their common order.
package waitlist

import (
	"container/heap"
	"iter"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Step is how a merge of waitlists continues after a job.
type Step uint8

// The steps after a job.
const (
	Next     Step = iota // continue with the next job of all lists
	SkipList             // continue without the rest of the job's list
	Stop                 // end the merge
)

// Merger merges waitlists, one merge at a time. It keeps memory from one merge for the next.
// Its zero value is ready to use.
type Merger struct{ cursors []*cursor }

// Limits of what a Merger keeps between merges.
const (
	maxKeptCursors = 64
	maxKeptJobs    = 256 // of each cursor
)

// Merge calls visit for the jobs of several waitlists in start order, which is also the
// order of each list. It reads little more of the lists than it visits. A job that is passed to
// visit is valid until visit returns.
func (m *Merger) Merge(waitlists []iter.Seq[ledger.WaitingJob], visit func(*ledger.WaitingJob) Step) {
	h := make(cursorHeap, 0, len(waitlists))
	for i, waitlist := range waitlists {
		if i == len(m.cursors) {
			m.cursors = append(m.cursors, &cursor{})
		}
		c := m.cursors[i]
		*c = cursor{waitlist: waitlist, jobs: c.jobs[:0]}
		if c.next() {
			h = append(h, c)
		}
	}
	defer m.release()
	heap.Init(&h)
	for len(h) > 1 {
		step := visit(h[0].job())
		if step == Stop {
			return
		}
		if step == Next && h[0].next() {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
	if len(h) == 1 {
		h[0].visitRest(visit)
	}
}

// release releases what is not kept for the next merge.
func (m *Merger) release() {
	kept := min(len(m.cursors), maxKeptCursors)
	clear(m.cursors[kept:])
	m.cursors = m.cursors[:kept]
	for _, c := range m.cursors {
		c.waitlist = nil
		if cap(c.jobs) > maxKeptJobs {
			c.jobs = nil
		}
	}
}

// cursor is a position in a waitlist that is being merged. It reads the
// waitlist in growing chunks, each time from its start: most merges need only the
// first job of most waitlists, and an iterator that can be suspended (iter.Pull)
// costs more than that.
type cursor struct {
	waitlist  iter.Seq[ledger.WaitingJob]
	jobs      []ledger.WaitingJob // the chunk that was read last
	pos       int                 // of the current job in jobs
	readCount int                 // number of jobs read, in all chunks
	end       bool                // jobs is the last chunk
}

func (c *cursor) job() *ledger.WaitingJob { return &c.jobs[c.pos] }

// next moves to the next job; the first call moves to the first one. It reports false at
// the end of the waitlist. It reads the jobs in chunks of growing size, so that a caller
// that needs only a few jobs does not pay for a long list.
func (c *cursor) next() bool {
	c.pos++
	if c.pos < len(c.jobs) {
		return true
	}
	if c.end {
		return false
	}
	skip, limit := c.readCount, min(4*c.readCount+1, 4096)
	c.jobs, c.pos, c.end = c.jobs[:0], 0, true
	for w := range c.waitlist {
		if skip > 0 {
			skip--
			continue
		}
		c.jobs = append(c.jobs, w)
		if len(c.jobs) == limit {
			c.end = false
			break
		}
	}
	c.readCount += len(c.jobs)
	return len(c.jobs) > 0
}

// visitRest calls visit for the current job and all after it.
func (c *cursor) visitRest(visit func(*ledger.WaitingJob) Step) {
	for ; c.pos < len(c.jobs); c.pos++ {
		if visit(c.job()) != Next {
			return
		}
	}
	if c.end {
		return
	}
	skip := c.readCount
	for w := range c.waitlist {
		if skip > 0 {
			skip--
			continue
		}
		c.jobs = append(c.jobs[:0], w) // not &w, which would be allocated for each job
		if visit(&c.jobs[0]) != Next {
			return
		}
	}
}

type cursorHeap []*cursor

func (h cursorHeap) Len() int           { return len(h) }
func (h cursorHeap) Less(i, j int) bool { return h[i].job().Before(h[j].job()) }
func (h cursorHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *cursorHeap) Push(x any)        { *h = append(*h, x.(*cursor)) }
func (h *cursorHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
