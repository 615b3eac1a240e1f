package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// storeBody stores a body for the record with an id, as a node does before it publishes
// the record, and returns the record's text with the fields in spec.
func (h *harness) storeBody(id, spec string) (name, record string) {
	name = fmt.Sprintf("%s.%s-%d", id, time.Now().UTC().Format("20060102T150405Z"), time.Now().UnixNano())
	h.lanes.set(func() {
		if h.lanes.bodies == nil {
			h.lanes.bodies = map[string]StoredBody{}
		}
		owner, _ := job.ParseID(id)
		h.lanes.bodies[name] = StoredBody{Name: name, Owner: owner, Stored: time.Now()}
	})
	blob, _ := json.Marshal(job.Blob{Name: name, Chunks: 1, Size: 100_000, SHA256: strings.Repeat("0", 64)})
	return name, fmt.Sprintf(`{"blob":%s%s}`, blob, spec)
}

// enqueueLarge enqueues a job with a large body and returns its id and the body's name.
func (h *harness) enqueueLarge(spec string) (id job.ID, name string) {
	key := uuid.NewString()
	name, record := h.storeBody(key, spec)
	return h.enqueue("mail", key, record), name
}

// wantBody fails the test if a body is stored although it should not be, or the reverse.
func (h *harness) wantBody(when, name string, want bool) {
	h.t.Helper()
	h.lanes.set(func() {
		if _, stored := h.lanes.bodies[name]; stored != want {
			h.t.Errorf("%s the body is stored: %t, want %t", when, stored, want)
		}
	})
}

// TestBodies_FreedWithJob checks that a large body is kept as long as its job may be
// started, and freed at once when the job has completed or was removed or cancelled.
func TestBodies_FreedWithJob(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id, name := h.enqueueLarge("")
		h.advance(time.Hour)
		h.wantBody("while the job waits", name, true)
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the job's end", name, false)

		id, name = h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(time.Hour)
		h.wantBody("while the job is delayed", name, true)
		h.propose(&ledger.RemoveJob{Job: id})
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the job's removal", name, false)

		id, name = h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(bodySweepInterval)
		h.propose(&ledger.CancelJob{Job: id})
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the job's cancellation", name, false)
	})
}

// TestBodies_KeptForDeadLetter checks that the body of a failed job is kept while its dead
// letter is stored, also if the ledger no longer has the job.
func TestBodies_KeptForDeadLetter(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id, name := h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(bodySweepInterval)
		h.lanes.set(func() { h.lanes.letters = map[job.ID]bool{id: true} })
		h.propose(&ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"})
		h.advance(time.Hour)
		h.wantBody("while the ledger has the failed job", name, true)
		if letters := h.streams.published(2); len(letters) != 1 || letters[0].BlobOwner != id {
			t.Errorf("dead letters %+v, want one that names the owner of its body", letters)
		}
		h.propose(&ledger.RemoveJob{Job: id})
		h.advance(time.Hour)
		h.wantBody("while the dead letter is stored", name, true)
		h.lanes.set(func() { h.lanes.letters = nil })
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the dead letter's removal", name, false)
	})
}

// TestBodies_UnpublishedDeadLetter checks that a body is kept for a dead letter that is
// not published yet, when the ledger has no other use for it.
func TestBodies_UnpublishedDeadLetter(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id, name := h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(bodySweepInterval)
		h.streams.set(func() { h.streams.down = true })
		h.propose(&ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"})
		h.propose(&ledger.RemoveJob{Job: id})
		h.advance(time.Hour)
		h.wantBody("before the dead letter is published", name, true)
	})
}

// TestBodies_Orphans checks that a body whose record was never stored is removed after
// a while, but not while a lane holds records that are not ingested.
func TestBodies_Orphans(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		orphan, _ := h.storeBody(uuid.NewString(), "")
		h.advance(bodyGrace - time.Minute)
		h.wantBody("shortly after it was stored", orphan, true)
		h.advance(2 * time.Minute)
		h.wantBody("after the time for its record", orphan, false)

		key := uuid.NewString()
		name, record := h.storeBody(key, "")
		h.lanes.set(func() { h.lanes.readsFail = true })
		h.lanes.store(0, "mail", key, record)
		h.advance(2 * bodyGrace)
		h.wantBody("while its record is not ingested", name, true)
		h.lanes.set(func() { h.lanes.readsFail = false })
		h.advance(2 * bodyGrace)
		h.wantBody("after its record was ingested", name, true)
	})
}

// TestBodies_WrongClock checks that a body is kept for a record that is stored later, if the clock of
// the node that stored the body was behind, or the authority's was set forward since then.
func TestBodies_WrongClock(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		key := uuid.NewString()
		name, record := h.storeBody(key, `,"delay_ms":86400000`)
		h.lanes.set(func() {
			body := h.lanes.bodies[name]
			body.Stored = time.Now().Add(-2 * time.Hour)
			h.lanes.bodies[name] = body
		})
		h.advance(time.Minute)
		h.wantBody("before its record is stored", name, true)
		h.enqueue("mail", key, record)
		h.advance(2 * bodyGrace)
		h.wantBody("while the job is delayed", name, true)
	})
}

// TestBodies_Debounced checks that a job whose content a later record has replaced keeps
// that record's body, and the replaced body is freed.
func TestBodies_Debounced(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		const guard = `,"debounce_key":"k","debounce_ms":7200000`
		h.keepFinished()
		id, replaced := h.enqueueLarge(guard)
		h.advance(time.Second)
		_, name := h.enqueueLarge(guard)
		h.advance(bodyGrace + time.Minute)
		h.wantBody("after the debounce", replaced, false)
		h.wantBody("while the job is delayed", name, true)
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.advance(2 * time.Hour)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(bodyGrace)
		h.wantBody("after the job's end", name, false)
	})
}

// TestBodies_RemovalRepeated checks that a body is freed by a later sweep, also under
// another authority, if the first removal failed.
func TestBodies_RemovalRepeated(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		id, name := h.enqueueLarge("")
		h.lanes.set(func() { h.lanes.removeErr = errors.New("no leader") })
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(2 * bodySweepInterval)
		h.wantBody("after a failed removal", name, true)
		h.end()
		h.lanes.set(func() { h.lanes.removeErr = nil })
		h.begin()
		h.advance(2 * bodySweepInterval)
		h.wantBody("under the next authority", name, false)
	})
}

// TestBodies_SlowRemoval checks that the next sweep follows soon after one whose removals
// took long: the space of bodies must be freed as fast as jobs end.
func TestBodies_SlowRemoval(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.lanes.set(func() { h.lanes.removeTime = 3 * time.Second })
		for range 2 {
			id, name := h.enqueueLarge("")
			h.until("it ran", func() bool { return h.state(id) == job.Completed })
			h.advance(6 * time.Second)
			h.wantBody("6 s after the job's end", name, false)
		}
	})
}

// TestBodies_HeldByBackup checks that nothing is removed while a backup holds it.
func TestBodies_HeldByBackup(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.propose(&ledger.Hold{Holder: "backup", Until: time.Now().Add(time.Hour)})
		id, name := h.enqueueLarge("")
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(time.Minute)
		h.wantBody("while a backup runs", name, true)
		h.propose(&ledger.Hold{Holder: "backup"})
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the backup", name, false)
	})
}
