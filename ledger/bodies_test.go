package ledger

import (
	"bytes"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestNeedsBody checks that a body is needed from the job's ingest until it has
// completed, also by a ledger that was restored from a snapshot.
func TestNeedsBody(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	ingest, place, settle := ingestBatch(0, 1, "")
	owner := job.ID{9}
	ingest.Jobs[0].BlobOwner = owner
	for _, step := range []struct {
		command Command
		want    bool
	}{{&Observe{}, false}, {ingest, true}, {place, true}, {settle, false}} {
		l.Apply(stamp, []Command{step.command})
		stamp.Index++
		var snapshot bytes.Buffer
		if err := l.Encode(&snapshot); err != nil {
			t.Fatal(err)
		}
		restored, err := Decode(&snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.NeedsBody(owner); got != step.want || restored.NeedsBody(owner) != got {
			t.Errorf("after %T: needed %t, and %t after a restart; want %t", step.command, got, restored.NeedsBody(owner), step.want)
		}
	}
}

// TestSettle_KeepsResultSize checks that the size of a result is known also when the
// result is not, and after a restart.
func TestSettle_KeepsResultSize(t *testing.T) {
	for name, settlement := range map[string]Settlement{
		"inline":  {Result: job.Value{Data: []byte("12345678")}},
		"blob":    {Blob: &job.Blob{Size: 8}},
		"dropped": {Dropped: &job.DroppedResult{Size: 8, Reason: "too large"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, stamp := ledgerWithAuthority(t)
			ingest, place, settle := ingestBatch(0, 1, "")
			id := ingest.Jobs[0].ID
			done := &settle.Settlements[0]
			done.Result, done.Blob, done.Dropped = settlement.Result, settlement.Blob, settlement.Dropped
			for _, c := range []Command{ingest, place, settle} {
				l.Apply(stamp, []Command{c})
				stamp.Index++
			}
			var snapshot bytes.Buffer
			if err := l.Encode(&snapshot); err != nil {
				t.Fatal(err)
			}
			restored, err := Decode(&snapshot)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range []*Ledger{l, restored} {
				view, number, _ := l.Find(id)
				item, _ := l.FindResult(number)
				if view.State != job.Completed || view.ResultSize != 8 || item == nil {
					t.Fatalf("job %+v, result %+v", view, item)
				}
				if dropped := item.Dropped; (dropped != nil) != (settlement.Dropped != nil) || dropped != nil && *dropped != *settlement.Dropped {
					t.Errorf("dropped %+v, want %+v", dropped, settlement.Dropped)
				}
			}
		})
	}
}

// TestBootstrap_Generation checks that the ledger records the newest generation of
// streams that was created.
func TestBootstrap_Generation(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	for _, step := range []struct {
		command Bootstrap
		want    uint8
	}{
		{Bootstrap{}, 0},
		{Bootstrap{StreamsCreated: true}, 1},
		{Bootstrap{StreamsCreated: true, Generation: 2}, 2},
		{Bootstrap{StreamsCreated: true}, 2},
	} {
		l.Apply(stamp, []Command{&step.command})
		stamp.Index++
		if got := l.Streams(); got != step.want {
			t.Errorf("after %+v: generation %d, want %d", step.command, got, step.want)
		}
	}
}
