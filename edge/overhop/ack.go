package overhop

import (
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// acknowledge sends the ACK of a job whose handler has not started. The handler
// starts when the node has answered OK, and not before: a worker that was stopped
// for a while, or whose connection is cut, may hold a QUEST of a job that the node
// has given to another worker since.
func (wc *workerConn) acknowledge(job *activeJob) {
	w := wc.worker
	w.mu.Lock()
	job.ackConn = wc
	w.mu.Unlock()
	sent := time.Now()
	wc.client.Ack(&job.quest, func(answer Raw, err error) {
		refusal, refused := errors.AsType[*RemoteError](err)
		switch {
		case err == nil:
			w.start(job, sent.Add(grantedLease(answer, &job.quest)))
		case !refused: // the connection is lost: the ACK is sent again over the next one
		case refusal.Code == CodeUnavailable:
			w.loops.Go(func() { wc.acknowledgeAfter(refusal.RetryAfter(), job) })
		default:
			wc.handleAckRefused(job, refusal.Code)
		}
	})
}

// acknowledgeAfter sends a job's ACK again after a delay, unless the connection is lost
// or the worker has sent it over another one.
func (wc *workerConn) acknowledgeAfter(delay time.Duration, job *activeJob) {
	if backoff.Sleep(wc.ctx, delay) != nil {
		return
	}
	w := wc.worker
	w.mu.Lock()
	isAwaited := w.running[job.quest.Token] == job && !job.started && job.ackConn == wc
	w.mu.Unlock()
	if isAwaited {
		wc.acknowledge(job)
	}
}

// grantedLease returns the length of the lease that a node has granted, by its OK to
// an ACK or by its entry for one job of a BEAT. If the answer has no length, as from
// a node of an older release, grantedLease returns the length in the QUEST.
func grantedLease(answer Raw, quest *Quest) time.Duration {
	if lease, ok := answer.Get("lease_ms").Int(); ok && lease >= 0 {
		return milliseconds(lease)
	}
	return quest.Lease
}

// start starts the handler of a job whose ACK a node has answered with a lease until
// leaseEnd. It has no effect if the handler has started, or if the worker has released
// or forgotten the job.
func (w *Worker) start(job *activeJob, leaseEnd time.Time) {
	w.mu.Lock()
	mustStart := !job.started && !w.released && w.running[job.quest.Token] == job
	if mustStart {
		job.started, job.leaseEnd = true, leaseEnd
	}
	w.mu.Unlock()
	if mustStart {
		w.handlers.start(job)
	}
}

// holdsLease reports whether the lease that the ACK's answer granted has not ended, so
// that the handler may be called. If it has, because the process was stopped after the
// answer, holdsLease sends the ACK again, and the job is started again when that is
// answered.
func (j *activeJob) holdsLease() bool {
	w := j.worker
	w.mu.Lock()
	j.started = time.Now().Before(j.leaseEnd)
	isLeased, conn := j.started, w.conn
	w.mu.Unlock()
	if !isLeased && conn != nil { // without a connection, the next one sends it
		conn.acknowledge(j)
	}
	return isLeased
}

// handleAckRefused handles a node's refusal of a job's ACK: the job has ended, or
// another worker has it.
func (wc *workerConn) handleAckRefused(job *activeJob, code Code) {
	wc.worker.mu.Lock()
	isCurrent := job.ackConn == wc // else it has been sent over another connection
	wc.worker.mu.Unlock()
	if isCurrent {
		wc.handleLeaseRefused(job, code)
	}
}

// handleLeaseRefused handles a node's refusal to grant or to renew the lease of a job. It
// stops the job's handler, or forgets the job if its handler has not started.
func (wc *workerConn) handleLeaseRefused(job *activeJob, code Code) {
	w := wc.worker
	w.mu.Lock()
	started := job.started
	w.mu.Unlock()
	switch {
	case !started:
		w.Log.Info("job is not started, because the node has given it up", "job", job.quest.JID, "code", string(code))
		job.ctx.end()
		wc.forget(job)
	case endsLease(code):
		w.loseLease(job, code)
	}
}

// forget removes a job that a node has settled or given up, and returns the job's credit
// to the node if it is still owed.
func (wc *workerConn) forget(job *activeJob) {
	w := wc.worker
	w.mu.Lock()
	firstAnswer := w.running[job.quest.Token] == job
	delete(w.running, job.quest.Token)
	sid, credits := wc.sids[job.quest.Queue], uint32(0)
	if firstAnswer && !w.stopping && wc.owesCreditLocked(job) {
		credits = wc.returnCreditLocked(job)
	}
	w.checkIdleLocked()
	w.mu.Unlock()
	if credits > 0 {
		wc.credit(sid, credits)
	}
}
