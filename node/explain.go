package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// explanation is why a job is in its state, when that will change, and the job's
// history.
type explanation struct {
	ID       job.ID     `json:"id,omitzero"` // omitted if unknown
	Queue    string     `json:"queue"`
	State    string     `json:"state"` // of the job, or none, forgotten, unknown
	Verdict  string     `json:"verdict"`
	NextAt   *time.Time `json:"next_at"` // when a delayed job is due; null: its state depends on the reasons
	Reasons  []reason   `json:"reasons"`
	Job      *jobJSON   `json:"job,omitempty"` // without body and result
	Result   string     `json:"result,omitempty"`
	History  jobHistory `json:"history"`
	Observed provenance `json:"observed"`
}

// provenance is what an explanation is based on.
type provenance struct {
	Node      string    `json:"node"`
	At        time.Time `json:"at"`
	Index     uint64    `json:"index"`     // of the last entry in the local ledger
	LedgerAt  time.Time `json:"ledger_at"` // time of that entry
	Authority string    `json:"authority"` // "": none is known
	Certain   bool      `json:"certain"`   // the node is in contact with a quorum; else its ledger may be outdated
}

func (n *Node) provenance() provenance {
	o := provenance{Node: n.cfg.Node.Name, At: time.Now().UTC(), Certain: n.noQuorum() == ""}
	n.raft.View(func(l *ledger.Ledger) { o.Index, o.LedgerAt = l.Index(), l.Now() })
	o.Authority, _, _ = n.authority.current()
	return o
}

// findTimeout bounds the search for a job that the local ledger does not have. Without a
// quorum, which could confirm its absence, only what the node has itself is searched.
const (
	findTimeout         = 900 * time.Millisecond
	findTimeoutNoQuorum = 50 * time.Millisecond
)

// findContext returns a context with the timeout for finding a job.
func (n *Node) findContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if n.noQuorum() != "" {
		return context.WithTimeout(ctx, findTimeoutNoQuorum)
	}
	return context.WithTimeout(ctx, findTimeout)
}

func (n *Node) handleJobExplain(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[jobRequest](r)
	if err != nil {
		return nil, err
	}
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	findCtx, cancel := n.findContext(ctx)
	id, err := n.viewer.locate(findCtx, q.ID, q.Queue)
	cancel()
	if err == nil {
		if e := n.explain(ctx, id); e != nil {
			return e, nil
		}
	}
	return n.explainMissing(ctx, &q, id, err)
}

// explain explains a job, or returns nil if the ledger does not have it.
func (n *Node) explain(ctx context.Context, id job.ID) *explanation {
	var unpublished [][]byte
	var unpublishedAll bool
	n.raft.View(func(l *ledger.Ledger) { unpublished, unpublishedAll = l.UnpublishedEvents(id, maxUnpublished) })
	d, ok := n.newDiagnosis(), false
	n.raft.View(func(l *ledger.Ledger) { ok = d.readLedger(l, id) })
	if !ok {
		return nil
	}
	p := d.job // queryNodes changes d meanwhile
	e := &explanation{ID: id, Queue: p.View.Queue, State: p.State.String(), Observed: n.provenance()}
	var queries sync.WaitGroup
	queries.Go(func() { e.History = n.readHistory(ctx, &p, unpublished, unpublishedAll) })
	queries.Go(func() { n.queryNodes(ctx, d) })
	queries.Wait()
	e.Reasons = d.reasons()
	e.Verdict = e.Observed.caveat(d.verdict(e.Reasons), e.Reasons)
	if p.State == job.Delayed {
		e.NextAt = &p.Due
	}
	shown := jobToJSON(&d.job.View)
	shown.Because = d.waitReason()
	e.Job, e.Result = &shown, n.resultText(&p)
	return e
}

// caveat returns verdict, marked as possibly outdated if there is no quorum. It checks
// the reasons as well, because the quorum may have been lost during the queries.
func (o *provenance) caveat(verdict string, reasons []reason) string {
	o.checkQuorum(reasons)
	if o.Certain {
		return verdict
	}
	return fmt.Sprintf("As node %s knew it at %s: %s", o.Node, formatTime(o.LedgerAt), verdict)
}

// checkQuorum clears o.Certain if one of the reasons is that there is no quorum.
func (o *provenance) checkQuorum(reasons []reason) {
	if slices.ContainsFunc(reasons, func(r reason) bool { return r.Code == codeNoQuorum }) {
		o.Certain = false
	}
}

// verdict returns the explanation in one sentence.
func (d *diagnosis) verdict(reasons []reason) string {
	var blocking []string
	for _, r := range reasons {
		if r.blocks {
			blocking = append(blocking, r.Text)
		}
	}
	switch {
	case d.job.State == job.Delayed:
		return sentence(strings.Join(blocking, "; and "))
	case len(blocking) > 0:
		return sentence("it waits: " + strings.Join(blocking, "; and "))
	case len(reasons) > 0 && reasons[0].Code == codeJobsAhead:
		return sentence("it waits for its turn: " + reasons[0].Text)
	case len(reasons) > 0:
		return sentence(reasons[0].Text)
	}
	return ""
}

// sentence returns text with a capital and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// resultText returns where the result of a completed job is.
func (n *Node) resultText(p *ledger.JobDiagnosis) string {
	if p.State != job.Completed {
		return ""
	}
	if p.Result == 0 {
		return "the job returned none"
	}
	if ttl := p.ResultTTL; ttl > 0 && !time.Now().Before(p.Ended.Add(ttl)) {
		return "no longer available: it was to be kept for " + ttl.String()
	}
	text := fmt.Sprintf("number %d, in stream %s", p.Result, cluster.StreamResults)
	n.raft.View(func(l *ledger.Ledger) {
		if item, seq := l.FindResult(p.Result); item != nil {
			text = fmt.Sprintf("number %d, not published yet", p.Result)
		} else if seq > 0 {
			text += fmt.Sprintf(", message %d or after it", seq)
		}
	})
	return text
}

// explainMissing explains a name for which the ledger has no job: its record may not be
// ingested yet, may have been rejected, or may be forgotten. err is the error of the
// search for the job; nil if its id is known nevertheless.
func (n *Node) explainMissing(ctx context.Context, q *jobRequest, id job.ID, err error) (any, error) {
	var unavailable *job.UnavailableError
	unsure := errors.As(err, &unavailable) || errors.Is(err, context.DeadlineExceeded)
	if err != nil && !unsure && !errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	if err != nil && !unsure { // no job has this key, but the ids it stands for may be known
		if forgotten, ok := n.findForgotten(q); ok {
			id, err = forgotten, nil
		}
	}
	e := &explanation{ID: id, Reasons: []reason{}, Observed: n.provenance(), History: jobHistory{Events: []json.RawMessage{}}}
	if n.explainDecision(e, q) {
		return e, nil
	}
	if unsure && n.findNotIngested(ctx, e, q) {
		return e, nil
	}
	if errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	switch {
	case unsure:
		e.State = "unknown"
		n.raft.View(func(l *ledger.Ledger) {
			if ids := candidateIDs(l, q); len(ids) == 1 {
				e.ID = ids[0]
			}
		})
		e.Reasons = []reason{{Code: codeUnknown, Text: "this node has no such job, and cannot tell whether it exists: " + err.Error()}}
		if _, s := n.explainPlacement(ctx, scheduler.PlacementQuery{}); s.text != "" {
			e.Reasons = append(e.Reasons, reason{Code: s.code, Text: s.text, blocks: true})
		}
		e.Observed.checkQuorum(e.Reasons)
	default:
		e.State = "forgotten"
		e.Reasons = []reason{{Code: codeForgotten, Text: "there was such a job, and the yard has kept only its id"}}
	}
	e.Verdict = sentence(e.Reasons[0].Text)
	e.History.Note = "not searched; 'yardmaster events --since 0 --job <id>' searches all history"
	return e, nil
}
