package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// pending is one job on its way: accept, publish, receive, and finish, which ends it.
type pending struct {
	Job
	in      *Intake
	id      job.ID
	named   bool   // the producer chose the key
	ownID   bool   // the key is a UUID, which may belong to another queue's job
	large   bool   // its body is stored apart from its record
	guarded bool   // it has guards (unique, rate limit or debounce keys): the ledger decides whether it becomes a job
	blob    string // the name of its body, if that is stored for this record only; "" otherwise
	done    func(Ack, error)
}

// finish reports the result. A duplicate of a unique key does not count as rejected.
func (p *pending) finish(a Ack, err error) {
	var duplicate *job.DuplicateError
	if err != nil && !errors.As(err, &duplicate) {
		p.in.cfg.OnReject(err)
	}
	p.done(a, err)
}

// background runs step in a goroutine of group, which has a limit. If step returns an
// error it finishes p; otherwise step has continued p itself. At the limit, background
// blocks if p.Block is set, and else finishes p with fullReason as the error.
func (p *pending) background(group *errgroup.Group, fullReason string, step func() error) {
	run := func() error {
		if err := step(); err != nil {
			p.finish(Ack{}, err)
		}
		return nil
	}
	if p.Block {
		group.Go(run)
	} else if !group.TryGo(run) {
		p.finish(Ack{}, &job.UnavailableError{Reason: fullReason, RetryAfter: time.Second})
	}
}

// retryValidate validates a job whose queue or limit was unknown again, once the local ledger is
// current, and accepts it.
func (p *pending) retryValidate() error {
	if err := p.in.cfg.ReadBarrier(p.in.ctx); err != nil {
		return err
	}
	id, err := p.in.Validate(p.Queue, &p.Spec, p.Key, p.MustExist)
	if err == nil {
		err = p.in.cfg.NewQueues.Check(p.Quota, p.Queue)
	}
	if err != nil {
		return err
	}
	p.id = id
	p.accept()
	return nil
}

// accept publishes a job that was validated. It finishes a job that the ledger has
// already, one whose payload does not match its schema, and one that should not be published
// now. A large body is checked and stored in the background first.
func (p *pending) accept() {
	in := p.in
	if p.named { // a generated id cannot be known
		if known, ok, err := in.findKnown(p.id, p.Queue); ok {
			p.finish(known, err)
			return
		}
		_, err := job.ParseID(p.Key)
		p.ownID = err == nil
	}
	if err := in.cfg.CheckLoad(); err != nil {
		p.finish(Ack{}, err)
		return
	}
	p.guarded = p.Spec.HasGuards()
	if p.guarded || p.ownID {
		if err := in.admit(p.guarded); err != nil {
			p.finish(Ack{}, err)
			return
		}
	}
	if p.Body == nil {
		body, err := p.Spec.Encode()
		if err != nil {
			p.finish(Ack{}, &job.InvalidError{Reason: err.Error()})
			return
		}
		p.Body = body
	}
	if len(p.Body) > job.MaxInlineBody { // checking it takes long, and storing it several round trips
		p.large = true
		p.background(&in.blobs, "too many large jobs at once", p.publishLarge)
		return
	}
	if err := in.CheckPayload(p.Queue, &p.Spec); err != nil {
		p.finish(Ack{}, err)
		return
	}
	p.publish()
}

// publishLarge checks the payload of a job, and publishes the job after its body, which is too
// large for a lane. Its limit key and indexed params are in the record, so that the authority need not
// read the body.
func (p *pending) publishLarge() error {
	key, err := p.in.cfg.Keys.Find(p.Queue, &p.Spec)
	if err != nil {
		return err
	}
	p.Spec.LimitKey = key
	version, err := p.in.cfg.Schemas.Check(p.Queue, &p.Spec)
	if err != nil {
		return err
	}
	if err := p.storeBody(version); err != nil {
		return err
	}
	p.publish()
	return nil
}

// publish publishes a record under its job id. The producer's key would do for the
// ledger but not for JetStream, where the same key in two queues is one message. The key
// is in the record's body, to be shown.
func (p *pending) publish() {
	id := p.Key // one that was generated is the id
	if p.named {
		p.Body, id = job.WithKey(p.Body, p.Key), p.id.String()
	}
	p.in.cfg.Publish(p.Queue, id, time.Now(), p.Body, p.receive)
}

// receive takes the acknowledgement of the lane, or the error of the publish. A job with
// guards, or with an id of the producer's, then waits until the ledger has ingested it,
// which takes as long as the ingest lag; any other job until it may be acknowledged.
func (p *pending) receive(ack lanes.Ack, err error) {
	if err != nil {
		if !errors.Is(err, streams.ErrUnknown) {
			p.removeBody()
		}
		p.finish(Ack{}, err)
		return
	}
	if ack.Duplicate || ack.Repeated { // another record may refer to the body
		p.blob = ""
	}
	if !ack.Duplicate {
		p.in.cfg.OnAccept()
	}
	a := Ack{ID: p.id, Position: ack.Position, Duplicate: ack.Duplicate}
	p.Spec, p.Body = job.Spec{}, nil // not needed while it waits
	if !p.guarded && !p.ownID {
		p.in.cfg.DelayAck(p.large, func() { p.finish(a, nil) })
		return
	}
	check := p.checkOwner
	if p.guarded {
		check = p.checkDecision
	}
	p.in.cfg.Waiters.Async(func(l *ledger.Ledger) func() { return check(l, a) }, func() { p.finish(a, undecidedError()) })
}

// checkDecision returns a function that finishes p if the ledger has decided about its
// record, else nil. a is the acknowledgement of the lane.
func (p *pending) checkDecision(l *ledger.Ledger, a Ack) func() {
	d, decided := l.Decision(a.Position)
	switch {
	case decided:
		removed := (d.Ingested == ledger.IngestedKnown || d.Ingested == ledger.IngestedDuplicate) && l.Removed(d.Job)
		// A backup that holds the bodies may have copied the ledger before the decision; a
		// restore decides again.
		holder, _ := l.Holder()
		refused := d.Ingested == ledger.IngestedDuplicate || d.Ingested == ledger.IngestedRateLimited
		return func() {
			if refused && holder == "" {
				p.removeBody()
			}
			final, err := ackOf(d, p.id, a.Position, p.named)
			switch {
			case removed:
				err = &job.RemovedError{Queue: d.Queue, ID: d.Job, Kept: ledger.DedupeAge}
			case err != nil && a.Duplicate:
				err = staleDecisionError()
			}
			p.finish(final, err)
		}
	case l.Ingested(a.Position): // so long ago that the ledger no longer has the decision
		return func() { p.finish(a, undecidedError()) }
	}
	return nil
}

// checkOwner returns a function that finishes p if its record is ingested, else nil. The
// result is an error if its id belongs to a job of another queue, or to one that was removed.
func (p *pending) checkOwner(l *ledger.Ledger, a Ack) func() {
	if !l.Ingested(a.Position) {
		return nil
	}
	known, _, err := findKnown(l, p.id, p.Queue)
	a.ID, a.Debounced = known.ID, known.Debounced
	return func() { p.finish(a, err) }
}

// undecidedError returns the answer to a job about which the ledger does not decide in time.
func undecidedError() error {
	return &job.UnavailableError{
		Reason: "the job is accepted, but the effect of its keys is not known yet: ask again under the same keys", RetryAfter: time.Second,
	}
}

// admit returns an error if a job should not be published, because too many callers
// wait or, for a job with guards, the ledger holds too many keys.
func (in *Intake) admit(guarded bool) error {
	if in.cfg.Waiters.Full() {
		return &job.UnavailableError{Reason: "too many jobs with keys are waiting for a decision", RetryAfter: time.Second}
	}
	if !guarded {
		return nil
	}
	full := false
	in.cfg.Waiters.View(func(l *ledger.Ledger) { full = l.HeldKeys() >= ledger.MaxHeldKeys })
	if full {
		return &job.UnavailableError{Reason: ledger.ReasonKeysFull, RetryAfter: authority.KeysFullDelay}
	}
	return nil
}

// storeBody stores the body of p, which is too large for a lane, as a blob, and replaces it
// by that of the record that refers to the blob: the specification without its params, with
// the version of the schema that the payload was checked against, 0 for none.
func (p *pending) storeBody(version uint64) error {
	if len(p.Body) > job.MaxBody {
		return fmt.Errorf("job of %d bytes, at most %d: %w", len(p.Body), job.MaxBody, job.ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(p.in.ctx, blobTimeout)
	defer cancel()
	started := time.Now()
	blob, err := p.in.cfg.StoreBody(ctx, p.id.String(), p.Body)
	if err != nil {
		return fmt.Errorf("store the body: %w", err)
	}
	p.blob = blob.Name
	if time.Since(started) > streams.MaxBodyDelay/2 { // this node was stopped for a while
		p.removeBody()
		return &job.UnavailableError{Reason: "the body took too long to store", RetryAfter: time.Second}
	}
	blob.Checked = p.in.cfg.Schemas.Mark(p.Queue, p.Spec.Function, version, &blob)
	record := p.Spec
	record.Params, record.Payload, record.Blob, record.Indexed = nil, nil, &blob, p.in.cfg.Keys.Indexed(p.Queue, &p.Spec)
	p.Body, err = json.Marshal(record)
	return err
}

// removeBody removes the body that was stored for p, if any, because no lane has a record
// that may become a job and refers to it. If that fails or too many are being removed, the
// authority removes the body later, as one without an owner.
func (p *pending) removeBody() {
	if p.blob == "" || p.in.ctx.Err() != nil {
		return
	}
	p.in.removals.TryGo(func() error {
		ctx, cancel := context.WithTimeout(p.in.ctx, blobTimeout)
		defer cancel()
		_ = p.in.cfg.RemoveBody(ctx, p.blob)
		return nil
	})
}

// staleDecisionError is the answer to a job with a key that the lane has dropped as a
// repetition of a job rejected a moment ago. The reason for that rejection may no longer
// hold, and the ledger never saw the second job.
func staleDecisionError() error {
	return &job.UnavailableError{Reason: "a job under this key was rejected a moment ago: ask again", RetryAfter: StaleDecisionDelay}
}

// StaleDecisionDelay is well above the time for which a lane remembers a key.
const StaleDecisionDelay = 500 * time.Millisecond

// idConflict returns the error for a job whose id a job of another queue has.
func idConflict(text string) error {
	return &api.Error{Code: api.CodeConflict, Text: text, Data: []byte(`{"reason":"` + api.ReasonIDConflict + `"}`)}
}

// ackOf converts the ledger's decision about the record at pos to the result for the
// caller. id is the job's id; named reports whether the caller chose the key, so that a
// known id means a duplicate.
func ackOf(d ledger.Decision, id job.ID, pos job.Position, named bool) (Ack, error) {
	switch d.Ingested {
	case ledger.IngestedDuplicate:
		return Ack{}, &job.DuplicateError{Queue: d.Queue, ID: d.Job}
	case ledger.IngestedRateLimited:
		return Ack{}, &job.RateLimitedError{RetryAfter: d.RetryAfter}
	case ledger.IngestedKeysFull:
		return Ack{}, &job.UnavailableError{Reason: d.Reason, RetryAfter: authority.KeysFullDelay}
	case ledger.IngestedRejected:
		if strings.HasPrefix(d.Reason, api.ReasonIDConflict) {
			return Ack{}, idConflict(d.Reason)
		}
		return Ack{}, &api.Error{Code: api.CodeConflict, Text: d.Reason}
	case ledger.IngestedDebounced:
		return Ack{ID: d.Job, Position: pos, Debounced: true}, nil
	case ledger.IngestedKnown:
		return Ack{ID: d.Job, Position: pos, Duplicate: named, Debounced: d.Job != id}, nil
	}
	return Ack{ID: id, Position: pos}, nil
}
