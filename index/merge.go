package index

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

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
	files := slices.SortedFunc(slices.Values(x.live), func(a, b *file) int { return a.checked.Compare(b.checked) })
	files = slices.DeleteFunc(files, func(f *file) bool { return time.Since(f.checked) < checkEvery*x.maintainEvery })
	files = files[:min(len(files), maxChecked)]
	x.use(files)
	x.mu.Unlock()
	defer x.release(files)
	for _, f := range files {
		gone, index, err := x.gone(f)
		x.refresh(ctx)
		x.mu.Lock()
		f.checked = time.Now()
		switch {
		case err != nil:
			x.drop(f, err)
		case x.mark.Index >= index && !x.scanning && !f.removed:
			x.deleteFrom(gone, []*file{f})
			if f.Count() == 0 && !f.removed {
				x.live = slices.DeleteFunc(x.live, func(other *file) bool { return other == f })
				x.remove(f)
			}
		}
		x.mu.Unlock()
	}
	return nil
}

// gone returns the places of documents whose jobs have ended or are not in the ledger, and the log index at
// which the ledger was asked.
func (x *Index) gone(f *file) (gone []segment.Cursor, index uint64, err error) {
	var places []segment.Cursor
	if err := f.Places(func(_ int, at segment.Cursor) { places = append(places, at) }); err != nil {
		return nil, 0, err
	}
	for part := range slices.Chunk(places, readStep) {
		x.ledger.View(func(l *ledger.Ledger) {
			index = max(index, l.Index())
			for _, at := range part {
				if now, ok := l.Document(at.ID); !ok || now.State.Ended() || cursorOf(placeOf(&now)) != at {
					gone = append(gone, at)
				}
			}
		})
	}
	return gone, index, nil
}

// merge merges some segments of a list that are next to each other and small, and reports whether it
// has found any.
func (x *Index) merge(list *[]*file) (merged bool, err error) {
	x.mu.Lock()
	if list == &x.live && len(x.live) <= fewLive {
		x.mu.Unlock()
		return false, nil
	}
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
		docs = latest(docs)
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

// latest returns the last document of each job, because a segment finds only one of a job.
func latest(docs []*job.Document) []*job.Document {
	segment.Sort(docs)
	var unique []*job.Document
	for _, d := range docs {
		last := len(unique) - 1
		switch {
		case last < 0 || placeOf(unique[last]) != placeOf(d):
			unique = append(unique, d)
		case isNewer(d, unique[last]):
			unique[last] = d
		}
	}
	return unique
}

// isNewer reports whether a is a later document than b, both of one job, before its end. During a dispatch
// the job is waiting or active; once the dispatch has failed, it is delayed.
func isNewer(a, b *job.Document) bool {
	if a.Dispatches != b.Dispatches {
		return a.Dispatches > b.Dispatches
	}
	return a.State == job.Delayed && b.State != job.Delayed
}

// behind reports whether the ledger is behind the documents.
func (x *Index) behind() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ahead() > 0
}

// ahead returns the number of log entries whose effects the documents may have and which the ledger has not
// applied again since the node has started. The caller holds mu.
func (x *Index) ahead() (entries uint64) {
	known := max(x.mark.Index, x.careful)
	x.ledger.View(func(l *ledger.Ledger) { entries = known - min(l.Index(), known) })
	return entries
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
