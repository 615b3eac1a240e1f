package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestBounds_RefuseLongTexts checks that every command with a text above its limit is
// refused without a change.
func TestBounds_RefuseLongTexts(t *testing.T) {
	long := strings.Repeat("x", MaxReason+1)
	for _, c := range []Command{
		&AcquireAuthority{Owner: long}, &AcquireAuthority{LeasedUntil: long}, &RenewAuthority{LeaseID: long},
		&QueueDispatch{RequestID: long}, &QueueDispatch{RequestID: "r", Target: long},
		&QueueDispatch{RequestID: "r", Metadata: []byte(`"` + long + `"`)},
		&MarkNotified{RequestID: "r", Channel: long}, &MarkDelivered{RequestID: long},
		&MarkFailed{RequestID: "r", Reason: long}, &RequestReplay{Cursor: &long},
		&CancelJob{Reason: long}, &AddQueue{Name: long}, &ChangeQueue{Name: long}, &RemoveQueue{Name: long}, &PauseQueue{Name: long},
	} {
		l := New()
		results := l.Apply(Stamp{Index: 1, Term: 1, At: time.Unix(1, 0)}, []Command{c})
		if err := results[0].Err; err == nil || !strings.Contains(err.Error(), " bytes; at most ") || l.LastEvent() != 0 {
			t.Errorf("%T: %v, %d events", c, results[0].Err, l.LastEvent())
		}
		if TextBytes(c) < MaxReason {
			t.Errorf("%T: TextBytes is %d", c, TextBytes(c))
		}
	}
}

// TestBounds_Queues checks that the number of queues is limited, however they are
// created, that removing one permits another, and that jobs of existing queues are
// always accepted.
func TestBounds_Queues(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	apply := func(c Command) Result {
		stamp.Index++
		return l.Apply(stamp, []Command{c})[0]
	}
	for n := len(l.Queues()); ; n++ {
		if warns := l.QueuesWarning() != ""; warns != (n >= MaxQueues/10*9) {
			t.Fatalf("with %d queues: warning %q", n, l.QueuesWarning())
		}
		if err := apply(&AddQueue{ID: jobID(n), Name: fmt.Sprint("q", n)}).Err; err != nil {
			if !errors.Is(err, job.ErrTooManyQueues) || len(l.Queues()) != MaxQueues {
				t.Fatalf("queue %d: %v, with %d queues", n, err, len(l.Queues()))
			}
			break
		}
	}
	seq := uint64(0)
	ingest := func(queue string) (Ingested, job.View) {
		seq++
		j := job.Job{ID: jobID(int(seq)), Queue: queue, Position: job.Position{Seq: seq}, Accepted: scriptStart}
		r := apply(&Ingest{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{j}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		view, _, _ := l.Find(job.RecordID("L0", job.Position{Seq: seq}, scriptStart)) // of a rejected record
		return r.Ingested[0], view
	}
	if got, _ := ingest("q7"); got != IngestedWaiting {
		t.Errorf("job of an existing queue: %d", got)
	}
	got, view := ingest("another")
	if got != IngestedRejected || view.State != job.Failed || !strings.Contains(view.Reason, errTooManyQueues.Error()) {
		t.Errorf("job that would create a queue too many: %d, %s %q", got, view.State, view.Reason)
	}
	if r := apply(&RemoveQueue{Name: "q8"}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got, _ := ingest("another"); got != IngestedWaiting || len(l.Queues()) != MaxQueues {
		t.Errorf("job that creates a queue below the limit: %d, %d queues", got, len(l.Queues()))
	}
}
