package edge

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// errTooManyAwaits refuses another AWAIT, or an ENQUEUE with notify, on a
// connection that awaits as many jobs as it may.
var errTooManyAwaits = &codeError{overhop.CodeRateLimited, "this connection waits for too many jobs already", nil}

// beginAwait counts one more job that the connection awaits. It fails at the
// limit; otherwise endAwait must follow.
func (c *conn) beginAwait() error {
	if int(c.awaits.Load()) >= c.s.cfg.Limits.Awaits {
		return errTooManyAwaits
	}
	c.awaits.Add(1)
	c.awaitGroup.Add(1)
	return nil
}

func (c *conn) endAwait() {
	c.awaits.Add(-1)
	c.awaitGroup.Done()
}

// awaitEnqueued pushes the end of a job that was enqueued with notify, once it
// has ended. err is the result of the ENQUEUE.
func (c *conn) awaitEnqueued(queue string, id job.ID, err error) {
	if err != nil {
		c.endAwait()
		return
	}
	go c.pushJobEnd(c.ctx, func() {}, queue, id)
}

func (c *conn) handleAwait(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	name, wait, err := overhop.ParseAwait(p)
	if err != nil {
		return nil, err
	}
	q := toCluster(c)
	v, err := q.require(ctx, name, c.cluster.Peek)
	if err != nil {
		return nil, err
	}
	if v.State.Ended() {
		if v, err = q.require(ctx, name, c.cluster.Job); err != nil {
			return nil, err
		}
		return q.omitToFit(q.jobFields(&v), "payload", "result", "error").Raw(), nil
	}
	if wait > 0 {
		if err := c.beginAwait(); err != nil {
			return nil, err
		}
		waiting, stop := context.WithTimeout(c.ctx, wait)
		go c.pushJobEnd(waiting, stop, v.Queue, v.ID)
	}
	return overhop.Fields{"pending": true}.Raw(), nil
}

// pushJobEnd waits until the job has ended or ctx is done, and pushes JOBEND.
// The caller has called beginAwait; pushJobEnd calls endAwait.
func (c *conn) pushJobEnd(ctx context.Context, stop context.CancelFunc, queue string, id job.ID) {
	defer c.endAwait()
	defer stop()
	v, err := c.cluster.Await(ctx, id)
	if errors.Is(err, job.ErrJobNotFound) {
		c.pushFields(overhop.TJobEnd, overhop.Fields{
			"jid": jid(queue, id), "status": job.Failed.String(), "attempts": 0, "result": nil,
			"error": overhop.Fields{"type": "removed", "message": "the job was removed"},
		})
		return
	}
	if err != nil || !v.State.Ended() {
		if ctx.Err() == nil {
			c.s.log.Warn("awaiting a job failed", "job", id, "err", err)
		}
		return
	}
	c.pushFields(overhop.TJobEnd, toCluster(c).omitToFit(overhop.Fields{
		"jid": jid(v.Queue, v.ID), "status": v.State.String(), "attempts": v.Attempts,
		"result": valueOf(v.Result, recordDepth), "error": faultOf(&v),
	}, "result", "error"))
}

// envelopeOverhead is the most that an envelope takes around its payload, in
// bytes, the rid included.
const envelopeOverhead = 64

// omitToFit removes the values of keys from p, one after another, until p fits
// into a frame, and lists them under "omitted". The client must be informed
// that a job has ended, whatever the size of its result.
func (q queries) omitToFit(p overhop.Fields, keys ...string) overhop.Fields {
	var omitted []string
	for _, key := range keys {
		if len(p.Raw()) <= q.cfg.Wire.MaxEnvelope-envelopeOverhead {
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
