package edge

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// startNack returns a dispatch that was not acknowledged. The answer is written
// when this is committed.
func (c *conn) startNack(e overhop.Envelope) error {
	n, err := overhop.ParseNack(e.P)
	if err != nil {
		return err
	}
	w, ds := &c.worker, c.worker.ds
	d, err := w.lockDispatch(c.ctx, n.LeaseRef)
	if err == nil && d.state != reserved {
		ds.mu.Unlock()
		err = job.ErrNotActive
	}
	if err != nil {
		c.answerErr(e, err)
		return nil
	}
	slot := c.out.reserve()
	d.waiters = append(d.waiters, func(settled job.Settled, err error) {
		if err == nil && settled.Stale {
			err = job.ErrLeaseLost
		}
		c.cluster.ObserveIndex(settled.Index)
		c.out.fill(slot, func(b []byte) []byte {
			if err != nil {
				return appendError(b, e.RID, err)
			}
			return overhop.AppendOK(b, e.RID, overhop.EmptyMap)
		})
		ds.mu.Lock() // only now, so that the job is not sent again before the answer
		w.addCreditsLocked(d.queue, n.Credits)
		ds.unlock()
	})
	o := job.Outcome{Status: job.Declined, RetryAfter: &n.Delay}
	if n.Reason != "" {
		o.Fault = &job.Fault{Message: truncate(n.Reason, job.MaxInlineFault/2)}
	}
	rep := ds.endLocked(d, o)
	ds.unlock(rep)
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

func (c *conn) startDone(e overhop.Envelope) error {
	m, err := overhop.ParseDone(e.P)
	if err != nil {
		return err
	}
	o := job.Outcome{Status: job.Success, Started: true, Result: jobValue(m.Result)}
	c.settleDispatch(e.RID, m.LeaseRef, m.Credits, func(*dispatch) job.Outcome { return o })
	return nil
}

func (c *conn) startFail(e overhop.Envelope) error {
	m, err := overhop.ParseFail(e.P)
	if err != nil {
		return err
	}
	fault := &job.Fault{Message: m.Message, Type: m.Type, Code: m.Code}
	if len(m.Details) > 0 {
		fault.Details = lossyJSON(m.Details)
	}
	c.settleDispatch(e.RID, m.LeaseRef, m.Credits, func(d *dispatch) job.Outcome {
		o := job.Outcome{Status: job.Error, Started: true, Fault: fault, Final: !m.Retry || fault.Type == job.FaultInvalid, RetryAfter: m.RetryAfter}
		if d != nil && d.state == recalling && (d.recallReason != job.RecallShutdown || m.Type == job.FaultCancelled) {
			// The worker stopped because it was asked to.
			o = recalledOutcome(d, d.recallReason)
			o.Fault = fault
		}
		return o
	})
	return nil
}

// lossyJSON returns r as JSON, with replacements for what JSON cannot
// represent.
func lossyJSON(r overhop.Raw) json.RawMessage {
	defer acquireConversion(r)()
	return overhop.AppendLossyJSON(nil, r)
}

// settleDispatch ends a dispatch and answers when the outcome is committed. A
// worker may report an end twice, or to a node that never had the dispatch: the
// authority decides which report is the first.
func (c *conn) settleDispatch(rid string, h overhop.LeaseRef, credits uint32, outcome func(*dispatch) job.Outcome) {
	w, ds := &c.worker, c.worker.ds
	slot, release := c.out.reserve(), c.detachFrame()
	answer := func(settled job.Settled, err error) {
		release()
		c.cluster.ObserveIndex(settled.Index)
		c.out.fill(slot, func(b []byte) []byte { return appendSettled(b, rid, settled, err) })
	}
	r, err := w.checkToken(h)
	queue, _, _ := parseJID(h.JID)
	ds.mu.Lock()
	w.addCreditsLocked(string(queue), credits)
	if err != nil {
		ds.unlock()
		answer(job.Settled{}, err)
		return
	}
	w.noteAlive()
	d := ds.dispatches[r]
	var reports []report
	switch {
	case d == nil:
		d = &dispatch{DispatchID: r, queue: string(queue), heapIndex: -1, waiters: []waiter{answer}}
		d.token = ds.tokens.mint(r)
		ds.dispatches[r] = d
		reports = append(reports, ds.endLocked(d, outcome(nil)))
	case d.state == ended:
		d.waiters = append(d.waiters, answer)
		d.due = time.Now().Add(ds.cfg.Delivery.settleWait())
		ds.timers.set(d)
	case d.state == ackExpired:
		ds.unlock()
		answer(job.Settled{}, errAckTimeout)
		return
	default:
		ds.attachLocked(d, w)
		d.waiters = append(d.waiters, answer)
		reports = append(reports, ds.endLocked(d, outcome(d)))
	}
	ds.unlock(reports...)
}

// appendSettled appends the answer to a DONE or a FAIL.
func appendSettled(b []byte, rid string, settled job.Settled, err error) []byte {
	if err == nil && settled.Stale {
		err = job.ErrLeaseLost
	}
	if err != nil {
		return appendError(b, rid, err)
	}
	b, mark := overhop.Begin(b)
	retried := settled.State == job.Delayed && !settled.RunAt.IsZero()
	b = overhop.AppendMap(b, 1+countIf(settled.Duplicate)+countIf(retried))
	if settled.Duplicate {
		b = overhop.AppendBool(overhop.AppendStr(b, "dup"), true)
	}
	if retried {
		b = overhop.AppendTime(overhop.AppendStr(b, "next_run_at"), settled.RunAt)
	}
	b = overhop.AppendStr(overhop.AppendStr(b, "status"), settled.State.String())
	b, _ = overhop.End(b, mark, overhop.TOK, rid)
	return b
}

func countIf(cond bool) int {
	if cond {
		return 1
	}
	return 0
}

// jobValue stores a result as JSON if JSON represents it exactly, else as
// MessagePack.
func jobValue(r overhop.Raw) job.Value {
	if r.IsNil() {
		return job.Value{}
	}
	defer acquireConversion(r)()
	text, err := overhop.AppendJSON(nil, r)
	if errors.Is(err, overhop.ErrBinary) {
		return job.Value{Msgpack: true, Data: append([]byte(nil), r...)}
	}
	return job.Value{Data: text}
}

func (w *worker) handleGoodbye(_ context.Context, g overhop.Goodbye) (overhop.Raw, error) {
	ds := w.ds
	ds.mu.Lock()
	w.draining = true
	w.closeAfterReply = !g.Drain
	w.offersChanged()
	inflight := len(w.jobs)
	var reports []report
	if !g.Drain {
		for d := range w.jobs {
			if d.state != ended && d.state != ackExpired {
				reports = append(reports, ds.endLocked(d, job.Outcome{
					Status: job.Interrupted, Started: d.state != reserved, Fault: &job.Fault{Message: "worker said goodbye"},
				}))
			}
		}
	}
	ds.mu.Unlock()
	ds.flushOffers()
	ds.reportOutcomes(reports...)
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "inflight"), int64(inflight)), nil
}

// closeIfDrained closes the connection of a worker that is draining and has no
// jobs left.
func (w *worker) closeIfDrained() {
	w.ds.mu.Lock()
	done := w.draining && !w.closed && len(w.jobs) == 0
	w.ds.mu.Unlock()
	if done {
		w.conn.bye("GOODBYE", "no jobs left")
	}
}
