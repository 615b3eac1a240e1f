package edge

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Start sends a job to the worker that the assignment names and takes one of
// its credits. It returns false, without effect, if the worker is not
// connected, has no credit left, or has too much unread output. It returns true
// for a dispatch that is already here. Executor.Offer may be called before it
// returns.
func (s *Server) Start(assignment job.Assignment, spec job.Spec) bool {
	ds := s.deliveries
	ds.mu.Lock()
	w := ds.workers[assignment.Worker]
	ds.mu.Unlock()
	if w == nil || !ds.tokens.known() {
		return false
	}

	quest := overhop.Quest{
		JID: jid(assignment.Queue, assignment.Job), Queue: assignment.Queue, Function: assignment.Function,
		Fence: int64(assignment.Fence), Redelivered: assignment.Redelivered,
		Attempt: assignment.Attempt, MaxAttempts: assignment.MaxAttempts,
		Created: assignment.Accepted, RunAt: assignment.RunAt,
		Payload: overhop.Raw(spec.Payload), Params: spec.Params, JSON: w.conn.session.Hello.JSON, Content: w.conn.session.Hello.Content,
		Trace: spec.Trace, Tags: spec.Tags, Meta: spec.Meta,
	}
	var d *dispatch
	var exists bool
	var sendErr error
	full := w.conn.out.push(questLimit, func(b []byte) []byte {
		// The outbox is locked here, so that no RECALL can precede its QUEST.
		if d, exists = ds.reserve(w, &assignment, &quest); d != nil {
			b, sendErr = s.appendQuest(b, &quest)
		}
		return b
	})

	if full {
		w.congestionChanged()
	}
	if sendErr != nil {
		ds.failUnsendable(d, sendErr)
	}
	ds.flushOffers()
	return d != nil || exists
}

// appendQuest appends a QUEST to b. If the job makes the code panic, it returns b and an error that ends
// the job: it would make every node panic that it is assigned to.
func (s *Server) appendQuest(b []byte, quest *overhop.Quest) (appended []byte, err error) {
	defer crash.Contain(s.log, crash.Job, func(cause error) { appended, err = b, cause })
	return overhop.AppendQuest(b, quest, s.cfg.Wire.MaxEnvelope)
}

// reserve takes a credit from the worker's subscription and creates a dispatch.
// It returns nil if the worker can take no job, or if the dispatch exists
// already, which exists reports. It sets the fields of quest that depend on the
// time and on the subscription.
func (ds *deliveries) reserve(w *worker, assignment *job.Assignment, quest *overhop.Quest) (d *dispatch, exists bool) {
	id := assignment.DispatchID()
	token := ds.tokens.mint(id)
	now := time.Now()
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.dispatches[id] != nil {
		return nil, true
	}
	sub := w.byQueue[assignment.Key]
	if sub == nil || sub.available() == 0 {
		return nil, false
	}

	sub.credits--
	sub.changed()
	d = &dispatch{
		DispatchID: id, token: token, queue: assignment.Queue, attempt: assignment.Attempt, timeout: assignment.Timeout,
		worker: w, lastWorkerID: w.id, sub: sub, state: reserved,
	}
	if assignment.Timeout > 0 {
		d.deadline = now.Add(assignment.Timeout)
	}
	leaseUntil := ds.leaseLocked(d, now, ds.cfg.Delivery.Lease)
	d.setReplyByLocked(now.Add(ds.cfg.Delivery.Ack))
	w.jobs[d] = struct{}{}
	ds.dispatches[id] = d
	ds.startTimer(d, earlier(d.replyBy, d.deadline))

	quest.SID, quest.Credits, quest.Token = sub.sid, sub.credits, token
	quest.AckBy, quest.LeaseUntil, quest.Deadline = d.due, leaseUntil, d.deadline
	quest.Lease, quest.Beat = max(leaseUntil.Sub(now), time.Millisecond), ds.cfg.Delivery.Beat
	return d, false
}

// failUnsendable ends a dispatch whose job does not fit into a frame, and gives the
// subscription back the credit that it has used. The outcome is final: no other
// worker could receive the job either.
func (ds *deliveries) failUnsendable(d *dispatch, err error) {
	ds.mu.Lock()
	defer ds.unlock()
	d.sub.credits++
	d.sub.changed()
	ds.endLocked(d, job.Outcome{
		Status: job.Error, Final: true,
		Fault: &job.Fault{Type: job.FaultInvalid, Message: err.Error()},
	})
}

// Stop recalls a dispatch. One that was not acknowledged ends at once. A
// running one ends when its worker reports the end or the grace is over, which
// revokes the lease; if the worker has not received the recall, the dispatch
// ends only with its lease, because the job may still be running. A superseded
// dispatch has moved to another node, which reports its outcome: it is removed
// here without one, unless a later move has brought it back.
func (s *Server) Stop(recall job.Recall) {
	ds := s.deliveries
	ds.mu.Lock()
	defer ds.unlock()
	d := ds.dispatches[recall.DispatchID()]
	if d == nil || d.state == ended || d.state == ackExpired || recall.Outdated(d.moved) {
		return
	}
	d.recallText = cmp.Or(d.recallText, recall.Message)
	ds.recallLocked(d, recall.Reason)
}

// recallLocked sends a recall to the worker of dispatch d. It then removes d without
// an outcome if d has moved to another node. It ends d at once if the worker has not
// started the job or the lease is over. Otherwise the worker has recallGrace to end
// the job; if d was recalled before, its first reason and grace remain. The caller
// holds ds.mu.
func (ds *deliveries) recallLocked(d *dispatch, reason job.RecallReason) {
	superseded := reason == job.RecallSuperseded
	endNow := !d.started() || reason == job.RecallLease
	grace := recallGrace
	if superseded || endNow {
		grace = 0
	}

	ds.sendRecallLocked(d, reason, grace)
	switch {
	case superseded:
		ds.forgetLocked(d)
	case endNow:
		ds.endRecalledLocked(d, reason)
	case d.state != recalling: // else an earlier recall has started its timer
		d.state, d.recallReason = recalling, reason
		ds.startTimer(d, time.Now().Add(grace))
	}
}

// endRecalledLocked ends a recalled dispatch whose worker has not reported its end. The
// outcome counts only while the dispatch is at this node: the worker may have taken it to
// another one. The caller holds ds.mu.
func (ds *deliveries) endRecalledLocked(d *dispatch, reason job.RecallReason) {
	outcome := recalledOutcome(d, reason)
	outcome.ByNode = true
	ds.endLocked(d, outcome)
}

// sendRecallLocked makes ds.unlock send a RECALL to the worker of d, if the worker is
// connected. If the job was withdrawn before the worker acknowledged its QUEST, the
// worker's subscription gets the credit back, and the worker is told so after the
// RECALL. The caller holds ds.mu.
func (ds *deliveries) sendRecallLocked(d *dispatch, reason job.RecallReason, grace time.Duration) {
	withdrawn := reason == job.RecallCancelled || reason == job.RecallQueueGone || reason == job.RecallSuperseded
	restoreCredit := withdrawn && !d.started() && !d.sub.closed
	var sid string
	var credits uint32
	if restoreCredit {
		d.sub.credits++
		d.sub.changed()
		sid, credits = d.sub.sid, d.sub.credits
	}

	w := d.worker
	if w == nil {
		return
	}
	recall := overhop.Fields{
		"jid": jid(d.queue, d.Job), "tok": d.token[:], "reason": string(reason), "grace_ms": grace.Milliseconds(),
	}
	if reason == job.RecallCancelled && d.recallText != "" {
		recall["msg"] = d.recallText
	}
	ds.deferLocked(func() {
		w.conn.pushFields(overhop.TRecall, recall)
		if restoreCredit {
			w.pushCredits(sid, credits, overhop.CreditsRestored)
		}
		w.closeIfDrained()
	})
}

// receivedRecall reports whether the worker of a recalled dispatch is connected
// and its host has acknowledged everything that was written, the recall
// included.
func (d *dispatch) receivedRecall() bool {
	w := d.worker
	return w != nil && !w.closed && w.conn.out.written() && receivedAll(w.conn.socket())
}

// recalledOutcome returns the outcome of a dispatch that ended because of a
// recall for the given reason. Every reason that is not listed means that the
// dispatch lost its lease. The messages are part of the worker protocol.
func recalledOutcome(d *dispatch, reason job.RecallReason) job.Outcome {
	outcome := job.Outcome{Started: d.started()}
	switch reason {
	case job.RecallCancelled, job.RecallQueueGone:
		outcome.Status, outcome.Fault = job.RunCancelled, &job.Fault{Type: job.FaultCancelled, Message: "job was cancelled"}
	case job.RecallDeadline:
		seconds := strconv.FormatFloat(d.timeout.Seconds(), 'f', -1, 64)
		outcome.Status, outcome.Fault = job.TimedOut, &job.Fault{Type: job.FaultTimeout, Message: "Job timed out after " + seconds + "s."}
	case job.RecallShutdown:
		outcome.Status = job.Interrupted
	default: // job.RecallLease and reasons of newer versions
		return lostOutcome(d, "lease is over")
	}
	return outcome
}

// lostOutcome returns the outcome of a dispatch of which this node does not know how
// the worker ended it.
func lostOutcome(d *dispatch, message string) job.Outcome {
	return job.Outcome{
		Status: job.Lost, Started: d.started(),
		Fault: &job.Fault{Type: job.FaultLost, Message: message},
	}
}

type token = [overhop.TokenLen]byte

// tokens creates and verifies lease tokens: the dispatch's number in eight
// bytes, then eight bytes of a MAC over job and number under the cluster's
// secret. Any node can verify a token without storing it, and a guess succeeds
// with a probability of 2^-64.
type tokens struct {
	secret func() []byte // the cluster's; empty until known
	found  atomic.Bool
	macs   sync.Pool // of *tokenMAC
}

// tokenMAC is a MAC keyed by the secret, with memory for what it is computed of and for the
// sum.
type tokenMAC struct {
	hash.Hash
	message [len(job.ID{}) + 8]byte
	sum     [sha256.Size]byte
}

// known reports whether the secret is known, so that tokens can be created.
func (t *tokens) known() bool {
	if !t.found.Load() && len(t.secret()) > 0 {
		t.found.Store(true)
	}
	return t.found.Load()
}

// mint returns the lease token of a dispatch. The secret must be known.
func (t *tokens) mint(id job.DispatchID) (created token) {
	mac, ok := t.macs.Get().(*tokenMAC)
	if !ok {
		mac = &tokenMAC{Hash: hmac.New(sha256.New, t.secret())}
	}
	defer t.macs.Put(mac)
	mac.Reset()
	number := mac.message[copy(mac.message[:], id.Job[:]):]
	binary.BigEndian.PutUint64(number, uint64(id.N))
	mac.Write(mac.message[:])
	copy(created[:], number)
	copy(created[8:], mac.Sum(mac.sum[:0]))
	return created
}

// verify returns the dispatch that the token of a job belongs to. ok is false
// if the token was not created for this job with the cluster's secret, which
// must be known.
func (t *tokens) verify(jobID job.ID, given []byte) (id job.DispatchID, ok bool) {
	if len(given) != overhop.TokenLen {
		return job.DispatchID{}, false
	}
	number := binary.BigEndian.Uint64(given)
	if number == 0 || number > math.MaxUint32 {
		return job.DispatchID{}, false
	}
	id = job.DispatchID{Job: jobID, N: uint32(number)}
	valid := t.mint(id)
	return id, hmac.Equal(valid[:], given)
}
