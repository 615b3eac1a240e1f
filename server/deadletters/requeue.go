package deadletters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// Bounds of one change.
const (
	maxParallelChanges = 16
	maxChangedLetters  = 100
	maxChangedSize     = 8 << 20 // bytes of the dead letters, which are all in memory
)

func (s *Server) remove(ctx context.Context, q *request) (*api.DeadLetterResults, error) {
	return s.change(ctx, q, func(context.Context, *letter) (api.DeadLetterResult, error) {
		return api.DeadLetterResult{Result: api.ResultRemoved}, nil
	})
}

// requeue runs the jobs of the dead letters that q selects again, in the queue q.To if
// that is set, and removes the dead letters.
func (s *Server) requeue(ctx context.Context, q *request) (*api.DeadLetterResults, error) {
	if q.To != "" {
		if err := job.ValidQueue(q.To); err != nil {
			return nil, err
		}
		if _, err := s.cfg.Authority.Queue(ctx, q.To); err != nil {
			return nil, err
		}
	}
	// Jobs that an earlier requeue has had accepted, perhaps on another node, must be
	// in the local ledger before anything is requeued.
	if err := s.cfg.Jobs.CatchUp(ctx); err != nil {
		return nil, err
	}
	r := &requeuer{Server: s, req: q}
	return s.change(ctx, q, r.requeueOne)
}

// change collects the dead letters that q selects and calls changeOne with fn for each,
// several at the same time. If the deadline passes, or a change fails because a part of
// the cluster is unavailable, it begins no further ones: the reply then has the number of
// the first dead letter that is left, with which the client can go on.
func (s *Server) change(ctx context.Context, q *request, fn func(context.Context, *letter) (api.DeadLetterResult, error)) (*api.DeadLetterResults, error) {
	if err := q.requireFilter(); err != nil {
		return nil, err
	}
	var letters []letter
	size := 0
	continuation, err := s.walk(ctx, q, func(l letter) bool {
		letters = append(letters, l)
		size += l.size() + 2*len(l.record)
		return len(letters) < min(q.Limit, maxChangedLetters) && size < maxChangedSize
	})
	if err != nil {
		return nil, err
	}
	items, started := make([]api.DeadLetterResult, len(letters)), 0
	group, groupCtx := crash.WithContext(ctx)
	group.SetLimit(maxParallelChanges)
	for ; started < len(letters) && groupCtx.Err() == nil; started++ {
		if started >= maxParallelChanges && time.Now().After(q.deadline) {
			break
		}
		l, item := &letters[started], &items[started]
		group.Go(func() (err error) {
			*item, err = s.changeOne(ctx, q, l, fn)
			if unavailableNow(err) {
				return err
			}
			return nil // any other error concerns this letter only, and is in its item
		})
	}
	answer := &api.DeadLetterResults{DryRun: q.DryRun, Continuation: continuation}
	if err := group.Wait(); err != nil {
		answer.Stopped = err.Error()
	}
	answer.Items = items[:started]
	if started < len(letters) {
		answer.Next = letters[started].number
	}
	return answer, nil
}

// unavailableNow reports whether the next dead letter would meet the same error.
func unavailableNow(err error) bool {
	_, unavailable := errors.AsType[*job.UnavailableError](err)
	return unavailable || errors.Is(err, streams.ErrUnknown)
}

// changeOne calls fn for l and then, unless the request is a dry run, removes l from the
// stream. The result has the error, if there is one, as its text.
func (s *Server) changeOne(ctx context.Context, q *request, l *letter, fn func(context.Context, *letter) (api.DeadLetterResult, error)) (api.DeadLetterResult, error) {
	item, err := fn(ctx, l)
	item.Number, item.ID = l.number, l.ID
	if err == nil && !q.DryRun {
		if err = s.cfg.Remove(ctx, l.number); err != nil && item.Result != api.ResultRemoved {
			item.Error = "the change is done, but the letter is still in the stream; repeat the request, which does nothing twice: " + err.Error()
			return item, err
		}
	}
	if err == nil && !q.DryRun {
		s.record(ctx, l, &item)
	}
	if err != nil {
		item.Result, item.Error = api.ResultFailed, err.Error()
	}
	return item, err
}

// record records a change of a dead letter as an act. A job that was retried has an act of
// its own.
func (s *Server) record(ctx context.Context, l *letter, item *api.DeadLetterResult) {
	act := &ledger.RecordAct{Action: "dlq.remove", Job: l.job, Queue: l.Queue, Target: strconv.FormatUint(l.number, 10)}
	switch item.Result {
	case api.ResultRemoved:
	case api.ResultEnqueued:
		act.Action, act.Target = "dlq.requeue", item.Job
	default:
		return
	}
	s.cfg.Authority.RecordAct(ctx, act)
}

// requeuer serves one request to requeue dead letters.
type requeuer struct {
	*Server
	req       *request
	patch     []byte     // JSON merge patch for the params; nil: they stay as they are
	largeBody sync.Mutex // held while a large body is in memory: one at a time
}

// requeueOne runs the job of a dead letter again: under the same id while the ledger
// has it, else, or in another queue, as a new job. The new job's id is derived from the
// dead letter, so that there is never a second one.
func (r *requeuer) requeueOne(ctx context.Context, l *letter) (api.DeadLetterResult, error) {
	if l.unreadable {
		return api.DeadLetterResult{}, errors.New(l.Reason + "; remove it with 'yardmaster dlq rm'")
	}
	id := l.requeueID()
	if queue, known := r.knownQueue(id); known {
		return api.DeadLetterResult{Result: api.ResultStale, Job: id.String(), Queue: queue, Note: "requeued before"}, nil
	}
	to := cmp.Or(r.req.To, l.Queue)
	found, kept := r.findJob(l)
	switch {
	case !kept || l.rejected():
		return r.enqueue(ctx, l, id, to)
	case found.State != job.Failed || found.Dispatches != l.n:
		return api.DeadLetterResult{Result: api.ResultStale, Job: l.ID, Queue: found.Queue, Note: "the job is " + found.State.String() + " after dispatch " + fmt.Sprint(found.Dispatches)}, nil
	case to != l.Queue:
		return r.enqueue(ctx, l, id, to)
	}
	return r.retry(ctx, l)
}

// knownQueue returns the queue of a job id that the ledger knows.
func (r *requeuer) knownQueue(id job.ID) (queue string, known bool) {
	r.cfg.View(func(lg *ledger.Ledger) { queue, known = lg.Known(id) })
	return queue, known
}

// requeueID returns the id of the job that is created from l. It depends on the
// dispatch and the record: a forgotten job id may have been used again.
func (l *letter) requeueID() job.ID {
	key := fmt.Sprintf("dead/%s@%d/%d", job.RequestID(l.job, l.n), l.Lane, l.Seq)
	id, _ := job.KeyID("", key) // the key is shorter than the limit; no queue, so the same id for each target
	return id
}

// rejected reports whether l is about a record that never became a job.
func (l *letter) rejected() bool {
	return l.Attempts == 0 && l.Error != nil && l.Error.Type == job.FaultRejected
}

// retry lets the job of l wait again.
func (r *requeuer) retry(ctx context.Context, l *letter) (api.DeadLetterResult, error) {
	item := api.DeadLetterResult{Result: api.ResultRetried, Job: l.ID, Queue: l.Queue}
	if r.req.DryRun {
		return item, nil
	}
	_, err := r.cfg.Retrier.Retry(ctx, &ledger.RetryJob{Job: l.job, N: l.n, KeepAttempts: r.req.KeepAttempts})
	if errors.Is(err, job.ErrNotFailed) || errors.Is(err, job.ErrLeaseLost) { // another request was faster
		return api.DeadLetterResult{Result: api.ResultStale, Job: l.ID, Queue: l.Queue, Note: "the job has been started again meanwhile"}, nil
	}
	return item, err
}

// enqueue creates a new job from l in the queue to.
func (r *requeuer) enqueue(ctx context.Context, l *letter, id job.ID, to string) (api.DeadLetterResult, error) {
	spec, release, err := r.spec(ctx, l)
	if err != nil {
		return api.DeadLetterResult{}, err
	}
	defer release()
	item := api.DeadLetterResult{Result: api.ResultEnqueued, Job: id.String(), Queue: to}
	if r.req.DryRun {
		_, err := r.cfg.Intake.Validate(to, &spec, id.String(), r.req.To != "")
		if err == nil {
			err = r.cfg.Intake.CheckPayload(to, &spec)
		}
		return item, err
	}
	a, err := r.cfg.Intake.Publish(ctx, intake.Job{Queue: to, Spec: spec, Key: id.String(), MustExist: r.req.To != "", Quota: cluster.QuotaOf(ctx)})
	if a.Duplicate {
		item.Result, item.Note = api.ResultStale, "requeued before"
	}
	if _, removed := errors.AsType[*job.RemovedError](err); removed {
		item.Result, item.Note, err = api.ResultStale, "requeued before; the job that it became was removed", nil
	}
	return item, err
}

// respec returns the specification of a job that is to run again: due at once, without
// guards, which are there to limit producers, and without an expiry.
func respec(spec job.Spec) job.Spec {
	spec.ClearSchedule()
	spec.UniqueKey, spec.UniqueTTLMS, spec.UniqueUntil = nil, nil, nil
	spec.RateLimitKey, spec.RateLimitMS, spec.DebounceKey, spec.DebounceMS = nil, nil, nil, nil
	spec.ClearExpiry()
	return spec
}

// parseRecord parses the record of a dead letter. A record that the ledger refused is not named
// by its producer's key, so that the key in it is not recognized: beside a limit key, it is
// ignored.
func parseRecord(l *letter) (job.Spec, error) {
	spec, err := job.ParseRecord(l.record, l.Queue, "", l.job)
	if err != nil {
		spec, err = job.ParseSpec(l.record)
	}
	if err == nil && spec.Blob == nil && l.rejected() { // perhaps for a field that no job has
		_, _, err = job.ReadDirect(l.Queue, "", l.record, job.Headers{})
	}
	return spec, err
}

// spec returns the specification of the new job. The caller must call release when it
// no longer uses it.
func (r *requeuer) spec(ctx context.Context, l *letter) (spec job.Spec, release func(), err error) {
	release = func() {}
	if l.record == nil {
		return spec, release, errors.New("the letter has no record, which was already gone when the letter was written; it can only be removed, with 'yardmaster dlq rm'")
	}
	if spec, err = parseRecord(l); err == nil && spec.Blob != nil {
		r.largeBody.Lock()
		release = r.largeBody.Unlock
		spec, err = r.largeSpec(ctx, l, spec.Blob.Size)
	}
	if err == nil && r.patch != nil {
		err = patchParams(&spec, r.patch)
	}
	if _, invalid := errors.AsType[*job.InvalidError](err); invalid {
		err = fmt.Errorf("its record cannot be a job: %w; enqueue a corrected job and remove the letter", err)
	}
	if err != nil {
		release()
		return spec, func() {}, err
	}
	spec = respec(spec)
	if r.req.KeepAttempts {
		spec.MaxAttempts = r.attemptsLeft(spec.MaxAttempts, l)
	}
	return spec, release, nil
}

// largeSpec loads the body of a record that refers to a blob.
func (r *requeuer) largeSpec(ctx context.Context, l *letter, size int64) (job.Spec, error) {
	body, err := r.cfg.Reader.LoadRecordBody(ctx, l.record)
	if errors.Is(err, streams.ErrNotStored) {
		return job.Spec{}, fmt.Errorf("its body of %d bytes is gone: enqueue the job again and remove the letter", size)
	}
	if err != nil {
		return job.Spec{}, err
	}
	spec, err := job.ParseSpec(body)
	if err == nil && spec.Blob != nil {
		err = &job.InvalidError{Reason: "its body refers to another body"}
	}
	return spec, err
}

// attemptsLeft returns how many attempts the job of a letter has left, at least one. limit is
// the job's own limit; nil means that of its queue, or else the default.
func (r *requeuer) attemptsLeft(limit *int64, l *letter) *int64 {
	if limit == nil {
		var ofQueue uint32
		r.cfg.View(func(state *ledger.Ledger) {
			if q, ok := state.Queue(l.Queue); ok {
				ofQueue = q.Config.Attempts(l.Function)
			}
		})
		limit = new(int64(cmp.Or(ofQueue, r.cfg.MaxAttempts)))
	}
	return new(max(1, *limit-int64(l.Attempts)))
}
