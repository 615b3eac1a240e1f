package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func (l *fakeLanes) BodySpace(context.Context) (used, limit uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, body := range l.bodies {
		used += body.Size
	}
	return used, l.maxBodies, l.down
}

func (l *fakeLanes) RemoveDeadLettersOf(_ context.Context, owner job.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.letters, owner)
	return nil
}

func (l *fakeLanes) ApplyRetention(_ context.Context, settings job.Retention) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retention = settings
	l.applications++
	return l.retentionErr
}

func (l *fakeLanes) EvictDeadLetters(_ context.Context, queue string, before time.Time, keep int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evictions = append(l.evictions, eviction{queue, before, keep})
	return nil
}

// eviction is a call of EvictDeadLetters.
type eviction struct {
	queue  string
	before time.Time
	keep   int64
}

// setting returns a retention setting.
func setting(kept job.Kept, bound job.Bound, value int64) job.RetentionSetting {
	return job.RetentionSetting{Key: job.RetentionKey{Kept: kept, Bound: bound}, Value: value}
}

// TestRetention_Applied checks that the settings of the configuration and of operators are
// applied to the streams soon, that a failure is a warning, and that the dead letters of a
// queue with a setting of its own are evicted.
func TestRetention_Applied(t *testing.T) {
	declared := job.Retention{setting(job.KeptEvents, job.BoundAge, int64(time.Hour))}
	runHarness(t, 1, func(h *harness) {
		applied := func() (r job.Retention) {
			h.lanes.set(func() { r = h.lanes.retention })
			return r
		}
		h.until("the file's settings are applied", func() bool { return slices.Equal(applied(), declared) })
		set := setting(job.KeptFailed, job.BoundCount, 7)
		h.propose(&ledger.SetRetention{Settings: []job.RetentionSetting{set}})
		h.advance(time.Second)
		if want := (job.Retention{set, declared[0]}); !slices.Equal(applied(), want) {
			t.Errorf("applied %v, want %v", applied(), want)
		}
		applications := func() (n int) {
			h.lanes.set(func() { n = h.lanes.applications })
			return n
		}
		n := applications()
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{AllowOverrides: new(true)}})
		h.advance(time.Second)
		if applications() != n {
			t.Error("settings are applied because of queues that have none")
		}
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{Retention: []job.RetentionSetting{
			setting(job.KeptFailed, job.BoundAge, int64(time.Hour)), setting(job.KeptFailed, job.BoundCount, 3),
		}}})
		h.advance(time.Second)
		h.lanes.set(func() {
			if n := len(h.lanes.evictions); n == 0 {
				t.Error("no dead letters of the queue are evicted")
			} else if e := h.lanes.evictions[n-1]; e.queue != "mail" || e.keep != 3 || e.before.After(h.ledgerNow().Add(-time.Hour)) || e.before.Before(h.ledgerNow().Add(-time.Hour-time.Minute)) {
				t.Errorf("evicted %+v", e)
			}
			h.lanes.retentionErr = errors.New("insufficient storage")
		})
		h.advance(2 * retentionInterval)
		status, err := h.sched.Status(h.ctx)
		if err != nil || len(status.Reasons) > 0 || len(status.Warnings) != 1 || !strings.Contains(status.Warnings[0], "insufficient storage") {
			t.Errorf("status %+v, %v", status, err)
		}
		before := status.RetentionIndex
		h.propose(&ledger.SetRetention{Settings: []job.RetentionSetting{set}})
		h.advance(time.Second)
		if status, _ := h.sched.Status(h.ctx); status.RetentionIndex <= before || status.RetentionProblem != "insufficient storage" {
			t.Errorf("settings of index %d, later %d: problem %q", before, status.RetentionIndex, status.RetentionProblem)
		}
		h.lanes.set(func() { h.lanes.retentionErr = nil })
		h.advance(2 * retentionInterval)
		if status, _ := h.sched.Status(h.ctx); len(status.Warnings) > 0 || status.RetentionProblem != "" {
			t.Errorf("warnings %q, problem %q", status.Warnings, status.RetentionProblem)
		}
	}, func(c *Config) { c.Retention = declared })
}

// TestRetention_PrunesIdle checks that records of finished jobs are removed while nothing
// else happens.
func TestRetention_PrunesIdle(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		id := h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.propose(&ledger.SetRetention{Settings: []job.RetentionSetting{setting(job.KeptFinished, job.BoundAge, int64(time.Minute))}})
		h.advance(59 * time.Second)
		if _, known := h.find(id); !known {
			t.Error("the record is removed before its time")
		}
		h.advance(6 * time.Second)
		if _, known := h.find(id); known {
			t.Error("the record is kept beyond its time")
		}
	})
}

// TestBodies_LetterEvicted checks that a failed job whose dead letter is evicted does not
// keep its large body, and that it cannot be retried without the body.
func TestBodies_LetterEvicted(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id, name := h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(bodySweepInterval)
		h.lanes.set(func() { h.lanes.letters = map[job.ID]bool{id: true} })
		h.propose(&ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"})
		h.advance(time.Minute)
		h.wantBody("while its letter is stored", name, true)
		h.lanes.set(func() { h.lanes.letters = nil })
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the eviction of its letter", name, false)
		if r := h.propose(&ledger.RetryJob{Job: id}); !errors.Is(r.Err, job.ErrRecordReclaimed) {
			t.Errorf("retry without the body: %v", r.Err)
		}
	})
}

// TestBodies_RetriedDuringSweep checks that the body of a failed job is kept if the job is
// retried after its letter was evicted and before the body is removed.
func TestBodies_RetriedDuringSweep(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		id, name := h.enqueueLarge(`,"delay_ms":86400000`)
		h.advance(bodySweepInterval)
		h.lanes.set(func() { h.lanes.letters = map[job.ID]bool{id: true} })
		h.propose(&ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"})
		h.advance(2 * bodySweepInterval)
		h.lanes.set(func() {
			h.lanes.letters = nil
			h.lanes.onLetters = func() { // the ledger was read
				h.propose(&ledger.RetryJob{Job: id})
			}
		})
		h.advance(2 * bodySweepInterval)
		h.wantBody("after the retry", name, true)
		if h.state(id) != job.Waiting {
			t.Errorf("the job is %v", h.state(id))
		}
	})
}

// TestBodies_LettersMakeSpace checks that the oldest dead letters with large bodies are
// evicted, with the bodies, while more than half of the stream of large bodies is used, and
// only as many as necessary.
func TestBodies_LettersMakeSpace(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		letters := map[job.ID]bool{}
		var names []string
		for range 10 {
			id, name := h.enqueueLarge(`,"delay_ms":86400000`)
			h.lanes.set(func() {
				body := h.lanes.bodies[name]
				body.Size = 100
				h.lanes.bodies[name] = body
			})
			names = append(names, name)
			h.lanes.set(func() {
				letters[id] = true
				h.lanes.letters = letters
			})
			h.advance(2 * bodySweepInterval)
			h.propose(&ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"})
		}
		h.lanes.set(func() { h.lanes.maxBodies = 2000 })
		h.advance(time.Minute)
		for _, name := range names {
			h.wantBody("half full", name, true)
		}
		refused, _ := h.storeBody(uuid.NewString(), "") // its job was refused afterwards
		h.lanes.set(func() {
			body := h.lanes.bodies[refused]
			body.Size = 900
			h.lanes.bodies[refused] = body
		})
		h.advance(time.Minute)
		for _, name := range names {
			h.wantBody("mostly full of a body without a job", name, true)
		}
		h.advance(bodyGrace)
		h.wantBody("after the grace", refused, false)
		h.lanes.set(func() { h.lanes.maxBodies = 1000 })
		h.advance(time.Minute)
		for i, name := range names {
			h.wantBody("full", name, i >= 5)
		}
	})
}
