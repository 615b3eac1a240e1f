package board

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// The keeper's pace.
const (
	passEvery   = time.Second
	passAtMost  = 250 * time.Millisecond // between two passes, when something wakes the keeper
	rowEvery    = 900 * time.Millisecond // between two writes of one row
	mostWrites  = 200                    // of all boards together, in a second; after a quiet one as many more at once
	factsAtOnce = 200                    // rows whose facts are asked for together
	forgetAfter = time.Minute            // rows that were removed: by then the store has told
	ensureEvery = 5 * time.Second
	retryAfter  = time.Second
	failsFor    = 10 * time.Second // before it is said that they do
	mostLost    = 3                // passes in a row whose writes were all refused because the rows are others than believed
)

// Row is a row's key and what it is to show, hashed.
type Row struct {
	Key   string
	Solid uint64 // a change of it is shown at once
	Fluid uint64 // a change of it is shown at the board's pace
}

// Moment is the state of the ledger that facts are of.
type Moment struct {
	Epoch uint64
	Index uint64
	At    time.Time
}

// Source knows what there is to show.
type Source interface {
	// Rows lists all rows of a board; ok is false while they are not known.
	// Boards are asked for in the order in which the keeper was given them.
	Rows(ctx context.Context, board string) (rows []Row, ok bool)
	// Facts gives what is to stand in some rows: each a value that marshals to
	// a JSON object with a field at least, or nil for a row that is no more.
	Facts(board string, keys []string) (facts []any, of Moment)
}

// Entry is a row as it stands in a store.
type Entry struct {
	Key   string // "" ends what stood there at the beginning
	Value []byte
	Rev   uint64 // grows with every write of the board
	Gone  bool   // removed
}

// ErrOther refuses a write because the row is another one than believed.
var ErrOther = errors.New("the row was written by another hand")

// errMade begins anew.
var errMade = errors.New("boards were missing and are made")

// Store holds the boards.
type Store interface {
	// Ensure makes boards that are missing, and tells whether any were.
	Ensure(ctx context.Context) (made bool, err error)
	// Watch tells the rows of a board, then an empty entry, then every write,
	// until ctx ends or it cannot.
	Watch(ctx context.Context, board string, heard func(Entry)) error
	// Put writes a row if its last revision still is last; 0: whatever it is.
	// done is called once, with [ErrOther] if it is not, and does not block.
	Put(board, key string, value []byte, last uint64, done func(rev uint64, err error))
	// Remove removes a row likewise.
	Remove(board, key string, last uint64, done func(rev uint64, err error))
}

// Board names a board and says how it is kept.
type Board struct {
	Name string
	Pace time.Duration // how often the fluid part of its rows is shown; 0: with every pass
	// Blind: its rows are few and are written at the beginning whatever stands
	// there, so that they wait for no watch.
	Blind bool
}

// Keeper keeps boards up to date.
type Keeper struct {
	boards []Board
	source Source
	store  Store
	log    *slog.Logger

	mu      sync.Mutex
	failing map[string]*failing // by what fails: writing, making them, watching one of them
}

// failing is since when something fails, and whether that was said.
type failing struct {
	since time.Time
	said  bool
}

// New makes a keeper of boards; the first in line are written first.
func New(boards []Board, source Source, store Store, log *slog.Logger) *Keeper {
	return &Keeper{boards: boards, source: source, store: store, log: log, failing: map[string]*failing{}}
}

// Run keeps the boards until ctx ends, however often it has to begin again.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.fails(writing, err)
			pause(ctx, retryAfter)
		}
	}
}

// What may fail besides watching a board, which is called by the board's name.
const (
	writing = "writing"
	making  = "making"
)

// fails says once that something fails, if it does for a while: while a stream
// elects, that is no news.
func (k *Keeper) fails(what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch f := k.failing[what]; {
	case f == nil:
		k.failing[what] = &failing{since: time.Now()}
	case !f.said && time.Since(f.since) > failsFor:
		f.said = true
		k.log.Warn("boards are not up to date for now", "failing", what, "error", err)
	}
}

func (k *Keeper) works(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.failing[what]; f != nil && f.said {
		k.log.Info("boards are up to date again", "failed", what)
	}
	delete(k.failing, what)
}

// keep watches and writes until what it believes turns out to be wrong, or is
// of a board that is no more.
func (k *Keeper) keep(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	panels := make([]*panel, len(k.boards))
	group, ctx := errgroup.WithContext(ctx)
	for i, b := range k.boards {
		p := newPanel(b, k.log, wake)
		panels[i] = p
		group.Go(func() error { k.watch(ctx, p); return nil })
	}
	group.Go(func() error { return k.ensure(ctx) })
	group.Go(func() error { return k.write(ctx, panels, wake) })
	return group.Wait()
}

// watch hears a board, and all of it again whenever a watch has broken off.
func (k *Keeper) watch(ctx context.Context, p *panel) {
	for ctx.Err() == nil {
		heard := func(e Entry) {
			if p.hear(e); e.Key == "" {
				k.works(p.board.Name)
			}
		}
		if err := k.store.Watch(ctx, p.board.Name, heard); err != nil && ctx.Err() == nil {
			k.fails(p.board.Name, err)
			pause(ctx, retryAfter)
		}
	}
}

// ensure makes boards that are missing. Nothing stands on a new one, whatever
// was believed, and the watch of the old one need not have heard of it.
func (k *Keeper) ensure(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := ensureEvery
		made, err := k.store.Ensure(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			k.fails(making, err)
			wait = retryAfter
		default:
			k.works(making)
		}
		if made {
			return errMade
		}
		pause(ctx, wait)
	}
	return nil
}

// write makes a pass a second, and one soon after something woke it.
func (k *Keeper) write(ctx context.Context, panels []*panel, wake <-chan struct{}) error {
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	lost, last, room := 0, time.Time{}, 0.0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-wake:
		}
		pause(ctx, time.Until(last.Add(passAtMost)))
		room = min(mostWrites, room+time.Since(last).Seconds()*mostWrites)
		last = time.Now()
		wrote, err := k.pass(ctx, panels, int(room))
		room -= float64(wrote)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			lost = 0
			k.works(writing)
		case !errors.Is(err, ErrOther):
			k.fails(writing, err) // the rows are written again with the next pass
		default:
			if lost++; lost == mostLost {
				return err // what is believed is wrong: look again
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
