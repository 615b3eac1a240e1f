// Package authority is how a node uses the authority, which may be itself or another
// node: [Client] commits commands and confirms that the local ledger is current, [Watch]
// follows who holds the authority.
package authority

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// verbPropose sends a command to the authority.
const verbPropose = "propose"

// CommandTimeout is how long a caller waits for a command before it is answered that
// no authority is available.
const CommandTimeout = 2 * time.Second

// Client commits commands from any node: on this node if it is the authority, else by a
// request to the authority. All fields are required.
type Client struct {
	Node      string // this node's name
	Raft      Raft
	Scheduler Scheduler
	Fleet     Requester
	Watch     *Watch
	Log       *slog.Logger
}

// Raft is the local ledger and the notification of its changes.
type Raft interface {
	View(func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
	WaitApplied(ctx context.Context, index uint64) error
}

// Scheduler is this node's scheduler, which may be the authority.
type Scheduler interface {
	Status(context.Context) (scheduler.AuthorityStatus, error)
	Propose(context.Context, ledger.Command) (ledger.Result, uint64, error)
}

// Requester sends a request to another node and returns the answer.
type Requester interface {
	Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error)
}

// Result is the result of a command, as nodes send it to each other.
type Result struct {
	Index       uint64          `json:"index"`
	Event       json.RawMessage `json:"event,omitempty"`
	EventNumber uint64          `json:"event_number,omitempty"` // of Event
	State       job.State       `json:"state,omitempty"`
	Queue       *api.Queue      `json:"queue,omitempty"`     // the queue that was added or changed, after the command
	Operation   uint64          `json:"operation,omitempty"` // number of the operation that was started or changed
	Error       string          `json:"error,omitempty"`     // why the ledger rejected the command; "": it did not
	Code        string          `json:"code,omitempty"`      // of the error: its key in sharedErrors, or codeInvalid
}

const (
	codeQueueRemoving = "queue_removing" // in sharedErrors, of a command that has to be repeated
	codeInvalid       = "invalid"        // of a [*job.InvalidError]
)

// sharedErrors are the errors that keep their identity between nodes, by code.
var sharedErrors = map[string]error{
	"queue_not_found": job.ErrQueueNotFound, "queue_exists": job.ErrQueueExists,
	"too_many_queues": job.ErrTooManyQueues, "queue_not_empty": job.ErrQueueNotEmpty, codeQueueRemoving: ledger.ErrQueueRemoving,
	"queue_paused": job.ErrQueuePaused, "queue_running": job.ErrQueueNotPaused, "system_queue": job.ErrSystemQueue,
	"job_not_found": job.ErrJobNotFound, "not_removable": job.ErrNotRemovable,
	"cron_not_found": ledger.ErrCronNotFound, "cron_exists": ledger.ErrCronExists, "cron_declared": ledger.ErrCronDeclared,
	"too_many_crons": ledger.ErrTooManyCrons, "schema_not_found": ledger.ErrSchemaNotFound, "too_many_schemas": ledger.ErrTooManySchemas,
	"limit_not_found": ledger.ErrLimitNotFound, "too_many_limits": ledger.ErrTooManyLimits, "limit_in_use": ledger.ErrLimitInUse,
	"new_limit_empty":     ledger.ErrNewLimitEmpty,
	"operation_not_found": ledger.ErrOperationNotFound, "operation_ended": ledger.ErrOperationEnded, "too_many_operations": ledger.ErrTooManyOperations,
	"limit_paused": ledger.ErrLimitPaused, "limit_not_paused": ledger.ErrLimitNotPaused, "backlog_full": ledger.ErrBacklogFull,
	"held": ledger.ErrBackupRunning, "not_fresh": ledger.ErrNotFresh, "bring_seat": ledger.ErrNotRestoring, "bring_part": ledger.ErrRestoreIncomplete,
	"bringing": ledger.ErrRestoring, "members_changing": ledger.ErrMembersChanging, "runners_full": ledger.ErrRunnersFull,
	"malformed": job.ErrMalformed, "not_failed": job.ErrNotFailed, "not_active": job.ErrNotActive, "job_ended": job.ErrJobEnded, "not_changeable": job.ErrNotChangeable, "expires_before": job.ErrExpiresBefore, "lease_lost": job.ErrLeaseLost,
	"record_reclaimed": job.ErrRecordReclaimed,
}

// KeysFullDelay is after what time a retry makes sense after [ledger.IngestedKeysFull].
const KeysFullDelay = 10 * time.Second

// retryDelays has the errors that pass without intervention, with the time after which a
// retry makes sense.
var retryDelays = map[error]time.Duration{ledger.ErrRestoring: time.Second, ledger.ErrRunnersFull: KeysFullDelay, ledger.ErrQueueRemoving: time.Second}

// RejectedError is the reason why the ledger rejected a command.
type RejectedError struct {
	text  string
	cause error // by its code; nil if that is unknown
}

func (e *RejectedError) Error() string { return e.text }
func (e *RejectedError) Unwrap() error { return e.cause }

// sharedErrorCode returns the code of err, "" if it has none.
func sharedErrorCode(err error) string {
	if _, invalid := errors.AsType[*job.InvalidError](err); invalid {
		return codeInvalid
	}
	for code, shared := range sharedErrors {
		if errors.Is(err, shared) {
			return code
		}
	}
	return ""
}

// Propose commits one command and waits until the local ledger shows it. If the
// ledger rejects the command, the error is a [*RejectedError], or for a reason that
// passes a [*job.UnavailableError]. A [*job.UnavailableError] without a result means
// that no authority took the command within CommandTimeout, or that its outcome is
// unknown. A command that was sent to an authority which has been superseded is sent to
// the next one, if it is idempotent. Propose repeats the removal of a queue until the
// queue is removed. The command records the actor of ctx.
func (c *Client) Propose(ctx context.Context, command ledger.Command) (Result, error) {
	cluster.SetActor(ctx, command)
	if err := ledger.Check(command); err != nil {
		return Result{}, &job.InvalidError{Reason: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	for {
		appliedBefore, changed := c.Raft.Applied()
		result, err := c.tryPropose(ctx, command)
		repeatable := NotProposed(err) || errors.Is(err, errSuperseded) && idempotent(command)
		switch {
		case err == nil && result.Code == codeQueueRemoving && ctx.Err() == nil:
			continue
		case err == nil && result.Error != "":
			err := rejection(&result)
			return result, err
		case err == nil:
			return result, notAppliedError(result.Index, c.Raft.WaitApplied(ctx, result.Index))
		case !repeatable:
			return Result{}, &job.UnavailableError{
				Reason:     fmt.Sprintf("the command's outcome is unknown: %v; repeat it: it is not carried out twice", err),
				RetryAfter: time.Second,
			}
		}
		if applied, _ := c.Raft.Applied(); applied != appliedBefore {
			continue
		}
		if !awaitChange(ctx, changed) {
			return Result{}, &job.UnavailableError{Reason: "no authority answers", RetryAfter: time.Second}
		}
	}
}

// RecordEvent records an act of the yard itself that is no command of the ledger. It tries until
// an authority answers, or ctx ends.
func (c *Client) RecordEvent(ctx context.Context, action, target, reason string) error {
	act := &ledger.RecordAct{Action: action, Target: target, Asked: ledger.Asked{By: ledger.Actor{Reason: reason}}}
	for {
		_, err := c.Propose(ctx, act)
		var unavailable *job.UnavailableError
		if !errors.As(err, &unavailable) { // an act whose fate is unknown is not repeated
			return err
		}
		if err := backoff.Sleep(ctx, max(unavailable.RetryAfter, time.Second)); err != nil {
			return err
		}
	}
}

// RecordAct records an act of the actor of ctx that is no command of the ledger. A
// context without an actor records nothing. A failure is logged: it does not undo the
// act.
func (c *Client) RecordAct(ctx context.Context, act *ledger.RecordAct) {
	if act.SetActor(cluster.ActorOf(ctx)); act.By == (ledger.Actor{}) {
		return
	}
	if _, err := c.Propose(context.WithoutCancel(ctx), act); err != nil { // the act is done, whether or not its client waits
		c.Log.Warn("act not recorded in the history", "action", act.Action, "queue", act.Queue, "target", act.Target, "actor", act.By.Name, "err", err)
	}
}

// rejection returns the error for a command that the ledger rejected.
func rejection(r *Result) error {
	cause := sharedErrors[r.Code]
	if r.Code == codeInvalid {
		cause = &job.InvalidError{Reason: r.Error}
	}
	if delay := retryDelays[cause]; delay > 0 {
		return &job.UnavailableError{Reason: r.Error, RetryAfter: delay}
	}
	return &RejectedError{text: r.Error, cause: cause}
}

// notAppliedError returns the answer to a command that is committed at index if err,
// from waiting until this node's ledger has applied it, is not nil; otherwise nil.
func notAppliedError(index uint64, err error) error {
	if err == nil {
		return nil
	}
	return &api.Error{
		Code: api.CodeUnknown, Text: fmt.Sprintf("the command is carried out, by entry %d, which this node does not show yet: look again before you repeat it", index),
		RetryAfter: time.Second,
	}
}

// NotProposed reports whether err means for certain that nothing was proposed.
func NotProposed(err error) bool {
	var refused *api.Error
	var notLeader *consensus.NotLeaderError
	return errors.Is(err, scheduler.ErrNotAuthority) || errors.Is(err, cluster.ErrNodeUnreachable) ||
		errors.As(err, &notLeader) || errors.As(err, &refused) && refused.Code == cluster.CodeNotAuthority
}

// errSuperseded means that a command was sent to an authority that has been
// superseded. What it had not committed by the next epoch will never be committed.
var errSuperseded = errors.New("the authority changed hands while the command was under way")

// idempotent reports whether the ledger answers a repeated c like the first one and
// adds no event.
func idempotent(c ledger.Command) bool {
	switch c := c.(type) {
	case *ledger.QueueDispatch, *ledger.AcquireAuthority, *ledger.RenewAuthority, *ledger.AddQueue, *ledger.Hold, *ledger.ChangeOperation:
		return true
	case *ledger.StartOperation:
		return c.Settings.Key != ""
	}
	return false
}

// answerGrace is how long to wait for an answer after another authority is known. A
// living node that transfers the authority has answered by then.
const answerGrace = 200 * time.Millisecond

// untilAuthorityChanges returns a context that ends answerGrace after changed is
// closed. stop ends it earlier and must be called.
func untilAuthorityChanges(ctx context.Context, changed <-chan struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(answerGrace):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-stopped }
}

// tryPropose sends a command once to the current authority, which may be this node. The
// error wraps errSuperseded if that authority was superseded before it answered.
func (c *Client) tryPropose(ctx context.Context, command ledger.Command) (Result, error) {
	owner, changed := c.Watch.Watch()
	if owner == "" {
		return Result{}, scheduler.ErrNotAuthority
	}
	if owner == c.Node {
		return c.proposeLocal(ctx, command)
	}
	reqCtx, stop := untilAuthorityChanges(ctx, changed)
	defer stop()
	answer, err := c.Fleet.Request(reqCtx, owner, verbPropose, consensus.EncodeCommand(command))
	if err != nil && ctx.Err() == nil && reqCtx.Err() != nil {
		err = fmt.Errorf("%s does not answer, and %w", owner, errSuperseded)
	}
	if err != nil {
		return Result{}, err
	}
	var result Result
	err = json.Unmarshal(answer, &result)
	return result, err
}

// proposeLocal commits a command on this node, which must be the authority. That the
// ledger rejected it is part of the result.
func (c *Client) proposeLocal(ctx context.Context, command ledger.Command) (Result, error) {
	r, index, err := c.Scheduler.Propose(ctx, command)
	if err != nil {
		return Result{}, err
	}
	result := Result{Index: index, State: r.State}
	if r.Err != nil {
		result.Error, result.Code = r.Err.Error(), sharedErrorCode(r.Err)
	}
	if r.Event != nil {
		result.Event, result.EventNumber = r.Event.JSON(), r.EventNumber
	}
	if r.Queue != nil {
		result.Queue = new(api.QueueOf(r.Queue))
	}
	if r.Operation != nil {
		result.Operation = r.Operation.Number
	}
	return result, nil
}

// Handlers returns the handlers of requests from other nodes, by verb.
func (c *Client) Handlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){verbPropose: c.servePropose, verbIndex: c.serveIndex}
}

// servePropose commits the command of another node.
func (c *Client) servePropose(ctx context.Context, payload []byte) ([]byte, error) {
	command, err := consensus.DecodeCommand(payload)
	if err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	result, err := c.proposeLocal(ctx, command)
	if NotProposed(err) {
		return nil, &api.Error{Code: cluster.CodeNotAuthority, Text: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	return result.encode()
}

// encode returns r as JSON. It does not escape HTML, which would change the bytes of
// the event.
func (r *Result) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(r)
	return b.Bytes(), err
}
