package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

const (
	maintainInterval = 10 * time.Second
	maxChecked       = 4 // segments of jobs that have not ended, each time
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
	low := x.lowSpace()
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
	if err := x.save(); err != nil || !low {
		return err
	}
	return x.shed()
}

// recover opens an index that has failed again, if the disk has space. Then it reads all jobs again. It
// reports whether the index is open.
func (x *Index) recover() bool {
	low := x.lowSpace()
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

func (x *Index) lowSpace() bool { return x.cfg.LowSpace != nil && x.cfg.LowSpace() }

// shedParts is the part of the files, as a divisor, that gives way at a time to a disk with little
// free space.
const shedParts = 8

// errLowSpace is the failure of an index that has given way.
var errLowSpace = errors.New("the disk has little free space, which is left to jobs: the index continues when there is more")

// shed deletes the oldest segments of ended jobs. Without such segments, the index stops.
func (x *Index) shed() error {
	x.mu.Lock()
	if len(x.ended) == 0 {
		x.mu.Unlock()
		return errLowSpace
	}
	n := (len(x.ended) + shedParts - 1) / shedParts
	for _, f := range x.ended[:n] { // retain has sorted them
		x.remove(f)
	}
	x.ended = x.ended[n:]
	x.mu.Unlock()
	x.log.Warn("index files deleted, because the disk has little free space", "files", n)
	return x.save()
}

// flush makes segments of the documents of frozen.
func (x *Index) flush() error {
	x.mu.Lock()
	frozen, hidden, failed := x.frozen, maps.Clone(x.hidden), x.failure != nil
	x.mu.Unlock()
	if frozen == nil || failed {
		return nil
	}
	var ended, live []*job.Document
	for at, d := range frozen.documents {
		switch {
		case hidden[at]:
		case d.State.Ended():
			ended = append(ended, d)
		default:
			live = append(live, d)
		}
	}
	files, err := x.write(endedPrefix, ended)
	if err != nil {
		return err
	}
	more, err := x.write(livePrefix, live)
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

// write makes segments of documents.
func (x *Index) write(prefix string, docs []*job.Document) (files []*file, err error) {
	slices.SortFunc(docs, func(a, b *job.Document) int { return placeOf(a).Compare(placeOf(b)) })
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

// checkLive deletes documents of jobs that have ended from some segments of jobs that have not. An
// ended job takes its labels from there, so it must have its own document before.
func (x *Index) checkLive(ctx context.Context) error {
	if x.behind() {
		return nil
	}
	x.mu.Lock()
	if x.scanning {
		x.mu.Unlock()
		return nil
	}
	files := slices.Clone(x.live[:min(len(x.live), maxChecked)])
	x.live = append(slices.Clone(x.live[len(files):]), files...)
	x.use(files)
	x.mu.Unlock()
	defer x.release(files)
	for _, f := range files {
		var numbers []int
		var index uint64
		var docs []*job.Document
		check := func() {
			x.ledger.View(func(l *ledger.Ledger) {
				index = max(index, l.Index())
				for i, d := range docs {
					if present, ok := l.Document(d.ID); !ok || !isOf(d, &present) {
						numbers[len(numbers)-len(docs)+i] |= 1 << 31
					}
				}
			})
			docs = docs[:0]
		}
		err := f.Documents(func(n int, d *job.Document) bool {
			docs, numbers = append(docs, d), append(numbers, n)
			if len(docs) == readStep {
				check()
			}
			return ctx.Err() == nil
		})
		check()
		x.refresh(ctx)
		x.mu.Lock()
		switch {
		case err != nil:
			x.drop(f, err)
		case x.mark.Index >= index && !x.scanning:
			var gone []int
			for _, n := range numbers {
				if n&(1<<31) != 0 {
					gone = append(gone, n&^(1<<31))
				}
			}
			f.DeleteNumbers(gone)
			f.dirty = f.dirty || len(gone) > 0
			if f.Count() == 0 && !f.removed {
				x.live = slices.DeleteFunc(x.live, func(other *file) bool { return other == f })
				x.remove(f)
			}
		}
		x.mu.Unlock()
	}
	return nil
}

// merge merges some segments of a list that are next to each other and small, and reports whether it
// has found any.
func (x *Index) merge(list *[]*file) (merged bool, err error) {
	x.mu.Lock()
	byTime := slices.SortedFunc(slices.Values(*list), func(a, b *file) int {
		first, _ := a.span()
		other, _ := b.span()
		return cmp.Compare(first, other)
	})
	group, counts := mergeable(byTime)
	x.use(group)
	x.mu.Unlock()
	defer x.release(group)
	if len(group) == 0 {
		return false, nil
	}
	var docs []*job.Document
	for _, f := range group {
		err := f.Documents(func(_ int, d *job.Document) bool {
			docs = append(docs, d)
			return true
		})
		if err != nil {
			x.mu.Lock()
			x.drop(f, err)
			x.mu.Unlock()
			return false, nil
		}
	}
	prefix := endedPrefix
	if group[0].live {
		prefix = livePrefix
		if x.behind() {
			return false, nil
		}
		docs = x.latest(docs)
	}
	files, err := x.write(prefix, docs)
	if err != nil {
		return false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, f := range group {
		if f.Count() != counts[i] || !slices.Contains(*list, f) { // it was changed meanwhile
			for _, f := range files {
				x.remove(f)
			}
			return false, nil
		}
	}
	for _, f := range group {
		*list = slices.DeleteFunc(*list, func(other *file) bool { return other == f })
		x.remove(f)
	}
	*list = append(*list, files...)
	return true, nil
}

// latest returns one document of each job: that which is up to date, if there is one, because a segment
// finds only one of those of a job.
func (x *Index) latest(docs []*job.Document) []*job.Document {
	slices.SortStableFunc(docs, func(a, b *job.Document) int { return placeOf(a).Compare(placeOf(b)) })
	var unique []*job.Document
	for _, d := range docs {
		last := len(unique) - 1
		if last < 0 || placeOf(unique[last]) != placeOf(d) {
			unique = append(unique, d)
			continue
		}
		x.ledger.View(func(l *ledger.Ledger) {
			if now, ok := l.Document(d.ID); ok && isOf(d, &now) {
				unique[last] = d
			}
		})
	}
	return unique
}

// behind reports whether the ledger applies entries again whose effects the documents have.
func (x *Index) behind() (behind bool) {
	x.mu.Lock()
	known := max(x.mark.Index, x.careful)
	x.mu.Unlock()
	x.ledger.View(func(l *ledger.Ledger) { behind = l.Index() < known })
	return behind
}

// mergeable returns files to merge, and their numbers of documents: together at most those of a
// segment, and more than half as many again as the largest one has, so that each document is
// written a few times only.
func mergeable(files []*file) (group []*file, counts []int) {
	total, largest := 0, 0
	for i := 0; i <= len(files); i++ {
		if i < len(files) && total+files[i].Count() <= segment.MaxDocuments {
			group, counts = append(group, files[i]), append(counts, files[i].Count())
			total, largest = total+counts[len(counts)-1], max(largest, counts[len(counts)-1])
			continue
		}
		if len(group) > 1 && total*2 >= largest*3 {
			return group, counts
		}
		group, counts, total, largest = nil, nil, 0, 0
		if i < len(files) && files[i].Count() <= segment.MaxDocuments/2 {
			group, counts = []*file{files[i]}, []int{files[i].Count()}
			total, largest = counts[0], counts[0]
		}
	}
	return nil, nil
}

// retain removes the segments of ended jobs that are too old or too many, the oldest first.
func (x *Index) retain() {
	var limits job.Retention
	var now time.Time
	x.ledger.View(func(l *ledger.Ledger) { limits, now = job.DefaultRetention.With(l.Retention().InForce()), l.Now() })
	x.mu.Lock()
	defer x.mu.Unlock()
	last := func(f *file) int64 {
		_, high := f.Span(query.Sort{ByEnd: true})
		return high
	}
	slices.SortFunc(x.ended, func(a, b *file) int { return cmp.Compare(last(a), last(b)) })
	bytes, count := int64(0), int64(0)
	for _, f := range x.ended {
		bytes, count = bytes+f.size, count+int64(f.Count())
	}
	for len(x.ended) > 0 {
		f := x.ended[0]
		tooOld := last(f) < now.Add(-limits.Age(job.KeptIndex)).UnixNano()
		tooMany := bytes > limits.Get(job.KeptIndex, job.BoundBytes) || count > limits.Get(job.KeptIndex, job.BoundCount)
		if !tooOld && !tooMany && f.Count() > 0 {
			return
		}
		x.ended = x.ended[1:]
		bytes, count = bytes-f.size, count-int64(f.Count())
		x.remove(f)
	}
}

// save writes the manifest and the sets of deleted documents, and deletes spools that are not needed.
func (x *Index) save() error {
	x.mu.Lock()
	m := manifest{Format: manifestFormat, Yard: x.cfg.Yard, Next: x.next, Spool: x.memory.spool, Fence: x.fence, Mark: x.rotated}
	if x.frozen != nil {
		m.Spool = x.frozen.spool
	}
	files := slices.Concat(x.ended, x.live, x.before)
	x.use(files)
	trash := x.trash
	x.trash = nil
	deleted := make(map[string][]byte)
	for _, f := range files {
		m.Segments = append(m.Segments, f.name)
		if f.dirty {
			deleted[f.f.Name()+deletedSuffix] = f.Deleted()
			f.dirty, f.partial = false, true
		}
		if f.partial {
			m.Deleted = append(m.Deleted, f.name)
		}
	}
	var err error
	planned := x.rebuild
	if planned != nil {
		m.Rebuild = &rebuild{From: x.rebuild.From, Until: x.rebuild.Until, Next: x.progress}
	}
	if len(deleted)+len(trash) > 0 || m.Spool != x.saved || m.Rebuild != nil || x.rebuilding { // what replaces documents must not be lost
		err = x.spool.sync()
	}
	x.saved, x.rebuilding = m.Spool, m.Rebuild != nil
	x.mu.Unlock()
	defer x.release(files)
	if err != nil {
		return err
	}
	for path, set := range deleted {
		if err := durable.WriteFile(path, set); err != nil {
			return err
		}
	}
	if err := m.write(x.cfg.Dir); err != nil {
		return err
	}
	x.mu.Lock()
	x.unsaved = x.unsaved && x.rebuild != planned
	x.mu.Unlock()
	x.empty(trash)
	for generation := m.Spool; generation > 0; generation-- {
		if err := os.Remove(spoolName(x.cfg.Dir, generation-1)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
	}
	return nil
}
