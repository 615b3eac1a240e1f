package ledger

import (
	"cmp"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ChangeList has the jobs of a ledger that changed since they were last read from it, each once.
// It belongs to one node and is not a part of the state: it is neither encoded nor copied, and
// ledgers with and without a list are equal.
//
// The ledger adds to the list while it applies entries, and [ChangeList.Next] reads it under a lock
// that keeps entries from being applied. Other goroutines may read the ledger at the same time, but
// only one may call Next.
//
// A list that is not read becomes full and starts again: its reader then gets all jobs of the
// ledger, in steps. The same happens if the ledger is replaced by one with entries that were not
// recorded, such as that of another node's snapshot.
type ChangeList struct {
	entries []changeEntry
	read    int                  // entries before it were read
	pending []uint64             // one bit for the number of each record that an entry is about
	carried map[uint32][]*Change // of forgotten jobs, by the numbers that their records had
	dropped int                  // how many these are
	labels  map[uint32]string    // of jobs that were replaced while an entry was about them, by the numbers of their records
	texts   int                  // size of all labels that were not read, in bytes
	index   uint64               // of the entry that is being applied
	mark    ChangeMark

	restarted bool   // since the last batch
	scanning  bool   // records after scanned are still to be read
	scanned   uint32 // number of the last record that was read
	skipping  bool   // the changes of the entries to mark.Index are known
	full      bool   // nothing is added until the next batch
}

// ChangeMark is how far changes were read.
type ChangeMark struct {
	Index uint64 // of the last entry whose changes were all read
	// The others are of that entry, or of an earlier one if there are more changes.
	Event     uint64 // number of the last event
	Time      time.Time
	FenceBase uint64 // see [Ledger.FenceBase]
}

// changeEntry is a job that changed.
type changeEntry struct {
	index  uint64 // of the log entry that changed it first
	number uint32 // of its record
	before ChangeBefore
	labels string // of a job that was new
}

// ChangeBefore is what a job was before it changed.
type ChangeBefore struct {
	Dispatches uint32
	State      job.State // [job.New]: the ledger did not have the job
}

// Change is a job that has changed. It has the last state of the job, even if that has changed
// several times.
type Change struct {
	// Document is the job as it is now, or as it was when the ledger forgot it. Tags, metadata,
	// params and the key are not set.
	job.Document
	Labels  string // that its record has, see [job.Labels.Encode]; "": none, or they were read with an earlier change
	Before  ChangeBefore
	Removed bool // a caller has removed it
	Scanned bool // it is only read again, and may not have changed
}

// ChangeBatch has some changes, in the order in which jobs changed first.
type ChangeBatch struct {
	Changes   []Change
	Mark      ChangeMark // what was read with this batch; while Scanning, only the fence base has a meaning
	Seen      uint64     // index of the ledger's last entry; the changes may have effects of entries up to it
	More      bool       // there are more changes
	Restarted bool       // changes before this batch may not have been read: all jobs are read again
	Scanning  bool       // not all jobs have been read again
}

// Bounds of a list.
const (
	maxChanges = 1 << 20
	maxDropped = 1 << 16  // jobs that were forgotten before they were read
	maxLabels  = 64 << 20 // bytes
)

// NewChangeList returns a list for a reader that has read the changes before a mark. The zero mark
// is that of a reader that has read none.
func NewChangeList(mark ChangeMark) *ChangeList {
	return &ChangeList{mark: mark, skipping: true, carried: make(map[uint32][]*Change), labels: make(map[uint32]string)}
}

// RecordChanges makes the ledger add to the list from now on. It must be called again with the
// ledger that replaces this one.
func (l *Ledger) RecordChanges(c *ChangeList) {
	l.jobs.changes = c
	if l.index > c.mark.Index || len(c.entries) > 0 || c.scanning || c.full {
		c.restart()
	}
}

// replaced must be called when the ledger's state was replaced by another one.
func (c *ChangeList) replaced() {
	if !c.skipping {
		c.restart()
	}
}

// restart makes the reader read all jobs.
func (c *ChangeList) restart() {
	index, full := c.index, c.full
	*c = *NewChangeList(ChangeMark{})
	c.index, c.full, c.skipping, c.restarted, c.scanning = index, full, false, true, true
}

// begin must be called before a log entry is applied.
func (c *ChangeList) begin(index uint64) {
	c.index = index
	c.skipping = c.skipping && index <= c.mark.Index
}

func (c *ChangeList) isPending(number uint32) bool {
	word := int(number / 64)
	return word < len(c.pending) && c.pending[word]>>(number%64)&1 == 1
}

// changed adds a job that is stored in the place of old, which is nil for a new one.
func (c *ChangeList) changed(old, next *storedJob) {
	if c.skipping || c.full || c.isPending(next.number) {
		return
	}
	var before ChangeBefore
	if old != nil {
		before = old.changeBefore()
	}
	c.add(next.number, before)
}

func (r *record) changeBefore() ChangeBefore { return ChangeBefore{r.n, r.state} }

// overflow drops everything. All jobs are read again from the next batch on.
func (c *ChangeList) overflow() {
	c.restart()
	c.full = true
}

// add adds an entry, unless there are too many.
func (c *ChangeList) add(number uint32, before ChangeBefore) {
	if len(c.entries)-c.read >= maxChanges {
		c.overflow()
		return
	}
	for int(number/64) >= len(c.pending) {
		c.pending = append(c.pending, 0)
	}
	c.pending[number/64] |= 1 << (number % 64)
	c.entries = append(c.entries, changeEntry{index: c.index, number: number, before: before})
}

// label adds the labels of a job whose change was added.
func (c *ChangeList) label(number uint32, labels string) {
	if labels == "" || c.skipping || c.full {
		return
	}
	last := &c.entries[len(c.entries)-1]
	isLast := last.number == number && last.before.State == job.New
	if isLast {
		c.texts -= len(last.labels)
		last.labels = labels
	} else {
		c.takeLabels(number)
		c.labels[number] = labels
	}
	if c.texts += len(labels); c.texts > maxLabels {
		c.overflow()
	}
}

// takeLabels removes and returns the labels of a job.
func (c *ChangeList) takeLabels(number uint32) string {
	labels := c.labels[number]
	if labels != "" {
		delete(c.labels, number)
		c.texts -= len(labels)
	}
	return labels
}

// forgotten must be called before the record of a job is removed. It keeps what the reader has
// not read of the job.
func (c *ChangeList) forgotten(stored *storedJob, removed bool) {
	if c.skipping || c.full {
		return
	}
	number := stored.number
	if !c.isPending(number) {
		if !removed && !(c.scanning && number > c.scanned) {
			return // its reader has read it
		}
		if c.add(number, stored.changeBefore()); c.full {
			return
		}
	}
	if c.dropped >= maxDropped {
		c.overflow()
		return
	}
	carried := &Change{Removed: removed}
	stored.change(carried)
	carried.Labels = c.takeLabels(number)
	c.carried[number] = append(c.carried[number], carried)
	c.dropped++
	c.pending[number/64] &^= 1 << (number % 64) // another job may get the number
}

// Restart makes the next batch the first one of all jobs. It may be called when Next may be.
func (c *ChangeList) Restart() { c.restart() }

// Suspend drops all changes. None are added until Next is called, whose batch is then the first one of
// all jobs. It may be called when Next may be.
func (c *ChangeList) Suspend() { c.overflow() }

// Next sets the batch to the next changes of the ledger l, at most limit. It may only be called
// with the ledger that records its changes in the list.
func (c *ChangeList) Next(l *Ledger, batch *ChangeBatch, limit int) {
	*batch = ChangeBatch{Changes: batch.Changes[:0], Restarted: c.restarted}
	c.restarted, c.full = false, false
	for len(batch.Changes) < limit && c.read < len(c.entries) {
		c.next(l, batch.space())
	}
	switch rest := len(c.entries) - c.read; {
	case rest == 0:
		c.entries, c.read = c.entries[:0], 0
	case c.read > rest:
		c.entries, c.read = c.entries[:copy(c.entries, c.entries[c.read:])], 0
	}
	if c.scanning {
		c.scan(l, batch, limit)
	}
	switch {
	case c.skipping: // the ledger has not reached the mark
	case len(c.entries) == 0:
		c.mark = ChangeMark{l.index, l.outbox.next, l.Now(), l.fenceBase}
	default:
		c.mark.Index = c.entries[c.read].index - 1
	}
	c.mark.FenceBase = l.fenceBase
	batch.Mark, batch.Seen, batch.Scanning, batch.More = c.mark, l.index, c.scanning, len(c.entries) > 0 || c.scanning
}

// space returns a change that is added to the batch.
func (b *ChangeBatch) space() *Change {
	b.Changes = append(b.Changes, Change{})
	return &b.Changes[len(b.Changes)-1]
}

// next reads the next entry.
func (c *ChangeList) next(l *Ledger, change *Change) {
	entry := &c.entries[c.read]
	c.read++
	if carried := c.carried[entry.number]; len(carried) > 0 { // the job that had the number first
		*change = *carried[0]
		c.dropped--
		if carried = carried[1:]; len(carried) > 0 {
			c.carried[entry.number] = carried
		} else {
			delete(c.carried, entry.number)
		}
	} else {
		c.pending[entry.number/64] &^= 1 << (entry.number % 64)
		var stored storedJob
		l.jobs.load(&stored, entry.number)
		stored.change(change)
		change.Labels = c.takeLabels(entry.number)
	}
	change.Labels = cmp.Or(change.Labels, entry.labels)
	c.texts -= len(entry.labels)
	change.Before, entry.labels = entry.before, ""
}

// scan reads the next records, when no entry is left.
func (c *ChangeList) scan(l *Ledger, batch *ChangeBatch, limit int) {
	for len(batch.Changes) < limit {
		number, ok := l.jobs.records.after(c.scanned)
		if !ok {
			c.scanning = false
			return
		}
		c.scanned = number
		change, stored := batch.space(), storedJob{}
		l.jobs.load(&stored, number)
		stored.change(change)
		change.Before, change.Scanned = stored.changeBefore(), true
	}
}

// Document returns what the ledger has of a job, without its labels; ok is false if it does not have
// the job.
func (j *jobs) Document(id job.ID) (d job.Document, ok bool) {
	var stored storedJob
	if !j.loadID(&stored, &id) {
		return job.Document{}, false
	}
	var c Change
	stored.change(&c)
	return c.Document, true
}

// change sets the change to the job, but not what it was before.
func (r *storedJob) change(c *Change) {
	c.Document = job.Document{
		ID: r.id, Queue: r.queue.name, Function: r.function, State: r.state, LimitKey: r.key, Priority: r.priority,
		Attempts: r.attempt, Dispatches: r.n, Created: time.Unix(0, r.accepted).UTC(), Node: r.run.node, Worker: r.run.channel,
		Fault: r.run.failure.fault(), Cancellation: r.cancellation(),
		MaxAttempts: r.maxAttempts(), Result: r.run.result, ResultTTL: r.options.resultTTL,
	}
	if at := r.options.runAt; at != 0 {
		c.RunAt = time.Unix(0, at).UTC()
	}
	if r.state == job.Delayed { // also until the next attempt
		c.RunAt = time.Unix(0, r.due).UTC()
	}
	if f := r.run.failure; f != nil {
		c.DeadLetter = f.deadLetter
	}
	if r.run.started > 0 {
		c.Started = time.Unix(0, r.run.started).UTC()
	}
	if r.state.Ended() {
		c.Ended, c.Position = time.Unix(0, r.due).UTC(), r.position()
	}
}
