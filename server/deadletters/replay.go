package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// replay enqueues a copy of a job that has ended, well or badly. The old job and its
// dead letter stay as they are.
func (s *Server) replay(ctx context.Context, req *api.ReplayRequest) (*api.ReplayReply, error) {
	if req.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	release, err := s.acquire() // bodies may be large
	if err != nil {
		return nil, err
	}
	defer release()
	old, err := s.finishedJob(ctx, req.ID, req.Queue)
	if err != nil {
		return nil, err
	}
	spec := respec(old.spec)
	if len(req.Params) > 0 {
		spec.Params, spec.Payload = req.Params, nil
	}
	to := cmp.Or(req.To, old.queue)
	if id, err := job.KeyID(to, req.NewID); req.NewID != "" && err == nil && id == old.id {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("new_id %q names the job that is to be replayed; choose another, or none", req.NewID)}
	}
	a, err := s.cfg.Intake.Publish(ctx, intake.Job{Queue: to, Spec: spec, Key: req.NewID, MustExist: req.To != "", Quota: cluster.QuotaOf(ctx)})
	if err == nil && !a.Duplicate {
		s.cfg.Authority.RecordAct(ctx, &ledger.RecordAct{Action: "job.replay", Job: old.id, Queue: old.queue, Target: a.ID.String()})
	}
	return &api.ReplayReply{EnqueueReply: api.EnqueueReply{ID: a.ID, Queue: to, Duplicate: a.Duplicate}, ReplayOf: old.id}, err
}

// finishedJob is a job that has ended, with its specification.
type finishedJob struct {
	id    job.ID
	queue string
	spec  job.Spec
}

// finishedJob finds a job that has ended. Its body comes from its lane or else from its
// dead letter, which is kept longer than the record and the job in the ledger.
func (s *Server) finishedJob(ctx context.Context, name, queue string) (finishedJob, error) {
	id, err := s.cfg.Jobs.Locate(ctx, name, queue)
	if errors.Is(err, job.ErrJobNotFound) && id == (job.ID{}) && queue != "" {
		id, _ = job.KeyID(queue, name) // the ledger no longer has the key either
	}
	switch {
	case isMissing(err) && id != (job.ID{}):
		return s.fromDeadLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return finishedJob{}, err
	}
	view, err := s.cfg.Jobs.Summary(ctx, id)
	if err == nil && !view.State.Ended() { // this node's ledger may lag
		if err = s.cfg.Jobs.ReadBarrier(ctx); err == nil {
			view, err = s.cfg.Jobs.Summary(ctx, id)
		}
	}
	switch {
	case isMissing(err): // it has ended and the ledger no longer has it
		return s.fromDeadLetter(ctx, job.View{ID: id}, err)
	case err != nil:
		return finishedJob{}, err
	case !view.State.Ended():
		return finishedJob{}, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("job %s is %s; wait for its end with 'yardmaster job wait', or cancel it first", id, view.State)}
	}
	body, err := s.cfg.Jobs.LoadBody(ctx, view.Position, id)
	switch {
	case errors.Is(err, streams.ErrNotStored) && view.State == job.Failed:
		return s.fromDeadLetter(ctx, view, payloadGoneError(id))
	case errors.Is(err, streams.ErrNotStored):
		return finishedJob{}, payloadGoneError(id)
	case err != nil:
		return finishedJob{}, jobview.ReadError("body", id, err)
	}
	spec, err := job.ParseRecord(body, view.Queue, "", id)
	return finishedJob{id, view.Queue, spec}, err
}

// isMissing reports whether err means that neither the ledger nor the index has a job. The index may get it
// back, see [jobview.IncompleteError].
func isMissing(err error) bool {
	_, incomplete := errors.AsType[*jobview.IncompleteError](err)
	return incomplete || errors.Is(err, job.ErrJobNotFound)
}

// payloadGoneError is the answer for a job whose body has been deleted.
func payloadGoneError(id job.ID) error {
	return &api.Error{Code: api.CodeGone, Text: fmt.Sprintf(
		"payload_gone: the body of job %s has been deleted; enqueue the job again", id)}
}

// fromDeadLetter returns a job from its last dead letter, or notFound without one. A
// dead letter of an earlier job under the same id does not count.
func (s *Server) fromDeadLetter(ctx context.Context, v job.View, notFound error) (finishedJob, error) {
	req, err := newRequest(api.DeadLetterRequest{Jobs: []job.ID{v.ID}, Queue: v.Queue})
	if err != nil {
		return finishedJob{}, err
	}
	dl, err := s.last(ctx, req)
	if err != nil {
		return finishedJob{}, err
	}
	known := !v.Created.IsZero()
	if dl == nil || dl.record == nil || known && !dl.isAbout(&v) {
		return finishedJob{}, notFound
	}
	body, err := s.cfg.Reader.LoadRecordBody(ctx, dl.record)
	if errors.Is(err, streams.ErrNotStored) {
		return finishedJob{}, payloadGoneError(v.ID)
	}
	if err != nil {
		return finishedJob{}, jobview.ReadError("body", v.ID, err)
	}
	spec, err := job.ParseRecord(body, dl.Queue, "", v.ID)
	return finishedJob{v.ID, dl.Queue, spec}, err
}
