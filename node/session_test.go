package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// A publish that nobody can tell the end of is to be repeated, and a key that
// belongs to another queue is not.
func TestInWorkersWords(t *testing.T) {
	var away *job.UnavailableError
	if err := inWorkersWords(fmt.Errorf("%w: timeout", cluster.ErrUnknown)); !errors.As(err, &away) {
		t.Errorf("an unknown end is %v", err)
	}
	var invalid *job.InvalidError
	if err := inWorkersWords(&cluster.APIError{Code: "409", Text: "id_conflict"}); !errors.As(err, &invalid) {
		t.Errorf("a conflict is %v", err)
	}
	other := errors.New("disk")
	if err := inWorkersWords(other); err != other || inWorkersWords(nil) != nil {
		t.Errorf("another error is %v", err)
	}
}

// A job with guards is answered when it is decided on, after plain ones that
// came behind it. What a session waits for never goes back, in any lane.
func TestSession_AcceptedNeverGoesBack(t *testing.T) {
	s := new(session)
	for _, p := range []job.Position{{Lane: 0, Seq: 2}, {Lane: 1, Seq: 11}, {Lane: 1, Seq: 10}, {Lane: 2}} {
		s.accepted(p)
	}
	if len(s.wrote) != 2 || s.wrote[0] != 2 || s.wrote[1] != 11 {
		t.Fatalf("the session waits for %v", s.wrote)
	}
	f := newFolded()
	shows := func() (ok bool) {
		f.View(func(l *ledger.Ledger) { ok = foldedAll(l, map[uint8]uint64{0: 2}) })
		return ok
	}
	f.apply(&ledger.Fold{Identity: "L0", From: 0, To: 1})
	if shows() {
		t.Error("it reads before its own write is folded")
	}
	f.apply(&ledger.Fold{Identity: "L0", From: 1, To: 2})
	if !shows() {
		t.Error("it waits for what is folded")
	}
	f.View(func(l *ledger.Ledger) {
		if foldedAll(l, map[uint8]uint64{0: 2, 1: 1}) {
			t.Error("a lane that is not folded is forgotten")
		}
	})
}

// Only who shows a job's body reads it from its lane.
func TestSession_LooksReadNoBodies(t *testing.T) {
	n := alone(t, nil)
	loads := 0
	load := n.viewer.load
	n.viewer.load = func(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
		loads++
		return load(ctx, at, id)
	}
	ctx, s := t.Context(), yard{n}.Session()
	if _, err := s.AddQueue(ctx, "looks", job.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	made := make(chan job.ID, 1)
	s.Enqueue(ctx, "looks", job.Spec{Params: []byte(`{"n":1}`)}, "", func(id job.ID, err error) {
		if err != nil {
			t.Error(err)
		}
		made <- id
	})
	id := <-made
	if v, found, err := s.Look(ctx, id); err != nil || !found || v.Queue != "looks" || v.Spec != nil {
		t.Fatalf("Look: %+v, %t, %v", v, found, err)
	}
	if _, found, err := s.Look(ctx, job.ID{1}); found || err != nil {
		t.Errorf("Look at no job: %t, %v", found, err)
	}
	if _, err := s.Cancel(ctx, id, "done with"); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Await(ctx, id); err != nil || v.State != job.Failed || v.Fault == nil {
		t.Errorf("Await: %+v, %v", v, err)
	}
	if loads != 0 {
		t.Errorf("%d bodies were read by who shows none", loads)
	}
	if v, _, err := s.Job(ctx, id); err != nil || v.Spec == nil || loads != 1 {
		t.Errorf("Job: %+v, %v, %d bodies read", v, err, loads)
	}
}

// Many jobs are removed in few entries of the log.
func TestSession_ClearsManyPerEntry(t *testing.T) {
	n := alone(t, nil)
	ctx, s := t.Context(), yard{n}.Session()
	if _, err := s.AddQueue(ctx, "full", job.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	const jobs = 8*clearAtOnce + 8
	taken := make(chan error, jobs)
	for range jobs {
		s.Enqueue(ctx, "full", job.Spec{Params: []byte(`{}`)}, "", func(_ job.ID, err error) { taken <- err })
	}
	for range jobs {
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Stats(ctx, "full"); err != nil { // they are folded
		t.Fatal(err)
	}
	before, _ := n.raft.Applied()
	removed, err := s.Clear(ctx, "full", []job.State{job.Waiting})
	if err != nil || removed != jobs {
		t.Fatalf("%d removed, %v; want %d", removed, err, jobs)
	}
	after, _ := n.raft.Applied()
	if entries := after - before; entries > jobs/4 {
		t.Errorf("%d jobs took %d entries", jobs, entries)
	}
}

// An obliterate by force that runs out of time says how far it came, and can be
// asked again.
func TestSession_ObliterateRunsOutOfTime(t *testing.T) {
	n := alone(t, nil)
	ctx, s := t.Context(), yard{n}.Session()
	if _, err := s.AddQueue(ctx, "doomed", job.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	taken := make(chan job.ID, 1)
	s.Enqueue(ctx, "doomed", job.Spec{Params: []byte(`{}`)}, "", func(id job.ID, err error) {
		if err != nil {
			t.Error(err)
		}
		taken <- id
	})
	id := <-taken
	if _, err := s.Stats(ctx, "doomed"); err != nil { // it is folded
		t.Fatal(err)
	}
	place := &ledger.Place{Placements: []ledger.Placement{{Job: id, N: 1, Node: "away", Incarnation: 1, Channel: "overhop/w"}}}
	if _, err := n.commander.do(ctx, place); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Obliterate(ctx, "doomed", false); !errors.Is(err, job.ErrQueueNotEmpty) {
		t.Errorf("without force: %v", err)
	}
	if q, _, err := s.Queue(ctx, "doomed"); err != nil || q.Paused {
		t.Errorf("after a refusal the queue is %+v, %v", q, err)
	}
	if _, err := s.(*session).recallActive(ctx, "doomed", false, nil); !errors.Is(err, job.ErrQueueNotEmpty) {
		t.Errorf("resumed meanwhile: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	var away *job.UnavailableError
	if _, err := s.Obliterate(short, "doomed", true); !errors.As(err, &away) {
		t.Errorf("out of time: %v", err)
	}
	if q, found, err := s.Queue(ctx, "doomed"); err != nil || !found || !q.Paused {
		t.Errorf("out of time the queue is %+v, %v", q, err)
	}
}
