package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/mergepatch"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// Server answers requests about operations on any node. All fields are required.
type Server struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger))
	Find      Finder
	Options   func(context.Context) query.Options                                 // returns what queries of users are read with, as [index.Index.QueryOptions]
	Preview   func(context.Context, *deadletters.NewJob) (json.RawMessage, error) // as [deadletters.Server.Preview]
	HasLetter func(ctx context.Context, id job.ID, number uint64) (bool, error)   // as [deadletters.Server.HasLetter]
}

// Handlers returns the handlers by the name of the endpoint.
func (s *Server) Handlers() map[string]server.Handler {
	change := func(state ledger.OperationState) server.Handler {
		return server.JSON(func(ctx context.Context, q *api.OperationRequest) (*api.Operation, error) {
			return s.change(ctx, &ledger.ChangeOperation{Number: q.ID, State: state})
		})
	}
	return map[string]server.Handler{
		"operation-start": server.JSON(s.start), "operation-preview": server.JSON(s.preview), "operation-list": server.JSON(s.list), "operation-show": server.JSON(s.show),
		"operation-pause": change(ledger.OperationPaused), "operation-resume": change(ledger.OperationRunning), "operation-cancel": change(ledger.OperationCancelled),
		"operation-set": server.JSON(func(ctx context.Context, q *api.OperationChange) (*api.Operation, error) {
			return s.change(ctx, &ledger.ChangeOperation{Number: q.ID, Rate: &q.Rate})
		}),
	}
}

// settings checks a request and returns what the operation does, from now on.
func (s *Server) settings(ctx context.Context, q *api.OperationStart) (ledger.OperationSettings, error) {
	if string(q.Params) == "null" {
		q.Params = nil
	}
	now := time.Now()
	action, ok := ledger.ParseOperationAction(q.Action)
	options := s.Options(ctx)
	options.Now = now
	parsed, err := parse(q.Query, options)
	switch {
	case !ok:
		return ledger.OperationSettings{}, &job.InvalidError{Reason: fmt.Sprintf("action is %q; must be retry, cancel, remove or requeue", q.Action)}
	case err != nil:
		return ledger.OperationSettings{}, err
	case parsed.Where == nil:
		return ledger.OperationSettings{}, &job.InvalidError{Reason: "query selects nothing; write what the jobs have in common, such as queue:mail state:failed, or id:* for all jobs"}
	case action != ledger.OperationRequeue && (len(q.Params) > 0 || q.To != ""):
		return ledger.OperationSettings{}, &job.InvalidError{Reason: fmt.Sprintf("params and to are for the action requeue, which creates new jobs of dead letters; the action is %s", action)}
	case q.Rate > ledger.MaxOperationRate:
		return ledger.OperationSettings{}, &job.InvalidError{Reason: fmt.Sprintf("rate is %d; must be 0 to %d jobs per second", q.Rate, ledger.MaxOperationRate)}
	}
	if len(q.Params) > 0 {
		if err := mergepatch.Check(q.Params); err != nil {
			return ledger.OperationSettings{}, &job.InvalidError{Reason: "params: " + err.Error()}
		}
	}
	if q.To != "" {
		if err := job.ValidQueue(q.To); err != nil {
			return ledger.OperationSettings{}, err
		}
		if _, err := s.Authority.Queue(ctx, q.To); err != nil {
			return ledger.OperationSettings{}, err
		}
	}
	return ledger.OperationSettings{
		Key: q.Key, Action: action, Query: canonical(parsed), Until: now.UTC(), Rate: q.Rate, Params: q.Params, To: q.To, KeepAttempts: q.KeepAttempts,
	}, nil
}

// start starts an operation, after it has counted the jobs.
func (s *Server) start(ctx context.Context, q *api.OperationStart) (*api.Operation, error) {
	settings, err := s.settings(ctx, q)
	if err != nil {
		return nil, err
	}
	if counted, err := s.count(ctx, &settings, 0); err == nil && !counted.AtLeast { // without an index, the operation waits for it
		settings.Expected = uint64(counted.Matched)
	}
	return s.propose(ctx, &ledger.StartOperation{Settings: settings})
}

// propose commits a command and returns the operation after it.
func (s *Server) propose(ctx context.Context, c ledger.Command) (*api.Operation, error) {
	result, err := s.Authority.Propose(ctx, c)
	switch {
	case errors.Is(err, ledger.ErrOperationEnded), errors.Is(err, ledger.ErrTooManyOperations):
		return nil, &api.Error{Code: api.CodeConflict, Text: err.Error()}
	case err != nil:
		return nil, err
	}
	server.SetIndex(ctx, result.Index)
	return s.operation(ctx, result.Operation)
}

// preview returns what an operation would do.
func (s *Server) preview(ctx context.Context, q *api.OperationStart) (*api.OperationPreview, error) {
	settings, err := s.settings(ctx, q)
	if err != nil {
		return nil, err
	}
	preview, err := s.count(ctx, &settings, maxSample)
	if err != nil {
		return nil, err
	}
	s.checkLetters(ctx, preview)
	options := s.Options(ctx)
	preview.Advice = preview.query.UnknownLabels(options.HasLabel, options.HasQueue, func() []string { return nil })
	if preview.lacking != nil {
		preview.Advice = append(preview.Advice, "further jobs may be in "+preview.lacking.Reason+"; the operation waits for them")
	}
	s.previewJobs(ctx, &settings, preview)
	server.SetIndex(ctx, preview.Index)
	return &preview.OperationPreview, nil
}

// change changes an operation.
func (s *Server) change(ctx context.Context, c *ledger.ChangeOperation) (*api.Operation, error) {
	reply, err := s.propose(ctx, c)
	if errors.Is(err, ledger.ErrOperationNotFound) {
		return nil, notFound(c.Number)
	}
	return reply, err
}

// show returns one operation.
func (s *Server) show(ctx context.Context, q *api.OperationRequest) (*api.Operation, error) {
	return s.operation(ctx, q.ID)
}

// operation returns an operation of the local ledger, which has it for certain if it exists.
func (s *Server) operation(ctx context.Context, number uint64) (*api.Operation, error) {
	var found *ledger.Operation
	exists, err := s.Authority.Find(ctx, func(l *ledger.Ledger) bool {
		found = l.Operation(number)
		return found != nil
	})
	switch {
	case err != nil:
		return nil, err
	case !exists:
		return nil, notFound(number)
	}
	shown := api.OperationOf(found)
	for _, f := range found.Failures {
		shown.Failures = append(shown.Failures, api.OperationFailure{Job: f.Job, Error: f.Text})
	}
	return &shown, nil
}

func notFound(number uint64) error {
	return &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("operation %d does not exist; 'yardmaster operation list' shows those of the last 7 days", number)}
}

// Bounds of a page of the list.
const (
	defaultListed  = 50
	maxListed      = 100
	maxListedBytes = 512 << 10
)

// list returns a page of the operations, newest first.
func (s *Server) list(_ context.Context, q *api.OperationRequest) (*api.OperationList, error) {
	limit := cmp.Or(q.Limit, defaultListed)
	if limit < 1 || limit > maxListed {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxListed)}
	}
	var all []*ledger.Operation
	s.View(func(l *ledger.Ledger) { all = l.Operations() })
	reply, size := &api.OperationList{}, 0
	for _, op := range slices.Backward(all) {
		if q.After != 0 && op.Number >= q.After {
			continue
		}
		if len(reply.Operations) == limit || size > maxListedBytes {
			reply.Next = reply.Operations[len(reply.Operations)-1].ID
			break
		}
		size += 1000 + 6*(len(op.Query)+len(op.Params))
		reply.Operations = append(reply.Operations, api.OperationOf(op))
	}
	return reply, nil
}
