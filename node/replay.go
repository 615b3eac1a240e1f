package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"yardmaster/cluster"
	"yardmaster/job"
)

// replayQuestion names a job that has ended, and says what is to be otherwise
// this time.
type replayQuestion struct {
	ID     string          `json:"id"`
	Queue  string          `json:"queue"`  // of a job that is named by its key
	To     string          `json:"to"`     // another queue, which must exist
	NewID  string          `json:"new_id"` // key of the new job; "": the yard makes one up
	Params json.RawMessage `json:"params"` // instead of the job's own
}

// replayReply says which job does it once more.
type replayReply struct {
	enqueueReply
	ReplayOf job.ID `json:"replay_of"`
}

// handleJobReplay makes a new job of one that has ended, well or badly. The old
// one stays as it is, and so does its dead letter.
func (n *Node) handleJobReplay(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[replayQuestion](r)
	if err != nil {
		return nil, err
	}
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	leave, err := n.dlq.enter() // bodies may be large
	if err != nil {
		return nil, err
	}
	defer leave()
	old, err := n.dlq.ended(ctx, q.ID, q.Queue)
	if err != nil {
		return nil, err
	}
	spec := anew(old.spec)
	if len(q.Params) > 0 {
		spec.Params, spec.Payload = q.Params, nil
	}
	to := old.queue
	if q.To != "" {
		to = q.To
	}
	if id, err := job.KeyID(to, q.NewID); q.NewID != "" && err == nil && id == old.id {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("new_id %q names the job that is to be replayed; choose another, or none", q.NewID)}
	}
	a, err := n.door.take(ctx, to, spec, q.NewID, q.To != "")
	return replayReply{enqueueReply{ID: a.id, Queue: to, Duplicate: a.duplicate}, old.id}, err
}

// endedJob is a job that has ended, with what it was asked to do.
type endedJob struct {
	id    job.ID
	queue string
	spec  job.Spec
}

// ended finds a job that has ended and its body: in its lane, or else in its
// dead letter, which outlives both the record and the yard's memory of the job.
func (d *dlq) ended(ctx context.Context, name, queue string) (endedJob, error) {
	id, err := d.viewer.locate(ctx, name, queue)
	if errors.Is(err, job.ErrJobNotFound) && id == (job.ID{}) && queue != "" {
		id, _ = job.KeyID(queue, name) // forgotten under its key, too
	}
	switch {
	case errors.Is(err, job.ErrJobNotFound) && id != (job.ID{}):
		return d.fromLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return endedJob{}, err
	}
	view, err := d.viewer.look(ctx, id)
	if err == nil && !view.State.Ended() { // as far as this node knows
		if err = d.viewer.current(ctx); err == nil {
			view, err = d.viewer.look(ctx, id)
		}
	}
	switch {
	case errors.Is(err, job.ErrJobNotFound): // it has ended and is forgotten
		return d.fromLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return endedJob{}, err
	case !view.State.Ended():
		return endedJob{}, &cluster.APIError{Code: "409", Text: fmt.Sprintf("job %s is %s; wait for its end with 'yardmaster job wait', or cancel it first", id, view.State)}
	}
	body, err := d.viewer.load(ctx, view.Position, id)
	switch {
	case errors.Is(err, cluster.ErrNotStored) && view.State == job.Failed:
		return d.fromLetter(ctx, view, payloadGone(id))
	case errors.Is(err, cluster.ErrNotStored):
		return endedJob{}, payloadGone(id)
	case err != nil:
		return endedJob{}, unread("body", id, err)
	}
	spec, err := job.ParseSpec(body)
	return endedJob{id, view.Queue, spec}, err
}

func payloadGone(id job.ID) error {
	return &cluster.APIError{Code: "410", Text: fmt.Sprintf(
		"payload_gone: the yard has reclaimed what job %s was asked to do; enqueue it anew", id)}
}

// fromLetter finds a job in its last dead letter; otherwise is the error if
// there is none. A letter of an earlier job under the same id is not it.
func (d *dlq) fromLetter(ctx context.Context, v job.View, otherwise error) (endedJob, error) {
	q, err := aboutLetters(nil)
	if err != nil {
		return endedJob{}, err
	}
	q.Jobs, q.Queue = []job.ID{v.ID}, v.Queue
	l, err := d.last(ctx, q)
	if err != nil {
		return endedJob{}, err
	}
	known := v.Position != job.Position{}
	if l == nil || l.record == nil || known && (job.Position{Lane: l.Lane, Seq: l.Seq}) != v.Position {
		return endedJob{}, otherwise
	}
	body, err := d.messages.LoadRecordBody(ctx, l.record)
	if errors.Is(err, cluster.ErrNotStored) {
		return endedJob{}, payloadGone(v.ID)
	}
	if err != nil {
		return endedJob{}, unread("body", v.ID, err)
	}
	spec, err := job.ParseSpec(body)
	return endedJob{v.ID, l.Queue, spec}, err
}
