package index

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
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

// gap is what the index lacks of jobs that the ledger has forgotten.
type gap struct {
	rebuild  *rebuild                 // history that is to be read after all jobs; nil: none
	unsaved  bool                     // the manifest does not have it yet
	saved    bool                     // the last manifest has some
	progress uint64                   // number of the last event of it that was not read
	oldest   uint64                   // number of the first event that the history stream has
	removed  map[ledger.JobPlace]bool // jobs that callers have removed since it was to be read
	shed     int64                    // bytes of segments that gave way to jobs for lack of disk space, and that no history is read for yet
}

// Bounds of reading history.
const (
	historyStep = 16  // messages
	restoreStep = 500 // jobs that are added together
	restPerWork = 3   // times as long as it works, the rebuild rests
)

// missingSince makes the index read history after an event up to another one.
func (x *Index) missingSince(from, until uint64) {
	if from == 0 {
		x.gap.shed = 0
	}
	if x.cfg.History == nil || until <= from {
		return
	}
	if x.gap.rebuild != nil {
		from, until = min(from, x.gap.rebuild.From), max(until, x.gap.rebuild.Until)
	}
	x.gap.rebuild, x.gap.progress, x.gap.unsaved = &rebuild{From: from, Until: until, Next: until}, until, true
}

// readHistory reads parts of history, when there are some to read, until ctx ends.
func (x *Index) readHistory(ctx context.Context) {
	for ctx.Err() == nil {
		x.mu.Lock()
		r, ready := x.gap.rebuild, !x.scanning && x.failure == nil
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
			if x.gap.rebuild == r {
				x.gap.rebuild = &rebuild{From: r.From, Until: r.Until, Next: x.gap.progress}
			}
			x.mu.Unlock()
			rest(ctx, x.maintainEvery)
		}
	}
}

// almost is how much was read at most before all was read, with the dead letters.
const almost = 0.99

// rebuilt returns how much of the history that is to be read was read, from 0 to 1.
func (g *gap) rebuilt() float64 {
	r := g.rebuild
	switch {
	case g.shed > 0:
		return 0
	case r == nil:
		return 1
	}
	from := max(r.From, g.oldest)
	return almost * float64(r.Until-min(max(g.progress, from), r.Until)) / float64(max(r.Until, from+1)-from)
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
		r.gap.oldest = oldest[0].First
		r.mu.Unlock()
	}
	next := r.Next
	for seq > 0 && (next > r.From || r.hasUnexplained()) {
		began := time.Now()
		messages, err := r.messages(seq)
		if err != nil {
			return err
		}
		if len(messages) == 0 { // retention has deleted them
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
	if r.gap.rebuild == r.rebuild {
		r.gap.rebuild = nil
		clear(r.gap.removed)
		r.log.Info("index has read history", "jobs", r.count)
	}
	return nil
}

// awaitPublished blocks until the events are in the stream, and the ledger, which says what has become of a job,
// is not behind the documents.
func (r *historyReading) awaitPublished() error {
	for {
		published := uint64(0)
		_, changed := r.ledger.Applied()
		r.ledger.View(func(l *ledger.Ledger) { published = l.PublishedEvents() })
		if published >= r.Until && !r.behind() {
			return nil
		}
		select {
		case <-r.ctx.Done():
			return r.ctx.Err()
		case <-changed:
		}
	}
}

// errNotReplicated is returned when the server that was asked does not have messages that another one has.
var errNotReplicated = errors.New("a replica of the history stream does not have its latest messages yet")

// messages returns some messages that end with a sequence. They are fewer than asked for if messages were
// deleted from the stream.
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
		if len(messages) == 0 {
			return nil, errNotReplicated
		}
		next = messages[len(messages)-1].Seq + 1
	}
	return all, nil
}

// hasUnexplained reports whether the first event of a job that has ended or was removed was not read yet.
func (r *historyReading) hasUnexplained() bool {
	for _, l := range r.lives {
		if l.State.Ended() || l.removed {
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
