package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// memoryHistory is the history and the dead letters of a replica.
type memoryHistory struct {
	mu       sync.Mutex
	messages []Message
	letters  map[uint64]*api.DeadLetterMessage
	faults   []fault // of the next calls
}

// fault is how a call fails.
type fault string

const (
	noFault     fault = ""
	callFails   fault = "fails"
	repliesNone fault = "the server has no message"
)

// set sets the faults of the next calls.
func (h *memoryHistory) set(faults []fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = faults
}

// next returns the next fault. The caller holds mu.
func (h *memoryHistory) next() (f fault, err error) {
	if len(h.faults) > 0 {
		f, h.faults = h.faults[0], h.faults[1:]
	}
	if f == callFails {
		err = errors.New("no server has answered")
	}
	return f, err
}

func (h *memoryHistory) LastMessage(_ context.Context, number uint64) (seq uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.messages {
		if m.First <= number {
			seq = m.Seq
		}
	}
	_, err = h.next()
	return seq, err
}

func (h *memoryHistory) Messages(_ context.Context, from uint64, limit int) ([]Message, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.messages, from, func(m Message, seq uint64) int { return int(m.Seq) - int(seq) })
	rest := h.messages[i:]
	f, err := h.next()
	if f == repliesNone {
		return nil, nil
	}
	return slices.Clone(rest[:min(limit, len(rest), 5)]), err // a read may have less than the limit
}

func (h *memoryHistory) DeadLetters(_ context.Context, visit func(uint64, *api.DeadLetterMessage) error) error {
	h.mu.Lock()
	letters := maps.Clone(h.letters)
	h.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(letters)) {
		if err := visit(number, letters[number]); err != nil {
			return err
		}
	}
	return nil
}

// publish adds the new events and dead letters of the ledger to history.
func (y *replica) publish() {
	h := y.history
	h.mu.Lock()
	defer h.mu.Unlock()
	var enc *history.Encoder
	first := y.lastEvent + 1
	y.ledger.EventsAfter(y.lastEvent, func(number uint64, at time.Time, e *ledger.Event) bool {
		if enc == nil {
			enc = history.NewEncoder(10, number, at)
		}
		enc.Add(number, at, e)
		y.lastEvent = number
		return true
	})
	if enc != nil {
		h.messages = append(h.messages, Message{Seq: uint64(len(h.messages) + 1), First: first, Body: enc.Bytes()})
	}
	if h.letters == nil {
		h.letters = make(map[uint64]*api.DeadLetterMessage)
	}
	for _, l := range y.ledger.DeadLettersAfter(0) {
		h.letters[l.Number] = &api.DeadLetterMessage{
			ID: l.Job.String(), Queue: l.Queue, Function: l.Function, Reason: l.Reason, Error: l.Fault, Attempts: l.Attempts, Accepted: l.Accepted, Failed: l.At,
		}
	}
}

// await blocks until the index satisfies a condition.
func (y *replica) await(what string, condition func(Status) bool) {
	y.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition(y.index.Status()) {
		if time.Now().After(deadline) {
			y.t.Fatalf("%s: %+v", what, y.index.Status())
		}
		y.index.refresh(context.Background())
		time.Sleep(time.Millisecond)
	}
}

// rebuilt blocks until the index has all of the ledger and of history, and returns all documents. A search may
// find damage.
func (y *replica) rebuilt() (docs []*job.Document) {
	y.t.Helper()
	isRebuilt := func(s Status) bool {
		return s.Index == y.ledger.Index() && s.Failure == "" && !s.Scanning && s.Rebuilt == 1
	}
	for published := uint64(0); published < y.ledger.LastEvent() || !isRebuilt(y.index.Status()); {
		if published = y.ledger.PublishedEvents(); published < y.ledger.LastEvent() {
			y.applyAt(y.at.At) // no job becomes due
		}
		y.await("the index is rebuilt", isRebuilt)
		_, docs = y.find("", nil, 100)
	}
	return docs
}

// lossy returns documents without what history does not have: of ended jobs some settings,
// of those that ended without a run the number of attempts, of an error that has left no dead letter its code, and of times what is less than a millisecond.
func lossy(docs []*job.Document) []*job.Document {
	all := make([]*job.Document, len(docs))
	for i, d := range docs {
		c := *d
		if c.Cancellation != nil {
			cancellation := *c.Cancellation
			cancellation.At = cancellation.At.Truncate(time.Millisecond)
			c.Cancellation = &cancellation
		}
		c.Started, c.Ended = c.Started.Truncate(time.Millisecond), c.Ended.Truncate(time.Millisecond)
		c.RunAt, c.MaxAttempts, c.ResultTTL = time.Time{}, 0, 0
		switch c.State {
		case job.Failed:
		case job.Cancelled, job.Expired:
			c.Attempts = 0 // a run that a node has returned is none
			fallthrough
		default:
			c.DeadLetter = 0 // of an earlier run
		}
		if c.Fault != nil && c.DeadLetter == 0 {
			fault := *c.Fault
			fault.Code = ""
			c.Fault = &fault
		}
		all[i] = &c
	}
	return all
}

func ids(docs []*job.Document) (ids []string) {
	for _, d := range docs {
		ids = append(ids, d.ID.String())
	}
	return ids
}

// forgetFinished lets the ledger forget all but a few jobs that have ended.
func (y *replica) forgetFinished() {
	y.apply(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 5}}})
}

// checkRebuilt compares all documents with those that the index had, but for what history does not have.
func (y *replica) checkRebuilt(before, after []*job.Document) {
	y.t.Helper()
	if diff := gocmp.Diff(lossy(before), lossy(after), cmpopts.EquateEmpty()); diff != "" {
		y.t.Fatalf("(-before +after)\n%s", diff)
	}
}

// TestIndex_Rebuild deletes the directory of an index, or damages files, and compares the documents of
// all jobs, most of which the ledger has forgotten, before and after.
func TestIndex_Rebuild(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 100+seed)
			y.forgetFinished()
			for range 60 {
				y.step()
			}
			y.removeEnded()
			y.index.Sync(y.ledger.Index())
			y.snapshot()
			before := y.rebuilt()
			_, order := y.find("sort:ended", nil, 7)
			y.check(3)
			y.stop()
			damaged := y.damage()
			y.history.set(y.someFaults())
			y.restart(y.newest(y.at.Index))
			for range y.r.IntN(3) { // it starts again while it reads history
				published := y.ledger.PublishedEvents() == y.ledger.LastEvent()
				y.await("some history is read", func(s Status) bool { return s.Rebuilt > 0 || !published })
				y.stop()
				y.restart(y.newest(y.at.Index))
			}
			after := y.rebuilt()
			forgotten := slices.DeleteFunc(slices.Clone(before), func(d *job.Document) bool { _, ok := y.ledger.Document(d.ID); return ok })
			t.Logf("%d jobs, of which the ledger has forgotten %d; damaged: %s", len(before), len(forgotten), damaged)
			y.checkRebuilt(before, after)
			_, orderAfter := y.find("sort:ended", nil, 7) // the next page may come from another node
			if diff := gocmp.Diff(ids(order), ids(orderAfter)); diff != "" {
				t.Errorf("by the end (-before +after)\n%s", diff)
			}
			for range 20 {
				y.step()
			}
			y.stop()
			y.restart(y.newest(y.at.Index))
			y.rebuilt()
		})
	}
}

// TestIndex_RebuildStops disturbs an index while it is rebuilt and jobs go on: it stops, history cannot be read, files
// are damaged, the disk has little free space. What is found at last is compared with a scan.
func TestIndex_RebuildStops(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 300+seed)
			y.forgetFinished()
			for range 40 {
				y.step()
			}
			y.snapshot()
			y.stop()
			if err := os.RemoveAll(y.dir); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				y.history.set(y.randomFaults())
				y.restart(y.newest(y.at.Index))
				for range 10 + y.r.IntN(20) {
					y.step()
				}
				if y.r.IntN(3) == 0 {
					y.giveWay()
				}
				y.await("the index is up to date", func(s Status) bool { return s.Index == y.ledger.Index() })
				if y.r.IntN(2) == 0 {
					y.snapshot()
				}
				y.stop()
				if files, err := os.ReadDir(y.dir); err == nil && len(files) > 0 && y.r.IntN(2) == 0 {
					t.Logf("damaged: %s", y.damage())
				}
			}
			y.history.set(nil)
			y.restart(y.newest(y.at.Index))
			y.checkComplete()
		})
	}
}

// randomFaults returns how the next calls of history fail: all, some or none.
func (y *replica) randomFaults() []fault {
	switch y.r.IntN(3) {
	case 0:
		return slices.Repeat([]fault{callFails}, 1<<16)
	case 1:
		return y.someFaults()
	}
	return nil
}

// someFaults returns how the next calls of history fail, if they do.
func (y *replica) someFaults() (faults []fault) {
	for range y.r.IntN(20) {
		faults = append(faults, []fault{noFault, noFault, callFails, repliesNone}[y.r.IntN(4)])
	}
	return faults
}

// giveWay lets the index stop for lack of disk space, and go on after some steps.
func (y *replica) giveWay() {
	y.low.Store(true)
	y.await("the index has given way", func(s Status) bool { return strings.Contains(s.Failure, "little free space") })
	for range y.r.IntN(20) {
		y.step()
	}
	y.low.Store(false)
	y.await("the index continues", func(s Status) bool { return s.Failure == "" })
}

// TestIndex_Lacking checks that an index says until it is rebuilt that it may lack jobs which the ledger has
// forgotten.
func TestIndex_Lacking(t *testing.T) {
	y := newReplica(t, 1)
	y.forgetFinished()
	for range 60 {
		y.step()
	}
	lacking := func() string {
		found, err := y.index.FindJobs(t.Context(), &query.Query{}, ledger.JobPlace{}, 1)
		if unavailable, ok := errors.AsType[*job.UnavailableError](err); err != nil && !ok {
			t.Fatal(err)
		} else if ok && found.Lacking == nil {
			return unavailable.Reason
		}
		if found.Lacking == nil {
			return ""
		}
		return found.Lacking.Reason
	}
	y.rebuilt()
	if why := lacking(); why != "" {
		t.Errorf("a complete index: %s", why)
	}
	y.index.Sync(y.ledger.Index())
	y.snapshot()
	y.stop()
	if err := os.RemoveAll(y.dir); err != nil {
		t.Fatal(err)
	}
	y.history.set(slices.Repeat([]fault{callFails}, 1<<16))
	y.restart(y.newest(y.at.Index))
	if why := lacking(); !strings.Contains(why, "is being rebuilt: ") {
		t.Errorf("an index without files: %q", why)
	}
	y.await("the jobs of the ledger are read", func(s Status) bool { return !s.Scanning })
	if why := lacking(); !strings.Contains(why, "is being rebuilt: 0 % of the history is read") {
		t.Errorf("an index without history: %q", why)
	}
	y.history.set(nil)
	y.rebuilt()
	if why := lacking(); why != "" {
		t.Errorf("an index that was rebuilt: %s", why)
	}
}

// TestIndex_RemovalLost checks that a removed job is not found again when the record of its removal is lost, and
// its document is in a segment.
func TestIndex_RemovalLost(t *testing.T) {
	for seed := range uint64(10) { // the builder has made other segments each time
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			checkRemovalLost(t, newReplica(t, seed))
		})
	}
}

func checkRemovalLost(t *testing.T, y *replica) {
	y.ingest()
	id := y.ids[0]
	y.apply(&ledger.CancelJob{Job: id, Reason: "asked"})
	for y.index.Status().Documents+y.index.Status().Live < y.index.flushAt {
		y.ingest()
		y.index.refresh(context.Background())
	}
	y.await("the documents are in segments", func(s Status) bool { return s.Files > 0 })
	y.apply(&ledger.RemoveJob{Job: id})
	if !y.ledger.Removed(id) {
		t.Fatal("the job is not removed")
	}
	y.index.Sync(y.ledger.Index())
	y.snapshot()
	before := y.rebuilt()
	spool := y.index.spool.file.Name()
	y.stop()
	if err := os.Truncate(spool, 0); err != nil {
		t.Fatal(err)
	}
	deleted, err := filepath.Glob(filepath.Join(y.dir, "*"+deletedSuffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range deleted {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	y.restart(y.newest(y.at.Index))
	y.checkRebuilt(before, y.rebuilt())
}

// removeEnded removes some jobs that have ended, most of which have a document in a segment.
func (y *replica) removeEnded() {
	for range 5 {
		id := y.ids[y.r.IntN(len(y.ids))]
		if view, _, ok := y.ledger.Find(id); ok && view.State.Ended() {
			y.apply(&ledger.RemoveJob{Job: id})
		}
	}
}

// damage deletes or damages some files of the index, or all.
func (y *replica) damage() string {
	names, err := filepath.Glob(filepath.Join(y.dir, "*"))
	if err != nil || len(names) == 0 {
		y.t.Fatal(names, err)
	}
	switch y.r.IntN(3) {
	case 0:
		if err := os.RemoveAll(y.dir); err != nil {
			y.t.Fatal(err)
		}
		return "all"
	case 1: // the changes since the last segment
		names, _ = filepath.Glob(filepath.Join(y.dir, "spool-*"))
	}
	var damaged []string
	for range 1 + y.r.IntN(2) {
		name := names[y.r.IntN(len(names))]
		data, err := os.ReadFile(name)
		if err != nil || len(data) == 0 {
			continue
		}
		switch y.r.IntN(3) {
		case 0:
			err = os.Remove(name)
		case 1:
			err = os.Truncate(name, int64(y.r.IntN(len(data))))
		case 2:
			data[y.r.IntN(len(data))] ^= 1 << y.r.IntN(8)
			err = os.WriteFile(name, data, 0o600)
		}
		if err != nil {
			y.t.Fatal(err)
		}
		damaged = append(damaged, filepath.Base(name))
	}
	return strings.Join(damaged, " ")
}
