package index

import (
	"cmp"
	"slices"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// read reads all changes that the ledger has, unless there are too many documents in memory. After a
// failure it drops them.
func (x *Index) read() {
	for more := true; more; {
		x.mu.Lock()
		isFull := func() bool { return x.memory.len() >= maxInMemory*x.flushAt }
		if x.failure == nil && isFull() { // since apply, the builder may have made segments, or the spool was read
			if err := x.rotate(); err != nil {
				x.fail(err)
			}
		}
		failed, full := x.failure != nil, isFull()
		x.mu.Unlock()
		switch {
		case failed:
			x.ledger.View(func(*ledger.Ledger) { x.changes.Suspend() })
			return
		case full:
			return
		}
		more = x.readSome()
	}
}

// readSome reads the next changes, and reports whether there are more.
func (x *Index) readSome() (more bool) {
	x.pending = x.pending[:0]
	restarted, lastEvent := false, uint64(0)
	x.mu.Lock()
	if x.incomplete || x.reopened {
		if x.incomplete {
			x.mark.Event = 0
		}
		x.incomplete, x.reopened = false, false
		x.ledger.View(func(*ledger.Ledger) { x.changes.Restart() })
	}
	x.mu.Unlock()
	for len(x.pending) < applyStep {
		x.ledger.View(func(l *ledger.Ledger) {
			if x.changes.Next(l, &x.batch, readStep); x.batch.Restarted {
				lastEvent = l.LastEvent()
			}
		})
		if x.batch.Restarted {
			restarted = true
			x.pending = x.pending[:0] // all are read again
		}
		x.pending = append(x.pending, x.batch.Changes...)
		if !x.batch.More {
			break
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure != nil || x.reopened {
		return true
	}
	if restarted {
		x.restart()
		x.missingSince(x.mark.Event, lastEvent)
	}
	if err := x.apply(x.pending); err != nil {
		x.fail(err)
		return true
	}
	return x.batch.More
}

// restart begins to read all jobs. New documents replace those of jobs that have not ended, and take their
// labels. If a backup has replaced the ledger, restart drops all documents.
func (x *Index) restart() {
	if x.fence != x.batch.Mark.FenceBase {
		x.log.Warn("ledger was replaced by that of a backup, index begins again")
		for _, f := range slices.Concat(x.ended, x.live, x.before) {
			x.remove(f)
		}
		x.ended, x.live, x.before, x.frozen, x.memory = nil, nil, nil, nil, newMemory(x.generation, 0)
		clear(x.hidden)
		x.fence, x.mark.Event = x.batch.Mark.FenceBase, 0
	}
	x.before, x.live = append(x.before, x.live...), nil
	x.scanning, x.scanned = true, 0
	x.log.Info("index reads all jobs of the ledger")
}

// fail stops the index, whose files cannot be written or read, until recover opens them again.
func (x *Index) fail(err error) {
	if x.failure == nil || x.failure.Error() != err.Error() {
		x.log.Warn("index stopped", "err", err)
	}
	if x.failure == nil {
		x.failures++
	}
	x.failure = err
}

// apply changes the documents. The caller holds mu.
func (x *Index) apply(changes []ledger.Change) error {
	stored := x.stored(changes)
	var deleted []segment.Cursor
	for i := range changes {
		c := &changes[i]
		at := placeOf(&c.Document)
		replaces, makes := x.replaces(c), x.needsDocument(c)
		if makes {
			x.setLabels(c, at, stored)
		}
		if replaces {
			deleted = append(deleted, cursorOf(at))
			x.spool.delete(at)
			x.memory.remove(at)
		}
		if replaces || makes {
			x.hide(at)
		}
		if makes {
			x.put(new(c.Document))
		}
		if c.Removed && x.gap.rebuild != nil {
			x.gap.removed[at] = true
		}
	}
	x.deleteFrom(deleted, x.ended, x.live, x.before)
	x.seen = x.batch.Seen
	if x.scanning {
		x.scanned += len(changes)
		x.scanning = x.batch.Scanning
		if !x.scanning {
			x.finishScan()
		}
	}
	if !x.scanning {
		x.mark, x.fence = x.batch.Mark, x.batch.Mark.FenceBase
	}
	if !x.scanning && !x.gap.unsaved {
		x.spool.mark(x.mark, x.seen)
	} else { // after a restart, the mark would be that of an index which has read all jobs and history
		x.spool.seen(x.seen)
	}
	if err := x.spool.flush(); err != nil {
		return err
	}
	return x.rotate()
}

// hide marks the document of a job as deleted that is becoming a part of a segment.
func (x *Index) hide(at ledger.JobPlace) {
	if x.frozen != nil && x.frozen.get(at) != nil {
		x.hidden[at] = true
	}
}

// replaces reports whether a segment may have a document that is wrong after the change. A
// document of a job that has not ended is not wrong when it ends: the ledger is asked.
func (x *Index) replaces(c *ledger.Change) bool {
	switch {
	case c.Removed:
		return true
	case c.Scanned, x.careful > x.mark.Index:
		return true
	case c.Before.State == job.New:
		return false
	}
	return c.Before.State.Ended() || !c.State.Ended() && c.Labels != ""
}

// needsDocument reports whether the change makes another document.
func (x *Index) needsDocument(c *ledger.Change) bool {
	switch {
	case c.Removed:
		return false
	case c.State.Ended(), c.Scanned, c.Labels != "", x.careful > x.mark.Index:
		return true
	case c.Before.State == job.New, c.Before.State.Ended():
		return true
	}
	return c.Before.Dispatches != c.Dispatches || c.Fault != nil && c.State != job.Active // an attempt may have failed
}

// finishScan drops the documents that were not read again.
func (x *Index) finishScan() {
	for _, f := range x.before {
		x.remove(f)
	}
	x.before = nil
	x.log.Info("index has read all jobs of the ledger", "jobs", x.scanned)
	x.signal()
}

// parseLabels returns labels that the ledger passed on. Those that cannot be parsed are missing.
func parseLabels(text string) job.Labels {
	l, _ := job.ParseLabels(text)
	return l
}

// stored returns the documents that changed jobs have in segments and whose labels new documents take.
func (x *Index) stored(changes []ledger.Change) map[ledger.JobPlace]*job.Document {
	var places []segment.Cursor
	for i := range changes {
		if c := &changes[i]; x.takesLabels(c) {
			if at := placeOf(&c.Document); x.inMemory(at) == nil {
				places = append(places, cursorOf(at))
			}
		}
	}
	if len(places) == 0 {
		return nil
	}
	return x.documents(sortPlaces(places))
}

// takesLabels reports whether the change makes a document with the labels of an earlier one.
func (x *Index) takesLabels(c *ledger.Change) bool {
	return c.Labels == "" && x.needsDocument(c) && (c.Before.State != job.New || c.Scanned)
}

// setLabels sets the labels of a changed job: from the change if the ledger has passed them on, or else from the
// job's document in memory or in a segment.
func (x *Index) setLabels(c *ledger.Change, at ledger.JobPlace, stored map[ledger.JobPlace]*job.Document) {
	var labels job.Labels
	if c.Labels != "" {
		labels = parseLabels(c.Labels)
	} else if d := cmp.Or(x.inMemory(at), stored[at]); d != nil {
		labels = d.Labels()
	}
	c.SetLabels(labels)
}

// drop drops a file that cannot be read. Jobs are then read again from the ledger.
func (x *Index) drop(f *file, err error) {
	if f.removed {
		return
	}
	x.log.Warn("index file cannot be read, jobs are read again from the ledger", "file", f.name, "err", err)
	isFile := func(other *file) bool { return other == f }
	x.ended, x.live, x.before = slices.DeleteFunc(x.ended, isFile), slices.DeleteFunc(x.live, isFile), slices.DeleteFunc(x.before, isFile)
	x.remove(f)
	x.incomplete = true
}

// put adds a document to memory and the spool.
func (x *Index) put(d *job.Document) {
	x.memory.put(d)
	x.spool.document(d)
}

// inMemory returns the document of a place, or nil if it is in a segment or does not exist.
func (x *Index) inMemory(at ledger.JobPlace) *job.Document {
	if d := x.memory.get(at); d != nil || x.frozen == nil {
		return d
	}
	return x.frozen.get(at)
}

// deleteFrom deletes the documents of places from files.
func (x *Index) deleteFrom(places []segment.Cursor, lists ...[]*file) {
	if len(places) == 0 {
		return
	}
	places = sortPlaces(places)
	for _, f := range slices.Concat(lists...) {
		numbers, err := f.lookup(places)
		if err != nil {
			x.drop(f, err)
			continue
		}
		if len(numbers) > 0 {
			f.DeleteNumbers(numbers)
			f.dirty = true
		}
	}
}

// rotate begins a new spool if there are many documents in memory, and lets them become segments. Documents of
// jobs that have not ended stay in memory, unless there are too many.
func (x *Index) rotate() error {
	manyLive := len(x.memory.live.byPlace) >= x.flushLiveAt
	if x.frozen != nil || len(x.memory.ended.byPlace) < x.flushAt && !manyLive {
		return nil
	}
	next, err := createSpool(x.cfg.Dir, x.generation+1)
	if err != nil {
		return err
	}
	if err := x.spool.sync(); err != nil { // the mark of the next one is for both
		return err
	}
	if err := x.spool.file.Close(); err != nil {
		return err
	}
	x.generation++
	x.frozen, x.memory, x.spool = x.memory, newMemory(x.generation, len(x.memory.ended.byPlace)), next
	x.rotating = mark{x.mark, max(x.seen, x.careful)}
	if !manyLive {
		x.memory.live, x.frozen.live = x.frozen.live, x.memory.live
		for _, d := range x.memory.live.byPlace {
			x.spool.document(d)
		}
	}
	select {
	case x.full <- struct{}{}:
	default:
	}
	return x.spool.flush()
}
