package index

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
	"github.com/yardmaster-dev/yardmaster/job"
)

// file is a segment in a file that is open. Its fields, except the segment's own, are guarded by
// [Index.mu].
type file struct {
	*segment.Segment
	f       *os.File
	name    string
	live    bool // of jobs that have not ended, when it was written
	size    int64
	dirty   bool      // documents were deleted that its file of deleted ones does not have
	partial bool      // it has, or is to have, a file of deleted documents
	users   int       // searches that read it
	removed bool      // it is in no list any more
	dropped bool      // it is closed when nothing reads it
	checked time.Time // when its documents were last compared with the ledger
	unnamed bool      // it is not in the manifest any more: it is closed and deleted when nothing reads it
}

const (
	deletedSuffix = ".deleted"
	endedPrefix   = "ended-"
	livePrefix    = "live-"
)

// openFile opens a segment, without the documents that are deleted. If it is partial, it must have a file of
// these.
func openFile(dir, name string, partial bool) (*file, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s, err := segment.Open(f, info.Size())
	if err == nil {
		var deleted []byte
		deleted, err = os.ReadFile(f.Name() + deletedSuffix)
		switch {
		case err == nil:
			partial, err = true, s.SetDeleted(deleted)
		case !partial && errors.Is(err, fs.ErrNotExist):
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return &file{Segment: s, f: f, name: name, size: info.Size(), live: strings.HasPrefix(name, livePrefix), partial: partial}, nil
}

// createFile writes a segment of documents and opens it.
func createFile(dir, name string, docs []*job.Document) (*file, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	err = segment.Write(w, docs)
	if err == nil {
		err = w.Flush()
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	if err := durable.SyncDir(dir); err != nil {
		return nil, err
	}
	return openFile(dir, name, false)
}

// span returns the times of creation of the first and the last document.
func (f *file) span() (first, last int64) { return f.Span(query.Sort{}) }

// lookup returns the numbers of the documents of the places that the file has. Places are in ascending order.
func (f *file) lookup(places []segment.Cursor) (numbers []int, err error) {
	if places = f.within(places); len(places) == 0 {
		return nil, nil
	}
	if err = f.Lookup(places, func(number int) { numbers = append(numbers, number) }); err != nil {
		err = fmt.Errorf("%s: %w", f.name, err)
	}
	return numbers, err
}

// documents calls found with the documents of the places that the file has. Places are in ascending order.
func (f *file) documents(places []segment.Cursor, found func(*job.Document)) error {
	if places = f.within(places); len(places) == 0 {
		return nil
	}
	if err := f.LookupDocuments(places, found); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	return nil
}

// within returns those places that are between the first and the last document of the file.
func (f *file) within(places []segment.Cursor) []segment.Cursor {
	first, last := f.span()
	from, _ := slices.BinarySearchFunc(places, first, func(c segment.Cursor, at int64) int { return compareTime(c.Value, at) })
	to, _ := slices.BinarySearchFunc(places, last+1, func(c segment.Cursor, at int64) int { return compareTime(c.Value, at) })
	return places[from:max(from, to)]
}

// compareTime compares times so that a binary search ends at the first of equal ones.
func compareTime(a, b int64) int {
	if a < b {
		return -1
	}
	return 1
}

// use and release bracket a read of files. A file that was removed meanwhile is closed and deleted.
func (x *Index) use(files []*file) {
	for _, f := range files {
		f.users++
	}
}

func (x *Index) release(files []*file) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range files {
		switch f.users--; {
		case f.users > 0:
		case f.dropped:
			_ = f.f.Close() // it was only read
		case f.unnamed:
			x.discard(f)
		}
	}
}

// remove lets a file that is in no list any more be deleted after the next manifest is written: until
// then, a node that starts again needs it. The caller holds mu.
func (x *Index) remove(f *file) {
	f.removed = true
	x.trash = append(x.trash, f)
}

// empty deletes files that are not in the manifest.
func (x *Index) empty(trash []*file) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range trash {
		if f.unnamed = true; f.users == 0 && !f.dropped {
			x.discard(f)
		}
	}
}

// discard closes and deletes a file. What cannot be deleted now is when the index is opened.
func (x *Index) discard(f *file) {
	path := f.f.Name()
	if err := errors.Join(f.f.Close(), os.Remove(path)); err != nil {
		x.log.Warn("index file not deleted", "file", path, "err", err)
	}
	_ = os.Remove(path + deletedSuffix) // most have none
}
