package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

const (
	dialTimeout    = 5 * time.Second        // to a process that listens
	cancelTimeout  = 500 * time.Millisecond // to hand over a cancel frame
	exitNotice     = 200 * time.Millisecond // between a socket's end and its process's
	lastWords      = 50 * time.Millisecond  // for an answer that a process wrote before it ended
	halfClosePause = 200 * time.Millisecond // for an answer after the connection's end
	leasePause     = 300 * time.Millisecond // for an answer to a cancel when the lease is over
)

// slot runs one dispatch at a time on a connection of its own.
type slot struct {
	w    *worker
	conn *rrq.Conn // nil: none open
}

// run carries dispatches until the worker is closed and none is left.
func (s *slot) run() {
	defer s.drop()
	for {
		select {
		case d := <-s.w.work:
			s.w.finish(d, s.attend(d))
		case <-s.w.closed:
			select {
			case d := <-s.w.work:
				s.w.finish(d, d.unstarted(job.Lost, d.lost().Fault))
			default:
				return
			}
		}
	}
}

// attend takes one dispatch to its outcome, and what it says to its log: all
// that was said before the outcome is there before the outcome is told.
func (s *slot) attend(d *dispatch) job.Outcome {
	if s.w.proc == nil {
		return s.carry(d)
	}
	s.w.proc.voices.begin(d)
	o := s.carry(d)
	s.w.proc.catchUp()
	s.w.proc.voices.end(d)
	return o
}

// carry takes one dispatch to its outcome.
func (s *slot) carry(d *dispatch) job.Outcome {
	req, refusal := d.request(s.w.id)
	if refusal != nil {
		return d.unstarted(job.Error, refusal)
	}
	if err := s.connect(); err != nil {
		return s.unreachable(d, err)
	}
	until, late := d.deadline.Add(slack), errors.New("deadline")
	if rt := s.w.m.cfg.ResponseTimeout; rt > 0 && time.Now().Add(seconds(rt)).Before(until) {
		until, late = time.Now().Add(seconds(rt)), errResponseTimeout
	}
	d.arm(s.conn, until)
	err := s.conn.Send(&req)
	sent := err == nil
	var answer rrq.Outcome
	if sent {
		answer, err = s.conn.Wait()
	}
	why := d.disarm()
	if refusal, ok := d.unsendable(err); ok && !sent {
		return refusal
	}
	switch {
	case err == nil:
		s.w.m.answered()
		s.settle()
		return d.answered(answer)
	case s.w.hasExited():
		s.drop()
		return d.lost()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return s.stop(d, sent, s.ending(d, why, late))
	}
	return s.broken(d, sent, err)
}

// errResponseTimeout ends a request that took longer than its runner may.
var errResponseTimeout = errors.New("runner response timeout")

// ending tells how a dispatch is going to end that its slot stops waiting for.
func (s *slot) ending(d *dispatch, why job.RecallReason, late error) job.Outcome {
	switch {
	case why != "":
		return d.recalled(why)
	case late == errResponseTimeout:
		return d.transport(late)
	}
	return d.outcome(job.TimedOut, d.timedOut())
}

// connect has a connection at hand on which no answer is due.
func (s *slot) connect() error {
	if s.conn != nil && s.conn.Idle() {
		return nil
	}
	s.drop()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := rrq.Dial(ctx, s.w.addr)
	if err != nil {
		return err
	}
	conn.Stray = func(id string) {
		s.w.m.log.Warn("answer to no request dropped", "request", id)
	}
	s.conn = conn
	if s.w.hasExited() {
		// Whoever has answered, it was not the process we know.
		return errors.New("runner has ended")
	}
	return nil
}

// settle leaves the connection for the next dispatch, if the runner allows it.
func (s *slot) settle() {
	if s.w.m.cfg.Connections == ConnPerRequest {
		s.drop()
	}
}

func (s *slot) drop() {
	if s.conn != nil {
		_ = s.conn.Close() // it is given up either way
		s.conn = nil
	}
}

// unreachable is what happens to a dispatch that found no connection. A
// process that does not listen any more is of no use: it is replaced.
func (s *slot) unreachable(d *dispatch, err error) job.Outcome {
	if s.w.exitsWithin(exitNotice) {
		return d.unstarted(job.Lost, d.lost().Fault)
	}
	s.w.condemn(fmt.Errorf("does not accept connections: %w", err))
	return d.transport(err)
}

// broken is what happens to a dispatch whose connection failed. The sockets of
// a process that ends close a moment before its end is known. What has brought
// a bad answer has come to its end; where there was none, the handler is known
// to have stopped when its process has.
func (s *slot) broken(d *dispatch, sent bool, err error) job.Outcome {
	if s.w.exitsWithin(exitNotice) {
		s.drop()
		return d.lost()
	}
	s.cancel(d)
	s.drop()
	if sent && !answeredBadly(err) {
		s.w.endWith(d, fmt.Errorf("no answer to a request: %w", err))
	}
	return d.transport(err)
}

// answeredBadly tells a connection that was given up for what came over it.
func answeredBadly(err error) bool {
	var large *rrq.TooLargeError
	return errors.Is(err, rrq.ErrMalformed) || errors.Is(err, rrq.ErrMismatch) || errors.As(err, &large)
}

// stop is the ladder: it ends a dispatch that is not to go on, and returns
// when its handler has stopped. as is its outcome, unless the handler finishes
// well while it is asked to stop; a deadline is final all the same.
func (s *slot) stop(d *dispatch, sent bool, as job.Outcome) job.Outcome {
	if !sent {
		// A part of a request starts nothing, but a runner that does not read
		// for so long is stuck.
		s.drop()
		if as.Status == job.TimedOut {
			s.w.condemn(errors.New("does not read requests"))
		}
		as.Started = false
		return as
	}
	answer, err := s.ask(d)
	clean := err == nil
	if errors.Is(err, os.ErrDeadlineExceeded) && !d.urgent() {
		s.conn.HalfClose()
		answer, err = s.await(d, halfClosePause)
	}
	if !clean {
		s.drop()
	}
	if err == nil {
		s.w.m.answered()
		s.settle()
		if answer.Status == rrq.Success && as.Status != job.TimedOut {
			return d.answered(answer)
		}
		return as
	}
	s.w.endWith(d, errReplaced)
	if d.urgent() && as.Status != job.TimedOut && as.Status != job.Cancelled {
		return d.recalled(job.RecallLease)
	}
	return as
}

// ask has the handler told to stop, and gives it a pause to answer.
func (s *slot) ask(d *dispatch) (rrq.Outcome, error) {
	if !s.cancel(d) {
		return rrq.Outcome{}, os.ErrDeadlineExceeded
	}
	answer, err := s.await(d, s.cancelPause(d)/4)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A cancel that has overtaken its request is lost on the runner.
		s.cancel(d)
		answer, err = s.await(d, s.cancelPause(d)*3/4)
	}
	return answer, err
}

// cancelPause is how long an answer to a cancel is waited for.
func (s *slot) cancelPause(d *dispatch) time.Duration {
	grace := seconds(*s.w.m.cfg.CancelGrace)
	if d.urgent() {
		return min(grace, leasePause)
	}
	return grace
}

// await gives the handler a pause to answer; the end of the lease cuts it
// short.
func (s *slot) await(d *dispatch, pause time.Duration) (rrq.Outcome, error) {
	d.arm(s.conn, time.Now().Add(pause))
	defer d.disarm()
	return s.conn.Wait()
}

func (d *dispatch) urgent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.why == job.RecallLease
}

// cancel sends a cancel frame, which a runner may or may not heed. Without
// [Config.CancelHints] it is kept for requests that share their process: false.
func (s *slot) cancel(d *dispatch) bool {
	if !*s.w.m.pools.cfg.CancelHints && s.w.alone() {
		return false
	}
	ctx, done := context.WithTimeout(context.Background(), cancelTimeout)
	defer done()
	err := rrq.SendCancel(ctx, s.w.addr, &rrq.Cancel{JobID: d.Job.String(), RequestID: d.RequestID()})
	if err != nil && !s.w.hasExited() {
		s.w.m.log.Warn("cancel not delivered", "request", d.RequestID(), "err", err)
	}
	return true
}
