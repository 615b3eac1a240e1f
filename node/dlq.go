package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// dlq serves requests about dead letters: it walks through their stream, in parts, and
// removes or requeues the dead letters that match.
type dlq struct {
	reader      *cluster.Reader
	admin       *cluster.Admin
	view        func(func(*ledger.Ledger))
	proposer    *authority.Client
	viewer      *jobview.Viewer
	intake      *intake.Intake
	maxAttempts uint32        // of a job that sets none
	walks       chan struct{} // holds one value per running request
}

func newDLQ(n *Node) *dlq {
	return &dlq{
		reader: n.cluster.Reader, admin: n.cluster.Admin, view: n.raft.View, proposer: n.proposer, viewer: n.viewer, intake: n.intake,
		maxAttempts: n.cfg.Scheduler.MaxAttempts, walks: make(chan struct{}, maxWalks),
	}
}

// handlers returns the handlers of the endpoints for dead letters by name.
func (d *dlq) handlers() map[string]handler {
	handle := func(fn func(context.Context, *deadLetterRequest) (any, error)) handler {
		return jsonHandler(func(ctx context.Context, r *cluster.Request) (any, error) {
			req, err := decodeDeadLetterRequest(r.Data)
			if err != nil {
				return nil, err
			}
			release, err := d.acquire()
			if err != nil {
				return nil, err
			}
			defer release()
			return fn(ctx, req)
		})
	}
	return map[string]handler{
		"dlq-list": handle(d.list), "dlq-show": handle(d.show), "dlq-stats": handle(d.stats),
		"dlq-requeue": handle(d.requeue), "dlq-remove": handle(d.remove),
	}
}

// acquire takes one of the maxWalks slots for requests, or fails if all are in use.
func (d *dlq) acquire() (release func(), err error) {
	select {
	case d.walks <- struct{}{}:
		return func() { <-d.walks }, nil
	default:
		return nil, &job.UnavailableError{Reason: "too many requests about dead letters at once", RetryAfter: time.Second}
	}
}

// Bounds of one request. A client continues at the "next" of the reply.
const (
	maxWalks           = 8                       // at the same time
	walkTimeout        = 1500 * time.Millisecond // after it nothing new is begun
	maxDeadLetters     = 1000                    // in a reply, and named in a request
	defaultDeadLetters = 100
	maxDeadLetterBytes = 512 << 10 // of dead letters in a reply
)

// deadLetterRequest is a request, and how long it may take.
type deadLetterRequest struct {
	api.DeadLetterRequest
	deadline time.Time // after which nothing new is begun
}

// deadLetter is a dead letter in its stream.
type deadLetter struct {
	api.DeadLetterMessage
	number     uint64
	job        job.ID
	n          uint32 // the dispatch that failed; 0: the job failed before its first
	unreadable bool   // its message cannot be decoded
	record     []byte // the job as it was accepted; nil: no longer available
}

// parseDeadLetter decodes a message of the stream. A message that cannot be decoded
// becomes an unreadable dead letter with the reason.
func parseDeadLetter(t *cluster.Batch) deadLetter {
	l := deadLetter{number: t.Seq}
	err := json.Unmarshal(t.Body, &l.DeadLetterMessage)
	var ok bool
	name := strings.TrimPrefix(t.ID, "dead/")
	if l.job, l.n, ok = job.ParseRequestID(name); !ok {
		id, unstarted := strings.CutSuffix(name, "#0")
		bad := l.job.UnmarshalText([]byte(id))
		ok = unstarted && bad == nil
	}
	if err == nil && !ok {
		err = fmt.Errorf("it is named %q", t.ID)
	}
	if err != nil {
		return deadLetter{number: t.Seq, unreadable: true, DeadLetterMessage: api.DeadLetterMessage{
			Queue: t.Subject[strings.LastIndexByte(t.Subject, '.')+1:], Failed: t.Stored,
			Reason: "this letter cannot be read: " + err.Error(),
		}}
	}
	if l.record = l.Job; l.record == nil {
		l.record = l.Record
	}
	return l
}

// errorType returns what dead letters are grouped by: the fault's type, or the reason
// up to its first colon.
func (l *deadLetter) errorType() string {
	if l.Error != nil && l.Error.Type != "" {
		return l.Error.Type
	}
	kind, _, _ := strings.Cut(l.Reason, ":")
	return kind
}

// size returns about how many bytes the dead letter takes in a reply, without its
// record.
func (l *deadLetter) size() int {
	n := 400 + len(l.Function) + len(l.Reason)
	if l.Error != nil {
		n += len(l.Error.Message) + len(l.Error.Details)
	}
	return n
}

// matches reports whether the request selects l.
func (r *deadLetterRequest) matches(l *deadLetter) bool {
	switch {
	case r.Queue != "" && l.Queue != r.Queue,
		r.Function != "" && l.Function != r.Function,
		r.FailedBefore != nil && !l.Failed.Before(*r.FailedBefore),
		r.FailedAfter != nil && !l.Failed.After(*r.FailedAfter),
		len(r.Jobs) > 0 && !slices.Contains(r.Jobs, l.job):
		return false
	}
	return r.Error == "" || l.failedWith(r.Error)
}

// failedWith reports whether the error's type or code is text, or its message or the
// reason contains it.
func (l *deadLetter) failedWith(text string) bool {
	if containsFold(l.Reason, text) {
		return true
	}
	e := l.Error
	return e != nil && (strings.EqualFold(e.Type, text) || strings.EqualFold(e.Code, text) || containsFold(e.Message, text))
}

// containsFold reports whether text contains part, without regard to case.
func containsFold(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// decodeDeadLetterRequest decodes a request. It rejects unknown fields, because a
// misspelt filter would select more dead letters than intended.
func decodeDeadLetterRequest(text []byte) (*deadLetterRequest, error) {
	req := &deadLetterRequest{deadline: time.Now().Add(walkTimeout)}
	if len(text) > 0 {
		if err := job.UnmarshalStrict("request about dead letters", text, &req.DeadLetterRequest); err != nil {
			return nil, err
		}
	}
	if req.Limit == 0 {
		req.Limit = defaultDeadLetters
	}
	switch {
	case req.Limit < 0 || req.Limit > maxDeadLetters:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d letters per reply", req.Limit, maxDeadLetters)}
	case max(len(req.Letters), len(req.Jobs)) > maxDeadLetters:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("%d letters and %d jobs are named; at most %d at once", len(req.Letters), len(req.Jobs), maxDeadLetters)}
	}
	slices.Sort(req.Letters)
	req.Letters = slices.Compact(req.Letters)
	return req, nil
}

// requireFilter returns an error for a change without any filter.
func (r *deadLetterRequest) requireFilter() error {
	if r.All || len(r.Letters)+len(r.Jobs) > 0 || r.Queue+r.Function+r.Error != "" || r.FailedBefore != nil || r.FailedAfter != nil {
		return nil
	}
	return &job.InvalidError{Reason: `no dead letters are named: set letters, jobs, queue, function, error, failed_before or failed_after, or "all": true`}
}

// walk calls fn for each dead letter that q selects, oldest first, until fn returns
// false or q's deadline has passed.
func (d *dlq) walk(ctx context.Context, req *deadLetterRequest, fn func(deadLetter) (more bool)) (w api.Continuation, err error) {
	if w.Until = req.Until; w.Until == 0 {
		if w.Until, err = d.reader.LastDeadLetter(ctx); err != nil {
			return w, deadLetterReadError(err)
		}
	}
	visit := func(t cluster.Batch) bool {
		if l := parseDeadLetter(&t); req.matches(&l) && !fn(l) || time.Now().After(req.deadline) {
			w.Next = t.Seq + 1
			return false
		}
		return true
	}
	if len(req.Letters) > 0 {
		err = d.walkNumbers(ctx, req, w.Until, visit)
	} else {
		err = d.reader.DeadLetters(ctx, req.Queue, req.From, w.Until, visit)
	}
	if w.Next > w.Until {
		w.Next = 0
	}
	return w, deadLetterReadError(err)
}

// walkNumbers visits the dead letters that a request names by number. It skips those
// that no longer exist, so that a request can be repeated.
func (d *dlq) walkNumbers(ctx context.Context, req *deadLetterRequest, until uint64, visit func(cluster.Batch) bool) error {
	for _, number := range req.Letters {
		if number < max(req.From, 1) || number > until {
			continue
		}
		t, err := d.reader.DeadLetter(ctx, number)
		if errors.Is(err, cluster.ErrNotStored) {
			continue
		}
		if err != nil {
			return err
		}
		if !visit(t) {
			return nil
		}
	}
	return nil
}

// deadLetterReadError turns the absence of the stream or its leader, which passes, into a
// [*job.UnavailableError].
func deadLetterReadError(err error) error {
	if errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, cluster.ErrStreamMissing) {
		return &job.UnavailableError{Reason: "dead letters cannot be read: " + err.Error(), RetryAfter: time.Second}
	}
	return err
}

func (d *dlq) toJSON(l *deadLetter) api.DeadLetter {
	j := api.DeadLetter{Number: l.number, DeadLetterMessage: l.DeadLetterMessage}
	if found, ok := d.findJob(l); ok {
		j.State = found.State.String()
	}
	return j
}

// findJob returns the job of a dead letter, if the ledger still has it. A later job
// with the same id does not count.
func (d *dlq) findJob(l *deadLetter) (found job.View, ok bool) {
	d.view(func(lg *ledger.Ledger) { found, _, ok = lg.Find(l.job) })
	return found, ok && found.Position == job.Position{Lane: l.Lane, Seq: l.Seq}
}

func (d *dlq) list(ctx context.Context, q *deadLetterRequest) (any, error) {
	answer := api.DeadLetterPage{Letters: []api.DeadLetter{}}
	size := 0
	var err error
	answer.Continuation, err = d.walk(ctx, q, func(l deadLetter) bool {
		l.Job, l.Record = nil, nil
		answer.Letters = append(answer.Letters, d.toJSON(&l))
		size += l.size()
		return len(answer.Letters) < q.Limit && size < maxDeadLetterBytes
	})
	return answer, err
}

// show returns one dead letter with its record, by its number or as the last one of a
// job.
func (d *dlq) show(ctx context.Context, q *deadLetterRequest) (any, error) {
	if len(q.Letters)+len(q.Jobs) != 1 {
		return nil, &job.InvalidError{Reason: `name one dead letter: {"letters": [<number>]} or {"jobs": ["<uuid>"]}`}
	}
	l, err := d.last(ctx, q)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &api.Error{Code: api.CodeNotFound, Text: "dead letter does not exist; 'yardmaster dlq list' shows what there is"}
	}
	return d.toJSON(l), nil
}

// last returns the newest dead letter that q selects, or nil. It walks the whole stream,
// in as many parts as necessary.
func (d *dlq) last(ctx context.Context, q *deadLetterRequest) (last *deadLetter, err error) {
	for w := (api.Continuation{Next: 1}); w.Next > 0; {
		if w, err = d.walk(ctx, q, func(l deadLetter) bool { last = &l; return true }); err != nil {
			return nil, err
		}
		q.From, q.Until, q.deadline = w.Next, w.Until, time.Now().Add(walkTimeout)
	}
	return last, nil
}

// maxStatNames is how many different queues, functions or errors one part of the
// statistics distinguishes.
const maxStatNames = 500

// countDeadLetter adds l to the statistics.
func countDeadLetter(s *api.DeadLetterCounts, l *deadLetter) {
	s.Count++
	if s.Oldest == nil || l.Failed.Before(*s.Oldest) {
		s.Oldest = &l.Failed
	}
	if s.Newest == nil || l.Failed.After(*s.Newest) {
		s.Newest = &l.Failed
	}
	countName(s.Queues, l.Queue)
	countName(s.Functions, l.Function)
	countName(s.Errors, l.errorType())
}

// countName adds one to the count of name, or to that of "…" if there are too many.
func countName(counts map[string]int, name string) {
	if len(name) > job.MaxFunctionLen {
		name = strings.ToValidUTF8(name[:job.MaxFunctionLen], "")
	}
	if _, known := counts[name]; !known && len(counts) >= maxStatNames {
		name = "…"
	}
	counts[name]++
}

func (d *dlq) stats(ctx context.Context, q *deadLetterRequest) (any, error) {
	s := api.DeadLetterStats{DeadLetterCounts: api.DeadLetterCounts{Queues: map[string]int{}, Functions: map[string]int{}, Errors: map[string]int{}}}
	var err error
	s.Continuation, err = d.walk(ctx, q, func(l deadLetter) bool {
		countDeadLetter(&s.DeadLetterCounts, &l)
		return true
	})
	return &s, err
}
