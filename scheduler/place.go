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
	seat *seat
}

// choose picks a worker for every waiting job that may run now, and reserves
// its room. Its cost goes by the picks it makes, not by the backlog.
func (m *mind) choose(l *ledger.Ledger) {
	if l.OutboxBytes() >= ledger.MaxOutbox/4*3 {
		return
	}
	for _, r := range m.rooms {
		if r.free() > 0 {
			merge(m.linesFor(l, r.key), func(w ledger.Waiting) step { return m.take(l, w, r) })
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
func (m *mind) take(l *ledger.Ledger, w ledger.Waiting, r *room) step {
	key := dispatchKey{w.ID, w.N}
	if _, ok := m.placing[key]; ok {
		return goOn
	}
	if room := l.Room(w.Queue); room != math.MaxInt && room <= m.taking[w.Queue] {
		return skipLine
	}
	s := r.next()
	if s == nil {
		return stop
	}
	s.reserved++
	p := &pick{Waiting: w, seat: s}
	m.placing[key] = p
	m.taking[w.Queue]++
	m.entry.picks = append(m.entry.picks, p)
	m.entry.size += placeSize
	m.hurry()
	return goOn
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
			lines = append(lines, inOrder(jobs))
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

// inOrder yields jobs of one line by their order of start. They came in the
// order of acceptance, so only priorities can disturb it.
func inOrder(jobs []ledger.Waiting) iter.Seq[ledger.Waiting] {
	return func(yield func(ledger.Waiting) bool) {
		for p := job.MaxPriority; p >= 0; p-- {
			for _, w := range jobs {
				if int(w.Priority) == p && !yield(w) {
					return
				}
			}
		}
	}
}

// merge visits the jobs of several ordered lines as one ordered line.
func merge(lines []iter.Seq[ledger.Waiting], visit func(ledger.Waiting) step) {
	if len(lines) == 1 {
		for w := range lines[0] {
			if visit(w) != goOn {
				return
			}
		}
		return
	}
	h := make(heads, 0, len(lines))
	defer func() {
		for _, head := range h {
			head.stop()
		}
	}()
	for _, line := range lines {
		next, stop := iter.Pull(line)
		if w, ok := next(); ok {
			h = append(h, lineHead{w, next, stop})
		} else {
			stop()
		}
	}
	heap.Init(&h)
	for len(h) > 0 {
		what := visit(h[0].Waiting)
		if what == stop {
			return
		}
		if w, ok := h[0].next(); ok && what == goOn {
			h[0].Waiting = w
			heap.Fix(&h, 0)
		} else {
			h[0].stop()
			heap.Pop(&h)
		}
	}
}

// lineHead is the first job of a line that is being merged.
type lineHead struct {
	ledger.Waiting
	next func() (ledger.Waiting, bool)
	stop func()
}

type heads []lineHead

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].Before(&h[j].Waiting) }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(lineHead)) }
func (h *heads) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// addPicks puts the placements into the entry.
func (m *mind) addPicks(add func(ledger.Command, func(ledger.Result, uint64))) {
	picks := m.entry.picks
	if len(picks) == 0 {
		return
	}
	c := &ledger.Place{Placements: make([]ledger.Placement, len(picks))}
	for i, p := range picks {
		c.Placements[i] = ledger.Placement{
			Job: p.ID, N: p.N, Node: p.seat.node.name, Incarnation: p.seat.node.incarnation, Channel: p.seat.channel,
		}
	}
	add(c, func(r ledger.Result, index uint64) { m.placed(picks, r.Placed, index) })
}
