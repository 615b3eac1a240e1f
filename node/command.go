package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// verbDo carries a command to the authority.
const verbDo = "do"

// commandTime is how long a caller waits for a command before it hears that
// the yard is unavailable.
const commandTime = 2 * time.Second

// commander commits commands from any node: here if this node is the
// authority, else by asking the node that is.
type commander struct {
	node  string
	raft  *consensus.Node
	mind  *scheduler.Scheduler
	fleet courier
	watch *authorityWatch

	leaving *atomic.Bool // the node stops or is drained: the authority is not for it
}

// courier asks another node.
type courier interface {
	Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error)
}

// done is a command's answer as it travels between nodes.
type done struct {
	Index uint64          `json:"index"`
	Event json.RawMessage `json:"event,omitempty"`
	State job.State       `json:"state,omitempty"`
	Queue *queueJSON      `json:"queue,omitempty"` // that was made or changed, as the command left it
	Error string          `json:"error,omitempty"` // a refusal's text
	Code  string          `json:"code,omitempty"`  // names the refusal, see refusals
}

// refusals are the errors that keep their identity between nodes.
var refusals = map[string]error{
	"queue_not_found": job.ErrQueueNotFound, "queue_exists": job.ErrQueueExists,
	"too_many_queues": job.ErrTooManyQueues, "queue_not_empty": job.ErrQueueNotEmpty,
	"queue_paused": job.ErrQueuePaused, "queue_running": job.ErrQueueRunning, "system_queue": job.ErrSystemQueue,
	"job_not_found": job.ErrJobNotFound, "not_removable": job.ErrNotRemovable,
	"cron_not_found": ledger.ErrCronNotFound, "cron_exists": ledger.ErrCronExists, "cron_declared": ledger.ErrCronDeclared,
	"too_many_crons": ledger.ErrTooManyCrons, "backlog_full": ledger.ErrBacklogFull,
	"held": ledger.ErrHeld, "not_fresh": ledger.ErrNotFresh, "bring_seat": ledger.ErrBringSeat, "bring_part": ledger.ErrBringPart,
	"bringing": ledger.ErrBringing, "members_changing": ledger.ErrMembersChanging,
	"malformed": job.ErrMalformed, "not_failed": job.ErrNotFailed, "not_active": job.ErrNotActive, "job_ended": job.ErrJobEnded, "lease_lost": job.ErrLeaseLost,
}

// refusedError is a refusal that came from another node.
type refusedError struct {
	text string
	is   error // what it is an instance of; nil if nothing a caller tells apart
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.is }

func refusalCode(err error) string {
	for code, known := range refusals {
		if errors.Is(err, known) {
			return code
		}
	}
	return ""
}

// do commits one command and waits until the local ledger shows it. A refusal
// comes as the error itself; a [*job.UnavailableError] means that no authority
// took the command within commandTime, or that nobody can tell. A command that
// was under way to an authority which is gone goes to the next one, if to say it
// twice is to say it once.
func (c *commander) do(ctx context.Context, command ledger.Command) (done, error) {
	if err := ledger.Check(command); err != nil {
		return done{}, &job.InvalidError{Reason: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	for {
		index, changed := c.raft.Applied()
		d, err := c.try(ctx, command)
		switch {
		case err == nil:
			if d.Error != "" && refusals[d.Code] == ledger.ErrBringing {
				return d, &job.UnavailableError{Reason: d.Error, RetryAfter: time.Second}
			}
			if d.Error != "" {
				return d, &refusedError{text: d.Error, is: refusals[d.Code]}
			}
			return d, notShown(d.Index, c.raft.WaitApplied(ctx, d.Index))
		case !notThere(err) && !(errors.Is(err, errSuperseded) && repeatable(command)):
			return done{}, &job.UnavailableError{
				Reason:     fmt.Sprintf("the command's outcome is unknown: %v; repeat it: what was carried out is not carried out twice", err),
				RetryAfter: time.Second,
			}
		}
		if now, _ := c.raft.Applied(); now != index {
			continue
		}
		select { // until the ledger says something new, perhaps of another authority
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return done{}, &job.UnavailableError{Reason: "no authority answers", RetryAfter: time.Second}
		}
	}
}

// notShown tells of a command that is carried out, although this node's ledger
// has not come to it in time.
func notShown(index uint64, err error) error {
	if err == nil {
		return nil
	}
	return &cluster.APIError{
		Code: "504", Text: fmt.Sprintf("the command is carried out, by entry %d, which this node does not show yet: look again before you repeat it", index),
		RetryAfter: time.Second,
	}
}

// notThere tells errors that say for certain that nothing was proposed.
func notThere(err error) bool {
	var api *cluster.APIError
	var notLeader *consensus.NotLeaderError
	return errors.Is(err, scheduler.ErrNoTenure) || errors.Is(err, cluster.ErrNoNode) ||
		errors.As(err, &notLeader) || errors.As(err, &api) && api.Code == codeNoTenure
}

const codeNoTenure = "421"

// errSuperseded says that a command was under way to an authority that is none
// any more. From the next one's epoch on, what it had not committed never will be.
var errSuperseded = errors.New("the authority changed hands while the command was under way")

// repeatable tells which commands the ledger answers alike when they come again,
// with no event more.
func repeatable(c ledger.Command) bool {
	switch c.(type) {
	case *ledger.QueueDispatch, *ledger.AcquireAuthority, *ledger.RenewAuthority, *ledger.AddQueue, *ledger.Hold:
		return true
	}
	return false
}

// lastWord is how long an answer is still waited for when another authority is
// known: a node that hands it over, and lives, has answered by then.
const lastWord = 200 * time.Millisecond

// held ends lastWord after the authority has changed hands, or by stop.
func held(ctx context.Context, changed <-chan struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(lastWord):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-ended }
}

func (c *commander) try(ctx context.Context, command ledger.Command) (done, error) {
	owner, changed := c.watch.holder()
	if owner == "" {
		return done{}, scheduler.ErrNoTenure
	}
	if owner == c.node {
		return c.here(ctx, command)
	}
	raw, err := consensus.EncodeCommand(command)
	if err != nil {
		return done{}, err
	}
	asking, stop := held(ctx, changed)
	defer stop()
	answer, err := c.fleet.Request(asking, owner, verbDo, raw)
	if err != nil && ctx.Err() == nil && asking.Err() != nil {
		err = fmt.Errorf("%s does not answer, and %w", owner, errSuperseded)
	}
	if err != nil {
		return done{}, err
	}
	var d done
	return d, json.Unmarshal(answer, &d)
}

// here commits a command on the authority itself.
func (c *commander) here(ctx context.Context, command ledger.Command) (done, error) {
	r, index, err := c.mind.Do(ctx, command)
	if err != nil {
		return done{}, err
	}
	d := done{Index: index, State: r.State}
	if r.Err != nil {
		d.Error, d.Code = r.Err.Error(), refusalCode(r.Err)
	}
	if r.Event != nil {
		d.Event = r.Event.JSON()
	}
	if r.Queue != nil {
		q := queueToJSON(r.Queue)
		d.Queue = &q
	}
	return d, nil
}

// serveDo answers another node's command.
func (c *commander) serveDo(ctx context.Context, payload []byte) ([]byte, error) {
	command, err := consensus.DecodeCommand(payload)
	if err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	d, err := c.here(ctx, command)
	if notThere(err) {
		return nil, &cluster.APIError{Code: codeNoTenure, Text: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	return d.encode()
}

// encode keeps the event's bytes as they are: its texts may hold what JSON
// would escape for HTML.
func (d *done) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(d)
	return b.Bytes(), err
}
