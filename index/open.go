package index

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// New returns the index of a directory. What is damaged there is deleted, and made again from the ledger. If
// the directory cannot be opened, the index has no jobs, and [Index.Run] tries again.
func New(cfg Config, log *slog.Logger) *Index {
	x := &Index{
		cfg: cfg, log: log, wake: make(chan chan struct{}, 64), full: make(chan struct{}, 1), missing: make(chan struct{}, 1), running: make(chan struct{}), stopped: make(chan struct{}),
		flushAt: flushDocuments, flushLiveAt: flushLive, maintainEvery: maintainInterval,
	}
	err := x.open()
	x.changes = ledger.NewChangeList(x.mark)
	if err != nil {
		x.fail(err)
		x.changes.Suspend()
	}
	return x
}

// open sets the state of the index to that of its directory.
func (x *Index) open() error {
	x.reset()
	err := os.MkdirAll(x.cfg.Dir, 0o700)
	if err == nil {
		err = x.load()
	}
	if bad, ok := errors.AsType[*uselessError](err); ok {
		x.log.Warn("index cannot be used, it begins again", "dir", x.cfg.Dir, "err", bad)
		x.closeFiles()
		if err = clearDir(x.cfg.Dir); err == nil {
			generation := x.generation + 1
			x.reset()
			x.generation, x.memory.spool = generation, generation
		}
	}
	if err == nil {
		x.spool, err = createSpool(x.cfg.Dir, x.generation)
	}
	if err != nil {
		x.closeFiles()
		x.reset()
		return fmt.Errorf("open the index: %w", err)
	}
	return nil
}

// reset sets the state of the index to that of an empty directory that is not open.
func (x *Index) reset() {
	x.memory, x.frozen, x.spool = newMemory(0, 0), nil, nil
	x.hidden = make(map[ledger.JobPlace]bool)
	x.ended, x.live, x.before, x.trash = nil, nil, nil, nil
	x.generation, x.next, x.fence, x.saved = 0, 0, 0, 0
	x.mark, x.rotated, x.seen, x.careful = ledger.ChangeMark{}, mark{}, 0, 0
	x.incomplete, x.gap = false, gap{removed: make(map[ledger.JobPlace]bool)}
}

// uselessError is why the files of an index cannot be used, although they can be read.
type uselessError struct{ error }

func (e *uselessError) Unwrap() error { return e.error }

// load reads the files of the directory, and deletes those that are not needed.
func (x *Index) load() error {
	m, err := readManifest(x.cfg.Dir)
	if err != nil {
		return err
	}
	if m.Yard != "" && m.Yard != x.cfg.Yard {
		return &uselessError{fmt.Errorf("it belongs to the cluster %s", m.Yard)}
	}
	x.next, x.fence, x.memory, x.gap.shed = m.Next, m.Fence, newMemory(m.Spool, 0), m.Shed
	if r := m.Rebuild; r != nil && x.cfg.History != nil {
		x.gap.rebuild, x.gap.progress, x.gap.saved = r, r.Next, true
	}
	x.mark, x.careful, x.rotated = m.Mark.ChangeMark, m.Mark.Seen, m.Mark
	for _, name := range m.Segments {
		f, err := openFile(x.cfg.Dir, name, slices.Contains(m.Deleted, name))
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
	sizes := make(map[uint64]int64)
	for i, generation := range spools {
		if generation != m.Spool+uint64(i) {
			x.incomplete = true // a spool, or the manifest, is missing
		}
		if sizes[generation], err = x.readSpool(generation, i == len(spools)-1); err != nil {
			return err
		}
		x.generation = generation + 1
	}
	if sizes[m.Synced.Generation] < m.Synced.Bytes {
		x.log.Warn("index spool is damaged or missing, jobs are read again from the ledger", "file", spoolName(x.cfg.Dir, m.Synced.Generation))
		x.incomplete = true // also of history, from which they may have come
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

// readSpool reads a spool again, up to the first block that is damaged. The ledger has what follows in the
// last spool, from which the block is removed. If there are later ones, jobs are missing. It returns how many
// bytes it has read.
func (x *Index) readSpool(generation uint64, isLast bool) (size int64, err error) {
	var places []segment.Cursor // of deleted documents
	r := spoolReader{
		document: x.memory.put,
		delete: func(at ledger.JobPlace) {
			x.memory.remove(at)
			places = append(places, cursorOf(at))
		},
		mark: func(m ledger.ChangeMark) { x.mark = m },
		seen: func(index uint64) { x.careful = max(x.careful, index) },
	}
	path := spoolName(x.cfg.Dir, generation)
	size, err = r.read(path)
	if errors.Is(err, errTorn) {
		x.log.Warn("index spool is incomplete", "file", path, "bytes", size, "err", err)
		if err = nil; isLast {
			err = os.Truncate(path, size)
		} else {
			x.incomplete = true
		}
	}
	if err != nil {
		return size, fmt.Errorf("%s: %w", path, err)
	}
	x.deleteFrom(places, x.ended, x.live)
	return size, nil
}

// clearDir deletes all files of a directory.
func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// closeFiles drops all files, without deleting them. A segment that a search reads is closed after that.
func (x *Index) closeFiles() {
	for _, f := range slices.Concat(x.ended, x.live, x.before, x.trash) {
		f.removed, f.dropped = true, true
		if f.users == 0 {
			_ = f.f.Close() // it was only read
		}
	}
	x.ended, x.live, x.before, x.trash = nil, nil, nil, nil
	if x.spool != nil {
		if err := errors.Join(x.spool.flush(), x.spool.file.Close()); err != nil {
			x.log.Warn("index not saved, what is missing is read again", "err", err)
		}
		x.spool = nil
	}
}
