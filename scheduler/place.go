package scheduler

import (
	"container/heap"
	"iter"
	"math"

	"yardmaster/job"
	"yardmaster/ledger"
)

// roomKey names hands that are alike: an Overhop queue's workers, or an RRQ
// runner's processes.
type roomKey struct {
	kind job.Kind
	key  string
}

// lineKey names a line of waiting jobs that the same hands may run.
type lineKey struct{ queue, class string }

func lineOf(j *job.Job) lineKey { return lineKey{j.Queue, ledger.Class(j.Function)} }

// pick is a placement: a job and who is to run it.
type pick struct {
	ledger.Waiting
	seat        *seat
	incarnation uint64 // of the seat's node when it was picked
}

// maxPicks is how many placements an entry takes at most.
const maxPicks = 1000

// choose picks a worker for every waiting job that may run now, and reserves
// its room. Its cost goes by the picks it makes, not by the backlog.
func (m *mind) choose(l *ledger.Ledger) {
	if l.OutboxBytes() >= ledger.MaxOutbox/4*3 {
		return
	}
	for i := range m.turns {
		if len(m.entry.picks) >= maxPicks {
			m.turn += i // whose turn it is in the next entry
			return
		}
		r := m.turns[(m.turn+i)%len(m.turns)]
		if r.free() {
			merge(m.linesFor(l, r.key), func(w *ledger.Waiting) step { return m.take(l, w, r) })
		}
	}
}

// step tells a walk over lines how to go on.
type step uint8

const (
	goOn     step = iota // with the next job
	skipLine             // with the other lines
	stop
)

// take reserves a seat for a job unless the job is on its way already or its
// queue has no room.
func (m *mind) take(l *ledger.Ledger, w *ledger.Waiting, r *room) step {
	key := dispatchKey{w.ID, w.N}
	if _, ok := m.placing[key]; ok {
		return goOn
	}
	if m.unreadable(w.Position) {
		return goOn
	}
	if room := l.Room(w.Queue); room != math.MaxInt && room <= m.taking[w.Queue] {
		return skipLine
	}
	if len(m.entry.picks) >= maxPicks {
		return stop
	}
	s := r.reserve()
	if s == nil {
		return stop
	}
	p := &pick{Waiting: *w, seat: s, incarnation: s.node.incarnation}
	m.placing[key] = p
	m.taking[w.Queue]++
	m.entry.picks = append(m.entry.picks, p)
	m.entry.size += placeSize
	m.hurry()
	return goOn
}

// unreadable tells that a job's body is not at hand and lies in a lane that is
// lost: it waits until somebody brings that back, and others go on.
func (m *mind) unreadable(at job.Position) bool {
	return m.lost(at) && !m.bodies.has(at)
}

// lost tells that no record can be read in a lane. Any goroutine may ask.
func (m *mind) lost(at job.Position) bool {
	return int(at.Lane) < len(m.lanes) && m.lanes[at.Lane].lost.Load()
}

// unplace forgets a placement that is decided.
func (m *mind) unplace(p *pick) {
	delete(m.placing, dispatchKey{p.ID, p.N})
	if m.taking[p.Queue]--; m.taking[p.Queue] == 0 {
		delete(m.taking, p.Queue)
	}
}

// linesFor gives the lines that a room's hands may run jobs of. Lines of
// queues without room are left out: nothing in them can start.
func (m *mind) linesFor(l *ledger.Ledger, k roomKey) []iter.Seq[ledger.Waiting] {
	var lines []iter.Seq[ledger.Waiting]
	add := func(queue, class string) {
		if room := l.Room(queue); room <= m.taking[queue] {
			return
		}
		lines = append(lines, func(yield func(ledger.Waiting) bool) { l.Line(queue, class, yield) })
		if jobs := m.shadow[lineKey{queue, class}]; len(jobs) > 0 {
			lines = append(lines, shadowLine(jobs))
		}
	}
	if k.kind == job.Overhop {
		if m.cfg.Routes[k.key] == "" {
			add(k.key, ledger.ClassPlain)
			add(k.key, ledger.ClassBare)
		}
		return lines
	}
	own := k.key + "#"
	m.linesOfClass(l, own, func(queue string) { add(queue, own) })
	for queue, runner := range m.cfg.Routes {
		if runner == k.key {
			add(queue, ledger.ClassPlain)
			add(queue, ledger.ClassBare)
		}
	}
	if k.key == m.cfg.DefaultRunner {
		m.linesOfClass(l, ledger.ClassBare, func(queue string) {
			if m.cfg.Routes[queue] == "" {
				add(queue, ledger.ClassBare)
			}
		})
	}
	return lines
}

// linesOfClass names the queues with jobs of a class, in the ledger or in the
// shadow.
func (m *mind) linesOfClass(l *ledger.Ledger, class string, yield func(queue string)) {
	seen := map[string]bool{}
	l.BusyLines(class, func(queue string) bool {
		seen[queue] = true
		yield(queue)
		return true
	})
	for k := range m.shadow {
		if k.class == class && !seen[k.queue] {
			yield(k.queue)
		}
	}
}

// merge visits the jobs of several ordered lines as one ordered line.
func merge(lines []iter.Seq[ledger.Waiting], visit func(*ledger.Waiting) step) {
	h := make(heads, 0, len(lines))
	for _, line := range lines {
		if head := (lineHead{line: line}); head.next() {
			h = append(h, head)
		}
	}
	heap.Init(&h)
	for len(h) > 1 {
		what := visit(h[0].job())
		if what == stop {
			return
		}
		if what == goOn && h[0].next() {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
	if len(h) == 1 {
		h[0].rest(visit)
	}
}

// lineHead stands in a line that is being merged. It reads ever more of the
// line at a time, each time from its begin: most merges take only the first
// job of most lines, and a walk that can be suspended costs more than that.
type lineHead struct {
	line iter.Seq[ledger.Waiting]
	jobs []ledger.Waiting // what was read last
	at   int
	read int // altogether
	end  bool
}

func (h *lineHead) job() *ledger.Waiting { return &h.jobs[h.at] }

// next goes on by one job, or to the first. It reports false at the end.
func (h *lineHead) next() bool {
	if h.at++; h.at < len(h.jobs) {
		return true
	}
	if h.end {
		return false
	}
	skip, most := h.read, min(4*h.read+1, 4096)
	h.jobs, h.at, h.end = h.jobs[:0], 0, true
	for w := range h.line {
		if skip > 0 {
			skip--
			continue
		}
		if h.jobs = append(h.jobs, w); len(h.jobs) == most {
			h.end = false
			break
		}
	}
	h.read += len(h.jobs)
	return len(h.jobs) > 0
}

// rest visits the job the head stands at and all behind it.
func (h *lineHead) rest(visit func(*ledger.Waiting) step) {
	skip := h.read - len(h.jobs) + h.at
	for w := range h.line {
		if skip > 0 {
			skip--
		} else if visit(&w) != goOn {
			return
		}
	}
}

type heads []lineHead

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].job().Before(h[j].job()) }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(lineHead)) }
func (h *heads) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// addPicks puts the placements into the entry.
func (m *mind) addPicks(d *draft) {
	picks := m.entry.picks
	if len(picks) == 0 {
		return
	}
	c := &ledger.Place{Placements: make([]ledger.Placement, len(picks))}
	for i, p := range picks {
		c.Placements[i] = ledger.Placement{
			Job: p.ID, N: p.N, Node: p.seat.node.name, Incarnation: p.incarnation, Channel: p.seat.channel,
		}
	}
	d.add(c, func(r ledger.Result, index uint64) { m.placed(picks, r.Placed, index) })
	if len(picks) == maxPicks {
		m.dirty = true // there may be more to place
	}
}
