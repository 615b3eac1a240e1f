package index

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Config configures an [Index].
type Config struct {
	Node string
	Dir  string // which is created
	Yard string // id of the cluster; the documents of another one are dropped
	// LowSpace reports whether the disk has so little free space that the index should delete files, or
	// would have with this many more bytes in use; nil: never.
	LowSpace func(more int64) bool
	History  History // from which jobs that the ledger has forgotten come back; nil: they do not
}

// Ledger is the local ledger.
type Ledger interface {
	View(fn func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
}

// Sizes and times.
const (
	flushDocuments = 60_000             // of ended jobs in memory, from which on they become a segment; almost [segment.MaxDocuments], so that few need merging
	flushLive      = 2 * flushDocuments // likewise those of other jobs, most of which are replaced before
	maxInMemory    = 4                  // times flushDocuments: all of them
	readStep       = 100                // changes that are read under one lock of the ledger
	applyStep      = 1000               // changes that are applied together
	interval       = 250 * time.Millisecond
	maxBlock       = 100 << 10 // bytes
)

// Index is the index of a node's jobs. Its methods may be called by several goroutines.
type Index struct {
	cfg     Config
	log     *slog.Logger
	changes *ledger.ChangeList
	ledger  Ledger // set by Follow
	wake    chan chan struct{}
	full    chan struct{} // holds a value if frozen is to become segments
	missing chan struct{} // holds a value if there may be history to read
	running chan struct{} // closed when Run begins
	stopped chan struct{} // closed when Run ends

	flushAt       int           // documents, see flushDocuments
	flushLiveAt   int           // see flushLive
	maintainEvery time.Duration // see maintainInterval

	batch   ledger.ChangeBatch // this and the following are used by Run's goroutine
	pending []ledger.Change

	mu     crash.Mutex
	memory *memory
	frozen *memory                  // is becoming segments; nil: none is
	hidden map[ledger.JobPlace]bool // documents of frozen that were deleted or replaced
	ended  []*file
	live   []*file
	trash  []*file // to be deleted after the next manifest is written
	before []*file // files of before all jobs are read again; replaced by live after that
	spool  *spool  // nil: the directory is not open
	generation,
	next uint64 // numbers of spool, and of the next segment
	fence    uint64
	mark     ledger.ChangeMark
	seen     uint64 // the documents may have effects of entries up to it
	careful  uint64 // likewise those of before the start, or from history: until mark has reached it, each change replaces a document
	saved    uint64 // generation of the spool in the last manifest
	rotated  mark   // how far changes are in the segments
	rotating mark   // and how far in these and frozen
	scanning bool
	scanned  int
	failures int   // number of failures since the start
	failure  error // why the index does not take changes; nil: it does

	incomplete bool // a file was dropped: all jobs are to be read again, and all history
	gap        gap
	reopened   bool // changes that were read before are not for the files that are open now
}

// Changes returns the list that the ledger is to add its changes to, before the first entry is
// applied.
func (x *Index) Changes() *ledger.ChangeList { return x.changes }

// Follow sets the ledger that adds its changes to the index's list. It must be called before the index is
// used otherwise.
func (x *Index) Follow(l Ledger) { x.ledger = l }

// Run reads the changes of the ledger until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	close(x.running)
	var builder sync.WaitGroup
	builder.Go(func() { x.build(ctx) })
	builder.Go(func() { x.readHistory(ctx) })
	defer close(x.stopped)
	defer builder.Wait()
	for {
		_, changed := x.ledger.Applied()
		x.read()
		var waiter chan struct{}
		select {
		case <-ctx.Done():
			return nil
		case waiter = <-x.wake:
		case <-changed:
			timer := time.NewTimer(interval)
			select {
			case <-ctx.Done():
			case waiter = <-x.wake:
			case <-timer.C:
			}
			timer.Stop()
		}
		if waiter != nil {
			x.read()
			close(waiter)
		}
	}
}

// Close writes what is not in the spool yet, and closes the files. Run must have ended, or not have been
// called.
func (x *Index) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closeFiles()
}

// refresh blocks until the index has the changes of the entries that are applied now, but no longer
// than a moment.
func (x *Index) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	done := make(chan struct{})
	select {
	case x.wake <- done:
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Sync makes the changes of the entries up to an index durable, which after a restart are not
// applied again because a snapshot has them. If that takes too long or fails, the index reads
// all jobs again after a restart.
func (x *Index) Sync(index uint64) {
	select {
	case <-x.running:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		select {
		case <-x.stopped:
			return
		default:
		}
		x.refresh(ctx)
		x.mu.Lock()
		reached := x.mark.Index >= index || x.scanning || x.failure != nil
		var err error
		if reached && x.failure == nil {
			err = x.spool.sync()
		}
		x.mu.Unlock()
		if reached {
			if err != nil {
				x.log.Warn("index spool not synced", "err", err)
			}
			return
		}
	}
}

// Status is the state of an index.
type Status struct {
	Index      uint64    // of the last entry that it has
	Time       time.Time // of the ledger at that entry
	Ahead      uint64    // log entries that it has and that the ledger has not applied again since the node has started
	Scanning   bool      // it is reading all jobs again, or is about to
	Scanned    int       // how many it has read
	Rebuilding bool      // it is to read history, or does: until then, jobs that the ledger has forgotten and labels of others may be missing
	Rebuilt    float64   // how much of the history was read that it needs for jobs that the ledger has forgotten; 1: all
	Documents  int       // of jobs that have ended
	Live       int       // of others; some of these have ended, too
	Bytes      int64     // of its segments
	Files      int
	Failure    string // why it takes no changes; "": it does
	Failures   int    // since the start
	Shed       int64  // bytes of segments that gave way to jobs for lack of disk space, and were not made again
}

// Status returns the present state.
func (x *Index) Status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Status{Index: x.mark.Index, Time: x.mark.Time, Ahead: x.ahead(), Scanning: x.scanning || x.incomplete, Scanned: x.scanned, Rebuilding: x.gap.rebuild != nil, Rebuilt: x.gap.rebuilt(), Failures: x.failures, Shed: x.gap.shed}
	if x.failure != nil {
		s.Failure = x.failure.Error()
	}
	for _, f := range slices.Concat(x.ended, x.live, x.before) {
		s.Bytes += f.size
		s.Files++
		if f.live {
			s.Live += f.Count()
		} else {
			s.Documents += f.Count()
		}
	}
	for _, m := range []*memory{x.memory, x.frozen} {
		if m != nil {
			s.Documents += len(m.ended.byPlace)
			s.Live += len(m.live.byPlace)
		}
	}
	return s
}

// sortPlaces sorts places and returns them without repetitions.
func sortPlaces(places []segment.Cursor) []segment.Cursor {
	slices.SortFunc(places, segment.Cursor.Compare)
	return slices.Compact(places)
}
