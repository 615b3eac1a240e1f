package ledger

import (
	"strings"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// MaxStalled is how many stalled workers are remembered. Beyond it the one
// that stalled first is forgotten: its recovery is not told.
const MaxStalled = 10_000

// stalls remembers which workers are stalled, so that history tells each stall
// and each recovery once, and how much of every node's notes it has heard.
// A worker's channel means something on its node only.
type stalls struct {
	workers *btree.BTreeG[stall]
	byAge   *btree.Map[uint64, stall] // by the event that told it
	heard   *btree.Map[string, heard] // by node
}

type stall struct {
	node, worker string
	event        uint64 // number of the event that told it
}

// heard is how far a node's notes have been taken. Their numbers begin anew
// with every incarnation.
type heard struct{ incarnation, last uint64 }

func newStalls() stalls {
	return stalls{
		workers: btree.NewBTreeGOptions(func(a, b stall) bool {
			return a.node < b.node || a.node == b.node && a.worker < b.worker
		}, treeOptions),
		byAge: new(btree.Map[uint64, stall]),
		heard: new(btree.Map[string, heard]),
	}
}

func (s *stalls) copy() stalls {
	return stalls{workers: s.workers.Copy(), byAge: s.byAge.Copy(), heard: s.heard.Copy()}
}

func (s *stalls) add(w stall) {
	s.workers.Set(w)
	s.byAge.Set(w.event, w)
}

// drop forgets a stalled worker; false if it is none.
func (s *stalls) drop(node, worker string) bool {
	w, ok := s.workers.Delete(stall{node: node, worker: worker})
	if ok {
		s.byAge.Delete(w.event)
	}
	return ok
}

// dropNode forgets the stalled workers of a node that was started anew: they
// went with its former life.
func (s *stalls) dropNode(node string) {
	var gone []stall
	s.workers.Ascend(stall{node: node}, func(w stall) bool {
		if w.node == node {
			gone = append(gone, w)
		}
		return w.node == node
	})
	for _, w := range gone {
		s.drop(w.node, w.worker)
	}
}

// noteWorkers takes a node's notes, each once, however often it repeats them.
func (l *Ledger) noteWorkers(c *NoteWorkers) Result {
	s := &l.stalls
	h, _ := s.heard.Get(c.Node)
	switch {
	case c.Incarnation < h.incarnation:
		return Result{} // of a former life, which nobody waits for
	case c.Incarnation > h.incarnation:
		s.dropNode(c.Node)
		h = heard{incarnation: c.Incarnation}
	}
	for i := range c.Notes {
		if number := c.First + uint64(i); number > h.last {
			h.last = number
			l.note(c.Node, &c.Notes[i])
		}
	}
	s.heard.Set(strings.Clone(c.Node), h)
	return Result{}
}

// note tells of a stall unless the worker is stalled already, and of a
// recovery only if it is; but a worker that came back need not have stalled.
func (l *Ledger) note(node string, n *job.Note) {
	s := &l.stalls
	worker, detail := strings.Clone(n.Worker), strings.Clone(n.Detail)
	if !n.Stalled {
		if s.drop(node, worker) || detail == job.RecoveredResumed {
			l.outbox.emit(Event{Kind: WorkerRecovered, A: worker, B: detail})
		}
		return
	}
	if _, known := s.workers.Get(stall{node: node, worker: worker}); known {
		return
	}
	if s.workers.Len() >= MaxStalled {
		_, oldest, _ := s.byAge.Min()
		s.drop(oldest.node, oldest.worker)
	}
	l.outbox.emit(Event{Kind: WorkerStalled, A: worker, B: detail})
	s.add(stall{node: strings.Clone(node), worker: worker, event: l.outbox.next})
}

func (e *encoder) stalls(s *stalls) {
	e.uint(uint64(s.byAge.Len()))
	s.byAge.Scan(func(event uint64, w stall) bool {
		e.uint(event)
		e.text(w.node)
		e.text(w.worker)
		return e.err == nil
	})
	e.uint(uint64(s.heard.Len()))
	s.heard.Scan(func(node string, h heard) bool {
		e.text(node)
		e.uint(h.incarnation)
		e.uint(h.last)
		return e.err == nil
	})
}

func (d *decoder) stalls(s *stalls) {
	d.times(func() {
		event := d.uint()
		s.add(stall{node: d.text(), worker: d.text(), event: event})
	})
	d.times(func() {
		node := d.text()
		s.heard.Set(node, heard{incarnation: d.uint(), last: d.uint()})
	})
}
