package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
)

// No caller's text beyond its bound reaches the state, whichever command
// carries it.
func TestBounds_RefuseLongTexts(t *testing.T) {
	long := strings.Repeat("x", MaxReason+1)
	for _, c := range []Command{
		&AcquireAuthority{Owner: long}, &AcquireAuthority{LeasedUntil: long}, &RenewAuthority{LeaseID: long},
		&QueueDispatch{RequestID: long}, &QueueDispatch{RequestID: "r", Target: long},
		&QueueDispatch{RequestID: "r", Metadata: []byte(`"` + long + `"`)},
		&MarkNotified{RequestID: "r", Channel: long}, &MarkDelivered{RequestID: long},
		&MarkFailed{RequestID: "r", Reason: long}, &RequestReplay{Cursor: &long},
		&CancelJob{Reason: long}, &AddQueue{Name: long}, &RemoveQueue{Name: long}, &PauseQueue{Name: long},
	} {
		l := New()
		results := l.Apply(Stamp{Index: 1, Term: 1, At: time.Unix(1, 0)}, []Command{c})
		var tooLong *TooLongError
		if !errors.As(results[0].Err, &tooLong) || l.LastEvent() != 0 {
			t.Errorf("%T: %v, %d events", c, results[0].Err, l.LastEvent())
		}
		if TextBytes(c) < MaxReason {
			t.Errorf("%T is counted with %d bytes", c, TextBytes(c))
		}
	}
}

// A yard has only so many queues, whichever way they come; one that goes makes
// room, and jobs of those that are there are taken all the time.
func TestBounds_Queues(t *testing.T) {
	l, stamp := led(t)
	apply := func(c Command) Result {
		stamp.Index++
		return l.Apply(stamp, []Command{c})[0]
	}
	for n := 0; ; n++ {
		if err := apply(&AddQueue{ID: jobID(n), Name: fmt.Sprint("q", n)}).Err; err != nil {
			if !errors.Is(err, job.ErrTooManyQueues) || len(l.Queues()) != MaxQueues {
				t.Fatalf("queue %d: %v, %d are there", n, err, len(l.Queues()))
			}
			break
		}
	}
	seq := uint64(0)
	fold := func(queue string) (Folded, job.View) {
		seq++
		j := job.Job{ID: jobID(int(seq)), Queue: queue, Position: job.Position{Seq: seq}, Accepted: scriptStart}
		r := apply(&Fold{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{j}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		view, _, _ := l.Find(job.RecordID("L0", seq, scriptStart)) // of a rejected record
		return r.Folded[0], view
	}
	if got, _ := fold("q7"); got != FoldedWaiting {
		t.Errorf("a job of a queue that is there: %d", got)
	}
	got, view := fold("another")
	if got != FoldedRejected || view.State != job.Failed || !strings.Contains(view.Reason, errQueuesFull.Error()) {
		t.Errorf("a job that would make a queue: %d, %s %q", got, view.State, view.Reason)
	}
	if r := apply(&RemoveQueue{Name: "q8"}); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got, _ := fold("another"); got != FoldedWaiting || len(l.Queues()) != MaxQueues {
		t.Errorf("a job that makes a queue where there is room: %d, %d queues", got, len(l.Queues()))
	}
}
