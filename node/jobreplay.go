package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// handleJobReplay enqueues a copy of a job that has ended, well or badly. The old job and
// its dead letter stay as they are.
func (n *Node) handleJobReplay(ctx context.Context, r *cluster.Request) (any, error) {
	req, err := decodeRequest[api.ReplayRequest](r)
	if err != nil {
		return nil, err
	}
	if req.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	release, err := n.dlq.acquire() // bodies may be large
	if err != nil {
		return nil, err
	}
	defer release()
	old, err := n.dlq.finishedJob(ctx, req.ID, req.Queue)
	if err != nil {
		return nil, err
	}
	spec := respec(old.spec)
	if len(req.Params) > 0 {
		spec.Params, spec.Payload = req.Params, nil
	}
	to := old.queue
	if req.To != "" {
		to = req.To
	}
	if id, err := job.KeyID(to, req.NewID); req.NewID != "" && err == nil && id == old.id {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("new_id %q names the job that is to be replayed; choose another, or none", req.NewID)}
	}
	a, err := n.intake.Publish(ctx, intake.Job{Queue: to, Spec: spec, Key: req.NewID, MustExist: req.To != ""})
	return api.ReplayReply{EnqueueReply: api.EnqueueReply{ID: a.ID, Queue: to, Duplicate: a.Duplicate}, ReplayOf: old.id}, err
}

// finishedJob is a job that has ended, with its specification.
type finishedJob struct {
	id    job.ID
	queue string
	spec  job.Spec
}

// finishedJob finds a job that has ended. Its body comes from its lane or else from its
// dead letter, which is kept longer than the record and the job in the ledger.
func (d *dlq) finishedJob(ctx context.Context, name, queue string) (finishedJob, error) {
	id, err := d.viewer.Locate(ctx, name, queue)
	if errors.Is(err, job.ErrJobNotFound) && id == (job.ID{}) && queue != "" {
		id, _ = job.KeyID(queue, name) // the ledger no longer has the key either
	}
	switch {
	case errors.Is(err, job.ErrJobNotFound) && id != (job.ID{}):
		return d.fromDeadLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return finishedJob{}, err
	}
	view, err := d.viewer.Summary(ctx, id)
	if err == nil && !view.State.Ended() { // this node's ledger may lag
		if err = d.viewer.ReadBarrier(ctx); err == nil {
			view, err = d.viewer.Summary(ctx, id)
		}
	}
	switch {
	case errors.Is(err, job.ErrJobNotFound): // it has ended and the ledger no longer has it
		return d.fromDeadLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return finishedJob{}, err
	case !view.State.Ended():
		return finishedJob{}, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("job %s is %s; wait for its end with 'yardmaster job wait', or cancel it first", id, view.State)}
	}
	body, err := d.viewer.LoadBody(ctx, view.Position, id)
	switch {
	case errors.Is(err, cluster.ErrNotStored) && view.State == job.Failed:
		return d.fromDeadLetter(ctx, view, payloadGoneError(id))
	case errors.Is(err, cluster.ErrNotStored):
		return finishedJob{}, payloadGoneError(id)
	case err != nil:
		return finishedJob{}, jobview.ReadError("body", id, err)
	}
	spec, err := job.ParseSpec(body)
	return finishedJob{id, view.Queue, spec}, err
}

// payloadGoneError is the answer for a job whose body has been deleted.
func payloadGoneError(id job.ID) error {
	return &api.Error{Code: api.CodeGone, Text: fmt.Sprintf(
		"payload_gone: the body of job %s has been deleted; enqueue the job again", id)}
}

// fromDeadLetter returns a job from its last dead letter, or notFound without one. A
// dead letter of an earlier job under the same id does not count.
func (d *dlq) fromDeadLetter(ctx context.Context, v job.View, notFound error) (finishedJob, error) {
	req, err := decodeDeadLetterRequest(nil)
	if err != nil {
		return finishedJob{}, err
	}
	req.Jobs, req.Queue = []job.ID{v.ID}, v.Queue
	dl, err := d.last(ctx, req)
	if err != nil {
		return finishedJob{}, err
	}
	known := v.Position != job.Position{}
	if dl == nil || dl.record == nil || known && (job.Position{Lane: dl.Lane, Seq: dl.Seq}) != v.Position {
		return finishedJob{}, notFound
	}
	body, err := d.reader.LoadRecordBody(ctx, dl.record)
	if errors.Is(err, cluster.ErrNotStored) {
		return finishedJob{}, payloadGoneError(v.ID)
	}
	if err != nil {
		return finishedJob{}, jobview.ReadError("body", v.ID, err)
	}
	spec, err := job.ParseSpec(body)
	return finishedJob{v.ID, dl.Queue, spec}, err
}
