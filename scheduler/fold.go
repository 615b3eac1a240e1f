package scheduler

import (
	"iter"
	"slices"
	"sort"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// pendingRecord is a record read and judged.
type pendingRecord struct {
	record job.Record
	facts  job.Job
	err    error
}

// size is what the record takes in an entry, in bytes.
func (r *pendingRecord) size() int {
	n := foldSize + len(r.record.Queue) + len(r.facts.Function)
	if r.err != nil {
		n += maxReason
	}
	if r.facts.Guards != nil {
		n += guardsSize
	}
	return n
}

// pendingFold is a stretch of one lane that waits for its entry.
type pendingFold struct {
	lane    *laneState
	from    uint64
	records []pendingRecord
}

// accept puts a record into the fold that the next entry carries.
func (m *mind) accept(lane *laneState, r pendingRecord) {
	f := m.foldOf(lane)
	if f == nil {
		f = &pendingFold{lane: lane, from: lane.next - 1}
		m.entry.folds = append(m.entry.folds, f)
		lane.heardAt = time.Now()
	}
	f.records = append(f.records, r)
	lane.next++
	m.entry.size += r.size()
	if m.blocked == "" {
		m.hurry()
	}
}

func (m *mind) foldOf(lane *laneState) *pendingFold {
	for _, f := range m.entry.folds {
		if f.lane == lane {
			return f
		}
	}
	return nil
}

func (m *mind) unfolded(lane *laneState) int {
	if f := m.foldOf(lane); f != nil {
		return len(f.records)
	}
	return 0
}

// addFolds moves pending records into the entry, as far as it has room, which
// the lanes share. Due jobs join the shadow lines, where they may be placed at
// once.
func (m *mind) addFolds(l *ledger.Ledger, d *draft) {
	if m.checkOutbox(l); m.blocked != "" {
		return
	}
	room := maxFolds
	folds := m.entry.folds
	m.entry.folds = nil
	for i, f := range folds {
		share, n := room/(len(folds)-i), 0
		for n < len(f.records) && share > 0 {
			size := f.records[n].size()
			share -= size
			room -= size
			n++
		}
		if n > 0 {
			m.addFold(l, d, f.lane, f.from, f.records[:n])
		}
		if n < len(f.records) {
			f.from += uint64(n)
			f.records = f.records[n:]
			m.entry.folds = append(m.entry.folds, f)
		}
	}
}

// maxReason bounds why a record was rejected, in bytes: it may quote the
// record.
const maxReason = 512

func (m *mind) addFold(l *ledger.Ledger, d *draft, lane *laneState, from uint64, records []pendingRecord) {
	c := &ledger.Fold{
		Lane: lane.number, Identity: lane.identity, From: from, To: from + uint64(len(records)),
		CreateQueues: m.cfg.CreateQueues, Jobs: make([]job.Job, 0, len(records)),
	}
	m.folds++
	shade := shade{fold: m.folds, jobs: make([]shadowJob, 0, len(records))}
	for i := range records {
		r := &records[i]
		if r.err != nil {
			reason := r.err.Error()
			c.Rejected = append(c.Rejected, ledger.Rejection{
				ID: r.facts.ID, Queue: r.record.Queue, Seq: r.record.Seq, Accepted: r.record.Stored,
				Reason: strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""),
			})
			continue
		}
		c.Jobs = append(c.Jobs, r.facts)
		if g := r.facts.Guards; r.facts.RunAt.After(d.at) || g != nil && l.Hindered(g) {
			continue
		}
		if _, known := l.Known(r.facts.ID); !known {
			m.bodies.put(r.facts.Position, r.record.Body)
			m.cast(&shade, &r.facts, d.at)
		}
	}
	d.add(c, func(result ledger.Result, _ uint64) {
		m.uncast(&shade)
		if result.Err != nil {
			m.sched.log.Error("fold refused", "lane", lane.number, "from", from, "error", result.Err)
			m.resync(lane)
			return
		}
		m.sched.tallies.folded(result.Folded, len(c.Rejected))
		for i, folded := range result.Folded {
			if folded != ledger.FoldedWaiting {
				m.bodies.take(c.Jobs[i].Position)
			}
		}
	})
}

// checkOutbox stops folding while the outbox is half full, or the node has no
// room.
func (m *mind) checkOutbox(l *ledger.Ledger) {
	m.blocked = ""
	if m.cfg.Held != nil {
		m.blocked = m.cfg.Held()
	}
	if l.OutboxBytes() >= ledger.MaxOutbox/2 {
		m.blocked = "the outbox is half full: history, results or dead letters cannot be published, and no more jobs are taken from the lanes until they are"
	}
}

// shadowJob is a due job whose fold is in flight.
type shadowJob struct {
	ledger.Waiting
	fold uint64
}

// shade is what one fold casts: its jobs, and the lines that they stand in.
type shade struct {
	fold  uint64
	jobs  []shadowJob
	lines []lineKey
}

// cast lines a job up in the shadow of its line, by the order of start.
func (m *mind) cast(s *shade, j *job.Job, at time.Time) {
	k := lineOf(j)
	if !slices.Contains(s.lines, k) {
		s.lines = append(s.lines, k)
	}
	s.jobs = append(s.jobs, shadowJob{ledger.Waiting{Job: *j, N: 1, Attempt: 1, Due: at}, s.fold})
	w := &s.jobs[len(s.jobs)-1]
	line := m.shadow[k]
	i := len(line)
	if i > 0 && w.Before(&line[i-1].Waiting) { // another lane's, or of higher priority
		i = sort.Search(i, func(i int) bool { return w.Before(&line[i].Waiting) })
	}
	m.shadow[k] = slices.Insert(line, i, w)
}

// uncast takes a fold's jobs out of the shadow: the ledger has them now.
func (m *mind) uncast(s *shade) {
	for _, k := range s.lines {
		line := slices.DeleteFunc(m.shadow[k], func(w *shadowJob) bool { return w.fold == s.fold })
		if m.shadow[k] = line; len(line) == 0 {
			delete(m.shadow, k)
		}
	}
}

func shadowLine(line []*shadowJob) iter.Seq[ledger.Waiting] {
	return func(yield func(ledger.Waiting) bool) {
		for i := range line {
			if !yield(line[i].Waiting) {
				return
			}
		}
	}
}

// Bodies kept so that an assignment can carry its own.
const (
	maxBody   = 4 << 10  // bytes, of one
	maxBodies = 64 << 20 // bytes, of all
	bodyCost  = 96       // bytes, beside a body
)

// bodyCache holds the bodies of jobs that are about to be placed, by where
// they lie: an id may have come with two. What it has not, nodes read from the
// lane.
type bodyCache struct {
	bodies map[job.Position][]byte
	order  []job.Position // as they came; taken ones are skipped
	bytes  int
}

func newBodyCache() bodyCache { return bodyCache{bodies: map[job.Position][]byte{}} }

func (c *bodyCache) put(at job.Position, body []byte) {
	if _, have := c.bodies[at]; have || len(body) == 0 || len(body) > maxBody {
		return
	}
	c.bodies[at] = body
	c.order = append(c.order, at)
	c.bytes += bodyCost + len(body)
	for c.bytes > maxBodies {
		c.take(c.order[0])
		c.order = c.order[1:]
	}
	if len(c.order) > 2*len(c.bodies)+1024 {
		c.order = slices.DeleteFunc(c.order, func(at job.Position) bool { return c.bodies[at] == nil })
	}
}

func (c *bodyCache) has(at job.Position) bool { return c.bodies[at] != nil }

// take gives a body and forgets it; nil if it is not here.
func (c *bodyCache) take(at job.Position) []byte {
	body, ok := c.bodies[at]
	if ok {
		delete(c.bodies, at)
		c.bytes -= bodyCost + len(body)
	}
	return body
}
