package jobview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// indexTimeout bounds the search in the index, which is on the disk of this node.
const indexTimeout = time.Second

// Locate returns the id of the job that a text names, see [find]. It looks into the ledger and the
// index. Before it returns that there is no such job, with an error that wraps [job.ErrJobNotFound],
// it waits until the local ledger has all jobs that were accepted, and looks again. An
// [*IncompleteError] means that there may be one, which has the id, if text determines one.
//
// For a caller who may use some queues only (see [cluster.QueuesOf]), jobs of all others do not
// exist: the error, and what is done to find it, are the same as for an unknown job, so that the
// caller cannot find out which ids there are.
func (v *Viewer) Locate(ctx context.Context, text, queue string) (job.ID, error) {
	id, err := v.locate(ctx, text, queue)
	return id, v.conceal(ctx, err, id, text)
}

// conceal returns err or, if it is [job.ErrJobNotFound] and the caller may use some queues only, an
// error that does not tell more. id is that of the job, or zero if only text names it.
func (v *Viewer) conceal(ctx context.Context, err error, id job.ID, text string) error {
	if cluster.QueuesOf(ctx) == nil || !errors.Is(err, job.ErrJobNotFound) {
		return err
	}
	if !id.IsZero() {
		text = id.String()
	}
	v.Ledger.View(func(l *ledger.Ledger) {
		err = fmt.Errorf("%q: %w in the queues that this user may use; a job is found for %s", text, job.ErrJobNotFound, foundFor(l))
	})
	return err
}

// locate is [Viewer.Locate] with errors that tell more.
func (v *Viewer) locate(ctx context.Context, text, queue string) (job.ID, error) {
	within := cluster.QueuesOf(ctx)
	id, err := v.find(text, queue, within)
	if err == nil && v.isKnown(id) {
		return id, v.checkQueue(ctx, id, text, queue)
	}
	if err != nil && !errors.Is(err, job.ErrJobNotFound) {
		return id, err
	}
	if !id.IsZero() || queue != "" { // the text determines the id, also of a job that the ledger does not have yet
		if found, err := v.locateForgotten(ctx, text, queue, id); err == nil {
			return found, nil
		}
	}
	uncertain := v.CatchUp(ctx)
	if uncertain == nil {
		id, err = v.find(text, queue, within)
		if err == nil && v.isKnown(id) {
			return id, v.checkQueue(ctx, id, text, queue)
		}
		if err != nil && !errors.Is(err, job.ErrJobNotFound) {
			return id, err
		}
	}
	local, cancel := context.WithTimeout(context.WithoutCancel(ctx), indexTimeout) // CatchUp may have taken all the time
	defer cancel()
	if found, forgottenErr := v.locateForgotten(local, text, queue, id); !errors.Is(forgottenErr, job.ErrJobNotFound) {
		return found, forgottenErr
	}
	if err == nil {
		err = v.notFoundError(id)
	}
	return id, cmp.Or(uncertain, err)
}

// checkQueue returns an error if the ledger has forgotten a job, and the job was one of another queue than that
// by which a text names its id.
func (v *Viewer) checkQueue(ctx context.Context, id job.ID, text, queue string) error {
	if prefix, _, found := strings.Cut(text, ":"); found && queue == "" {
		queue = prefix
	}
	_, err := job.ParseID(text[strings.LastIndexByte(text, ':')+1:])
	forgotten := false
	v.Ledger.View(func(l *ledger.Ledger) {
		owner, known := l.Known(id)
		forgotten = known && owner == ""
	})
	if err != nil || queue == "" || !forgotten {
		return nil
	}
	if d, _ := v.forgotten(ctx, id); d != nil && d.Queue != queue {
		return fmt.Errorf("%s: %w in queue %s; it was a job of queue %s", id, job.ErrJobNotFound, queue, d.Queue)
	}
	return nil
}

// locateForgotten is [Viewer.Locate] for a job that the ledger has forgotten. id is that of text, if text
// determines one.
func (v *Viewer) locateForgotten(ctx context.Context, text, queue string, id job.ID) (job.ID, error) {
	notFound := job.ErrJobNotFound
	if queue == "" {
		if prefix, name, found := strings.Cut(text, ":"); found && job.ValidQueue(prefix) == nil {
			other, _ := job.KeyID(prefix, name)
			if parsed, err := job.ParseID(name); err == nil {
				other = parsed
			}
			found, err := v.locateForgotten(ctx, name, prefix, other)
			if _, incomplete := errors.AsType[*IncompleteError](err); incomplete {
				notFound = err
			} else if !errors.Is(err, job.ErrJobNotFound) {
				return found, err
			}
		}
	}
	if id.IsZero() && queue == "" {
		id, err := v.forgottenKey(ctx, text, queue)
		if errors.Is(err, job.ErrJobNotFound) {
			err = notFound
		}
		return id, err
	}
	if id.IsZero() {
		id, _ = job.KeyID(queue, text)
	}
	d, err := v.forgotten(ctx, id)
	if d == nil || queue != "" && d.Queue != queue {
		return id, cmp.Or(err, notFound)
	}
	return id, nil
}

// isKnown reports whether the local ledger has, or had, a job with this id.
func (v *Viewer) isKnown(id job.ID) (known bool) {
	v.Ledger.View(func(l *ledger.Ledger) { _, known = l.Known(id) })
	return known
}

// CatchUp waits until the local ledger has every job that had been accepted when it was
// called. Call it before answering that a job does not exist. A [*job.UnavailableError]
// means that this is not certain: a lane whose leader does not answer may hold records
// that are not ingested.
func (v *Viewer) CatchUp(ctx context.Context) error {
	if err := v.ReadBarrier(ctx); err != nil {
		return err
	}
	lanes := v.Lanes()
	errs := make([]error, lanes)
	var queries crash.Group
	for lane := range lanes {
		queries.Run(func() { errs[lane] = v.catchUpWith(ctx, uint8(lane)) })
	}
	_ = queries.Wait() // the functions return no errors
	for lane, err := range errs {
		if err != nil {
			return &job.UnavailableError{
				Reason: fmt.Sprintf("lane %d may hold jobs that are not ingested yet: %s", lane, cluster.ErrorText(err)), RetryAfter: time.Second,
			}
		}
	}
	return nil
}

// catchUpWith is CatchUp for one lane.
func (v *Viewer) catchUpWith(ctx context.Context, lane uint8) error {
	reqCtx, cancel := context.WithTimeout(ctx, ledgerwait.ReadTimeout)
	defer cancel()
	last, err := v.Reader.LastSeq(reqCtx, lane)
	if err != nil {
		return err
	}
	return v.Waiters.WaitRead(ctx, func(l *ledger.Ledger) bool { return l.Ingested(job.Position{Lane: lane, Seq: last}) })
}

// find is [find] in the local ledger.
func (v *Viewer) find(text, queue string, within []string) (id job.ID, err error) {
	v.Ledger.View(func(l *ledger.Ledger) { id, err = find(l, text, queue, within) })
	return id, err
}

// find returns the id that a text names: a UUID, "<queue>:<UUID>", "<queue>:<key>", or a
// key, of the given queue or else of the only queue with such a job. The error for a job of
// another queue than the given one wraps [job.ErrJobNotFound], and so does that for a job which is not
// known to be of one of the queues within, unless that is nil.
func find(l *ledger.Ledger, text, queue string, within []string) (job.ID, error) {
	if id, err := job.ParseID(text); err == nil {
		owner, known := l.Known(id)
		if within != nil && (known && !slices.Contains(within, owner) || queue != "" && !slices.Contains(within, queue)) {
			return id, job.ErrJobNotFound
		}
		if queue != "" && owner != "" && owner != queue {
			err = fmt.Errorf("%s: %w in queue %s; it is a job of queue %s", id, job.ErrJobNotFound, queue, owner)
		}
		return id, err
	}
	var inQueue error // of the text as "<queue>:<…>", if there is such a queue
	if prefix, name, found := strings.Cut(text, ":"); found && queue == "" && job.ValidQueue(prefix) == nil {
		id, err := find(l, name, prefix, within)
		if err == nil {
			return id, nil
		}
		if hasQueue(l, prefix) {
			inQueue = err
		}
	}
	id, err := findKey(l, text, queue, within)
	if errors.Is(err, job.ErrJobNotFound) && inQueue != nil {
		err = inQueue
	}
	return id, err
}

// hasQueue reports whether l has a queue.
func hasQueue(l *ledger.Ledger, name string) bool {
	_, ok := l.Queue(name)
	return ok
}

// findKey returns the id of the job with a key, of the given queue or else of the only queue
// with such a job, and within is as in [find]. A job that l has had is better than none.
func findKey(l *ledger.Ledger, key, queue string, within []string) (found job.ID, err error) {
	queues := []string{queue}
	switch {
	case queue != "" && within != nil && !slices.Contains(within, queue):
		queues = nil
	case queue == "" && within != nil:
		queues = within
	case queue == "":
		queues = nil
		for _, q := range l.Queues() {
			queues = append(queues, q.Name)
		}
	}
	hasFound, holder := false, "" // holder is the queue of found, "" if the ledger has forgotten which
	for _, name := range queues {
		id, err := job.KeyID(name, key)
		if err != nil {
			return job.ID{}, err
		}
		owner, known := l.Known(id)
		if owner != name && (hasFound || !known || within != nil && owner != "") {
			continue
		}
		if holder != "" {
			return job.ID{}, ambiguousError(holder, name, key)
		}
		found, hasFound, holder = id, true, owner
	}
	switch {
	case hasFound:
		return found, nil
	case queue != "" && !hasQueue(l, queue):
		return found, fmt.Errorf("%q: %w, nor does queue %q", key, job.ErrJobNotFound, queue)
	case queue == "":
		return found, fmt.Errorf("%q: %w in any queue; name the queue, as \"queue\" or in \"<queue>:%s\", to find more of those that have ended; a job is found for %s",
			key, job.ErrJobNotFound, key, foundFor(l))
	}
	return found, fmt.Errorf("%q: %w; a job is found for %s", key, job.ErrJobNotFound, foundFor(l))
}

// notFoundError returns the error for a job that neither the ledger nor the index has, which wraps
// [job.ErrJobNotFound].
func (v *Viewer) notFoundError(id job.ID) (err error) {
	v.Ledger.View(func(l *ledger.Ledger) {
		_, known := l.Known(id)
		switch alias, isAlias := l.Alias(id); {
		case isAlias && alias.Holder:
			err = fmt.Errorf("%s: %w: job %s of queue %s held its unique key", id, job.ErrJobNotFound, alias.Job, alias.Queue)
		case isAlias:
			err = fmt.Errorf("%s: %w: it was merged into job %s of queue %s, which had the same debounce key", id, job.ErrJobNotFound, alias.Job, alias.Queue)
		case l.Removed(id):
			err = fmt.Errorf("%s: %w any more: it was removed at a caller's request, alone or with others; 'yardmaster events --since 0 --type operator-acted' shows when and by whom", id, job.ErrJobNotFound)
		case known:
			err = fmt.Errorf("%s: %w any more: it has ended; a job is found for %s", id, job.ErrJobNotFound, foundFor(l))
		default:
			err = fmt.Errorf("%s: %w; a job is found for %s", id, job.ErrJobNotFound, foundFor(l))
		}
	})
	return err
}
