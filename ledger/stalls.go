package ledger

import (
	"strings"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxStalled is how many stalled workers are remembered. Beyond it the one that
// stalled first is forgotten, and its recovery emits no event.
const MaxStalled = 10_000

// stalls remembers which workers are stalled, so that each stall and each
// recovery emits one event, and which worker events of each node have been
// recorded. A worker's channel is unique only within its node.
type stalls struct {
	workers  *btree.BTreeG[stall]
	byAge    *btree.Map[uint64, stall]       // by number of the WorkerStalled event
	received *btree.Map[string, eventCursor] // by node
}

type stall struct {
	node, worker string
	event        uint64 // number of its WorkerStalled event
}

// eventCursor is the last recorded worker event of a node. Numbers start again
// with every incarnation.
type eventCursor struct{ incarnation, last uint64 }

func newStalls() stalls {
	return stalls{
		workers: btree.NewBTreeGOptions(func(a, b stall) bool {
			return a.node < b.node || a.node == b.node && a.worker < b.worker
		}, treeOptions),
		byAge:    new(btree.Map[uint64, stall]),
		received: new(btree.Map[string, eventCursor]),
	}
}

func (s *stalls) copy() stalls {
	return stalls{workers: s.workers.Copy(), byAge: s.byAge.Copy(), received: s.received.Copy()}
}

func (s *stalls) add(w stall) {
	s.workers.Set(w)
	s.byAge.Set(w.event, w)
}

// drop forgets a stalled worker, and reports whether it was stalled.
func (s *stalls) drop(node, worker string) bool {
	w, ok := s.workers.Delete(stall{node: node, worker: worker})
	if ok {
		s.byAge.Delete(w.event)
	}
	return ok
}

// dropNode forgets the stalled workers of a node that has restarted, which no
// longer exist.
func (s *stalls) dropNode(node string) {
	var workers []string
	s.workers.Ascend(stall{node: node}, func(w stall) bool {
		if w.node != node {
			return false
		}
		workers = append(workers, w.worker)
		return true
	})
	for _, worker := range workers {
		s.drop(node, worker)
	}
}

// apply records each of a node's events once, however often the node repeats it.
// Events of an earlier incarnation are ignored.
func (c *RecordWorkerEvents) apply(l *Ledger) Result {
	s := &l.stalls
	cursor, _ := s.received.Get(c.Node)
	switch {
	case c.Incarnation < cursor.incarnation:
		return Result{}
	case c.Incarnation > cursor.incarnation:
		s.dropNode(c.Node)
		cursor = eventCursor{incarnation: c.Incarnation}
	}
	for i := range c.Events {
		if number := c.First + uint64(i); number > cursor.last {
			cursor.last = number
			s.record(&l.outbox, c.Node, &c.Events[i])
		}
	}
	s.received.Set(strings.Clone(c.Node), cursor)
	return Result{}
}

// record emits a stall unless the worker is already stalled, and a recovery only
// if it is stalled; the recovery of a worker that reconnected is always emitted.
func (s *stalls) record(out *outbox, node string, event *job.WorkerEvent) {
	worker, detail := strings.Clone(event.Worker), strings.Clone(event.Detail)
	if !event.Stalled {
		wasStalled := s.drop(node, worker)
		if wasStalled || detail == job.RecoveredResumed {
			out.emit(Event{Kind: WorkerRecovered, A: worker, B: detail})
		}
		return
	}
	if _, stalled := s.workers.Get(stall{node: node, worker: worker}); stalled {
		return
	}
	if s.workers.Len() >= MaxStalled {
		_, oldest, _ := s.byAge.Min()
		s.drop(oldest.node, oldest.worker)
	}
	out.emit(Event{Kind: WorkerStalled, A: worker, B: detail})
	s.add(stall{node: strings.Clone(node), worker: worker, event: out.next})
}

// stalls encodes or decodes the stalled workers, in the order in which they
// stalled, and the cursor of each node's worker events.
func (c *codec) stalls(s *stalls) {
	byAge := func(yield func(*stall) bool) {
		s.byAge.Scan(func(_ uint64, w stall) bool { return yield(&w) })
	}
	each(c, s.byAge.Len(), byAge, func(w *stall) {
		c.fields(&w.event, &w.node, &w.worker)
		if c.decoding() {
			s.add(*w)
		}
	})
	type nodeCursor struct {
		node string
		eventCursor
	}
	byNode := func(yield func(*nodeCursor) bool) {
		s.received.Scan(func(node string, cursor eventCursor) bool { return yield(&nodeCursor{node, cursor}) })
	}
	each(c, s.received.Len(), byNode, func(of *nodeCursor) {
		c.fields(&of.node, &of.incarnation, &of.last)
		if c.decoding() {
			s.received.Set(of.node, of.eventCursor)
		}
	})
}
