package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// ruled explains a name whose last record made no job of its own.
func (n *Node) ruled(e *explanation, q *jobQuestion) (found bool) {
	n.raft.View(func(l *ledger.Ledger) {
		for _, id := range namedBy(l, q) {
			r, at, ok := l.RulingOf(id)
			if ok && r.Folded > ledger.FoldedKnown { // else it was a job
				e.ID, found = id, true
				e.Reasons = []reason{rulingReason(r, at)}
				return
			}
		}
	})
	if found {
		e.State, e.Verdict = "none", sentence(e.Reasons[0].Text)
		e.History.Note = "not looked for: it is no job"
	}
	return found
}

// rulingReason tells what a record's keys have come to.
func rulingReason(r ledger.Ruling, at time.Time) reason {
	data := &reasonData{Since: &at, Error: r.Reason}
	if !r.Job.IsZero() {
		data.Job, data.Queue = &r.Job, r.Queue
	}
	switch r.Folded {
	case ledger.FoldedDuplicate:
		return reason{Code: codeDuplicate, Data: data, Text: fmt.Sprintf("no job was made of it at %s: job %s of queue %s holds its unique key", clock(at), r.Job, r.Queue)}
	case ledger.FoldedLimited:
		free := at.Add(r.RetryAfter)
		data.At = &free
		return reason{Code: codeRateLimited, Data: data, Text: fmt.Sprintf("no job was made of it at %s: its rate limit key was held until %s", clock(at), clock(free))}
	case ledger.FoldedDebounced:
		return reason{Code: codeMerged, Data: data, Text: fmt.Sprintf("at %s job %s of queue %s, which holds its debounce key, became what it asks for", clock(at), r.Job, r.Queue)}
	}
	return reason{Code: codeRejected, Data: data, Text: fmt.Sprintf("no job was made of it at %s: %s", clock(at), r.Reason)}
}

// namedBy are the ids that a question may mean, as [viewer.find] reads it.
func namedBy(l *ledger.Ledger, q *jobQuestion) (ids []job.ID) {
	queue, text := q.Queue, q.ID
	if id, err := job.ParseID(text); err == nil {
		return []job.ID{id}
	}
	for i := range text {
		if text[i] == ':' && queue == "" && job.ValidQueue(text[:i]) == nil {
			ids = namedBy(l, &jobQuestion{ID: text[i+1:], Queue: text[:i]})
			break
		}
	}
	queues := []string{queue}
	if queue == "" {
		queues = queues[:0]
		for _, view := range l.Queues() {
			queues = append(queues, view.Name)
		}
	}
	for _, name := range queues {
		if id, err := job.KeyID(name, text); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// forgotten finds a job that a name meant and of which only the id is kept.
func (n *Node) forgotten(q *jobQuestion) (gone job.ID, ok bool) {
	n.raft.View(func(l *ledger.Ledger) {
		for _, id := range namedBy(l, q) {
			if queue, known := l.Known(id); known && queue == "" {
				gone, ok = id, true
				return
			}
		}
	})
	return gone, ok
}

// maxUnread is how many records of a lane are looked at for one that is not
// folded yet.
const maxUnread = 2048

// unfolded explains a job whose record lies in its lane and is not folded yet.
func (n *Node) unfolded(ctx context.Context, e *explanation, q *jobQuestion) bool {
	ctx, cancel := context.WithTimeout(ctx, whyTime)
	defer cancel()
	var lanes []ledger.LaneCursor
	ids := map[job.ID]bool{}
	n.raft.View(func(l *ledger.Ledger) {
		lanes = l.Lanes()
		for _, id := range namedBy(l, q) {
			ids[id] = true
		}
	})
	var mu sync.Mutex
	var found *job.Record
	var reading sync.WaitGroup
	for lane := range lanes {
		reading.Go(func() {
			records, _ := n.messages.Read(ctx, uint8(lane), lanes[lane].Cursor+1, maxUnread) // what cannot be read is not found
			for i := range records {
				r := &records[i]
				facts, _ := r.Facts(lanes[lane].Identity, n.cfg.RRQ.Defaults())
				if ids[facts.ID] || r.Key == q.ID && (q.Queue == "" || q.Queue == r.Queue) {
					mu.Lock()
					found, e.ID, e.Queue = r, facts.ID, r.Queue
					mu.Unlock()
				}
			}
		})
	}
	reading.Wait()
	if found == nil {
		return false
	}
	n.explainNew(ctx, e, found, lanes[found.Lane].Cursor)
	return true
}

// explainNew tells why a record is not folded.
func (n *Node) explainNew(ctx context.Context, e *explanation, r *job.Record, cursor uint64) {
	q := n.newInquiry()
	q.plight.View.Queue = r.Queue
	n.raft.View(func(l *ledger.Ledger) { q.full = l.OutboxBytes() >= ledger.MaxOutbox/4*3 })
	n.follow(ctx, q)
	e.State, e.Reasons = job.New.String(), q.notFolded(r, cursor)
	var texts []string
	for _, one := range e.Reasons {
		texts = append(texts, one.Text)
	}
	e.Verdict = e.Observed.caveat(sentence(strings.Join(texts, "; and ")), e.Reasons)
	e.History.Complete, e.History.Note = true, "nothing has happened to it since it was accepted"
}

// notFolded tells where a record lies, and what keeps it there.
func (q *inquiry) notFolded(r *job.Record, cursor uint64) (all []reason) {
	data := &reasonData{Since: &r.Stored, Lane: &r.Lane, Seq: r.Seq, Cursor: cursor, Lag: r.Seq - cursor - 1}
	all = append(all, reason{Code: codeNotFolded, Data: data, blocks: true, Text: fmt.Sprintf(
		"it is accepted since %s, and not taken into the ledger yet: lane %d, sequence %d, %s before it",
		clock(r.Stored), r.Lane, r.Seq, count(int(data.Lag), "record"))})
	if w := q.why; w != nil && int(r.Lane) < len(w.Lanes) && w.Lanes[r.Lane] != "" {
		all = append(all, reason{Code: codeLane, Text: w.Lanes[r.Lane], Data: &reasonData{Lane: &r.Lane}, blocks: true})
	}
	return append(all, q.inTheWay()...)
}
