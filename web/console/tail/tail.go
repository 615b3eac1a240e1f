// Package tail keeps the latest events of the yard.
package tail

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// Source reads the history of the yard.
type Source struct {
	// Since returns the first events that were recorded at a time or later, at most some
	// hundreds of messages, and the position after them.
	Since func(ctx context.Context, at time.Time) (expanded []byte, next uint64, err error)
	// From returns the events from a position on, likewise. next is from if there are none.
	From func(ctx context.Context, from uint64) (expanded []byte, next uint64, err error)
	// End returns the position after the last event.
	End func(ctx context.Context) (uint64, error)
}

// Limits of a tail.
const (
	maxEvents    = 5000             // events that are kept
	start        = 15 * time.Minute // how far back it begins
	maxBehind    = 64               // messages by which it may be behind before it skips some
	idle         = time.Minute      // without a reader, after which it stops
	readTimeout  = 5 * time.Second
	readyTimeout = 2 * time.Second // how long a reader waits for the first events
	pauseBetween = time.Second     // between two reads
	pauseIdle    = 5 * time.Second // after which it reads although the ledger has not changed
)

// Tail keeps the latest events while pages show them: one reader of the history for all pages
// of the node.
type Tail struct {
	ctx     context.Context
	source  Source
	log     *slog.Logger
	applied func() (index uint64, changed <-chan struct{})

	mu      crash.Mutex
	events  []history.Line // oldest first
	skipped bool           // events before the first are not shown because there were too many
	err     error          // of the last read
	asked   time.Time
	running bool
	ready   chan struct{} // closed after the first read
}

// New returns a tail, which reads until ctx ends. Applied returns a channel that is closed when
// there may be new events.
func New(ctx context.Context, source Source, log *slog.Logger, applied func() (index uint64, changed <-chan struct{})) *Tail {
	return &Tail{ctx: ctx, source: source, log: log, applied: applied}
}

// Recent returns the latest events that a filter selects, newest first, at most n.
func (t *Tail) Recent(ctx context.Context, f *history.Filter, n int) (events []history.Line, skipped bool, err error) {
	t.mu.Lock()
	t.asked = time.Now()
	if !t.running {
		t.running, t.ready, t.events, t.skipped, t.err = true, make(chan struct{}), nil, false, nil
		go t.run()
	}
	ready := t.ready
	t.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case <-time.After(readyTimeout):
		return nil, false, errors.New("the history of the yard is not readable at present: its stream has no leader that this node reaches")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.events) - 1; i >= 0 && len(events) < n; i-- {
		if f.Matches(&t.events[i]) {
			events = append(events, t.events[i])
		}
	}
	return events, t.skipped, t.err
}

// run reads the history when the ledger has changed, until no page has asked for events for
// idle.
func (t *Tail) run() {
	first := true
	var next uint64
	for t.ctx.Err() == nil {
		_, changed := t.applied()
		ctx, cancel := context.WithTimeout(t.ctx, readTimeout)
		var err error
		next, err = t.readContained(ctx, next)
		cancel()
		t.mu.Lock()
		t.err = err
		if first {
			first = false
			close(t.ready)
		}
		if time.Since(t.asked) > idle {
			t.running = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		select {
		case <-time.After(pauseBetween):
		case <-t.ctx.Done():
			return
		}
		select {
		case <-changed:
		case <-time.After(pauseIdle):
		case <-t.ctx.Done():
		}
	}
}

// readContained is read. A panic, which what it has read may cause, is an error: the events are read
// again.
func (t *Tail) readContained(ctx context.Context, next uint64) (after uint64, err error) {
	defer crash.Contain(t.log, crash.HTTP, func(cause error) { after, err = next, cause })
	return t.read(ctx, next)
}

// read adds the events from a position on, 0 for those of the last [start], and returns
// the position after them. It skips events if it is too far behind.
func (t *Tail) read(ctx context.Context, next uint64) (uint64, error) {
	end, endErr := t.source.End(ctx)
	for {
		var expanded []byte
		after, err := next, error(nil)
		switch {
		case next == 0:
			expanded, after, err = t.source.Since(ctx, time.Now().Add(-start))
		default:
			expanded, after, err = t.source.From(ctx, next)
		}
		if err != nil {
			return next, err
		}
		lines, err := history.ParseLines(expanded)
		if err != nil {
			return next, err
		}
		skip := endErr == nil && end > after+maxBehind
		t.add(lines, skip)
		switch {
		case skip:
			next = end - maxBehind
		case after == next || after >= end:
			return max(after, next), nil
		default:
			next = after
		}
	}
}

// add adds events; skip means that those after them are not read.
func (t *Tail) add(lines []history.Line, skip bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if skip { // no gap is shown between events
		t.events, t.skipped = nil, true
		return
	}
	t.events = append(t.events, lines...)
	if over := len(t.events) - maxEvents; over > 0 {
		t.events = append([]history.Line(nil), t.events[over:]...)
		t.skipped = true
	}
}
