package runnerpool

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// deadlineSlack is how late, after the deadline, the answer of a runner may be
// that enforces the deadline itself. After that the node stops the request.
const deadlineSlack = 300 * time.Millisecond

// dispatch is one assignment that a slot runs, without the job's body.
type dispatch struct {
	job.Assignment
	spec     job.Spec
	w        *worker
	uuid     string // the request_id that the runner receives
	timeout  time.Duration
	deadline time.Time // as sent to the runner
	stuck    bool      // its handler did not stop, only the end of the process stops it; guarded by Pools.mu

	mu            crash.Mutex
	conn          *rrq.Conn        // the connection its slot waits on; nil: none
	sent          bool             // the whole request was written
	recallReason  job.RecallReason // "": not recalled
	recallPending bool             // a recall that its slot has not handled yet
	waitDeadline  time.Time        // end of all waits; zero: none
}

// newDispatch returns the dispatch of a, with defaultTimeout if a has no
// timeout. It drops the body, which spec holds already, and copies the params: both
// refer to the memory of a whole batch of assignments.
func newDispatch(a job.Assignment, spec job.Spec, w *worker, defaultTimeout time.Duration) *dispatch {
	a.Body, spec.Params = nil, bytes.Clone(spec.Params)
	timeout := a.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &dispatch{
		Assignment: a, spec: spec, w: w, uuid: a.DispatchID().UUID().String(),
		timeout: timeout, deadline: time.Now().Add(timeout),
	}
}

// recall makes the slot end the dispatch, and interrupts its wait. After the
// first recall, only one because of the end of the node's lease still has an
// effect, because that end allows no grace.
func (d *dispatch) recall(reason job.RecallReason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	leaseEnds := reason == job.RecallLease && d.recallReason != job.RecallLease
	if d.recallReason != "" && !leaseEnds {
		return
	}
	d.recallReason, d.recallPending = reason, true
	if d.conn != nil {
		d.conn.SetDeadline(time.Now())
	}
}

// setDeadline ends the slot's current and later waits at t.
func (d *dispatch) setDeadline(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waitDeadline = t
	if d.conn != nil {
		d.conn.SetDeadline(t)
	}
}

// arm sets the connection on which the slot is going to send and wait. Until
// disarm, both are interrupted at t, at setDeadline's time if that is earlier,
// and by a recall, even one that came before.
func (d *dispatch) arm(conn *rrq.Conn, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = conn
	if !d.waitDeadline.IsZero() && d.waitDeadline.Before(t) {
		t = d.waitDeadline
	}
	if d.recallPending {
		t = time.Now()
	}
	conn.SetDeadline(t)
}

// markSent records that the whole request was written.
func (d *dispatch) markSent() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = true
}

// disarm is called after the wait that arm began. It returns the reason of the
// dispatch's recall, "" if it was not recalled.
func (d *dispatch) disarm() job.RecallReason {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn, d.recallPending = nil, false
	return d.recallReason
}

// request returns the request for the runner, or the fault of a job that no
// runner can run. workerID identifies the node to the runner; see [WorkerID].
func (d *dispatch) request(workerID string) (rrq.Request, *job.Fault) {
	_, handler := job.SplitFunction(d.Function)
	if handler == "" {
		return rrq.Request{}, &job.Fault{Message: "Handler name is missing", Type: job.HandlerNotFound}
	}
	if len(d.spec.Payload) > 0 {
		return rrq.Request{}, &job.Fault{Message: "an RRQ runner takes only JSON params; send params instead of payload_msgpack", Type: job.FaultInvalid}
	}
	id := d.Job.String()
	return rrq.Request{
		RequestID: d.uuid,
		JobID:     id,
		Function:  handler,
		Params:    d.spec.Params,
		Context: rrq.Context{
			JobID:       id,
			Attempt:     d.Attempt,
			EnqueueTime: d.Accepted,
			QueueName:   d.Queue,
			Deadline:    d.deadline,
			Trace:       d.spec.Trace,
			Correlation: correlate(d.w.m.pools.correlations, d.spec.Params, d.spec.Trace),
			WorkerID:    workerID,
			Fence:       d.Fence,
			DispatchID:  d.RequestID(),
		},
	}, nil
}

// outcome returns an outcome of the dispatch.
func (d *dispatch) outcome(s job.Status, f *job.Fault) job.Outcome {
	return job.Outcome{Job: d.Job, N: d.N, Status: s, Fault: f, Started: true}
}

// unstartedOutcome returns the outcome of a dispatch that the runner has not
// received.
func (d *dispatch) unstartedOutcome(s job.Status, f *job.Fault) job.Outcome {
	o := d.outcome(s, f)
	o.Started = false
	return o
}

// answeredOutcome converts the runner's answer to the outcome of the dispatch. A
// status other than success, retry and timeout is an error. A fault without a message
// gets the message that RRQ uses for the status.
func (d *dispatch) answeredOutcome(a rrq.Outcome) job.Outcome {
	o := d.outcome(job.Error, (*job.Fault)(a.Fault))
	switch a.Status {
	case rrq.Success:
		o.Status, o.Fault = job.Success, nil
		o.Result = job.Value{Data: a.Result}
	case rrq.Retry:
		o.Status = job.Retry
		o.Fault = withMessage(o.Fault, "Job requested retry")
		if a.RetryAfter != nil {
			after := seconds(min(max(*a.RetryAfter, 0), job.MaxDuration.Seconds()))
			o.RetryAfter = &after
		}
	case rrq.Timeout:
		o.Status = job.TimedOut
		o.Fault = withMessage(o.Fault, d.timeoutFault().Message)
	default: // rrq.Error
		text := "Job failed"
		if o.Fault != nil && o.Fault.Type == job.HandlerNotFound {
			text = "Handler not found"
		}
		o.Fault = withMessage(o.Fault, text)
	}
	return o
}

// withMessage returns f with text as its message if it has none, and a new
// fault if f is nil.
func withMessage(f *job.Fault, text string) *job.Fault {
	if f == nil {
		return &job.Fault{Message: text}
	}
	if f.Message == "" {
		f.Message = text
	}
	return f
}

func (d *dispatch) timeoutFault() *job.Fault {
	s := strconv.FormatFloat(d.timeout.Seconds(), 'f', -1, 64)
	return &job.Fault{Message: "Job timed out after " + s + "s.", Type: job.FaultTimeout}
}

// recalledOutcome returns the outcome of a dispatch that the node has stopped for the
// given reason. Every reason that is not listed means that the node lost its lease.
func (d *dispatch) recalledOutcome(reason job.RecallReason) job.Outcome {
	switch reason {
	case job.RecallCancelled, job.RecallQueueGone:
		return d.outcome(job.RunCancelled, &job.Fault{Message: "Job cancelled", Type: job.FaultCancelled})
	case job.RecallDeadline:
		return d.outcome(job.TimedOut, d.timeoutFault())
	case job.RecallShutdown:
		return d.outcome(job.Interrupted, &job.Fault{Message: "Job execution interrupted by node shutdown", Type: job.FaultLost})
	case job.RecallSuperseded:
		return d.outcome(job.Lost, &job.Fault{Message: "superseded by another dispatch", Type: job.FaultLost})
	}
	return d.outcome(job.Lost, &job.Fault{Message: "the node's lease ended", Type: job.FaultLost}) // job.RecallLease
}

// unreachedOutcome returns the outcome of a dispatch whose runner could not be
// reached because of err. No handler has seen the job, so the attempt is given back.
// It counts as a loss only with a managed process, which is replaced at once: an
// external runner may be away for long, and a job must outlast that.
func (d *dispatch) unreachedOutcome(err error) job.Outcome {
	status := job.Lost
	if d.w.proc == nil {
		status = job.Declined
	} else if d.w.exitsWithin(exitDelay) {
		return d.unstartedOutcome(status, d.lostOutcome().Fault)
	}
	return d.unstartedOutcome(status, &job.Fault{Message: "runner " + d.w.name + " cannot be reached: " + err.Error(), Type: job.FaultLost})
}

// lostOutcome returns the outcome of a dispatch whose process has ended.
func (d *dispatch) lostOutcome() job.Outcome {
	return d.outcome(job.Lost, &job.Fault{Message: "runner " + d.w.name + " ended: " + d.w.proc.exitStatus, Type: job.FaultLost})
}

// transportOutcome returns the outcome of a dispatch whose connection failed.
// As in RRQ, it counts as an attempt.
func (d *dispatch) transportOutcome(err error) job.Outcome {
	return d.outcome(job.Error, &job.Fault{Message: "Runner transport error: " + err.Error(), Type: "transport"})
}

// unsendableOutcome returns the outcome of a dispatch if err, from sending its
// request, means that the request cannot be encoded for any runner. ok is false
// for other errors and nil.
func (d *dispatch) unsendableOutcome(err error) (o job.Outcome, ok bool) {
	if _, tooLarge := errors.AsType[*rrq.TooLargeError](err); !tooLarge && !errors.Is(err, rrq.ErrMalformed) {
		return job.Outcome{}, false
	}
	return d.unstartedOutcome(job.Error, &job.Fault{Message: fmt.Sprintf("params cannot be sent to an RRQ runner: %v", err), Type: job.FaultInvalid}), true
}
