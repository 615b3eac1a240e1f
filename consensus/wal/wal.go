package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// SegmentSize is the default size of a segment.
const SegmentSize = 16 << 20

// maxBuffer is the size up to which the buffer of an append is kept for the next one.
const maxBuffer = 4 << 20

// CorruptError is returned by [Open] when a file is not what was written.
type CorruptError struct {
	File   string // its name
	Offset int64
	Err    error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at offset %d: %v", e.File, e.Offset, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Log is Raft's log. It is a [raft.LogStore] whose entries have consecutive indexes, and
// from which entries can be removed only at its beginning and its end. Methods that read
// may be called at any time; a method that writes waits for another one to return.
type Log struct {
	dir         string
	segmentSize int64

	writeMu sync.Mutex // held by methods that write
	number  uint64     // of the newest segment; guarded by writeMu
	isFull  bool       // the next entry needs a new segment; guarded by writeMu
	closed  bool       // guarded by writeMu
	buf     []byte     // guarded by writeMu

	mu       sync.RWMutex // guards what follows, which only the holder of writeMu changes
	first    uint64       // index of the first entry, if there is one
	segments []*segment   // in the order of their indexes; only the last may have no entries
}

// Open reads the log in dir, which it creates if it is missing. If a file is not what was
// written, the error is a [*CorruptError]. New files have segmentSize bytes, 0 means
// [SegmentSize].
func Open(dir string, segmentSize int64) (*Log, error) {
	if err := os.Mkdir(dir, durable.DirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := durable.SyncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	l := &Log{dir: dir, segmentSize: cmp.Or(segmentSize, SegmentSize)}
	if err := l.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open log %s: %w", dir, err), l.Close())
	}
	return l, nil
}

// open reads the segments, from the newest to the oldest, and removes those whose entries
// newer ones have replaced.
func (l *Log) open() error {
	files, err := listSegments(l.dir)
	if err != nil {
		return err
	}
	next := uint64(0)
	for i, file := range slices.Backward(files) {
		if next != 0 && file.first >= next {
			if err := l.removeFile(file.path); err != nil {
				return err
			}
			continue
		}
		s, isComplete, err := openSegment(file, next)
		if err != nil {
			return err
		}
		if next == 0 {
			l.isFull = !isComplete
			l.number = files[i].number
		}
		l.segments = slices.Insert(l.segments, 0, s)
		next = s.first
	}
	l.first = next
	if len(l.segments) == 0 {
		return nil
	}
	return durable.SyncDir(l.dir) // the process may have ended before the last segment's name was synced
}

// Close closes the files. It may be called more than once.
func (l *Log) Close() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var err error
	for _, s := range l.segments {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// FirstIndex returns the index of the first entry, or 0 if there is none.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	first, _ := l.bounds()
	return first, nil
}

// LastIndex returns the index of the last entry, or 0 if there is none.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, last := l.bounds()
	return last, nil
}

// bounds returns the first and the last index, or 0 and 0 if there are no entries. Its
// caller holds one of the mutexes.
func (l *Log) bounds() (first, last uint64) {
	if len(l.segments) == 0 || l.tail().last() < l.first {
		return 0, 0
	}
	return l.first, l.tail().last()
}

// tail returns the last segment.
func (l *Log) tail() *segment { return l.segments[len(l.segments)-1] }

// GetLog reads an entry. It returns [raft.ErrLogNotFound] if the log does not have it.
func (l *Log) GetLog(index uint64, out *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock() // files are closed by holders of the mutex
	if first, last := l.bounds(); index < max(first, 1) || index > last {
		return raft.ErrLogNotFound
	}
	i, isFirst := slices.BinarySearchFunc(l.segments, index, func(s *segment, index uint64) int { return cmp.Compare(s.first, index) })
	if !isFirst {
		i--
	}
	s := l.segments[i]
	at := s.entries[index-s.first]
	raw := make([]byte, at.size)
	if _, err := s.file.ReadAt(raw, int64(at.offset)); err != nil {
		return fmt.Errorf("read log entry %d: %w", index, err)
	}
	if _, err := decodeEntry(raw, out); err != nil {
		return fmt.Errorf("read log entry %d: %w", index, err)
	}
	if out.Index != index {
		return fmt.Errorf("read log entry %d: found entry %d in its place", index, out.Index)
	}
	return nil
}

// StoreLog appends an entry.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries, all or none. They are on the disk when it returns nil. After
// an error, they can be appended again.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if l.closed {
		return os.ErrClosed
	}
	if err := l.append(entries); err != nil {
		return fmt.Errorf("append to the log: %w", err)
	}
	return nil
}

func (l *Log) append(entries []*raft.Log) error {
	first, last := l.bounds()
	size := 0
	for i, e := range entries {
		if i == 0 && first == 0 {
			last = e.Index - 1
		}
		if e.Index != last+uint64(i)+1 {
			return fmt.Errorf("entry %d does not follow entry %d", e.Index, last+uint64(i))
		}
		size += entryHeadSize + len(e.Extensions) + len(e.Data)
	}
	frame := int64(frameHeadSize + padded(size))
	if frame > math.MaxUint32-segmentHeadSize {
		return fmt.Errorf("%d bytes at once", frame)
	}
	if err := l.makeRoom(last+1, frame); err != nil {
		return err
	}
	tail := l.tail()
	buf, positions := appendFrame(l.buf[:0], tail.number, uint64(tail.end), entries)
	if cap(buf) <= maxBuffer {
		l.buf = buf
	}
	_, err := tail.file.WriteAt(buf, tail.end)
	if err == nil {
		err = syncData(tail.file)
	}
	if err != nil {
		l.isFull = true // nothing may follow what was written of the frame
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	tail.end += frame
	tail.entries = append(tail.entries, positions...)
	return nil
}

// makeRoom creates a segment that begins with the entry index unless a frame of this size,
// with that entry, can be appended to the last segment.
func (l *Log) makeRoom(index uint64, frame int64) error {
	if first, _ := l.bounds(); first == 0 { // what remains of the segments is empty
		if len(l.segments) > 0 && l.tail().first != index {
			if err := l.dropOldest(len(l.segments)); err != nil {
				return err
			}
		}
	}
	if len(l.segments) > 0 && !l.isFull && l.tail().end+frame <= l.tail().size {
		return nil
	}
	return l.startSegment(index, max(l.segmentSize, segmentHeadSize+frame))
}

// startSegment creates a segment of size bytes that begins with the entry index. It removes that
// entry and all after it from the log.
func (l *Log) startSegment(index uint64, size int64) error {
	// If it fails, the file may be there, and the entries from index on may not count any
	// more. Then nothing is appended before the file was created again.
	l.isFull = true
	s, err := createSegment(l.dir, l.number+1, index, size)
	if err != nil {
		return err
	}
	l.number, l.isFull = s.number, false
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := len(l.segments)
	for ; keep > 0 && l.segments[keep-1].first >= index; keep-- {
		err = errors.Join(err, l.segments[keep-1].file.Close(), l.removeFile(l.segments[keep-1].path))
	}
	l.segments = append(l.segments[:keep], s)
	if keep == 0 {
		l.first = index
	} else if older := l.segments[keep-1]; older.last() >= index {
		older.entries = older.entries[:index-older.first]
	}
	return err
}

// DeleteRange removes the entries min to max, which must be at the beginning or the end of
// the log. Entries at the beginning may be back after a restart.
func (l *Log) DeleteRange(min, max uint64) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if l.closed {
		return os.ErrClosed
	}
	first, last := l.bounds()
	var err error
	switch {
	case first == 0 || min > max || max < first || min > last:
		return nil
	case min <= first && max >= last:
		err = l.removeAll()
	case min <= first:
		err = l.removeBefore(max + 1)
	case max >= last:
		err = l.startSegment(min, l.segmentSize)
	default:
		err = errors.New("they are in the middle of the log")
	}
	if err != nil {
		return fmt.Errorf("remove entries %d to %d of log %d to %d: %w", min, max, first, last, err)
	}
	return nil
}

// removeAll removes all entries at once, by a segment without any: if the process ended while
// segments are removed one by one, the rest would begin with an entry that follows no other. The
// segment has no room for entries, so that a full disk has space for it.
func (l *Log) removeAll() error {
	if err := l.startSegment(l.segments[0].first, segmentHeadSize); err != nil {
		return err
	}
	return l.dropOldest(len(l.segments))
}

// removeBefore removes the entries before index, which must be after the first one.
func (l *Log) removeBefore(index uint64) error {
	n := 0
	for n < len(l.segments) && l.segments[n].last() < index {
		n++
	}
	if err := l.dropOldest(n); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = index
	return nil
}

// dropOldest removes the oldest n segments, one after the other, so that the log has no
// gap if the process ends meanwhile. File systems keep the order in which files are removed, so
// their directory is synced once.
func (l *Log) dropOldest(n int) (err error) {
	if n > 0 {
		defer func() { err = errors.Join(err, durable.SyncDir(l.dir)) }()
	}
	for range n {
		oldest := l.segments[0]
		if err := os.Remove(oldest.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.mu.Lock()
		l.segments = l.segments[1:]
		l.first = max(l.first, oldest.last()+1)
		err := oldest.file.Close()
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// removeFile removes a file of the log, durably.
func (l *Log) removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.SyncDir(l.dir)
}
