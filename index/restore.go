package index

import (
	"context"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// restore adds the jobs all of whose events were read to the index. next is the number of the last event that
// was not read.
func (r *historyReading) restore(next uint64) error {
	for part := range slices.Chunk(r.done, restoreStep) {
		if err := r.waitForSpace(r.ctx); err != nil {
			return err
		}
		oldest := r.oldestEnd()
		r.mu.Lock()
		if r.gap.rebuild != r.rebuild || r.failure != nil {
			r.mu.Unlock()
			return errSuperseded
		}
		err := r.restoreJobs(part, oldest)
		if err != nil {
			r.fail(err)
		}
		r.mu.Unlock()
		if err != nil {
			return err
		}
	}
	r.done = r.done[:0]
	for _, l := range r.lives { // the next reading must begin with all of their events
		next = max(next, l.last)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gap.progress = next
	return nil
}

// waitForSpace blocks while there are many documents in memory. It returns the error of ctx if that ends.
func (x *Index) waitForSpace(ctx context.Context) error {
	for ctx.Err() == nil {
		x.mu.Lock()
		full := x.frozen != nil && len(x.memory.ended.byPlace) >= x.flushAt
		x.mu.Unlock()
		if !full {
			return nil
		}
		rest(ctx, interval)
	}
	return ctx.Err()
}

// restoreJobs adds those jobs that the ledger has forgotten and that have no document, or one that is out of
// date, and labels to documents without labels. It deletes the documents of jobs that were removed. The caller
// holds mu.
func (r *historyReading) restoreJobs(lives []*life, oldest int64) error {
	byPlace := make(map[ledger.JobPlace]*life, len(lives))
	present := make(map[ledger.JobPlace]*job.Document)
	var removed []ledger.JobPlace
	r.ledger.View(func(l *ledger.Ledger) {
		for _, life := range lives {
			now, ok := l.Document(life.ID)
			at := placeOf(&life.Document)
			switch {
			case life.removed, r.gap.removed[at], !ok && l.Removed(life.ID):
				removed = append(removed, at)
				continue
			case ok && !life.exact:
				continue
			case ok && placeOf(&now) == at:
				present[at] = &now
			}
			byPlace[at] = life
		}
	})
	places := make([]segment.Cursor, 0, len(byPlace))
	for at := range byPlace {
		places = append(places, cursorOf(at))
	}
	known := r.documents(sortPlaces(places))
	var docs []*job.Document
	for at, life := range byPlace {
		d, existing := life.document(), known[at]
		switch {
		case present[at] != nil: // its document is up to date
			if !hasLabels(d) || existing != nil && hasLabels(existing) {
				continue
			}
			d = withLabels(present[at], d)
		case d.State.Ended() && d.Ended.UnixNano() < oldest:
			continue
		case d.State.Ended() && (existing == nil || isOlder(existing, d)):
		case existing == nil, !hasLabels(d), hasLabels(existing):
			continue
		default:
			d = withLabels(existing, d)
		}
		docs = append(docs, d)
	}
	r.count += len(docs)
	return r.replace(docs, removed)
}

// isOlder reports whether a document has an earlier end of a job than a document that was made of history,
// whose times are whole milliseconds.
func isOlder(d, restored *job.Document) bool {
	return d.Dispatches < restored.Dispatches || d.Ended.Truncate(time.Millisecond).Before(restored.Ended)
}

// replace adds documents, in place of earlier ones of the same jobs, and deletes the documents of the removed
// jobs.
func (x *Index) replace(docs []*job.Document, removed []ledger.JobPlace) error {
	places := make([]segment.Cursor, 0, len(docs)+len(removed))
	outdated := func(at ledger.JobPlace) {
		places = append(places, cursorOf(at))
		x.spool.delete(at)
		x.hide(at)
	}
	for _, at := range removed {
		outdated(at)
		x.memory.remove(at)
	}
	for _, d := range docs {
		outdated(placeOf(d))
		x.put(d)
	}
	x.ledger.View(func(l *ledger.Ledger) { x.careful = max(x.careful, l.Index()) })
	x.spool.seen(x.careful)
	x.deleteFrom(places, x.ended, x.live, x.before)
	if err := x.spool.flush(); err != nil {
		return err
	}
	return x.rotate()
}

// documents returns the documents of some places, which are in ascending order.
func (x *Index) documents(places []segment.Cursor) map[ledger.JobPlace]*job.Document {
	known := make(map[ledger.JobPlace]*job.Document)
	for _, f := range slices.Concat(x.before, x.live, x.ended) {
		if err := f.documents(places, func(d *job.Document) { known[placeOf(d)] = d }); err != nil {
			x.drop(f, err)
		}
	}
	for _, c := range places {
		at := ledger.JobPlace{Accepted: c.Value, ID: c.ID}
		if d := x.inMemory(at); d != nil {
			known[at] = d
		}
	}
	return known
}

func hasLabels(d *job.Document) bool {
	return d.Key != "" || len(d.Tags)+len(d.Meta)+len(d.Params) > 0
}

// withLabels returns a document with the labels of another one.
func withLabels(d, labelled *job.Document) *job.Document {
	c := *d
	c.SetLabels(labelled.Labels())
	return &c
}

// readDeadLetters adds to the documents of failed jobs what only their dead letters have, and the documents
// of those that history does not have any more.
func (r *historyReading) readDeadLetters() error {
	letters := make(map[ledger.JobPlace]*job.Document)
	add := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gap.rebuild != r.rebuild || r.failure != nil {
			return errSuperseded
		}
		err := r.addLetters(letters)
		clear(letters)
		if err != nil {
			r.fail(err)
		}
		return err
	}
	err := r.cfg.History.DeadLetters(r.ctx, func(number uint64, m *api.DeadLetterMessage) error {
		id, err := job.ParseID(m.ID)
		if err != nil {
			return nil // it is no letter of a job
		}
		d := letterDocument(id, number, m)
		letters[placeOf(d)] = d
		if len(letters) < restoreStep {
			return nil
		}
		if err := r.waitForSpace(r.ctx); err != nil {
			return err
		}
		return add()
	})
	if err != nil {
		return err
	}
	return add()
}

// letterDocument returns what a dead letter has of its job.
func letterDocument(id job.ID, number uint64, m *api.DeadLetterMessage) *job.Document {
	d := &job.Document{
		ID: id, Queue: m.Queue, Function: m.Function, State: job.Failed, Attempts: m.Attempts, Priority: job.DefaultPriority,
		Created: m.Accepted.UTC(), Ended: m.Failed.UTC(), DeadLetter: number, Fault: &job.Fault{Message: job.CutText(m.Reason, ledger.MaxKeptReason)},
	}
	if m.Error != nil {
		d.Fault.Type, d.Fault.Code = m.Error.Type, m.Error.Code
		d.Fault.Details = job.CutDetails(m.Error.Details, ledger.MaxKeptDetails)
	}
	return d
}

// addLetters adds what dead letters have. The caller holds mu.
func (r *historyReading) addLetters(letters map[ledger.JobPlace]*job.Document) error {
	places := make([]segment.Cursor, 0, len(letters))
	r.ledger.View(func(l *ledger.Ledger) {
		last := l.LastDeadLetter() // the changes of the ledger bring those after it
		for at, d := range letters {
			if _, ok := l.Document(at.ID); !ok && d.DeadLetter <= last && !l.Removed(at.ID) && !r.gap.removed[at] {
				places = append(places, cursorOf(at))
			}
		}
	})
	known := r.documents(sortPlaces(places))
	var docs []*job.Document
	for _, c := range places {
		at := ledger.JobPlace{Accepted: c.Value, ID: c.ID}
		d := letters[at]
		existing := known[at]
		switch {
		case existing == nil && r.From == 0:
			docs = append(docs, d)
		case existing != nil && existing.State == job.Failed && existing.DeadLetter < d.DeadLetter:
			changed := *existing
			changed.DeadLetter, changed.Fault, changed.Ended = d.DeadLetter, d.Fault, d.Ended
			docs = append(docs, &changed)
		}
	}
	return r.replace(docs, nil)
}
