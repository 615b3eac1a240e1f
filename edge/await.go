package edge

import (
	"context"
	"errors"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// This file tells who waits for a job how it ended.

// errTooManyAwaits refuses a connection that waits for too many ends of jobs.
var errTooManyAwaits = &codeError{overhop.CodeRateLimited, "this connection waits for too many jobs already"}

// mayAwait counts one more wait for a job's end.
func (c *conn) mayAwait() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.waiting >= c.s.cfg.Limits.Awaits || c.gone {
		return errTooManyAwaits
	}
	c.waiting++
	c.awaits.Add(1)
	return nil
}

func (c *conn) doneAwaiting() {
	c.s.mu.Lock()
	c.waiting--
	c.s.mu.Unlock()
	c.awaits.Done()
}

// awaitEnqueued pushes the end of a job that was enqueued with notify.
func (c *conn) awaitEnqueued(queue string, id job.ID, err error) {
	if err != nil {
		c.doneAwaiting()
		return
	}
	go c.pushEnd(c.ctx, func() {}, queue, id)
}

func (c *conn) handleAwait(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	name, wait, err := overhop.ParseAwait(p)
	if err != nil {
		return nil, err
	}
	v, err := c.must(ctx, name, c.yard.Look)
	if err != nil {
		return nil, err
	}
	if v.State.Ended() {
		if v, err = c.must(ctx, name, c.yard.Job); err != nil {
			return nil, err
		}
		return overhop.AppendValue(nil, c.s.fitting(c.s.record(&v), "payload", "result", "error")), nil
	}
	if wait > 0 {
		if err := c.mayAwait(); err != nil {
			return nil, err
		}
		waiting, stop := context.WithTimeout(c.ctx, wait)
		go c.pushEnd(waiting, stop, v.Queue, v.ID)
	}
	return overhop.AppendValue(nil, overhop.Fields{"pending": true}), nil
}

// pushEnd waits for a job's end and pushes it; conn.awaits waits for it.
func (c *conn) pushEnd(ctx context.Context, stop context.CancelFunc, queue string, id job.ID) {
	defer c.doneAwaiting()
	defer stop()
	v, err := c.yard.Await(ctx, id)
	if errors.Is(err, job.ErrJobNotFound) {
		c.pushFields(overhop.TJobEnd, overhop.Fields{
			"jid": jid(queue, id), "status": job.Failed.String(), "attempts": 0, "result": nil,
			"error": overhop.Fields{"type": "removed", "message": "the job was removed"},
		})
		return
	}
	if err != nil || !v.State.Ended() {
		if ctx.Err() == nil {
			c.s.log.Warn("edge could not wait for a job's end", "job", id, "error", err)
		}
		return
	}
	c.pushFields(overhop.TJobEnd, c.s.fitting(overhop.Fields{
		"jid": jid(v.Queue, v.ID), "status": v.State.String(), "attempts": v.Attempts,
		"result": resultOf(&v), "error": faultOf(&v),
	}, "result", "error"))
}

// envelopeRoom is what an envelope may take around a payload, in bytes, its rid
// included.
const envelopeRoom = 64

// fitting leaves out of p, one after another, what keeps it from fitting into a
// frame, and names that under "omitted": that a job has ended must be told,
// whatever its size.
func (s *Server) fitting(p overhop.Fields, most ...string) overhop.Fields {
	var omitted []string
	for _, key := range most {
		if len(overhop.AppendValue(nil, p)) <= s.cfg.Wire.MaxEnvelope-envelopeRoom {
			break
		}
		if fault, ok := p[key].(overhop.Fields); ok && key == "error" {
			delete(fault, "details") // the message is short
			key = "error.details"
		} else if p[key] != nil {
			p[key] = nil
		} else {
			continue
		}
		omitted = append(omitted, key)
		p["omitted"] = omitted
	}
	return p
}
