package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// pendingRecord is a parsed record. It shares no memory with the message that
// brought the record.
type pendingRecord struct {
	record job.Record // its Body is nil if it is too large for an assignment
	job    job.Job    // only the ID and the BlobOwner if the record is rejected
	err    error      // why the record is rejected, at most maxReason bytes; nil: it is not

	ingested func() // see [Verdict]
}

// pendingMessage is the parsed records of a lane's message.
type pendingMessage struct {
	seq     uint64
	records []pendingRecord
}

// complete reports whether m has all records of the message: a record that was not ingested with
// the others would be lost.
func (m *pendingMessage) complete() bool {
	for i := range m.records {
		if r := &m.records[i].record; int(r.Index) != i || r.Last != (i == len(m.records)-1) {
			return false
		}
	}
	return true
}

// detach copies the parts of the message that the record needs, and drops a body that is
// too large for an assignment. One message contains hundreds of records; a job may wait
// in the ledger for days and must not keep the whole message in memory.
func (r *pendingRecord) detach() {
	switch {
	case r.err != nil:
		reason := r.err.Error()
		reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
		r.err = errors.New(strings.Clone(reason))
		r.job = job.Job{ID: r.job.ID, BlobOwner: r.job.BlobOwner}
		r.record = job.Record{Position: r.record.Position, Queue: r.record.Queue, Stored: r.record.Stored, Last: r.record.Last}
	case len(r.record.Body) > maxCachedBody:
		r.record.Body = nil
	default:
		r.record.Body = bytes.Clone(r.record.Body)
	}
}

// size estimates the size of the message's records in an entry, in bytes.
func (m *pendingMessage) size() (size int) {
	for i := range m.records {
		size += m.records[i].size()
	}
	return size
}

// size estimates the size of the record in an entry, in bytes.
func (r *pendingRecord) size() int {
	n := recordSize + len(r.record.Queue) + len(r.job.Function) + len(r.job.Labels)
	if r.err != nil {
		n += maxReason
	}
	if r.job.Guards != nil {
		n += guardsSize
	}
	return n
}

// addMessage appends the lane's next message to its pending ones.
func (ls *lanes) addMessage(lane *laneState, m pendingMessage) {
	if len(lane.pending) == 0 {
		ls.pending = append(ls.pending, lane)
		lane.receivedAt = time.Now()
	}
	lane.pending = append(lane.pending, m)
	lane.pendingRecords += len(m.records)
	lane.next++
	ls.loop.entry.size += m.size()
	if ls.blocked == "" && !lane.held {
		ls.loop.markUrgent()
	}
}

// addIngests moves pending records into the entry, up to ls.loop.ingestSize bytes, of which
// each lane gets an equal share. Jobs that are due join the provisional waitlists, so
// that the same entry can place them. While ingest is blocked, it does nothing.
func (ls *lanes) addIngests(l *ledger.Ledger, b *entryBuilder) {
	ls.updateBlocked(l)
	if ls.blocked != "" {
		return
	}
	budget := ls.loop.ingestSize()
	waiting := ls.pending
	ls.pending = nil
	for i, lane := range waiting {
		if lane.held {
			ls.pending = append(ls.pending, lane)
			continue
		}
		share, n := budget/(len(waiting)-i), 0 // messages
		for n < len(lane.pending) && share > 0 {
			size := lane.pending[n].size()
			share -= size
			budget -= size
			n++
		}
		if n > 0 {
			ls.addIngest(l, b, lane, n)
			lane.receivedAt = time.Now()
		}
		lane.pending = lane.pending[n:]
		if lane.behind.Load() && lane.pendingRecords < maxPendingRecords/2 {
			lane.behind.Store(false)
			ls.requestRead(lane)
		}
		if len(lane.pending) == 0 {
			lane.pending = nil // releases the array
			continue
		}
		ls.pending = append(ls.pending, lane)
	}
}

// maxReason is the maximum length of a rejection's reason, which may quote the
// record, in bytes.
const maxReason = 512

// addIngest adds to the entry the command that ingests the first n pending messages of a
// lane. Once it is applied, jobs that do not wait leave the body cache.
func (ls *lanes) addIngest(l *ledger.Ledger, b *entryBuilder, lane *laneState, n int) {
	messages, count := lane.pending[:n], 0
	for i := range messages {
		count += len(messages[i].records)
	}
	lane.pendingRecords -= count
	from := messages[0].seq - 1
	c := &ledger.Ingest{
		Lane: lane.number, Identity: lane.identity, From: from, To: from + uint64(n),
		CreateQueues: ls.loop.cfg.CreateQueues, Jobs: make([]job.Job, 0, count),
	}
	ls.ingests++
	provisional := provisionalJobs{ingest: ls.ingests, jobs: make([]provisionalJob, 0, count)}
	var ingested []func()
	add := func(r *pendingRecord) {
		if r.ingested != nil {
			ingested = append(ingested, r.ingested)
		}
		if r.err != nil {
			c.Rejected = append(c.Rejected, ledger.Rejection{
				ID: r.job.ID, Queue: r.record.Queue, Seq: r.record.Seq, Index: r.record.Index, Accepted: r.record.Stored, Reason: r.err.Error(), BlobOwner: r.job.BlobOwner,
			})
			return
		}
		c.Jobs = append(c.Jobs, r.job)
		delayed := r.job.Delay > 0 || r.job.RunAt.After(b.at.Wall)
		blocked := r.job.Guards != nil && l.GuardsBlock(r.job.Guards)
		if delayed || blocked {
			return
		}
		if _, known := l.Known(r.job.ID); !known {
			ls.bodies.put(r.job.Position, r.record.Body)
			if inOrder := r.job.LimitKey == "" && len(r.job.Limits) == 0 && !l.Ages(r.job.Queue); inOrder {
				ls.provisional.add(&provisional, &r.job, b.at.Wall)
			}
		}
	}
	for i := range messages {
		for k := range messages[i].records {
			add(&messages[i].records[k])
		}
	}
	b.add(c, func(result ledger.Result, _ uint64) {
		ls.provisional.remove(&provisional)
		if result.Err != nil {
			ls.loop.log.Error("ingest refused by the ledger", "lane", lane.number, "from", from, "err", result.Err)
			ls.resync(lane)
			return
		}
		ls.counters.countIngested(result.Ingested, len(c.Rejected))
		for _, fn := range ingested {
			fn()
		}
		for i, became := range result.Ingested {
			if became != ledger.IngestedWaiting {
				ls.bodies.take(c.Jobs[i].Position)
			}
		}
	})
}

// pendingSize returns the estimated size of the messages that wait for an entry, in
// bytes.
func (ls *lanes) pendingSize() (size int) {
	for _, lane := range ls.pending {
		for i := range lane.pending {
			size += lane.pending[i].size()
		}
	}
	return size
}

// ingestible reports whether records are pending that may be ingested.
func (ls *lanes) ingestible() bool {
	return ls.blocked == "" && slices.ContainsFunc(ls.pending, func(lane *laneState) bool { return !lane.held })
}

// updateBlocked sets ls.blocked, the reason why nothing is ingested: the ledger has all jobs
// that it may have, the outbox is half full, or the reason that Config.BlockedReason returns. It also determines which lanes are
// held.
func (ls *lanes) updateBlocked(l *ledger.Ledger) {
	for _, lane := range ls.all {
		lane.held = !ls.mayIngest(l, lane.number)
	}
	ls.forgotten = l.ForgottenIDs()
	ls.blocked = ""
	if ls.loop.cfg.BlockedReason != nil {
		ls.blocked = ls.loop.cfg.BlockedReason()
	}
	switch {
	case l.JobsFull():
		ls.blocked = fmt.Sprintf("the ledger has %d jobs, the maximum, and no more are taken from the lanes until some have ended and are forgotten: add workers, or shorten the retention of finished jobs", ledger.MaxJobs)
	case l.OutboxBytes() >= ledger.MaxOutbox/2:
		ls.blocked = "the outbox is half full: history, results or dead letters cannot be published, and no more jobs are taken from the lanes until they are"
	}
}

// provisionalJob is a due job whose ingest is in flight.
type provisionalJob struct {
	ledger.WaitingJob
	ingest uint64
}

// provisionalJobs are the provisional jobs of one ingest, and their waitlists.
type provisionalJobs struct {
	ingest    uint64
	jobs      []provisionalJob
	waitlists []waitlistKey
}

// provisionalWaitlists are the due jobs whose ingest is in flight, in start order. The
// jobs of the ledger's waitlists and these make up what can be placed.
type provisionalWaitlists map[waitlistKey][]*provisionalJob

// add inserts a job into its waitlist, in start order.
func (p provisionalWaitlists) add(s *provisionalJobs, j *job.Job, at time.Time) {
	k := waitlistKey{j.Queue, ledger.Class(j.Function)}
	if !slices.Contains(s.waitlists, k) {
		s.waitlists = append(s.waitlists, k)
	}
	s.jobs = append(s.jobs, provisionalJob{ledger.WaitingJob{Job: *j, N: 1, Attempt: 1, Due: at}, s.ingest})
	w := &s.jobs[len(s.jobs)-1]
	list := p[k]
	position := len(list)
	if position > 0 && w.Before(&list[position-1].WaitingJob) { // it has a higher priority, or comes from another lane
		position = sort.Search(position, func(i int) bool { return w.Before(&list[i].WaitingJob) })
	}
	p[k] = slices.Insert(list, position, w)
}

// remove removes the jobs of an applied ingest from their waitlists.
func (p provisionalWaitlists) remove(s *provisionalJobs) {
	for _, k := range s.waitlists {
		list := slices.DeleteFunc(p[k], func(w *provisionalJob) bool { return w.ingest == s.ingest })
		p[k] = list
		if len(list) == 0 {
			delete(p, k)
		}
	}
}

// provisionalSeq returns an iterator over jobs.
func provisionalSeq(jobs []*provisionalJob) iter.Seq[ledger.WaitingJob] {
	return func(yield func(ledger.WaitingJob) bool) {
		for i := range jobs {
			if !yield(jobs[i].WaitingJob) {
				return
			}
		}
	}
}

// Limits of the body cache, in bytes.
const (
	maxCachedBody   = 4 << 10  // one body
	maxCachedBodies = 64 << 20 // all bodies with their overhead
	bodyOverhead    = 96       // estimated memory per body, in addition to its bytes
)

// bodyCache holds small bodies of jobs that are about to be placed, so that their
// assignments can carry them; nodes read other bodies from the lane. The key is the
// record's position, because two records may have the same job id.
type bodyCache struct {
	bodies map[job.Position][]byte // none shares memory with a message, see [pendingRecord.detach]
	order  []job.Position          // in the order of put; may contain positions that were taken
	bytes  int                     // memory that the bodies use
}

func newBodyCache() bodyCache { return bodyCache{bodies: map[job.Position][]byte{}} }

// put stores a body unless it is too large, and evicts the oldest bodies while the
// cache is too large.
func (c *bodyCache) put(pos job.Position, body []byte) {
	if _, have := c.bodies[pos]; have || len(body) == 0 || len(body) > maxCachedBody {
		return
	}
	c.bodies[pos] = body
	c.order = append(c.order, pos)
	c.bytes += bodyOverhead + cap(body)
	for c.bytes > maxCachedBodies {
		c.take(c.order[0])
		c.order = c.order[1:]
	}
	if len(c.order) > 2*len(c.bodies)+1024 {
		c.order = slices.DeleteFunc(c.order, func(pos job.Position) bool { return c.bodies[pos] == nil })
	}
}

// has reports whether a body is cached.
func (c *bodyCache) has(pos job.Position) bool { return c.bodies[pos] != nil }

// take removes a body from the cache and returns it; nil if it is not cached.
func (c *bodyCache) take(pos job.Position) []byte {
	body, ok := c.bodies[pos]
	if ok {
		delete(c.bodies, pos)
		c.bytes -= bodyOverhead + cap(body)
	}
	return body
}
