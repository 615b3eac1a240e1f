package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	fleet *cluster.Fleet
}

// done is a command's answer as it travels between nodes.
type done struct {
	Index uint64          `json:"index"`
	Event json.RawMessage `json:"event,omitempty"`
	State job.State       `json:"state,omitempty"`
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
// took the command within commandTime.
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
			if d.Error != "" {
				return d, &refusedError{text: d.Error, is: refusals[d.Code]}
			}
			return d, c.raft.WaitApplied(ctx, d.Index)
		case !notThere(err):
			return done{}, &job.UnavailableError{Reason: "the command's outcome is unknown: " + err.Error(), RetryAfter: time.Second}
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

// notThere tells errors that say for certain that nothing was proposed.
func notThere(err error) bool {
	var api *cluster.APIError
	var notLeader *consensus.NotLeaderError
	return errors.Is(err, scheduler.ErrNoTenure) || errors.Is(err, cluster.ErrNoNode) ||
		errors.As(err, &notLeader) || errors.As(err, &api) && api.Code == codeNoTenure
}

const codeNoTenure = "421"

func (c *commander) try(ctx context.Context, command ledger.Command) (done, error) {
	owner := ""
	c.raft.View(func(l *ledger.Ledger) { owner = l.Authority().Owner })
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
	answer, err := c.fleet.Request(ctx, owner, verbDo, raw)
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
