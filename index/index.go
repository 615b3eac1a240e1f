package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Config configures an [Index].
type Config struct {
	Node string
	Dir  string // which is created
	Yard string // id of the cluster; the documents of another one are dropped
	// LowSpace reports whether the disk has so little free space that the index must give way; nil:
	// never.
	LowSpace func() bool
}

// Ledger is the local ledger.
type Ledger interface {
	View(fn func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
}

// Sizes and times.
const (
	flushDocuments = 1 << 15 // in memory, from which on they become segments
	maxInMemory    = 4       // times flushDocuments
	readStep       = 100     // changes that are read under one lock of the ledger
	applyStep      = 1000    // changes that are applied together
	interval       = 250 * time.Millisecond
	maxBlock       = 100 << 10 // bytes
)

// Index is the index of a node's jobs. Its methods may be called by several goroutines.
type Index struct {
	cfg     Config
	log     *slog.Logger
	changes *ledger.ChangeList
	ledger  Ledger // set by Run
	wake    chan chan struct{}
	full    chan struct{} // holds a value if frozen is to become segments
	running chan struct{} // closed when Run has set ledger
	stopped chan struct{} // closed when Run ends

	flushAt       int           // documents, see flushDocuments
	maintainEvery time.Duration // see maintainInterval

	batch   ledger.ChangeBatch // this and the following are used by Run's goroutine
	pending []ledger.Change
	careful uint64 // the documents may have effects of entries up to it

	mu     sync.Mutex
	memory *memory
	frozen *memory                  // is becoming segments; nil: none is
	hidden map[ledger.JobPlace]bool // documents of frozen that were deleted or replaced
	ended  []*file
	live   []*file
	trash  []*file // to be deleted after the next manifest is written
	before []*file // files of before all jobs are read again; replaced by live after that
	spool  *spool
	generation,
	next uint64 // numbers of spool, and of the next segment
	fence    uint64
	mark     ledger.ChangeMark
	saved    uint64 // generation of the spool in the last manifest
	rotated  mark   // how far changes are in the segments
	rotating mark   // and how far in these and frozen
	scanning bool
	scanned  int
	failure  error // why the index does not take changes; nil: it does

	incomplete bool // a file was dropped: all jobs are to be read again
}

// Open opens the index of a directory. What is damaged is deleted, and made again from the ledger.
func Open(cfg Config, log *slog.Logger) (*Index, error) {
	x := &Index{
		cfg: cfg, log: log, wake: make(chan chan struct{}, 64), full: make(chan struct{}, 1), running: make(chan struct{}), stopped: make(chan struct{}),
		memory: newMemory(0), hidden: make(map[ledger.JobPlace]bool), flushAt: flushDocuments, maintainEvery: maintainInterval,
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	err := x.load()
	if err != nil {
		log.Warn("index cannot be read, it begins again", "dir", cfg.Dir, "err", err)
		x.closeFiles()
		if err := x.clear(); err != nil {
			return nil, fmt.Errorf("open the index: %w", err)
		}
	}
	if x.incomplete {
		x.mark = ledger.ChangeMark{}
	}
	if x.spool, err = createSpool(cfg.Dir, x.generation); err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	x.changes = ledger.NewChangeList(x.mark)
	return x, nil
}

// load reads the files of the directory, and deletes those that are not needed.
func (x *Index) load() error {
	m, err := readManifest(x.cfg.Dir)
	if err != nil {
		return err
	}
	if m.Yard != "" && m.Yard != x.cfg.Yard {
		return fmt.Errorf("it belongs to the cluster %s", m.Yard)
	}
	x.next, x.fence, x.memory = m.Next, m.Fence, newMemory(m.Spool)
	x.mark, x.careful, x.rotated = m.Mark.ChangeMark, m.Mark.Seen, m.Mark
	for _, name := range m.Segments {
		f, err := openFile(x.cfg.Dir, name)
		if err != nil {
			x.log.Warn("index file cannot be read, jobs are read again from the ledger", "err", err)
			x.incomplete = true // of the ledger's jobs
			continue
		}
		x.addFile(f)
	}
	spools, err := x.removeStrangers(&m)
	if err != nil {
		return err
	}
	x.generation = m.Spool
	for _, generation := range spools {
		if err := x.readSpool(generation); err != nil {
			return err
		}
		x.generation = generation + 1
	}
	return nil
}

func (x *Index) addFile(f *file) {
	if f.live {
		x.live = append(x.live, f)
	} else {
		x.ended = append(x.ended, f)
	}
}

// removeStrangers deletes files that the manifest does not have, and returns the generations of its
// spools, in order.
func (x *Index) removeStrangers(m *manifest) (spools []uint64, err error) {
	entries, err := os.ReadDir(x.cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		generation, isSpool := strings.CutPrefix(name, "spool-")
		number, err := strconv.ParseUint(generation, 10, 64)
		switch {
		case name == manifestName || slices.Contains(m.Segments, strings.TrimSuffix(name, deletedSuffix)):
		case isSpool && err == nil && number >= m.Spool:
			spools = append(spools, number)
		default:
			if err := os.Remove(filepath.Join(x.cfg.Dir, name)); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(spools)
	return spools, nil
}

// readSpool reads a spool again. One that ends with a damaged block ends before it: the ledger has
// what follows.
func (x *Index) readSpool(generation uint64) error {
	r := spoolReader{
		document: x.memory.put,
		delete: func(at ledger.JobPlace) {
			x.memory.remove(at)
			x.pending = append(x.pending, ledger.Change{Document: job.Document{ID: at.ID, Created: time.Unix(0, at.Accepted)}})
		},
		mark: func(m ledger.ChangeMark, seen uint64) { x.mark, x.careful = m, max(x.careful, seen) },
	}
	path := spoolName(x.cfg.Dir, generation)
	size, err := r.read(path)
	if errors.Is(err, errTorn) {
		x.log.Warn("end of an index spool is incomplete", "file", path, "bytes", size)
		err = os.Truncate(path, size)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	places := make([]segment.Cursor, len(x.pending))
	for i := range x.pending {
		places[i] = cursorOf(placeOf(&x.pending[i].Document))
	}
	x.pending = x.pending[:0]
	x.deleteFrom(places, x.ended, x.live)
	return nil
}

// clear deletes all files, so that the index begins again.
func (x *Index) clear() error {
	entries, err := os.ReadDir(x.cfg.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(x.cfg.Dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	x.generation++
	x.memory, x.mark, x.careful, x.fence, x.pending = newMemory(x.generation), ledger.ChangeMark{}, 0, 0, nil
	return nil
}

// closeFiles drops all segments. Their files remain until clear deletes them.
func (x *Index) closeFiles() {
	for _, f := range slices.Concat(x.ended, x.live, x.before, x.trash) {
		f.removed = true
		if f.users == 0 {
			_ = f.f.Close() // it was only read
		}
	}
	x.ended, x.live, x.before, x.trash = nil, nil, nil, nil
}

// Changes returns the list that the ledger is to add its changes to, before the first entry is
// applied.
func (x *Index) Changes() *ledger.ChangeList { return x.changes }

// Run reads the changes of the ledger until ctx ends.
func (x *Index) Run(ctx context.Context, l Ledger) error {
	x.ledger = l
	close(x.running)
	var builder sync.WaitGroup
	builder.Go(func() { x.build(ctx) })
	defer close(x.stopped)
	defer builder.Wait()
	for {
		_, changed := l.Applied()
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
	if err := errors.Join(x.spool.flush(), x.spool.file.Close()); err != nil {
		x.log.Warn("index not saved, what is missing is read again from the ledger", "err", err)
	}
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
	Index     uint64    // of the last entry that it has
	Time      time.Time // of the ledger at that entry
	Scanning  bool      // it is reading all jobs again
	Scanned   int       // how many it has read
	Documents int       // of jobs that have ended
	Live      int       // of others; some of these have ended, too
	Bytes     int64     // of its segments
	Failure   string    // why it takes no changes; "": it does
}

// Status returns the present state.
func (x *Index) Status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := Status{Index: x.mark.Index, Time: x.mark.Time, Scanning: x.scanning, Scanned: x.scanned}
	if x.failure != nil {
		s.Failure = x.failure.Error()
	}
	for _, f := range slices.Concat(x.ended, x.live, x.before) {
		s.Bytes += f.size
		if f.live {
			s.Live += f.Count()
		} else {
			s.Documents += f.Count()
		}
	}
	for _, m := range []*memory{x.memory, x.frozen} {
		if m != nil {
			ended, live := m.split()
			s.Documents += len(ended)
			s.Live += len(live)
		}
	}
	return s
}

// sortPlaces sorts places and returns them without repetitions.
func sortPlaces(places []segment.Cursor) []segment.Cursor {
	slices.SortFunc(places, func(a, b segment.Cursor) int { return cmp.Or(a.Compare(b)) })
	return slices.Compact(places)
}
