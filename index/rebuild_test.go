package index

import (
	"context"
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
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// memoryHistory is the history and the dead letters of a replica.
type memoryHistory struct {
	mu       sync.Mutex
	messages []Message
	letters  map[uint64]*api.DeadLetterMessage
	err      error // of the next call
}

func (h *memoryHistory) failed() error {
	err := h.err
	h.err = nil
	return err
}

func (h *memoryHistory) LastMessage(_ context.Context, number uint64) (seq uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.messages {
		if m.First <= number {
			seq = m.Seq
		}
	}
	return seq, h.failed()
}

func (h *memoryHistory) Messages(_ context.Context, from uint64, limit int) ([]Message, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.messages, from, func(m Message, seq uint64) int { return int(m.Seq) - int(seq) })
	rest := h.messages[i:]
	return slices.Clone(rest[:min(limit, len(rest), 5)]), h.failed() // a read may have less than the limit
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

// rebuilt blocks until the index has all of the ledger and of history.
func (y *replica) rebuilt() {
	y.t.Helper()
	y.apply() // publishes the events before it
	y.await("the index is rebuilt", func(s Status) bool {
		return s.Index == y.ledger.Index() && s.Failure == "" && !s.Scanning && s.Rebuilt == 1
	})
}

// lossy returns documents without what history does not have: of an error that has left no dead letter
// its code, and of times what is less than a millisecond.
func lossy(docs []*job.Document) []*job.Document {
	all := make([]*job.Document, len(docs))
	for i, d := range docs {
		c := *d
		c.Started, c.Ended = c.Started.Truncate(time.Millisecond), c.Ended.Truncate(time.Millisecond)
		if c.Fault != nil && (c.State != job.Failed || c.DeadLetter == 0) {
			fault := *c.Fault
			fault.Code = ""
			c.Fault = &fault
		}
		all[i] = &c
	}
	return all
}

// checkRebuilt compares all documents with those that the index had, but for what history does not have.
func (y *replica) checkRebuilt(before []*job.Document) {
	y.t.Helper()
	_, after := y.find("", nil, 100)
	if diff := gocmp.Diff(lossy(before), lossy(after), cmpopts.EquateEmpty()); diff != "" {
		y.t.Fatalf("(-before +after)\n%s", diff)
	}
}

// TestIndex_Rebuild deletes the directory of an index, or damages files, and compares the documents of
// all jobs, most of which the ledger has forgotten, before and after.
func TestIndex_Rebuild(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 100+seed)
			for range 60 {
				y.step()
			}
			y.index.Sync(y.ledger.Index())
			y.snapshot()
			y.rebuilt()
			_, before := y.find("", nil, 100)
			y.stop()
			damaged := y.damage()
			y.restart(y.newest(y.at.Index))
			y.rebuilt()
			t.Logf("%d jobs, %d in the ledger; damaged: %s", len(before), len(y.ledger.Queues()), damaged)
			y.checkRebuilt(before)
			for range 20 {
				y.step()
			}
			y.stop()
			y.restart(y.newest(y.at.Index))
			y.rebuilt()
		})
	}
}

// damage deletes or damages some files of the index, or all.
func (y *replica) damage() string {
	names, err := filepath.Glob(filepath.Join(y.dir, "*"))
	if err != nil || len(names) == 0 {
		y.t.Fatal(names, err)
	}
	if y.r.IntN(3) == 0 {
		if err := os.RemoveAll(y.dir); err != nil {
			y.t.Fatal(err)
		}
		return "all"
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
