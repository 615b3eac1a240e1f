package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// provenance returns what an explanation by this node is based on now.
func (g *Diagnoser) provenance() api.Provenance {
	o := api.Provenance{Node: g.cfg.Node, At: time.Now().UTC(), Certain: g.cfg.NoQuorum() == ""}
	g.cfg.View(func(l *ledger.Ledger) { o.Index, o.LedgerAt = l.Index(), l.Now() })
	o.Authority, _ = g.cfg.Authority()
	return o
}

// findTimeout bounds the search for a job that the local ledger does not have. Without a
// quorum, which could confirm its absence, only what the node has itself is searched.
const (
	findTimeout         = 900 * time.Millisecond
	findTimeoutNoQuorum = 50 * time.Millisecond
)

// findContext returns a context with the timeout for finding a job.
func (g *Diagnoser) findContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if g.cfg.NoQuorum() != "" {
		return context.WithTimeout(ctx, findTimeoutNoQuorum)
	}
	return context.WithTimeout(ctx, findTimeout)
}

// ExplainJob returns why a job is in its state.
func (g *Diagnoser) ExplainJob(ctx context.Context, q *api.JobRequest) (*api.JobExplanation, error) {
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	findCtx, cancel := g.findContext(ctx)
	id, err := g.cfg.FindJob(findCtx, q.ID, q.Queue)
	cancel()
	if err == nil {
		var e *api.JobExplanation
		if e, err = g.explain(ctx, id); e != nil {
			return e, nil
		}
	}
	return g.explainMissing(ctx, q, id, err)
}

// explain explains a job that the ledger has, or one that has ended; without it, it returns nil, and a
// [*job.UnavailableError] if there may be one.
func (g *Diagnoser) explain(ctx context.Context, id job.ID) (*api.JobExplanation, error) {
	var unpublished [][]byte
	var allUnpublished bool
	g.cfg.View(func(l *ledger.Ledger) { unpublished, allUnpublished = l.UnpublishedEvents(id, maxUnpublished) })
	d, ok := g.newDiagnosis(), false
	g.cfg.View(func(l *ledger.Ledger) { ok = d.readLedger(l, id) })
	if !ok {
		view, result, err := g.cfg.Ended(ctx, id)
		if _, uncertain := errors.AsType[*job.UnavailableError](err); uncertain {
			return nil, err
		}
		if err != nil {
			return nil, nil
		}
		d.job = ledger.JobDiagnosis{View: view, Result: result}
	}
	p := d.job // queryNodes changes d meanwhile
	e := &api.JobExplanation{ID: id, Queue: p.View.Queue, State: p.State.String(), Observed: g.provenance()}
	var queries crash.Group
	gone := false
	queries.Run(func() { e.History = g.readHistory(ctx, &p, unpublished, allUnpublished) })
	queries.Run(func() { g.queryNodes(ctx, d) })
	if p.State == job.Failed {
		queries.Run(func() { gone = g.cfg.LetterGone(ctx, &p.View) })
	}
	_ = queries.Wait() // the functions return no errors
	d.letterGone = gone
	reasons := d.reasons()
	e.Reasons = apiReasons(reasons)
	e.Verdict = withCaveat(&e.Observed, d.verdict(reasons), e.Reasons)
	if p.State == job.Delayed {
		e.NextAt = &p.Due
	}
	shown := api.JobOf(&d.job.View)
	shown.Because = d.waitReason()
	e.Job, e.Result = &shown, g.resultText(&p)
	return e, nil
}

// withCaveat returns verdict, marked as possibly outdated without a quorum. It first
// calls checkQuorum, because the quorum may have been lost during the queries.
func withCaveat(o *api.Provenance, verdict string, reasons []api.Reason) string {
	checkQuorum(o, reasons)
	switch {
	case o.Certain:
		return verdict
	case o.Index == 0: // its ledger is empty since it has started again
		return fmt.Sprintf("As node %s knows it: %s", o.Node, verdict)
	}
	return fmt.Sprintf("As node %s knew it at %s: %s", o.Node, ledger.FormatTime(o.LedgerAt), verdict)
}

// checkQuorum clears o.Certain if one of the reasons is a missing quorum.
func checkQuorum(o *api.Provenance, reasons []api.Reason) {
	if slices.ContainsFunc(reasons, func(r api.Reason) bool { return r.Code == api.ReasonNoQuorum }) {
		o.Certain = false
	}
}

// verdict returns the explanation in one sentence. reasons is the result of d.reasons.
func (d *diagnosis) verdict(reasons []reason) string {
	blocking := blockingTexts(reasons)
	switch {
	case d.job.State == job.Delayed:
		return sentence(strings.Join(blocking, "; and "))
	case len(blocking) > 0:
		return sentence("it waits: " + strings.Join(blocking, "; and "))
	case len(reasons) > 0 && reasons[0].Code == api.ReasonJobsAhead:
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

// resultText describes where the result of a completed job is, or why it is missing. It
// returns "" for other jobs.
func (g *Diagnoser) resultText(p *ledger.JobDiagnosis) string {
	if p.State != job.Completed {
		return ""
	}
	if p.Result == 0 {
		return "the job returned none"
	}
	if ttl := p.ResultTTL; ttl > 0 && !time.Now().Before(p.Ended.Add(ttl)) {
		return "no longer available: it was to be kept for " + duration.Format(ttl)
	}
	// p.Result is the result's number in its stream.
	text := fmt.Sprintf("number %d, in stream %s", p.Result, subjects.StreamResults)
	g.cfg.View(func(l *ledger.Ledger) {
		if item, seq := l.FindResult(p.Result); item != nil {
			text = fmt.Sprintf("number %d, not published yet", p.Result)
		} else if seq > 0 {
			text += fmt.Sprintf(", message %d or after it", seq)
		}
	})
	return text
}

// explainMissing explains a name for which the ledger has no job: its record may not be
// ingested yet, it may have been rejected, or the ledger may have kept only the job's
// id. id and err are the result of the search for the job. If the search could not be
// completed, the explanation says that it is not known whether the job exists; if there
// is certainly no such job, the error is [job.ErrJobNotFound].
func (g *Diagnoser) explainMissing(ctx context.Context, q *api.JobRequest, id job.ID, err error) (*api.JobExplanation, error) {
	_, unavailable := errors.AsType[*job.UnavailableError](err)
	unsure := unavailable || errors.Is(err, context.DeadlineExceeded)
	if err != nil && !unsure && !errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	e := &api.JobExplanation{ID: id, Reasons: []api.Reason{}, Observed: g.provenance(), History: api.JobHistory{Events: []json.RawMessage{}}}
	if g.explainDecision(e, q) {
		return e, nil
	}
	if unsure && g.findNotIngested(ctx, e, q) {
		return e, nil
	}
	if errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	switch {
	case unsure:
		e.State = "unknown"
		g.cfg.View(func(l *ledger.Ledger) {
			if ids := candidateIDs(l, q); len(ids) == 1 {
				e.ID = ids[0]
			}
		})
		e.Reasons = []api.Reason{{Code: api.ReasonUnknown, Text: "this node has no such job, and cannot tell whether it exists: " + err.Error()}}
		if _, noAnswer := g.explainPlacement(ctx, scheduler.PlacementQuery{}); noAnswer.Text != "" {
			e.Reasons = append(e.Reasons, noAnswer)
		}
		checkQuorum(&e.Observed, e.Reasons)
	default:
		e.State = "forgotten"
		text, removed := "there was such a job, and the yard has kept only its id", false
		if g.cfg.View(func(l *ledger.Ledger) { removed = l.Removed(id) }); removed {
			text = "there was such a job, which was removed at a caller's request, and the yard has kept only its id"
		}
		e.Reasons = []api.Reason{{Code: api.ReasonForgotten, Text: text}}
	}
	e.Verdict = sentence(e.Reasons[0].Text)
	e.History.Note = fmt.Sprintf("not searched; 'yardmaster events --since 0 --job %s' searches all history", e.ID)
	return e, nil
}
