package edge

import (
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// startNack gives back a dispatch that the worker did not acknowledge. The answer
// is written when this is committed, and only then the worker's subscription gets
// the credits that came with the NACK, so that the job is not sent to the worker
// again before the answer. The place of the answer is reserved first, because the
// outbox must not be locked after the deliveries.
func (c *conn) startNack(request overhop.Envelope) error {
	nack, err := overhop.ParseNack(request.P)
	if err != nil {
		return err
	}
	w, ds := &c.worker, c.worker.deliveries
	reply := c.out.reserve()
	answer := func(err error) {
		c.out.fill(reply, func(b []byte) []byte {
			if err != nil {
				return appendError(b, request.RID, err)
			}
			return overhop.AppendOK(b, request.RID, overhop.EmptyMap)
		})
	}
	d, err := w.lockDispatch(c.ctx, nack.LeaseRef) // returns with ds.mu held
	if err == nil && d.state != reserved {
		ds.mu.Unlock()
		err = job.ErrNotActive
	}
	if err != nil {
		answer(c.requestError(request.T, err))
		return nil
	}

	defer ds.unlock()
	d.waiters = append(d.waiters, func(settled job.Settled, err error) {
		if err == nil && settled.Stale {
			err = job.ErrLeaseLost
		}
		c.cluster.ObserveIndex(settled.Index)
		answer(err)
		ds.mu.Lock()
		defer ds.unlock()
		w.addCreditsLocked(d.queue, nack.Credits)
	})
	outcome := job.Outcome{Status: job.Declined, RetryAfter: &nack.Delay}
	if nack.Reason != "" {
		outcome.Fault = &job.Fault{Message: nack.Reason}
	}
	ds.endLocked(d, outcome)
	return nil
}

// addCreditsLocked adds the credits that came with the end of a dispatch to the
// connection's subscription to its queue: the QUEST's own, unless the worker
// has reconnected.
func (w *worker) addCreditsLocked(queue string, credits uint32) {
	if sub := w.byQueue[queue]; sub != nil && credits > 0 {
		sub.addCredits(credits)
	}
}

// startDone ends a dispatch with a success.
func (c *conn) startDone(request overhop.Envelope) error {
	done, err := overhop.ParseDone(request.P)
	if err != nil {
		return err
	}
	outcome := job.Outcome{Status: job.Success, Started: true, Result: jobValue(done.Result, done.ResultJSON)}
	c.settleDispatch(request.RID, done.LeaseRef, done.Credits, func(*dispatch) job.Outcome { return outcome })
	return nil
}

// lossyJSON returns a value as JSON, in which text replaces what JSON cannot represent.
func lossyJSON(value overhop.Raw) []byte {
	defer acquireConversion(value)()
	return overhop.AppendLossyJSON(nil, value)
}

// startFail ends a dispatch with a failure. If the worker stopped the job because
// it was asked to, the outcome and the type of the fault are those of the recall, with the
// worker's description of the failure.
func (c *conn) startFail(request overhop.Envelope) error {
	fail, err := overhop.ParseFail(request.P)
	if err != nil {
		return err
	}
	fault := &job.Fault{Message: fail.Message, Type: fail.Type, Code: fail.Code}
	if fail.DetailsJSON != nil {
		fault.Details = slices.Clone(fail.DetailsJSON)
	} else if len(fail.Details) > 0 {
		fault.Details = lossyJSON(fail.Details)
	}
	c.settleDispatch(request.RID, fail.LeaseRef, fail.Credits, func(d *dispatch) job.Outcome {
		recalled := d != nil && d.state == recalling
		if recalled && (d.recallReason != job.RecallShutdown || fail.Type == job.FaultCancelled) {
			outcome := recalledOutcome(d, d.recallReason)
			if outcome.Fault != nil {
				fault.Type = outcome.Fault.Type // why it ended, whatever the worker calls that
			}
			outcome.Fault = fault
			return outcome
		}
		if fail.Snooze != nil {
			return job.Outcome{Status: job.Declined, Started: true, Fault: fault, RetryAfter: fail.Snooze}
		}
		if fail.Type == job.FaultTimeout && !fail.Retry { // the worker noticed the deadline before the node
			return job.Outcome{Status: job.TimedOut, Started: true, Fault: fault}
		}
		return job.Outcome{
			Status: job.Error, Started: true, Fault: fault, RetryAfter: fail.RetryAfter,
			Final: !fail.Retry || fail.Type == job.FaultInvalid,
		}
	})
	return nil
}

// settleDispatch ends the dispatch that the token in lease belongs to, and
// answers when the outcome is committed. outcomeOf returns the outcome; its
// argument is nil if this node does not have the dispatch. A worker may report an
// end twice, or to a node that never had the dispatch: the authority decides
// which report is the first.
func (c *conn) settleDispatch(rid string, lease overhop.LeaseRef, credits uint32, outcomeOf func(*dispatch) job.Outcome) {
	w, ds := &c.worker, c.worker.deliveries
	reply, releaseFrame := c.out.reserve(), c.detachFrame()
	answer := func(settled job.Settled, err error) {
		releaseFrame()
		c.cluster.ObserveIndex(settled.Index)
		c.out.fill(reply, func(b []byte) []byte { return appendSettled(b, rid, settled, err) })
	}
	id, err := w.checkToken(lease)
	queueName, _, _ := parseJID(lease.JID) // checkToken has returned its error
	queue := string(queueName)

	ds.mu.Lock()
	defer ds.unlock()
	w.addCreditsLocked(queue, credits)
	if err != nil {
		ds.deferLocked(func() { answer(job.Settled{}, err) })
		return
	}
	w.noteAlive()
	d := ds.dispatches[id]
	switch {
	case d == nil:
		d = &dispatch{DispatchID: id, token: ds.tokens.mint(id), queue: queue, waiters: []waiter{answer}}
		ds.dispatches[id] = d
		ds.endLocked(d, outcomeOf(nil))
	case d.state == ackExpired:
		ds.deferLocked(func() { answer(job.Settled{}, errAckTimeout) })
	case d.state == ended:
		d.waiters = append(d.waiters, answer)
		ds.startTimer(d, time.Now().Add(ds.cfg.Delivery.settleWait()))
	default:
		d.attachLocked(w)
		d.waiters = append(d.waiters, answer)
		ds.endLocked(d, outcomeOf(d))
	}
}

// appendSettled appends the answer to a DONE or a FAIL to b: the job's state, when
// its next attempt starts, if it has one, and whether its end had been reported
// before. A non-nil err means that the outcome is not committed.
func appendSettled(b []byte, rid string, settled job.Settled, err error) []byte {
	if err == nil && settled.Stale {
		err = job.ErrLeaseLost
	}
	if err != nil {
		return appendError(b, rid, err)
	}
	fields := 1
	retried := settled.State == job.Delayed && !settled.RunAt.IsZero()
	if retried {
		fields++
	}
	if settled.Duplicate {
		fields++
	}
	b, mark := overhop.Begin(b)
	b = overhop.AppendMap(b, fields)
	if settled.Duplicate {
		b = overhop.AppendBool(overhop.AppendStr(b, "dup"), true)
	}
	if retried {
		b = overhop.AppendTime(overhop.AppendStr(b, "next_run_at"), settled.RunAt)
	}
	b = overhop.AppendStr(overhop.AppendStr(b, "status"), settled.State.Overhop().String())
	b, _ = overhop.End(b, mark, overhop.TOK, rid)
	return b
}

// jobValue returns a result, or the data of a progress, as it is stored: as JSON if it was
// received as text or JSON represents it exactly, else as MessagePack.
func jobValue(received overhop.Raw, text []byte) job.Value {
	if text != nil {
		return job.Value{Data: slices.Clone(text)}
	}
	if received.IsNil() {
		return job.Value{}
	}
	defer acquireConversion(received)()
	converted, err := overhop.AppendJSON(nil, received)
	if err != nil { // the value contains binary
		return job.Value{Msgpack: true, Data: slices.Clone(received)}
	}
	return job.Value{Data: converted}
}

// startGoodbye handles the request of a worker that leaves. It withdraws the
// worker's offers, so that the worker gets no more jobs, and answers with the number
// of jobs that the worker has. If the request asks for a drain, the connection is
// closed once these jobs have ended. Otherwise they end as interrupted, and the
// connection is closed at once.
func (c *conn) startGoodbye(request overhop.Envelope) error {
	goodbye, err := overhop.ParseGoodbye(request.P)
	if err != nil {
		return err
	}
	w, ds := &c.worker, c.worker.deliveries
	ds.mu.Lock()
	w.draining = true
	w.offersChanged()
	inflight := len(w.jobs)
	ds.unlock() // sends the withdrawn offers, before interrupted jobs are placed again

	if !goodbye.Drain {
		ds.mu.Lock()
		for d := range w.jobs {
			if d.state != ended && d.state != ackExpired {
				ds.endLocked(d, job.Outcome{
					Status: job.Interrupted, Started: d.started(), Fault: &job.Fault{Message: "worker said goodbye"},
				})
			}
		}
		ds.unlock()
	}

	c.answerOK(request.RID, overhop.Fields{"inflight": inflight}.Raw())
	if !goodbye.Drain {
		c.bye("GOODBYE", "as asked")
	}
	w.closeIfDrained()
	return nil
}

// closeIfDrained closes the connection of a worker that is draining and has no
// jobs left.
func (w *worker) closeIfDrained() {
	w.deliveries.mu.Lock()
	drained := w.draining && !w.closed && len(w.jobs) == 0
	w.deliveries.mu.Unlock()
	if drained {
		w.conn.bye("GOODBYE", "no jobs left")
	}
}
