package overview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// testYard is a ledger with a recorder, in its own time.
type testYard struct {
	mu       sync.Mutex
	ledger   *ledger.Ledger
	recorder *Recorder
	now      time.Time
	index    uint64
	statuses int // how often the status was asked for
}

func newTestYard(start time.Time) *testYard {
	y := &testYard{ledger: ledger.New(), recorder: NewRecorder(slog.New(slog.DiscardHandler)), now: start}
	y.ledger.RecordTransitions()
	y.apply(&ledger.Lead{Owner: "n1", Until: start.Add(24 * time.Hour)})
	y.apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	return y
}

func (y *testYard) apply(c ledger.Command) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.index++
	y.ledger.Apply(ledger.Stamp{Index: y.index, Term: 1, At: y.now, Epoch: y.ledger.Authority().Epoch}, []ledger.Command{c})
	y.recorder.Applied(y.ledger)
}

// ingest adds a job to a queue.
func (y *testYard) ingest(n byte, queue string) {
	y.apply(&ledger.Ingest{Identity: "L0", From: uint64(n) - 1, To: uint64(n), CreateQueues: true, Jobs: []job.Job{
		{ID: job.ID{n}, Queue: queue, Accepted: y.now, Position: job.Position{Seq: uint64(n)}},
	}})
}

func (y *testYard) overview() *Overview {
	return &Overview{
		Node: "n1", Recorder: y.recorder, Quorum: func() bool { return true },
		View: func(fn func(*ledger.Ledger)) {
			y.mu.Lock()
			defer y.mu.Unlock()
			fn(y.ledger)
		},
		Status: func(context.Context) (*api.Status, error) {
			y.statuses++
			return &api.Status{Members: []api.MemberStatus{{Name: "n1"}}}, nil
		},
	}
}

// TestOverview checks what an overview says of a short life, and of what it cannot know.
func TestOverview(t *testing.T) {
	start := time.Now().Add(-5 * time.Minute)
	y := newTestYard(start)
	y.ingest(1, "mail")
	y.ingest(2, "mail")
	y.now = y.now.Add(2 * time.Second)
	y.apply(&ledger.Place{Placements: []ledger.Placement{{Job: job.ID{1}, N: 1, Node: "n1", Channel: "w"}}})
	y.now = y.now.Add(4 * time.Second)
	y.apply(&ledger.Settle{Settlements: []ledger.Settlement{{Job: job.ID{1}, N: 1, Next: job.NextDead, Reason: "no", Fault: &job.Fault{Type: "smtp"}}}})
	y.apply(&ledger.PauseQueue{Name: "mail", Paused: true, Asked: ledger.Asked{By: ledger.Actor{Name: "ann", Door: ledger.DoorCLI}}})
	y.apply(&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Slots(0))}})

	o, err := y.overview().handle(t.Context(), &api.OverviewRequest{Window: "15m"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (api.OverviewCounts{Accepted: 2, Started: 1, Failed: 1}); o.Totals.OverviewCounts != want {
		t.Errorf("totals %+v, want %+v", o.Totals.OverviewCounts, want)
	}
	for what, p50 := range map[string]*float64{"wait 2000": o.Totals.Wait.P50, "run 4000": o.Totals.Run.P50} {
		var name string
		var want float64
		if _, err := fmt.Sscan(what, &name, &want); err != nil {
			t.Fatal(err)
		}
		if p50 == nil || *p50 < want*0.968 || *p50 > want*1.032 {
			t.Errorf("%s: p50 %v", what, p50)
		}
	}
	if want := []api.OverviewFailure{{Type: "smtp", Count: 1}}; !slices.Equal(o.Failures, want) {
		t.Errorf("failures %v, want %v", o.Failures, want)
	}
	mail := o.Queues[0]
	if mail.Name != "mail" || mail.State != "paused" || mail.Backlog["waiting"] != 1 || mail.Oldest == nil || mail.Oldest.ID != (job.ID{2}) || mail.Totals.Accepted != 2 {
		t.Errorf("queue %+v", mail)
	}
	if len(o.Limits) != 1 || o.Limits[0].Name != "stripe" {
		t.Errorf("limits %+v", o.Limits)
	}
	if len(o.Timeline) != 2 || o.Timeline[0].Action != "queue.pause" || o.Timeline[0].Actor != "ann" || o.Timeline[1].Target != "n1" {
		t.Errorf("timeline %+v", o.Timeline)
	}
	// The ledger's time is five minutes behind: what happened since then is not known.
	accepted := o.Points.Accepted
	if n := len(accepted); n != 90 || accepted[n-1] != nil || accepted[0] != nil {
		t.Errorf("%d points, the first %v, the last %v; want 90, unknown, unknown", n, accepted[0], accepted[n-1])
	}
	if o.AsOf.Index != y.index || !o.AsOf.At.Equal(y.now) {
		t.Errorf("as of %+v, want %d at %v", o.AsOf, y.index, y.now)
	}
}

// TestOverview_Cache checks that callers share an answer.
func TestOverview_Cache(t *testing.T) {
	y := newTestYard(time.Now())
	o := y.overview()
	var callers sync.WaitGroup
	answers := make([]*api.Overview, 20)
	for i := range answers {
		callers.Go(func() { answers[i], _ = o.handle(t.Context(), &api.OverviewRequest{Window: "24h"}) })
	}
	callers.Wait()
	if i := slices.IndexFunc(answers, func(a *api.Overview) bool { return a != answers[0] }); i >= 0 || answers[0] == nil {
		t.Errorf("caller %d has an answer of its own", i)
	}
	if y.statuses != 1 {
		t.Errorf("the status was asked for %d times", y.statuses)
	}
	for i := range 2 * maxAnswers {
		if _, err := o.handle(t.Context(), &api.OverviewRequest{Queue: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.cache) > maxAnswers {
		t.Errorf("%d answers are kept", len(o.cache))
	}
}

func TestOverview_Window(t *testing.T) {
	for _, window := range []string{"90s", "25h", "-1h", "0s", "x", "<script>"} {
		_, err := newTestYard(time.Now()).overview().handle(t.Context(), &api.OverviewRequest{Window: window})
		if _, ok := errors.AsType[*job.InvalidError](err); !ok {
			t.Errorf("window %s: %v, want an error about it", window, err)
		}
	}
}

// TestRecorder_Restored checks that a recorder continues with a state, and starts again without one
// that it can read.
func TestRecorder_Restored(t *testing.T) {
	y := newTestYard(time.Now())
	y.ingest(1, "mail")
	encode := y.recorder.Snapshot()
	l := y.ledger
	for what, state := range map[string][]byte{"its state": encode(), "none": nil, "damaged": encode()[1:]} {
		r := NewRecorder(slog.New(slog.DiscardHandler))
		r.Restored(l, state)
		v := r.clone().Read(time.Hour, "", y.now)
		accepted, want := v.Total.Counts[0], uint64(0)
		if what == "its state" {
			want = 1
		}
		if v.Index != l.Index() || accepted != want {
			t.Errorf("%s: at %d, %d accepted; want %d, %d", what, v.Index, accepted, l.Index(), want)
		}
	}
}
