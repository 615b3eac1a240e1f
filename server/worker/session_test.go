package worker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// An unknown result of a publish is unavailable, so it can be retried, and a conflicting key
// is invalid.
func TestWorkerError(t *testing.T) {
	var away *job.UnavailableError
	if err := workerError(fmt.Errorf("%w: timeout", streams.ErrUnknown)); !errors.As(err, &away) {
		t.Errorf("an unknown result became %v", err)
	}
	var invalid *job.InvalidError
	if err := workerError(&api.Error{Code: api.CodeConflict, Text: "id_conflict"}); !errors.As(err, &invalid) {
		t.Errorf("a conflict became %v", err)
	}
	other := errors.New("disk")
	if err := workerError(other); err != other || workerError(nil) != nil {
		t.Errorf("another error became %v", err)
	}
}

// A job with guards may be answered after later jobs. The positions that a session waits for
// never decrease, in any lane.
func TestSession_AcceptedIsMonotonic(t *testing.T) {
	s := new(session)
	for _, p := range []job.Position{{Lane: 0, Seq: 2}, {Lane: 1, Seq: 11}, {Lane: 1, Seq: 10}, {Lane: 2}} {
		s.noteAccepted(p)
	}
	if len(s.written) != 2 || s.written[0] != 2 || s.written[1] != 11 {
		t.Fatalf("the session waits for %v", s.written)
	}
	l, stamp := ledger.New(), ledger.Stamp{Index: 1, Term: 1, At: time.Now()}
	l.Apply(stamp, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}})
	stamp.Epoch = l.Authority().Epoch
	apply := func(c ledger.Command) {
		stamp.Index++
		l.Apply(stamp, []ledger.Command{c})
	}
	apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	apply(&ledger.Ingest{Identity: "L0", From: 0, To: 1})
	if ingestedAll(l, map[uint8]uint64{0: 2}) {
		t.Error("a read does not wait for the session's own write")
	}
	apply(&ledger.Ingest{Identity: "L0", From: 1, To: 2})
	if !ingestedAll(l, map[uint8]uint64{0: 2}) {
		t.Error("a read still waits for what is ingested")
	}
	if ingestedAll(l, map[uint8]uint64{0: 2, 1: 1}) {
		t.Error("a lane that is not ingested is ignored")
	}
}

// viewOf is a ledger that does not change.
type viewOf struct{ *ledger.Ledger }

func (v viewOf) View(fn func(*ledger.Ledger))       { fn(v.Ledger) }
func (v viewOf) Applied() (uint64, <-chan struct{}) { return v.Index(), nil }

// Without force, active jobs are not recalled when another client has resumed the queue.
func TestSession_RecallActiveResumed(t *testing.T) {
	l, stamp := ledger.New(), ledger.Stamp{Index: 1, Term: 1, At: time.Now()}
	l.Apply(stamp, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}})
	stamp.Epoch = l.Authority().Epoch
	for _, c := range []ledger.Command{
		&ledger.Bootstrap{Lanes: []string{"L0"}},
		&ledger.Ingest{Identity: "L0", To: 1, CreateQueues: true, Jobs: []job.Job{{ID: job.ID{1}, Queue: "doomed", Position: job.Position{Seq: 1}, Accepted: time.Now()}}},
		&ledger.Place{Placements: []ledger.Placement{{Job: job.ID{1}, N: 1, Node: "away", Incarnation: 1, Channel: "overhop/w"}}},
	} {
		stamp.Index++
		l.Apply(stamp, []ledger.Command{c})
	}
	s := &session{c: &Cluster{Ledger: viewOf{l}}}
	if n, err := s.recallActive(t.Context(), "doomed", false, nil); n != 1 || !errors.Is(err, job.ErrQueueNotEmpty) {
		t.Errorf("%d active jobs, %v", n, err)
	}
}

// For Overhop's clients a cancelled job has failed with an error of the type cancelled,
// however its last dispatch ended. Failed jobs are shown as they are.
func TestOverhopView(t *testing.T) {
	for _, test := range []struct {
		name string
		view job.View
		want string // type and message of the error
	}{
		{"cancelled before it ran", job.View{State: job.Cancelled, Reason: "cancelled"}, "cancelled: cancelled"},
		{"lost while it was stopped", job.View{State: job.Cancelled, Fault: &job.Fault{Type: job.FaultLost, Message: "its worker is gone"}}, "cancelled: its worker is gone"},
		{"timed out while it was stopped", job.View{State: job.Cancelled, Fault: &job.Fault{Type: job.FaultTimeout, Message: "late"}}, "cancelled: late"},
		{"failed", job.View{State: job.Failed, Fault: &job.Fault{Type: job.FaultTimeout, Message: "late"}}, "timeout: late"},
	} {
		t.Run(test.name, func(t *testing.T) {
			shown := overhopView(test.view)
			if got := shown.Fault.Type + ": " + shown.Fault.Message; shown.State != job.Failed || got != test.want {
				t.Errorf("shown as %s, %s; want failed, %s", shown.State, got, test.want)
			}
			if f := test.view.Fault; f != nil && f == shown.Fault && test.view.State == job.Cancelled {
				t.Error("the fault of the view, which others may read, was changed")
			}
		})
	}
	if view := overhopView(job.View{State: job.Completed}); view.State != job.Completed || view.Fault != nil {
		t.Errorf("a completed job is shown as %+v", view)
	}
}
