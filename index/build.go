package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	maintainInterval = 10 * time.Second
	maxChecked       = 4  // segments of jobs that have not ended, each time
	checkEvery       = 3  // times maintainInterval: how often one of these is checked
	fewLive          = 16 // so many of these are not merged: they are gone when their jobs have ended
)

// build makes segments of documents in memory, and keeps the segments within bounds, until ctx ends.
func (x *Index) build(ctx context.Context) {
	ticker := time.NewTicker(x.maintainEvery)
	defer ticker.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-x.full:
			err = x.flush()
			select { // Run may wait for space in memory
			case x.wake <- make(chan struct{}):
			default:
			}
		case <-ticker.C:
		}
		if err = errors.Join(err, x.maintain(ctx)); err != nil {
			x.mu.Lock()
			x.fail(err)
			x.mu.Unlock()
		}
	}
}

// maintain checks, merges and removes segments.
func (x *Index) maintain(ctx context.Context) error {
	if !x.recover() {
		return nil
	}
	low := x.lowSpace(0)
	if err := x.checkLive(ctx); err != nil {
		return err
	}
	for _, list := range []*[]*file{&x.live, &x.ended} {
		for merged := !low; merged && ctx.Err() == nil; {
			var err error
			if merged, err = x.merge(list); err != nil {
				return err
			}
		}
	}
	x.retain()
	if err := x.save(); err != nil {
		return err
	}
	if low {
		return x.shed()
	}
	x.unshed()
	return nil
}

// recover opens an index that has failed again, if the disk has space. Then it reads all jobs again. It
// reports whether the index is open.
func (x *Index) recover() bool {
	low := x.lowSpace(0)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.failure == nil:
		return true
	case low:
		return false
	}
	x.closeFiles()
	if err := x.open(); err != nil {
		x.fail(err)
		return false
	}
	x.log.Info("index continues after a failure", "err", x.failure)
	x.failure, x.reopened, x.scanning = nil, true, true
	return true
}

// flush makes segments of the documents of frozen.
func (x *Index) flush() error {
	x.mu.Lock()
	frozen, hidden, failed := x.frozen, maps.Clone(x.hidden), x.failure != nil
	if frozen == nil || failed {
		x.mu.Unlock()
		return nil
	}
	x.mu.Unlock()
	files, err := x.write(endedPrefix, frozen.ended.except(hidden))
	if err != nil {
		return err
	}
	more, err := x.write(livePrefix, frozen.live.except(hidden))
	files = append(files, more...)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil || x.frozen != frozen { // the index began again
		for _, f := range files {
			x.remove(f)
		}
		return err
	}
	for _, f := range files {
		x.addFile(f)
	}
	var places []segment.Cursor // of documents that were deleted or replaced meanwhile
	for at := range x.hidden {
		if !hidden[at] {
			places = append(places, cursorOf(at))
		}
	}
	x.deleteFrom(places, files)
	x.frozen, x.rotated = nil, x.rotating
	clear(x.hidden)
	return nil
}

// write sorts documents and makes segments of them.
func (x *Index) write(prefix string, docs []*job.Document) (files []*file, err error) {
	segment.Sort(docs)
	for part := range slices.Chunk(docs, segment.MaxDocuments) {
		x.mu.Lock()
		x.next++
		name := fmt.Sprint(prefix, x.next)
		x.mu.Unlock()
		f, err := createFile(x.cfg.Dir, name, part)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}
