package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// explainDecision explains a name whose latest record did not become a new job. It
// reports false without such a record.
func (n *Node) explainDecision(e *explanation, q *jobRequest) (found bool) {
	n.raft.View(func(l *ledger.Ledger) {
		for _, id := range candidateIDs(l, q) {
			d, at, ok := l.LastDecision(id)
			if ok && d.Ingested > ledger.IngestedKnown { // otherwise it became a job
				e.ID, found = id, true
				e.Reasons = []reason{decisionReason(d, at)}
				return
			}
		}
	})
	if found {
		e.State, e.Verdict = "none", sentence(e.Reasons[0].Text)
		e.History.Note = "not searched: it is not a job"
	}
	return found
}

// decisionReason returns the effect of a record's keys.
func decisionReason(d ledger.Decision, at time.Time) reason {
	data := &reasonData{Since: &at, Error: d.Reason}
	if !d.Job.IsZero() {
		data.Job, data.Queue = &d.Job, d.Queue
	}
	switch d.Ingested {
	case ledger.IngestedDuplicate:
		return reason{Code: codeDuplicate, Data: data, Text: fmt.Sprintf("it became no job at %s: job %s of queue %s holds its unique key", formatTime(at), d.Job, d.Queue)}
	case ledger.IngestedRateLimited:
		freeAt := at.Add(d.RetryAfter)
		data.At = &freeAt
		return reason{Code: codeRateLimited, Data: data, Text: fmt.Sprintf("it became no job at %s: its rate limit key was held until %s", formatTime(at), formatTime(freeAt))}
	case ledger.IngestedDebounced:
		return reason{Code: codeMerged, Data: data, Text: fmt.Sprintf("at %s it replaced the content of job %s of queue %s, which holds its debounce key", formatTime(at), d.Job, d.Queue)}
	}
	return reason{Code: codeRejected, Data: data, Text: fmt.Sprintf("it became no job at %s: %s", formatTime(at), d.Reason)}
}

// candidateIDs returns the job ids that a request may mean, by the rules of [viewer.find].
func candidateIDs(l *ledger.Ledger, q *jobRequest) (ids []job.ID) {
	queue, text := q.Queue, q.ID
	if id, err := job.ParseID(text); err == nil {
		return []job.ID{id}
	}
	for i := range text {
		if text[i] == ':' && queue == "" && job.ValidQueue(text[:i]) == nil {
			ids = candidateIDs(l, &jobRequest{ID: text[i+1:], Queue: text[:i]})
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

// findForgotten finds a job that a request may mean and of which the ledger only has the
// id.
func (n *Node) findForgotten(q *jobRequest) (found job.ID, ok bool) {
	n.raft.View(func(l *ledger.Ledger) {
		for _, id := range candidateIDs(l, q) {
			if queue, known := l.Known(id); known && queue == "" {
				found, ok = id, true
				return
			}
		}
	})
	return found, ok
}

// maxScanned is how many records of a lane are searched for one that is not ingested
// yet.
const maxScanned = 2048

// findNotIngested explains a job whose record is stored in its lane but not ingested yet.
// It reports false if there is no such record.
func (n *Node) findNotIngested(ctx context.Context, e *explanation, q *jobRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	var lanes []ledger.LaneCursor
	ids := map[job.ID]bool{}
	n.raft.View(func(l *ledger.Ledger) {
		lanes = l.Lanes()
		for _, id := range candidateIDs(l, q) {
			ids[id] = true
		}
	})
	var mu sync.Mutex
	var found *job.Record
	var reads sync.WaitGroup
	for lane := range lanes {
		reads.Go(func() {
			records, _ := n.cluster.Read(ctx, uint8(lane), lanes[lane].Cursor+1, maxScanned) // records of a failed read are not found
			for i := range records {
				r := &records[i]
				facts, _ := r.Job(lanes[lane].Identity, n.cfg.RRQ.Defaults())
				if ids[facts.ID] || r.Key == q.ID && (q.Queue == "" || q.Queue == r.Queue) {
					mu.Lock()
					found, e.ID, e.Queue = r, facts.ID, r.Queue
					mu.Unlock()
				}
			}
		})
	}
	reads.Wait()
	if found == nil {
		return false
	}
	n.explainNotIngested(ctx, e, found, lanes[found.Lane].Cursor)
	return true
}

// explainNotIngested fills in e for a record that is not ingested. cursor is how far its
// lane has been ingested.
func (n *Node) explainNotIngested(ctx context.Context, e *explanation, r *job.Record, cursor uint64) {
	d := n.newDiagnosis()
	d.job.View.Queue = r.Queue
	n.raft.View(func(l *ledger.Ledger) { d.outboxFull = l.OutboxBytes() >= ledger.MaxOutbox/4*3 })
	n.queryNodes(ctx, d)
	e.State, e.Reasons = job.New.String(), d.notIngested(r, cursor)
	var texts []string
	for _, r := range e.Reasons {
		texts = append(texts, r.Text)
	}
	e.Verdict = e.Observed.caveat(sentence(strings.Join(texts, "; and ")), e.Reasons)
	e.History.Complete, e.History.Note = true, "nothing has happened since it was accepted"
}

// notIngested returns where a record is, and what prevents its ingestion.
func (d *diagnosis) notIngested(r *job.Record, cursor uint64) (all []reason) {
	data := &reasonData{Since: &r.Stored, Lane: &r.Lane, Seq: r.Seq, Cursor: cursor, Lag: r.Seq - cursor - 1}
	all = append(all, reason{Code: codeNotIngested, Data: data, blocks: true, Text: fmt.Sprintf(
		"it was accepted at %s, and is not ingested into the ledger yet: lane %d, sequence %d, %s before it",
		formatTime(r.Stored), r.Lane, r.Seq, plural(int(data.Lag), "record"))})
	if w := d.placement; w != nil && int(r.Lane) < len(w.Lanes) && w.Lanes[r.Lane] != "" {
		all = append(all, reason{Code: codeLaneTrouble, Text: w.Lanes[r.Lane], Data: &reasonData{Lane: &r.Lane}, blocks: true})
	}
	return append(all, d.blockers()...)
}
