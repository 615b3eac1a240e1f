package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

const (
	dialTimeout     = 5 * time.Second        // to connect to a runner that listens
	probeInterval   = time.Second            // between checks of an idle external runner
	cancelTimeout   = 500 * time.Millisecond // to deliver a cancel frame; see dispatch.cancelTimeout
	exitDelay       = 200 * time.Millisecond // between the end of a process's sockets and the end of the process
	finalAnswerWait = 50 * time.Millisecond  // for an answer that the process wrote before it ended
	halfCloseWait   = 200 * time.Millisecond // for an answer after the node has closed its side
	leaseEndWait    = 300 * time.Millisecond // for an answer to a cancel after the node's lease has ended
)

// slot runs one dispatch at a time over its own connection.
type slot struct {
	w    *worker
	conn *rrq.Conn // nil: none open
}

// run runs the dispatches that the worker's slots are given until the worker is closed.
// Those that are then still waiting are given back, because the runner is gone. With
// probes, it checks an external runner while the slot is idle; a busy slot needs no
// check, because its connection breaks with the runner. ctx ends a check.
func (s *slot) run(ctx context.Context, probes bool) {
	defer s.closeConn()
	var probe <-chan time.Time
	if probes {
		ticker := time.NewTicker(probeInterval)
		defer ticker.Stop()
		probe = ticker.C
	}
	for {
		select {
		case d := <-s.w.work:
			s.w.m.pools.finish(d, s.executeContained(d))
		case <-probe:
			s.probe(ctx)
		case <-s.w.closed:
			select {
			case d := <-s.w.work:
				s.w.m.pools.finish(d, d.unreachedOutcome(errors.New("it was replaced")))
			default:
				return
			}
		}
	}
}

// probe stops offering an external runner that does not accept connections. It
// opens a connection only if the slot has none: a runner that serves one
// connection at a time would never accept another.
func (s *slot) probe(ctx context.Context) {
	if s.conn != nil && s.conn.Idle() {
		return
	}
	s.closeConn()
	if err := tryConnect(ctx, s.w.addr); err != nil && ctx.Err() == nil {
		s.w.replace(fmt.Errorf("does not accept connections: %w", err))
	}
}

// executeContained is execute. A panic, of which the runner's answer may be the cause, is a failure of
// the connection.
func (s *slot) executeContained(d *dispatch) (o job.Outcome) {
	defer crash.Contain(s.w.m.log, crash.Runner, func(cause error) {
		d.disarm()
		o = s.connFailed(d, cause)
	})
	return s.execute(d)
}

// execute runs one dispatch and returns its outcome once the output of the
// process up to then is in the job's log.
func (s *slot) execute(d *dispatch) job.Outcome {
	if s.w.proc == nil {
		return s.doRequest(d)
	}
	s.w.proc.jobLog.begin(d)
	defer s.w.proc.jobLog.end(d)
	o := s.doRequest(d)
	s.w.proc.drainOutput()
	return o
}

// doRequest sends the request of a dispatch, waits for the answer, and returns
// the dispatch's outcome. If the deadline passes or the dispatch is recalled, it
// stops the handler first.
func (s *slot) doRequest(d *dispatch) job.Outcome {
	req, fault := d.request(s.w.id)
	if fault != nil {
		return d.unstartedOutcome(job.Error, fault)
	}
	if err := s.connect(); err != nil {
		s.w.replace(fmt.Errorf("does not accept connections: %w", err))
		return d.unreachedOutcome(err)
	}
	waitUntil := d.deadline.Add(deadlineSlack)
	responseBy := time.Now().Add(seconds(s.w.m.cfg.ResponseTimeout))
	hasResponseTimeout := s.w.m.cfg.ResponseTimeout > 0 && responseBy.Before(waitUntil)
	if hasResponseTimeout {
		waitUntil = responseBy
	}

	d.arm(s.conn, waitUntil)
	var answer rrq.Outcome
	err := s.conn.Send(&req)
	if err == nil {
		d.markSent()
		answer, err = s.conn.Wait()
	}
	recallReason := d.disarm()
	if o, unsendable := d.unsendableOutcome(err); unsendable && !d.sent {
		return o
	}
	switch {
	case err == nil:
		s.w.m.noteAnswered()
		s.finishRequest()
		return d.answeredOutcome(answer)
	case s.w.hasExited():
		s.closeConn()
		return d.lostOutcome()
	case errors.Is(err, os.ErrDeadlineExceeded):
		o := d.outcome(job.TimedOut, d.timeoutFault())
		if recallReason != "" {
			o = d.recalledOutcome(recallReason)
		} else if hasResponseTimeout {
			o = d.transportOutcome(errResponseTimeout)
		}
		return s.terminate(d, o)
	}
	return s.connFailed(d, err)
}

// errResponseTimeout ends a request that exceeded
// [RunnerConfig].ResponseTimeout.
var errResponseTimeout = errors.New("runner response timeout")

// connect makes sure that the slot has a connection without a pending answer.
func (s *slot) connect() error {
	if s.conn != nil && s.conn.Idle() {
		return nil
	}
	s.closeConn()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := rrq.Dial(ctx, s.w.addr)
	if err != nil {
		return err
	}
	conn.OnUnmatched = func(id string) {
		s.w.m.log.Warn("answer without request dropped", "request", id)
	}
	s.conn = conn
	if s.w.hasExited() {
		// The answer came from another process that now has the port.
		return errors.New("runner has exited")
	}
	return nil
}

// finishRequest keeps the connection for the next dispatch, if the runner
// allows it.
func (s *slot) finishRequest() {
	if s.w.m.cfg.Connections == ConnPerRequest {
		s.closeConn()
	}
}

func (s *slot) closeConn() {
	if s.conn != nil {
		_ = s.conn.Close() // the connection is given up either way
		s.conn = nil
	}
}

// connFailed returns the outcome of a dispatch whose connection failed with err. It
// first waits for exitDelay, because the sockets of an exiting process close a moment
// before its exit is noticed. After a malformed answer the handler has ended; without
// any answer, only the end of the process proves that it has, so connFailed replaces
// the process. An external runner is checked, because it may be gone.
func (s *slot) connFailed(d *dispatch, err error) job.Outcome {
	if s.w.exitsWithin(exitDelay) {
		s.closeConn()
		return d.lostOutcome()
	}
	s.sendCancel(d)
	s.closeConn()
	if d.sent && !isBadAnswer(err) {
		s.w.killFor(d, fmt.Errorf("no answer to a request: %w", err))
	}
	if s.w.proc == nil {
		time.Sleep(exitDelay) // a runner that ends accepts connections a moment longer, and a job that is sent over one fails
		s.probe(context.Background())
	}
	return d.transportOutcome(err)
}

// isBadAnswer reports whether a connection was given up because of the answer
// received.
func isBadAnswer(err error) bool {
	_, tooLarge := errors.AsType[*rrq.TooLargeError](err)
	return tooLarge || errors.Is(err, rrq.ErrMalformed) || errors.Is(err, rrq.ErrMismatch)
}

// terminate ends a dispatch and returns when its handler has stopped: it sends
// a cancel, waits for an answer, closes the connection, and finally kills the
// process. It returns outcome, unless the handler succeeds while it is being
// cancelled; after a deadline it returns outcome in any case.
func (s *slot) terminate(d *dispatch, outcome job.Outcome) job.Outcome {
	if !d.sent {
		// A partial request starts nothing, but a runner that does not read for
		// so long is stuck.
		s.closeConn()
		if outcome.Status == job.TimedOut {
			s.w.replace(errors.New("does not read requests"))
		}
		outcome.Started = false
		return outcome
	}
	answer, err := s.requestCancel(d)
	answered := err == nil
	if errors.Is(err, os.ErrDeadlineExceeded) && !d.leaseEnded() {
		s.conn.HalfClose()
		answer, err = s.awaitAnswer(d, halfCloseWait)
	}
	if !answered {
		s.closeConn()
	}
	if err == nil {
		s.w.m.noteAnswered()
		s.finishRequest()
		if answer.Status == rrq.Success && outcome.Status != job.TimedOut {
			return d.answeredOutcome(answer)
		}
		return outcome
	}
	s.w.killFor(d, errReplaced)
	if d.leaseEnded() && outcome.Status != job.TimedOut && outcome.Status != job.RunCancelled {
		return d.recalledOutcome(job.RecallLease)
	}
	return outcome
}

// requestCancel sends a cancel for a request and waits for the request's answer.
// The error is [os.ErrDeadlineExceeded] if there is none in time, or if no
// cancel may be sent.
func (s *slot) requestCancel(d *dispatch) (rrq.Outcome, error) {
	if !s.sendCancel(d) {
		return rrq.Outcome{}, os.ErrDeadlineExceeded
	}
	answer, err := s.awaitAnswer(d, s.cancelWait(d)/4)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A cancel that arrives before its request has no effect: repeat it.
		s.sendCancel(d)
		answer, err = s.awaitAnswer(d, s.cancelWait(d)*3/4)
	}
	return answer, err
}

// cancelWait returns how long to wait for the answer to a cancel.
func (s *slot) cancelWait(d *dispatch) time.Duration {
	grace := seconds(*s.w.m.cfg.CancelGrace)
	if d.leaseEnded() {
		return min(grace, leaseEndWait)
	}
	return grace
}

// awaitAnswer waits for an answer. The end of the node's lease ends the wait.
func (s *slot) awaitAnswer(d *dispatch, wait time.Duration) (rrq.Outcome, error) {
	d.arm(s.conn, time.Now().Add(wait))
	defer d.disarm()
	return s.conn.Wait()
}

// cancelTimeout returns how long a cancel frame may take to be delivered. After the end of
// the node's lease, a runner that does not accept one must not delay the end of its process:
// delivering two and waiting for an answer take at most twice leaseEndWait then, or
// cancelTimeout more if one is being delivered when the lease ends.
func (d *dispatch) cancelTimeout() time.Duration {
	if d.leaseEnded() {
		return leaseEndWait / 2
	}
	return cancelTimeout
}

func (d *dispatch) leaseEnded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.recallReason == job.RecallLease
}

// sendCancel sends a cancel frame, which a runner may ignore. It returns false
// without sending it if [Config.CancelHints] is off and no other request uses
// the process.
func (s *slot) sendCancel(d *dispatch) bool {
	if !*s.w.m.pools.cfg.CancelHints && s.w.hasSingleRequest() {
		return false
	}
	ctx, stop := context.WithTimeout(context.Background(), d.cancelTimeout())
	defer stop()
	err := rrq.SendCancel(ctx, s.w.addr, &rrq.Cancel{JobID: d.Job.String(), RequestID: d.uuid})
	if err != nil && !s.w.hasExited() {
		s.w.m.log.Warn("cancel not delivered", "request", d.RequestID(), "err", err)
	}
	return true
}
