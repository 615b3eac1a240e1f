package runnerpool

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// slack is what a runner that keeps the deadline itself may be late with its
// answer, before the node takes the matter into its own hands.
const slack = 300 * time.Millisecond

// dispatch is one assignment on its way through a slot.
type dispatch struct {
	job.Assignment
	spec     job.Spec
	w        *worker
	timeout  time.Duration
	deadline time.Time // as the runner is told
	stuck    bool      // waits for its process to end; under the pools' lock

	mu    sync.Mutex
	conn  *rrq.Conn        // what its slot waits at, if it does
	why   job.RecallReason // "": not recalled
	alarm bool             // a recall its slot has not heeded yet
	last  time.Time        // the end of all waiting; zero: none is known
}

func newDispatch(a job.Assignment, spec job.Spec, w *worker, otherwise time.Duration) *dispatch {
	d := &dispatch{Assignment: a, spec: spec, w: w, timeout: a.Timeout}
	if d.timeout <= 0 {
		d.timeout = otherwise
	}
	d.deadline = time.Now().Add(d.timeout)
	return d
}

// recall asks the slot to end the dispatch. The first reason stands, except
// that the end of a lease leaves no time for anything else.
func (d *dispatch) recall(why job.RecallReason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.why != "" && (why != job.RecallLease || d.why == job.RecallLease) {
		return
	}
	d.why, d.alarm = why, true
	if d.conn != nil {
		d.conn.Interrupt(time.Now())
	}
}

// interrupt ends the slot's waits, the present one and any other, at t.
func (d *dispatch) interrupt(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last = t; d.conn != nil {
		d.conn.Interrupt(t)
	}
}

// arm lets the slot send and wait on conn until t, or until a recall.
func (d *dispatch) arm(conn *rrq.Conn, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.last.IsZero() && d.last.Before(t) {
		t = d.last
	}
	if d.conn = conn; d.alarm {
		t = time.Now()
	}
	conn.Interrupt(t)
}

// disarm ends the slot's waiting and returns why it was recalled, "" if not.
func (d *dispatch) disarm() job.RecallReason {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn, d.alarm = nil, false
	return d.why
}

// request is what the runner is sent. The error is the outcome of a job that
// no runner can be asked to do.
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
		RequestID: d.RequestID(),
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
			Correlation: correlate(d.w.m.pools.known, d.spec.Params, d.spec.Trace),
			WorkerID:    workerID,
			Fence:       d.Fence,
		},
	}, nil
}

// outcome makes one out of the way the dispatch ended.
func (d *dispatch) outcome(s job.Status, f *job.Fault) job.Outcome {
	return job.Outcome{Job: d.Job, N: d.N, Status: s, Fault: f, Started: true}
}

// unstarted is an outcome of a dispatch the runner has not seen.
func (d *dispatch) unstarted(s job.Status, f *job.Fault) job.Outcome {
	o := d.outcome(s, f)
	o.Started = false
	return o
}

// answered translates the runner's own words.
func (d *dispatch) answered(a rrq.Outcome) job.Outcome {
	o := d.outcome(job.Error, fault(a.Fault))
	switch a.Status {
	case rrq.Success:
		o.Status, o.Fault = job.Success, nil
		o.Result = job.Value{Data: a.Result}
	case rrq.Retry:
		o.Status = job.Retry
		o.Fault = orMessage(o.Fault, "Job requested retry")
		if a.RetryAfter != nil {
			after := seconds(min(max(*a.RetryAfter, 0), job.MaxDuration.Seconds()))
			o.RetryAfter = &after
		}
	case rrq.Timeout:
		o.Status = job.TimedOut
		o.Fault = orMessage(o.Fault, d.timedOut().Message)
	default:
		text := "Job failed"
		if o.Fault != nil && o.Fault.Type == job.HandlerNotFound {
			text = "Handler not found"
		}
		o.Fault = orMessage(o.Fault, text)
	}
	return o
}

func fault(f *rrq.Fault) *job.Fault {
	if f == nil {
		return nil
	}
	return &job.Fault{Message: f.Message, Type: f.Type, Code: f.Code, Details: f.Details}
}

func orMessage(f *job.Fault, text string) *job.Fault {
	if f == nil {
		return &job.Fault{Message: text}
	}
	if f.Message == "" {
		f.Message = text
	}
	return f
}

func (d *dispatch) timedOut() *job.Fault {
	s := strconv.FormatFloat(d.timeout.Seconds(), 'f', -1, 64)
	return &job.Fault{Message: "Job timed out after " + s + "s.", Type: job.FaultTimeout}
}

// recalled is the outcome of a dispatch that was stopped for a reason.
func (d *dispatch) recalled(why job.RecallReason) job.Outcome {
	switch why {
	case job.RecallCancelled, job.RecallQueueGone:
		return d.outcome(job.Cancelled, &job.Fault{Message: "Job cancelled", Type: job.FaultCancelled})
	case job.RecallDeadline:
		return d.outcome(job.TimedOut, d.timedOut())
	case job.RecallShutdown:
		return d.outcome(job.Interrupted, &job.Fault{Message: "Job execution interrupted by node shutdown", Type: job.FaultLost})
	case job.RecallSuperseded:
		return d.outcome(job.Lost, &job.Fault{Message: "another dispatch has taken this one's place", Type: job.FaultLost})
	}
	return d.outcome(job.Lost, &job.Fault{Message: "the node's lease ended", Type: job.FaultLost})
}

// lost is the outcome of a dispatch whose process ended under it.
func (d *dispatch) lost() job.Outcome {
	return d.outcome(job.Lost, &job.Fault{Message: "runner " + d.w.name + " ended: " + d.w.proc.how, Type: job.FaultLost})
}

// transport is the outcome of a dispatch whose connection failed: it counts
// as an attempt, as it does with RRQ.
func (d *dispatch) transport(err error) job.Outcome {
	return d.outcome(job.Error, &job.Fault{Message: "Runner transport error: " + err.Error(), Type: "transport"})
}

// unsendable is the outcome of a request that would never fit through the
// wire, whoever is asked.
func (d *dispatch) unsendable(err error) (job.Outcome, bool) {
	var large *rrq.TooLargeError
	if !errors.As(err, &large) && !errors.Is(err, rrq.ErrMalformed) {
		return job.Outcome{}, false
	}
	return d.unstarted(job.Error, &job.Fault{Message: fmt.Sprintf("params cannot be sent to an RRQ runner: %v", err), Type: job.FaultInvalid}), true
}
