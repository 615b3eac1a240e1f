package ledger

import (
	"bytes"
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// JobPlace is a job's place in the order of all jobs: by time of acceptance, then by id.
// A job keeps it for life.
type JobPlace struct {
	Accepted int64 // Unix nanoseconds
	ID       job.ID
}

// Compare orders places as [cmp.Compare] does.
func (p JobPlace) Compare(o JobPlace) int {
	return cmp.Or(cmp.Compare(p.Accepted, o.Accepted), bytes.Compare(p.ID[:], o.ID[:]))
}

// FoundJobs is a page of jobs that an index of a ledger's jobs has found.
type FoundJobs struct {
	Documents []*job.Document
	More      bool     // more jobs may match
	Next      JobPlace // with More: the place after which these are
	Index     uint64   // of the ledger whose changes are all in the index
	// Lacking is why jobs that the ledger has forgotten may be missing, and keys, tags, metadata and params of
	// others. It is nil if none are.
	Lacking *job.UnavailableError
}

func (r *storedJob) place() JobPlace { return JobPlace{r.accepted, r.id} }

// JobQuery selects jobs, and a page of them.
type JobQuery struct {
	Queues   []string    // empty: all queues
	States   []job.State // empty: all states
	Function string      // "": any function
	Oldest   bool        // oldest first, not newest first
	After    *JobPlace   // the jobs after this place in the order of the list; nil: from its beginning
	Limit    int         // of the page, in jobs
	MaxScan  int         // how many jobs of other functions to pass over at most
}

// JobPage is a page of the jobs that a query selects.
type JobPage struct {
	Jobs    []ListedJob
	Next    *JobPlace       // where the next page continues; nil: this is the last one
	Totals  [job.States]int // number of jobs of the selected queues by state, whatever the other filters
	Missing string          // a queue that the query names and that does not exist; "": all exist
	Lacking string          // where jobs may be that the ledger has forgotten and the page lacks; "": it lacks none
}

// ListedJob is a job of a [JobPage].
type ListedJob struct {
	job.View      // without body and result
	Purged   bool // its record may have been purged from its stream
}

// JobList reads a page of jobs in steps, each of which takes a fraction of a millisecond, so
// that a list of thousands of queues does not delay the ledger. Between two steps, jobs may
// change. A queue is read in one step, and a job stays in its queue, so that none is missed or
// listed twice. The cost grows with the number of queues, of active jobs, and of the jobs of
// the page and those passed over, but not with the number of other jobs.
//
// A page may have fewer jobs than the query's limit, even none, and still not be the last one.
type JobList struct {
	query  JobQuery
	queues []string // that are still to be read, if the query names queues
	last   string   // the last queue that was read
	read   bool     // all queues have been read
	merge  jobMerge // of the queues
	after  JobPlace // of the last job that was listed or passed over
	passed int
	page   JobPage
	ledger *Ledger // during a step
}

// Bounds of one step of a [JobList].
const (
	maxQueuesStep = 32
	maxReadsStep  = 8 // each of at most maxJobsRead jobs
	maxJobsRead   = 64
)

// NewJobList returns the list of a query.
func NewJobList(query *JobQuery) *JobList {
	s := &JobList{query: *query, merge: jobMerge{oldest: query.Oldest}}
	s.queues = slices.Compact(slices.Sorted(slices.Values(query.Queues)))
	s.after = s.merge.beginning()
	if query.After != nil {
		s.after = *query.After
	}
	return s
}

// Page returns the page after the last step.
func (s *JobList) Page() *JobPage { return &s.page }

// Step reads more of the list, and reports whether the page is complete.
func (s *JobList) Step(l *Ledger) (done bool) {
	s.ledger = l
	defer func() { s.ledger = nil }()
	if !s.read {
		s.readQueues()
		return false
	}
	for s.merge.reads = 0; len(s.merge.sources) > 0; {
		if len(s.page.Jobs) == s.query.Limit || s.passed > s.query.MaxScan {
			s.page.Next = &s.after
			return true
		}
		if s.merge.reads >= maxReadsStep {
			return false
		}
		stored := s.merge.next()
		s.after = stored.place()
		if s.query.Function != "" && stored.function != s.query.Function {
			s.passed++
			continue
		}
		view, _ := stored.view()
		s.page.Jobs = append(s.page.Jobs, ListedJob{view, l.RecordPurged(view.Position)})
	}
	return true
}

// RecordPurged reports whether the record at a position may have been purged.
func (in *ingestion) RecordPurged(p job.Position) bool {
	if p.Relocated() {
		return p.Seq < in.relocatedFloor
	}
	return int(p.Lane) < len(in.lanes) && p.Seq < in.lanes[p.Lane].Floor
}

// readQueues reads the first job of each of the next queues.
func (s *JobList) readQueues() {
	next := s.nextQueues()
	active := s.activeOf(next)
	for _, q := range next {
		s.last = q.name
		for state, n := range q.totals() {
			s.page.Totals[state] += n
		}
		readMore := func(after JobPlace, n int) []*storedJob {
			q := s.ledger.jobs.queues.get(q.name) // it may have been removed since the last step
			if q == nil {
				return nil
			}
			return s.readQueue(q, s.activeOf([]*queue{q})[q], after, n)
		}
		s.merge.add(s.readQueue(q, active[q], s.after, 1), readMore)
	}
	s.read = len(next) == 0
}

// nextQueues returns the next queues to read, none at the end.
func (s *JobList) nextQueues() (next []*queue) {
	all := &s.ledger.jobs.queues.byName
	if len(s.query.Queues) == 0 {
		all.Ascend(s.last, func(name string, q *queue) bool {
			if name > s.last {
				next = append(next, q)
			}
			return len(next) < maxQueuesStep
		})
		return next
	}
	for len(s.queues) > 0 && len(next) < maxQueuesStep {
		name := s.queues[0]
		s.queues = s.queues[1:]
		if q, ok := all.Get(name); ok {
			next = append(next, q)
		} else {
			s.page.Missing = name
		}
	}
	return next
}

// activeOf returns the active jobs of queues, if the query selects them. All active jobs
// have one index, so that several queues are looked up at once.
func (s *JobList) activeOf(queues []*queue) (active map[*queue][]*storedJob) {
	active = make(map[*queue][]*storedJob)
	for _, q := range queues {
		if s.selects(job.Active) && q.counts[job.Active] > 0 {
			active[q] = make([]*storedJob, 0, q.counts[job.Active])
		}
	}
	if len(active) == 0 {
		return nil
	}
	for item := range s.ledger.jobs.active.Scan {
		q := s.ledger.jobs.queueOf(item.number)
		if of, ok := active[q]; ok {
			active[q] = append(of, s.ledger.jobs.at(item.number))
		}
	}
	return active
}

// selects reports whether the query selects jobs in a state.
func (s *JobList) selects(state job.State) bool {
	return len(s.query.States) == 0 || slices.Contains(s.query.States, state)
}

// readQueue returns the n first of a queue's jobs after a place in the order of the list, or
// fewer if there are not so many. It merges lists that are each in order: of the active
// jobs, of those in each other state and, by class and priority, of the waiting ones.
func (s *JobList) readQueue(q *queue, active []*storedJob, after JobPlace, n int) (read []*storedJob) {
	m, jobs := jobMerge{oldest: s.query.Oldest}, &s.ledger.jobs
	add := func(next func(JobPlace, int) []*storedJob) { m.add(next(after, min(n, 4)), next) }
	if len(active) > 0 {
		add(m.inMemory(active))
	}
	for state, count := range q.counts {
		switch state := job.State(state); {
		case count == 0 || !s.selects(state) || state == job.Active:
		case state != job.Waiting:
			add(m.byTime(jobs, q.lists[state]))
		default:
			for _, wl := range q.waitlists.Scan {
				if s.query.Function != "" && wl.class != Class(s.query.Function) {
					continue
				}
				for _, priority := range wl.priorities() {
					add(m.byPriority(jobs, wl, priority))
				}
			}
		}
	}
	for len(read) < n && len(m.sources) > 0 {
		read = append(read, m.next())
	}
	return read
}

// jobMerge merges lists of jobs. It is a heap of them by their next job.
type jobMerge struct {
	oldest  bool
	sources []*jobSource
	reads   int // number of reads since it was set to 0
}

// jobSource is one list of a merge. next returns some of the jobs after a place in the
// order of the merge, at least n if there are so many.
type jobSource struct {
	read []*storedJob // not empty
	next func(after JobPlace, n int) []*storedJob
	size int // of the last read
}

// beginning returns a place before all others in the order of the merge. The time of
// acceptance is never negative, and beyond the range of time it is not used.
func (m *jobMerge) beginning() JobPlace {
	if m.oldest {
		return JobPlace{Accepted: -1}
	}
	return JobPlace{Accepted: math.MaxInt64 - int64(time.Millisecond)}
}

// precedes reports whether place a is before b in the order of the merge.
func (m *jobMerge) precedes(a, b JobPlace) bool {
	if m.oldest {
		return a.Compare(b) < 0
	}
	return a.Compare(b) > 0
}

// add adds a list of which some jobs were read, unless they are none.
func (m *jobMerge) add(read []*storedJob, next func(JobPlace, int) []*storedJob) {
	if len(read) > 0 {
		heap.Push(m, &jobSource{read: read, next: next, size: len(read)})
	}
}

// next removes the first job from its list and returns it.
func (m *jobMerge) next() *storedJob {
	s := m.sources[0]
	first := s.read[0]
	if s.read = s.read[1:]; len(s.read) == 0 {
		m.reads++
		s.size = min(4*s.size, maxJobsRead)
		s.read = s.next(first.place(), s.size)
	}
	if len(s.read) == 0 {
		heap.Pop(m)
	} else {
		heap.Fix(m, 0)
	}
	return first
}

// priorities returns the priorities of the jobs in a waitlist, highest first.
func (wl *waitlist) priorities() (priorities []uint8) {
	for from := uint64(0); ; {
		found := false
		wl.jobs.Ascend(orderItem{key: from}, func(item orderItem) bool {
			found = true
			priorities = append(priorities, item.priority())
			return false
		})
		if !found {
			return priorities
		}
		lower := priorities[len(priorities)-1]
		if lower == 0 {
			return priorities
		}
		from = orderKey(lower-1, 0)
	}
}

// inMemory returns the list of some jobs.
func (m *jobMerge) inMemory(jobs []*storedJob) func(JobPlace, int) []*storedJob {
	m.sort(jobs)
	return func(after JobPlace, _ int) []*storedJob {
		i := slices.IndexFunc(jobs, func(stored *storedJob) bool { return m.precedes(after, stored.place()) })
		if i < 0 {
			return nil
		}
		return jobs[i:]
	}
}

// sort sorts jobs in the order of the merge.
func (m *jobMerge) sort(jobs []*storedJob) {
	slices.SortFunc(jobs, func(a, b *storedJob) int {
		if m.oldest {
			return a.place().Compare(b.place())
		}
		return b.place().Compare(a.place())
	})
}

// byTime returns the list of the jobs in a list by time of acceptance, which may be nil.
func (m *jobMerge) byTime(jobs *jobs, list *sortedList[timeItem]) func(JobPlace, int) []*storedJob {
	return func(after JobPlace, n int) (read []*storedJob) {
		if list == nil {
			return nil
		}
		collect := func(item timeItem) bool {
			if m.precedes(after, JobPlace{item.at, item.id}) {
				read = append(read, jobs.at(item.number))
			}
			return len(read) < n
		}
		pivot := timeItem{at: after.Accepted, id: after.ID}
		if m.oldest {
			list.Ascend(pivot, collect)
		} else {
			list.Descend(pivot, collect)
		}
		return read
	}
}

// byPriority returns the list of a waitlist's jobs of one priority. The waitlist has those
// that were accepted at the same time in the order of their records, so they are read
// together and sorted.
func (m *jobMerge) byPriority(jobs *jobs, wl *waitlist, priority uint8) func(JobPlace, int) []*storedJob {
	return func(after JobPlace, n int) (read []*storedJob) {
		collect := func(item orderItem) bool {
			if item.priority() != priority {
				return false
			}
			stored := jobs.at(item.number)
			if len(read) >= n && stored.accepted != read[len(read)-1].accepted {
				return false
			}
			if m.precedes(after, stored.place()) {
				read = append(read, stored)
			}
			return true
		}
		if from := max(after.Accepted, 0); m.oldest {
			wl.jobs.Ascend(acceptedAt(priority, from), collect)
		} else { // sequences begin with 1: no job is at the pivot
			from := after.Accepted + 1
			wl.jobs.Descend(acceptedAt(priority, from), collect)
		}
		m.sort(read)
		return read
	}
}

// acceptedAt returns an item that precedes those of the jobs of a priority that were accepted
// at a time or later.
func acceptedAt(priority uint8, at int64) orderItem {
	first := storedJob{record: record{priority: priority, accepted: at, lane: job.RelocatedLane}}
	return first.order()
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (m *jobMerge) Len() int { return len(m.sources) }

func (m *jobMerge) Less(a, b int) bool {
	return m.precedes(m.sources[a].read[0].place(), m.sources[b].read[0].place())
}

func (m *jobMerge) Swap(a, b int) { m.sources[a], m.sources[b] = m.sources[b], m.sources[a] }

func (m *jobMerge) Push(x any) { m.sources = append(m.sources, x.(*jobSource)) }

func (m *jobMerge) Pop() any {
	last := len(m.sources) - 1
	s := m.sources[last]
	m.sources = m.sources[:last]
	return s
}
