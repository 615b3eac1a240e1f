package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	n.viewer.load = func(ctx context.Context, at job.Position) ([]byte, error) {
		loads++
		return load(ctx, at)
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
