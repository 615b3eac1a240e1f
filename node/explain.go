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

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// explanation tells why a job is where it is, when that will change, and what
// has happened to it.
type explanation struct {
	ID       job.ID     `json:"id,omitzero"` // left out if that is not known
	Queue    string     `json:"queue"`
	State    string     `json:"state"` // a job's, or none, forgotten, unknown
	Verdict  string     `json:"verdict"`
	NextAt   *time.Time `json:"next_at"` // when it is next looked at; null: that depends on the reasons
	Reasons  []reason   `json:"reasons"`
	Job      *jobJSON   `json:"job,omitempty"` // without what it carries
	Result   string     `json:"result,omitempty"`
	History  past       `json:"history"`
	Observed observed   `json:"observed"`
}

// observed is what the answer goes by.
type observed struct {
	Node      string    `json:"node"`
	At        time.Time `json:"at"`
	Index     uint64    `json:"index"`     // of the ledger's last entry here
	LedgerAt  time.Time `json:"ledger_at"` // its time
	Authority string    `json:"authority"` // "": none is known
	Certain   bool      `json:"certain"`   // a quorum is heard; else the yard may know more
}

func (n *Node) observe() observed {
	o := observed{Node: n.cfg.Node.Name, At: time.Now().UTC(), Certain: n.noQuorum() == ""}
	n.raft.View(func(l *ledger.Ledger) { o.Index, o.LedgerAt = l.Index(), l.Now() })
	o.Authority, _, _ = n.watch.authority()
	return o
}

// findTime is how long a job is looked for that the local ledger does not have;
// without a quorum, which could tell of it, only as long as it takes to look.
const (
	findTime      = 900 * time.Millisecond
	findAloneTime = 50 * time.Millisecond
)

func (n *Node) finding(ctx context.Context) (context.Context, context.CancelFunc) {
	if n.noQuorum() != "" {
		return context.WithTimeout(ctx, findAloneTime)
	}
	return context.WithTimeout(ctx, findTime)
}

func (n *Node) handleJobExplain(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[jobQuestion](r)
	if err != nil {
		return nil, err
	}
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	finding, cancel := n.finding(ctx)
	id, err := n.viewer.locate(finding, q.ID, q.Queue)
	cancel()
	if err == nil {
		if e := n.explain(ctx, id); e != nil {
			return e, nil
		}
	}
	return n.explainNone(ctx, &q, id, err)
}

// explain is the explanation of a job that the ledger has; nil if it has none.
func (n *Node) explain(ctx context.Context, id job.ID) *explanation {
	var untold [][]byte
	var untoldAll bool
	n.raft.View(func(l *ledger.Ledger) { untold, untoldAll = l.UntoldOf(id, maxUntold) })
	q, ok := n.newInquiry(), false
	n.raft.View(func(l *ledger.Ledger) { ok = q.look(l, id) })
	if !ok {
		return nil
	}
	p := q.plight // the history is read by what the ledger said, while others are asked
	e := &explanation{ID: id, Queue: p.View.Queue, State: p.State.String(), Observed: n.observe()}
	var asking sync.WaitGroup
	asking.Go(func() { e.History = n.pastOf(ctx, &p, untold, untoldAll) })
	asking.Go(func() { n.follow(ctx, q) })
	asking.Wait()
	e.Reasons = q.reasons()
	e.Verdict = e.Observed.caveat(q.verdict(e.Reasons), e.Reasons)
	if p.State == job.Delayed {
		e.NextAt = &p.Due
	}
	shown := jobToJSON(&q.plight.View)
	shown.Because = q.because()
	e.Job, e.Result = &shown, n.resultText(&p)
	return e
}

// caveat says of a verdict that it may be of yesterday. The quorum may have gone
// while others were asked: what the reasons say of it counts.
func (o *observed) caveat(verdict string, reasons []reason) string {
	o.heed(reasons)
	if o.Certain {
		return verdict
	}
	return fmt.Sprintf("As node %s knew it at %s: %s", o.Node, clock(o.LedgerAt), verdict)
}

// heed makes an answer by whose reasons there is no quorum one that is not certain.
func (o *observed) heed(reasons []reason) {
	if slices.ContainsFunc(reasons, func(r reason) bool { return r.Code == codeNoQuorum }) {
		o.Certain = false
	}
}

// verdict is the explanation in one sentence.
func (q *inquiry) verdict(reasons []reason) string {
	var blocking []string
	for _, r := range reasons {
		if r.blocks {
			blocking = append(blocking, r.Text)
		}
	}
	switch {
	case q.plight.State == job.Delayed:
		return sentence(strings.Join(blocking, "; and "))
	case len(blocking) > 0:
		return sentence("it waits: " + strings.Join(blocking, "; and "))
	case len(reasons) > 0 && reasons[0].Code == codeAhead:
		return sentence("it waits for its turn: " + reasons[0].Text)
	case len(reasons) > 0:
		return sentence(reasons[0].Text)
	}
	return ""
}

// sentence gives a text a capital and a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// resultText tells where a completed job's result is.
func (n *Node) resultText(p *ledger.Plight) string {
	if p.State != job.Completed {
		return ""
	}
	if p.Result == 0 {
		return "it gave none"
	}
	if ttl := p.ResultTTL; ttl > 0 && !time.Now().Before(p.Ended.Add(ttl)) {
		return "it is shown no more: it was to be kept for " + ttl.String()
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

// explainNone tells what is known of a name that the ledger has no job for:
// its record may not be folded yet, may have been no job, or is forgotten. err
// is why no job was found; nil if its id is known all the same.
func (n *Node) explainNone(ctx context.Context, q *jobQuestion, id job.ID, err error) (any, error) {
	var away *job.UnavailableError
	unsure := errors.As(err, &away) || errors.Is(err, context.DeadlineExceeded)
	if err != nil && !unsure && !errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	if err != nil && !unsure { // a key names nothing that is left, but its ids may be known
		if gone, ok := n.forgotten(q); ok {
			id, err = gone, nil
		}
	}
	e := &explanation{ID: id, Reasons: []reason{}, Observed: n.observe(), History: past{Events: []json.RawMessage{}}}
	if n.ruled(e, q) {
		return e, nil
	}
	if unsure && n.unfolded(ctx, e, q) {
		return e, nil
	}
	if errors.Is(err, job.ErrJobNotFound) {
		return nil, err
	}
	switch {
	case unsure:
		e.State = "unknown"
		n.raft.View(func(l *ledger.Ledger) {
			if ids := namedBy(l, q); len(ids) == 1 {
				e.ID = ids[0]
			}
		})
		e.Reasons = []reason{{Code: codeUnknown, Text: "this node knows no such job, and cannot tell whether there is one: " + err.Error()}}
		if _, s := n.askWhy(ctx, scheduler.WhyQuestion{}); s.text != "" {
			e.Reasons = append(e.Reasons, reason{Code: s.code, Text: s.text, blocks: true})
		}
		e.Observed.heed(e.Reasons)
	default:
		e.State = "forgotten"
		e.Reasons = []reason{{Code: codeForgotten, Text: "there was such a job, and the yard has forgotten all but its id"}}
	}
	e.Verdict = sentence(e.Reasons[0].Text)
	e.History.Note = "not looked for; 'yardmaster events --since 0 --job <id>' looks at all there is"
	return e, nil
}
