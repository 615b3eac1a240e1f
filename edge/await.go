package edge

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// beginAwait counts one more job that the connection awaits, because of an AWAIT
// or an ENQUEUE with notify. It fails at the limit; otherwise endAwait must
// follow.
func (c *conn) beginAwait() error {
	if int(c.awaits.Load()) >= c.server.cfg.Limits.Awaits {
		return &codeError{overhop.CodeRateLimited, "this connection waits for too many jobs already", nil}
	}
	c.awaits.Add(1)
	c.awaitGroup.Add(1)
	return nil
}

func (c *conn) endAwait() {
	c.awaits.Add(-1)
	c.awaitGroup.Done()
}

// handleAwait answers with the job's record if the job has ended. Otherwise the
// answer is "pending", and if the job ends within the requested time, a JOBEND
// follows.
func (c *conn) handleAwait(ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
	name, wait, err := overhop.ParseAwait(payload)
	if err != nil {
		return nil, err
	}
	q := queriesOf(c)
	view, err := q.require(ctx, name, c.cluster.Peek)
	if err != nil {
		return nil, err
	}

	if view.State.Ended() {
		if view, err = q.require(ctx, name, c.cluster.Job); err != nil {
			return nil, err
		}
		return q.omitToFit(q.jobFields(&view), "payload", "result", "error").Raw(), nil
	}

	if wait > 0 {
		if err := c.beginAwait(); err != nil {
			return nil, err
		}
		go func() {
			waitCtx, cancel := context.WithTimeout(c.ctx, wait)
			defer cancel()
			c.pushJobEnd(waitCtx, view.Queue, view.ID)
		}()
	}
	return overhop.Fields{"pending": true}.Raw(), nil
}

// pushJobEnd waits until the job has ended or ctx is done. If the job has ended
// or was removed, it pushes JOBEND. The caller has called beginAwait; pushJobEnd
// calls endAwait.
func (c *conn) pushJobEnd(ctx context.Context, queue string, id job.ID) {
	defer c.endAwait()
	defer crash.Contain(c.server.log, crash.Overhop, func(error) { c.abort() })
	view, err := c.cluster.Await(ctx, id)
	if errors.Is(err, job.ErrJobNotFound) {
		c.pushFields(overhop.TJobEnd, overhop.Fields{
			"jid": jid(queue, id), "status": job.Failed.String(), "attempts": 0, "result": nil,
			"error": overhop.Fields{"type": "removed", "message": "the job was removed"},
		})
		return
	}
	if err != nil || !view.State.Ended() {
		if ctx.Err() == nil {
			c.server.log.Warn("awaiting a job failed", "job", id, "err", err)
		}
		return
	}
	q := queriesOf(c)
	end := overhop.Fields{
		"jid": jid(view.Queue, view.ID), "status": view.State.String(), "attempts": view.Attempts, "error": q.faultOf(&view),
	}
	q.setValue(end, "result", view.Result, recordDepth)
	setResultGone(end, &view)
	c.pushFields(overhop.TJobEnd, q.omitToFit(end, "result", "error"))
}

// envelopeOverhead is the most that an envelope takes around its payload, in
// bytes, the rid included.
const envelopeOverhead = 64

// omitToFit sets the given fields of a job's record to nil, one after another,
// until the record fits into a frame, and lists their names under "omitted": the
// client must be informed that a job has ended, whatever the size of its result.
// Of the field "error", only the details are omitted, because the rest is short.
func (q queries) omitToFit(record overhop.Fields, names ...string) overhop.Fields {
	var omitted []string
	for _, name := range names {
		if len(record.Raw()) <= q.server.cfg.Wire.MaxEnvelope-envelopeOverhead {
			break
		}
		asJSON := name + overhop.JSONSuffix
		if record[name] == nil && record[asJSON] == nil {
			continue
		}
		delete(record, asJSON)
		if fault, ok := record["error"].(overhop.Fields); ok && name == "error" {
			delete(fault, "details")
			delete(fault, "details"+overhop.JSONSuffix)
			name = "error.details"
		} else {
			record[name] = nil
		}
		omitted = append(omitted, name)
		record["omitted"] = omitted
	}
	return record
}
