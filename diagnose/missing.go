package diagnose

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// explainDecision fills in e for a name whose latest record did not become a new job,
// because of its keys or an error. It returns false if the ledger has no such decision.
func (g *Diagnoser) explainDecision(e *api.JobExplanation, q *api.JobRequest) (found bool) {
	g.cfg.View(func(l *ledger.Ledger) {
		for _, id := range candidateIDs(l, q) {
			d, at, ok := l.LastDecision(id)
			if !ok || d.Ingested <= ledger.IngestedKnown { // the last record with this id became a job or repeated one
				var alias ledger.Alias
				if alias, ok = l.Alias(id); ok {
					d, at = alias.Decision(), time.Time{}
				}
			}
			if ok && d.Ingested > ledger.IngestedKnown {
				e.ID, found = id, true
				e.Reasons = []api.Reason{decisionReason(d, at)}
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

// decisionReason returns why a record, ingested at the given time, became no job. The time is zero
// if it is no longer known.
func decisionReason(d ledger.Decision, at time.Time) api.Reason {
	data, when := &api.ReasonData{Error: d.Reason}, ""
	if !at.IsZero() {
		data.Since, when = &at, " at "+ledger.FormatTime(at)
	}
	if !d.Job.IsZero() {
		data.Job, data.Queue = &d.Job, d.Queue
	}
	switch d.Ingested {
	case ledger.IngestedDuplicate:
		return api.Reason{Code: api.ReasonDuplicate, Data: data, Text: fmt.Sprintf("it became no job%s: job %s of queue %s held its unique key", when, d.Job, d.Queue)}
	case ledger.IngestedRateLimited:
		freeAt := at.Add(d.RetryAfter)
		data.At = &freeAt
		return api.Reason{Code: api.ReasonRateLimited, Data: data, Text: fmt.Sprintf("it became no job%s: its rate limit key was held until %s", when, ledger.FormatTime(freeAt))}
	case ledger.IngestedDebounced:
		return api.Reason{Code: api.ReasonMerged, Data: data, Text: fmt.Sprintf("it became no job%s: it replaced the content of job %s of queue %s, which had the same debounce key", when, d.Job, d.Queue)}
	}
	return api.Reason{Code: api.ReasonRejected, Data: data, Text: fmt.Sprintf("it became no job%s: %s", when, d.Reason)}
}

// candidateIDs returns the job ids that a request may mean, by the rules of
// [Config].FindJob: its text is an id, a key of its queue, or without a queue
// "<queue>:<id or key>", or a key of any queue.
func candidateIDs(l *ledger.Ledger, q *api.JobRequest) (ids []job.ID) {
	queue, text := q.Queue, q.ID
	if id, err := job.ParseID(text); err == nil {
		return []job.ID{id}
	}
	for i := range text {
		if text[i] == ':' && queue == "" && job.ValidQueue(text[:i]) == nil {
			ids = candidateIDs(l, &api.JobRequest{ID: text[i+1:], Queue: text[:i]})
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

// maxScanned is how many messages of a lane are searched for one that is not ingested
// yet.
const maxScanned = 2048

// findNotIngested fills in e for a job whose record is stored in its lane but not ingested
// yet. It returns false if it finds no such record within queryTimeout.
func (g *Diagnoser) findNotIngested(ctx context.Context, e *api.JobExplanation, q *api.JobRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var lanes []ledger.LaneCursor
	ids := map[job.ID]bool{}
	g.cfg.View(func(l *ledger.Ledger) {
		lanes = l.Lanes()
		for _, id := range candidateIDs(l, q) {
			ids[id] = true
		}
	})
	var mu sync.Mutex
	var found *job.Record
	var reads crash.Group
	for lane := range lanes {
		reads.Run(func() {
			for record := range g.recordsAfter(ctx, uint8(lane), lanes[lane].Cursor) {
				facts, _ := record.Job(lanes[lane].Identity, g.cfg.Defaults)
				named := record.Key == q.ID || job.KeyOf(record.Body, record.Queue, facts.ID) == q.ID
				if ids[facts.ID] || named && (q.Queue == "" || q.Queue == record.Queue) {
					mu.Lock()
					found, e.ID, e.Queue = &record, facts.ID, record.Queue
					mu.Unlock()
				}
			}
		})
	}
	_ = reads.Wait() // the functions return no errors
	if found == nil {
		return false
	}
	g.explainNotIngested(ctx, e, found, lanes[found.Lane].Cursor)
	return true
}

// recordsAfter yields the records in the first maxScanned messages of a lane after its cursor. It
// ends early if they cannot be read.
func (g *Diagnoser) recordsAfter(ctx context.Context, lane uint8, cursor uint64) iter.Seq[job.Record] {
	return func(yield func(job.Record) bool) {
		for next := cursor + 1; next <= cursor+maxScanned; {
			records, err := g.cfg.Records.Read(ctx, lane, next, int(cursor+maxScanned+1-next))
			if err != nil || len(records) == 0 {
				return
			}
			for _, r := range records {
				if !yield(r) {
					return
				}
			}
			next = records[len(records)-1].Seq + 1
		}
	}
}

// explainNotIngested fills in e for a record that is not ingested. cursor is the sequence
// up to which its lane has been ingested.
func (g *Diagnoser) explainNotIngested(ctx context.Context, e *api.JobExplanation, record *job.Record, cursor uint64) {
	d := g.newDiagnosis()
	d.job.View.Queue = record.Queue
	g.cfg.View(func(l *ledger.Ledger) { d.outboxFull = outboxFull(l) })
	g.queryNodes(ctx, d)
	reasons := d.notIngested(record, cursor)
	e.State, e.Reasons = job.New.String(), apiReasons(reasons)
	e.Verdict = withCaveat(&e.Observed, sentence(strings.Join(blockingTexts(reasons), "; and ")), e.Reasons)
	e.History.Complete, e.History.Note = true, "nothing has happened since it was accepted"
}

// notIngested returns where a record is, and what prevents its ingestion.
func (d *diagnosis) notIngested(r *job.Record, cursor uint64) (all []reason) {
	data := &api.ReasonData{Since: &r.Stored, Lane: &r.Lane, Seq: r.Seq, Cursor: cursor, Lag: r.Seq - cursor - 1}
	all = append(all, reason{Reason: api.Reason{Code: api.ReasonNotIngested, Data: data, Text: fmt.Sprintf(
		"it was accepted at %s, and is not ingested into the ledger yet: lane %d, sequence %d, %s before it",
		ledger.FormatTime(r.Stored), r.Lane, r.Seq, plural(int(data.Lag), "message"))}, blocks: true})
	if p := d.placement; p != nil && int(r.Lane) < len(p.Lanes) && p.Lanes[r.Lane] != "" {
		all = append(all, reason{Reason: api.Reason{Code: api.ReasonLaneTrouble, Text: p.Lanes[r.Lane], Data: &api.ReasonData{Lane: &r.Lane}}, blocks: true})
	}
	return append(all, d.blockers()...)
}
