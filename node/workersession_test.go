package node

import (
	"context"
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Only requests that return a job's body read it from its lane.
func TestWorkerSession_LookReadsNoBody(t *testing.T) {
	n := startSingleNode(t, nil)
	loads := 0
	load := n.viewer.Record
	n.viewer.Record = func(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
		loads++
		return load(ctx, at, id)
	}
	ctx, s := t.Context(), n.workers.Session("w1")
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
	if v, found, err := s.Peek(ctx, id); err != nil || !found || v.Queue != "looks" || v.Spec != nil {
		t.Fatalf("Peek: %+v, %t, %v", v, found, err)
	}
	if _, found, err := s.Peek(ctx, job.ID{1}); found || err != nil {
		t.Errorf("Peek at an unknown job: %t, %v", found, err)
	}
	if _, err := s.Cancel(ctx, id, "done with"); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Await(ctx, id); err != nil || v.State != job.Failed || v.Fault == nil {
		t.Errorf("Await: %+v, %v", v, err)
	}
	if loads != 0 {
		t.Errorf("%d bodies were read by requests that return none", loads)
	}
	if v, _, err := s.Job(ctx, id); err != nil || v.Spec == nil || loads != 1 {
		t.Errorf("Job: %+v, %v, %d bodies read", v, err, loads)
	}
}

// Clear removes many jobs in few entries of the log.
func TestWorkerSession_ClearBatchesEntries(t *testing.T) {
	n := startSingleNode(t, nil)
	ctx, s := t.Context(), n.workers.Session("w1")
	if _, err := s.AddQueue(ctx, "full", job.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	const jobs = 264
	taken := make(chan error, jobs)
	for range jobs {
		s.Enqueue(ctx, "full", job.Spec{Params: []byte(`{}`)}, "", func(_ job.ID, err error) { taken <- err })
	}
	for range jobs {
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Stats(ctx, "full"); err != nil { // waits until they are ingested
		t.Fatal(err)
	}
	before, _ := n.raft.Applied()
	removed, err := s.Clear(ctx, "full", []job.State{job.Waiting})
	if err != nil || removed != jobs {
		t.Fatalf("%d removed, %v; want %d", removed, err, jobs)
	}
	after, _ := n.raft.Applied()
	if entries := after - before; entries > jobs/4 {
		t.Errorf("removing %d jobs took %d entries", jobs, entries)
	}
}

// A forced Obliterate whose context ends leaves the queue paused, and can be repeated.
func TestWorkerSession_ObliterateTimeout(t *testing.T) {
	n := startSingleNode(t, nil)
	ctx, s := t.Context(), n.workers.Session("w1")
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
	if _, err := s.Stats(ctx, "doomed"); err != nil { // waits until it is ingested
		t.Fatal(err)
	}
	place := &ledger.Place{Placements: []ledger.Placement{{Job: id, N: 1, Node: "away", Incarnation: 1, Channel: "overhop/w"}}}
	if _, err := n.proposer.Propose(ctx, place); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Obliterate(ctx, "doomed", false); !errors.Is(err, job.ErrQueueNotEmpty) {
		t.Errorf("without force: %v", err)
	}
	if q, _, err := s.Queue(ctx, "doomed"); err != nil || q.Paused {
		t.Errorf("after the rejection the queue is %+v, %v", q, err)
	}
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Obliterate(short, "doomed", true)
		ended <- err
	}()
	paused := func() bool {
		q, found, err := s.Queue(ctx, "doomed")
		return err == nil && found && q.Paused
	}
	waitUntil(t, "the queue is paused", paused)
	cancel()
	var away *job.UnavailableError
	if err := <-ended; !errors.As(err, &away) {
		t.Errorf("ended with %v", err)
	}
	if !paused() {
		t.Error("the queue was resumed or removed")
	}
}
