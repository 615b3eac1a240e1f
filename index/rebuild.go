package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// History reads what the streams keep of jobs.
type History interface {
	// LastMessage returns the sequence of the last message of history that begins with an event of at
	// most this number, 0 if there is none.
	LastMessage(ctx context.Context, number uint64) (seq uint64, err error)
	// Messages returns messages of history from a sequence on, or from the first one after that which is
	// kept, in order, at most limit.
	Messages(ctx context.Context, from uint64, limit int) ([]Message, error)
	// DeadLetters calls visit with the dead letters that are kept, until it returns an error.
	DeadLetters(ctx context.Context, visit func(number uint64, letter *api.DeadLetterMessage) error) error
}

// Message is a message of the history stream.
type Message struct {
	Seq   uint64 // in the stream
	First uint64 // number of the first event
	Body  []byte
}

// rebuild is a part of history that is read for the jobs that the ledger has forgotten, and for labels. It is
// read from its end to its beginning, so that the latest jobs are found first and each job's state is known
// first.
type rebuild struct {
	From  uint64 // number of the last event that need not be read
	Until uint64 // number of the last event
	Next  uint64 // number of the last event that is still to be read
}

// Bounds of reading history.
const (
	historyStep   = 16  // messages
	restoreStep   = 500 // jobs that are added together
	restPerWork   = 3   // times as long as it works, the rebuild rests
	retryInterval = 5 * time.Second
)

// missingSince makes the index read history after an event up to another one.
func (x *Index) missingSince(from, until uint64) {
	if x.cfg.History == nil || until <= from {
		return
	}
	if x.rebuild != nil {
		from, until = min(from, x.rebuild.From), max(until, x.rebuild.Until)
	}
	x.rebuild, x.progress = &rebuild{From: from, Until: until, Next: until}, until
}

// readHistory reads parts of history, when there are some to read, until ctx ends.
func (x *Index) readHistory(ctx context.Context) {
	for ctx.Err() == nil {
		x.mu.Lock()
		r, ready := x.rebuild, !x.scanning && x.failure == nil
		x.mu.Unlock()
		if r == nil || !ready {
			select {
			case <-ctx.Done():
			case <-x.missing:
			}
			continue
		}
		reading := &historyReading{Index: x, rebuild: r, ctx: ctx, lives: make(map[job.ID]*life)}
		if err := reading.run(); err != nil && ctx.Err() == nil {
			x.log.Warn("history not read for the index, will be tried again", "err", err)
			x.mu.Lock()
			if x.rebuild == r {
				x.rebuild = &rebuild{From: r.From, Until: r.Until, Next: x.progress}
			}
			x.mu.Unlock()
			rest(ctx, retryInterval)
		}
	}
}

// rebuilt returns how much of the history that is to be read was read, from 0 to 1.
func (x *Index) rebuilt() float64 {
	r := x.rebuild
	if r == nil {
		return 1
	}
	from := max(r.From, x.oldest)
	return float64(r.Until-min(max(x.progress, from), r.Until)) / float64(max(r.Until, from+1)-from)
}

// signal wakes readHistory.
func (x *Index) signal() {
	select {
	case x.missing <- struct{}{}:
	default:
	}
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// historyReading reads a part of history.
type historyReading struct {
	*Index
	*rebuild
	ctx   context.Context
	lives map[job.ID]*life // of jobs whose first event was not read yet
	done  []*life
	count int // jobs that were added
}

// errSuperseded is returned when there is another part of history to read.
var errSuperseded = errors.New("history is to be read again")

func (r *historyReading) run() error {
	r.log.Info("index reads history", "from", r.From, "until", r.Until, "next", r.Next)
	if err := r.awaitPublished(); err != nil {
		return err
	}
	seq, err := r.cfg.History.LastMessage(r.ctx, r.Next)
	if err != nil {
		return err
	}
	if oldest, err := r.cfg.History.Messages(r.ctx, 1, 1); err == nil && len(oldest) > 0 {
		r.mu.Lock()
		r.oldest = oldest[0].First
		r.mu.Unlock()
	}
	next := r.Next
	for seq > 0 && (next > r.From || r.hasUnexplained()) {
		began := time.Now()
		messages, err := r.messages(seq)
		if err != nil {
			return err
		}
		if len(messages) == 0 {
			break
		}
		for _, m := range slices.Backward(messages) {
			if err := r.addMessage(&m); err != nil {
				return err
			}
		}
		seq, next = messages[0].Seq-1, messages[0].First-1
		if err := r.restore(next); err != nil {
			return err
		}
		rest(r.ctx, restPerWork*time.Since(began))
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if err := r.readDeadLetters(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Index.rebuild == r.rebuild {
		r.Index.rebuild = nil
		clear(r.removed)
		r.log.Info("index has read history", "jobs", r.count)
	}
	return nil
}

// awaitPublished blocks until the events are in the stream.
func (r *historyReading) awaitPublished() error {
	for {
		published := uint64(0)
		_, changed := r.ledger.Applied()
		r.ledger.View(func(l *ledger.Ledger) { published = l.PublishedEvents() })
		if published >= r.Until {
			return nil
		}
		select {
		case <-r.ctx.Done():
			return r.ctx.Err()
		case <-changed:
		}
	}
}

// messages returns some messages that end with a sequence.
func (r *historyReading) messages(last uint64) (all []Message, err error) {
	first := max(last, historyStep) - historyStep + 1
	for next := first; next <= last; {
		messages, err := r.cfg.History.Messages(r.ctx, next, int(last-next+1))
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m.Seq <= last {
				all = append(all, m)
			}
		}
		if len(messages) == 0 || messages[len(messages)-1].Seq >= last {
			break
		}
		next = messages[len(messages)-1].Seq + 1
	}
	return all, nil
}

// hasUnexplained reports whether the first event of a job that has ended was not read yet.
func (r *historyReading) hasUnexplained() bool {
	for _, l := range r.lives {
		if l.State.Ended() && !l.removed {
			return true
		}
	}
	return false
}

// numberedEvent is an event with its number and time.
type numberedEvent struct {
	number uint64
	at     time.Time
	event  ledger.Event
}

func (r *historyReading) addMessage(m *Message) error {
	var events []numberedEvent
	err := history.Read(m.Body, func(number uint64, at time.Time, e *ledger.Event) {
		isAct := e.Kind == ledger.OperatorActed && e.A != "job.cancel"
		if number <= r.Next && !isAct && !e.Job.IsZero() {
			events = append(events, numberedEvent{number, at, *e})
		}
	})
	if err != nil {
		return fmt.Errorf("message %d of history: %w", m.Seq, err)
	}
	for i := range slices.Backward(events) {
		e := &events[i]
		l := r.lives[e.event.Job]
		if l == nil {
			l = &life{Document: job.Document{ID: e.event.Job}, last: e.number}
			r.lives[e.event.Job] = l
		}
		if l.add(e.at, &e.event) {
			delete(r.lives, e.event.Job)
			r.done = append(r.done, l)
		}
	}
	return nil
}

// restore adds the jobs all of whose events were read to the index. next is the number of the last event that
// was not read.
func (r *historyReading) restore(next uint64) error {
	for part := range slices.Chunk(r.done, restoreStep) {
		if err := r.waitForSpace(r.ctx); err != nil {
			return err
		}
		var oldest int64
		r.ledger.View(func(l *ledger.Ledger) {
			oldest = l.Now().Add(-job.DefaultRetention.With(l.Retention().InForce()).Age(job.KeptIndex)).UnixNano()
		})
		r.mu.Lock()
		if r.Index.rebuild != r.rebuild || r.failure != nil {
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
	r.progress = next
	return nil
}

// waitForSpace blocks while there are many documents in memory.
func (x *Index) waitForSpace(ctx context.Context) error {
	for {
		x.mu.Lock()
		full := x.frozen != nil && len(x.memory.documents) >= x.flushAt
		x.mu.Unlock()
		if !full {
			return ctx.Err()
		}
		rest(ctx, interval)
	}
}

// restoreJobs adds those jobs that the ledger has forgotten and that have no document, and labels to
// documents without labels. The caller holds mu.
func (r *historyReading) restoreJobs(lives []*life, oldest int64) error {
	byPlace := make(map[ledger.JobPlace]*life, len(lives))
	present := make(map[ledger.JobPlace]*job.Document)
	r.ledger.View(func(l *ledger.Ledger) {
		for _, life := range lives {
			now, ok := l.Document(life.ID)
			at := placeOf(&life.Document)
			switch {
			case life.removed, r.removed[at], !ok && l.Removed(life.ID):
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
		d := life.document()
		switch existing := known[at]; {
		case existing != nil && (hasLabels(existing) || !hasLabels(d)):
			continue
		case present[at] != nil && hasLabels(d):
			d = withLabels(present[at], d)
		case existing != nil:
			d = withLabels(existing, d)
		case present[at] != nil, !d.State.Ended(), d.Ended.UnixNano() < oldest:
			continue
		}
		docs = append(docs, d)
	}
	r.count += len(docs)
	return r.put(docs)
}

// put adds documents, in place of those that the index has of the same jobs.
func (x *Index) put(docs []*job.Document) error {
	places := make([]segment.Cursor, len(docs))
	for i, d := range docs {
		at := placeOf(d)
		places[i] = cursorOf(at)
		x.spool.delete(at)
		x.hide(at)
		x.memory.put(d)
		x.spool.document(d)
	}
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
		found, err := f.lookup(places)
		for _, number := range found {
			var d *job.Document
			if d, err = f.Document(number); err != nil {
				break
			}
			known[placeOf(d)] = d
		}
		if err != nil {
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
	c.Key, c.Tags, c.Meta, c.Params = labelled.Key, labelled.Tags, labelled.Meta, labelled.Params
	return &c
}

// readDeadLetters adds to the documents of failed jobs what only their dead letters have, and the documents
// of those that history does not have any more.
func (r *historyReading) readDeadLetters() error {
	letters := make(map[ledger.JobPlace]*job.Document)
	add := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.Index.rebuild != r.rebuild || r.failure != nil {
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
		d.Fault.Details = json.RawMessage(job.CutJSON(m.Error.Details, ledger.MaxKeptDetails))
	}
	return d
}

// addLetters adds what dead letters have. The caller holds mu.
func (r *historyReading) addLetters(letters map[ledger.JobPlace]*job.Document) error {
	places := make([]segment.Cursor, 0, len(letters))
	r.ledger.View(func(l *ledger.Ledger) {
		for at := range letters {
			if _, ok := l.Document(at.ID); !ok && !l.Removed(at.ID) && !r.removed[at] {
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
	return r.put(docs)
}
