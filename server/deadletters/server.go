// Package deadletters answers requests about jobs that have failed for good: it lists,
// requeues and removes their dead letters, and replays jobs.
package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// Server answers requests about dead letters. It lists and counts them with its directory. To remove or
// requeue dead letters, or to list them oldest first, it walks through their stream, in parts.
type Server struct {
	cfg       Config
	directory *directory
	walks     chan struct{} // holds one value per running request
}

// Config is what a [Server] uses. All fields are required.
type Config struct {
	Reader      Reader
	Remove      func(ctx context.Context, number uint64) error // removes a dead letter from the stream
	View        func(func(*ledger.Ledger))                     // reads the local ledger
	Authority   *authority.Client
	Jobs        *jobview.Viewer
	Retrier     *jobview.Retrier
	Intake      *intake.Intake
	MaxAttempts uint32 // of a job that sets none
}

// Reader reads the stream of dead letters, as [streams.Reader].
type Reader interface {
	LastDeadLetter(ctx context.Context) (uint64, error)
	DeadLetters(ctx context.Context, queue string, from, until uint64, yield func(streams.Batch) bool) error
	LetterState(ctx context.Context, removed bool) (streams.LetterState, error)
	DeadLetter(ctx context.Context, number uint64) (streams.Batch, error)
	NumberedDeadLetter(ctx context.Context, number uint64) (streams.Batch, error)
	LoadRecordBody(ctx context.Context, record []byte) ([]byte, error)
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{cfg, newDirectory(cfg.Reader), make(chan struct{}, maxWalks)}
}

// Handlers returns the handlers by the name of the endpoint.
func (s *Server) Handlers() map[string]server.Handler {
	return map[string]server.Handler{
		"dlq-list": handler(s, s.list), "dlq-show": handler(s, s.show), "dlq-stats": handler(s, s.stats),
		"dlq-requeue": handler(s, s.requeue), "dlq-remove": handler(s, s.remove), "job-replay": server.JSON(s.replay),
	}
}

// handler adapts handle, and limits how many requests run at once.
func handler[R any](s *Server, handle func(context.Context, *request) (*R, error)) server.Handler {
	return server.NamedJSON("request about dead letters", func(ctx context.Context, q *api.DeadLetterRequest) (*R, error) {
		req, err := newRequest(*q)
		if err != nil {
			return nil, err
		}
		release, err := s.acquire()
		if err != nil {
			return nil, err
		}
		defer release()
		return handle(ctx, req)
	})
}

// acquire takes one of the maxWalks slots for requests, or fails if all are in use.
func (s *Server) acquire() (release func(), err error) {
	select {
	case s.walks <- struct{}{}:
		return func() { <-s.walks }, nil
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

// request is a request, and how long it may take.
type request struct {
	api.DeadLetterRequest
	deadline time.Time // after which nothing new is begun
}

// matches reports whether the request selects l.
func (r *request) matches(l *letter) bool {
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

// newRequest checks a request and begins its time.
func newRequest(q api.DeadLetterRequest) (*request, error) {
	req := &request{q, time.Now().Add(walkTimeout)}
	req.Limit = cmp.Or(req.Limit, defaultDeadLetters)
	switch {
	case req.Order != "" && req.Order != api.OrderNewest && req.Order != api.OrderOldest:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("order is %q; must be newest or oldest", job.CutText(req.Order, 64))}
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
func (r *request) requireFilter() error {
	if r.All || len(r.Letters)+len(r.Jobs) > 0 || r.Queue+r.Function+r.Error != "" || r.FailedBefore != nil || r.FailedAfter != nil {
		return nil
	}
	return &job.InvalidError{Reason: `no dead letters are named: set letters, jobs, queue, function, error, failed_before or failed_after, or "all": true`}
}

// walk calls fn for each dead letter that the request selects, oldest first, until fn
// returns false or the request's deadline has passed. Then Next of the result is where
// another request can continue, and otherwise 0. Until is the last number of the walk,
// which letters that are added meanwhile do not change.
func (s *Server) walk(ctx context.Context, req *request, fn func(letter) (more bool)) (continuation api.Continuation, err error) {
	continuation.Until = req.Until
	if req.Until == 0 {
		continuation.Until, err = s.cfg.Reader.LastDeadLetter(ctx)
		if err != nil {
			return continuation, deadLetterReadError(err)
		}
	}
	visit := func(message streams.Batch) (more bool) {
		l := parse(&message)
		stopped := req.matches(&l) && !fn(l)
		if stopped || time.Now().After(req.deadline) {
			continuation.Next = message.Seq + 1
			return false
		}
		return true
	}
	if len(req.Letters) > 0 {
		err = s.walkNumbers(ctx, req, continuation.Until, visit)
	} else {
		err = s.cfg.Reader.DeadLetters(ctx, req.Queue, req.From, continuation.Until, visit)
	}
	if continuation.Next > continuation.Until {
		continuation.Next = 0
	}
	return continuation, deadLetterReadError(err)
}

// walkNumbers visits the dead letters that a request names by number. It skips those
// that no longer exist, so that a request can be repeated.
func (s *Server) walkNumbers(ctx context.Context, req *request, until uint64, visit func(streams.Batch) bool) error {
	for _, number := range req.Letters {
		if number < max(req.From, 1) || number > until {
			continue
		}
		t, err := s.cfg.Reader.DeadLetter(ctx, number)
		if errors.Is(err, streams.ErrNotStored) {
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
	if errors.Is(err, streams.ErrNoLeader) || errors.Is(err, streams.ErrStreamMissing) || errors.Is(err, embedded.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		return &job.UnavailableError{Reason: "dead letters cannot be read: " + err.Error(), RetryAfter: time.Second}
	}
	return err
}

// shown returns l as the API shows it.
func (s *Server) shown(l *letter) *api.DeadLetter {
	j := &api.DeadLetter{Number: l.number, DeadLetterMessage: l.DeadLetterMessage}
	if found, ok := s.findJob(l); ok {
		j.State = found.State.String()
	}
	return j
}

// findJob returns the job of a dead letter, if the ledger still has it.
func (s *Server) findJob(l *letter) (found job.View, ok bool) {
	s.cfg.View(func(lg *ledger.Ledger) { found, _, ok = lg.Find(l.job) })
	return found, ok && l.isAbout(&found)
}

// show returns one dead letter with its record, by its number or as the last one of a
// job.
func (s *Server) show(ctx context.Context, q *request) (*api.DeadLetter, error) {
	if len(q.Letters)+len(q.Jobs) != 1 {
		return nil, &job.InvalidError{Reason: `name one dead letter: {"letters": [<number>]} or {"jobs": ["<uuid>"]}`}
	}
	l, err := s.last(ctx, q)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &api.Error{Code: api.CodeNotFound, Text: "dead letter does not exist; 'yardmaster dlq list' shows what there is"}
	}
	return s.shown(l), nil
}
