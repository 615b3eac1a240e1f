package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// told makes a tale of events: "Queued#1" of the job, or of another job.
func told(seq uint64, id job.ID, events ...string) cluster.Tale {
	t := cluster.Tale{Seq: seq}
	for i, e := range events {
		name, dispatch, mine := strings.Cut(e, "#")
		about := fmt.Sprintf(`"request_id":"%s#%s"`, id, dispatch)
		switch {
		case !mine:
			about = `"request_id":"00000000-0000-0000-0000-0000000000ff#1"`
		case dispatch == "":
			about = fmt.Sprintf(`"task_id":"mail:%s"`, id)
		}
		t.Body = fmt.Appendf(t.Body, `{"event":"%s",%s,"seq":%d}`+"\n", name, about, seq*100+uint64(i))
	}
	return t
}

// pages gives tales one at a time, as a stream would whose n-th message was
// stored n seconds after testNow.
func pages(tales []cluster.Tale, failing error) (since func(context.Context, time.Time, int) ([]cluster.Tale, error), from func(context.Context, uint64, int) ([]cluster.Tale, error)) {
	from = func(_ context.Context, seq uint64, _ int) ([]cluster.Tale, error) {
		for i := range tales {
			if tales[i].Seq >= seq {
				return tales[i : i+1], nil
			}
		}
		return nil, failing
	}
	since = func(ctx context.Context, at time.Time, most int) ([]cluster.Tale, error) {
		return from(ctx, uint64(max(0, at.Add(pastEarly).Sub(testNow)/time.Second)), most)
	}
	return since, from
}

func TestReader(t *testing.T) {
	id := job.ID{7}
	first := told(1, id, "DispatchQueued#1", "Other", "DispatchNotified#1", "worker.assigned#")
	big := told(2, id, "Other")
	big.Body = append(big.Body, make([]byte, pastBytes)...)
	last := told(9, id, "DispatchFailed#1", "DispatchQueued#2", "DispatchNotified#2", "worker.assigned#", "DispatchDelivered#2")
	for _, c := range []struct {
		name     string
		tales    []cluster.Tale
		failing  error
		last     pastEvent
		untold   []string
		want     int
		complete bool
		note     string
	}{
		{"all", []cluster.Tale{first, told(2, id, "Other"), last}, nil, pastEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 8, true, ""},
		{"up to where it runs", []cluster.Tale{first}, nil, pastEvent{Event: "worker.assigned", Dispatch: 1}, nil, 3, true, ""},
		{"much between", []cluster.Tale{first, big, told(3, id, "Other"), last}, nil, pastEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 8, true, ""},
		{"missing between", []cluster.Tale{first, big, told(3, id, "DispatchFailed#1"), told(9, id, "DispatchQueued#2", "DispatchNotified#2", "DispatchDelivered#2")}, nil,
			pastEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 6, false, "too much history"},
		{"the beginning is gone", []cluster.Tale{told(9, id, "DispatchQueued#2", "DispatchDelivered#2")}, nil, pastEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 2, false, "no longer kept"},
		{"the end is not told", []cluster.Tale{first}, nil, pastEvent{Event: "DispatchDelivered", Dispatch: 1}, nil, 3, false, "not published yet"},
		{"the end is in the outbox", []cluster.Tale{first}, nil, pastEvent{Event: "DispatchDelivered", Dispatch: 1},
			[]string{"worker.assigned#", "DispatchDelivered#1"}, 5, true, ""},
		{"unreadable", []cluster.Tale{first}, errors.New("nobody answers"), pastEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 3, false, "nobody answers"},
	} {
		r := &reader{id: id.Append(nil), last: c.last}
		r.since, r.from = pages(c.tales, c.failing)
		if c.untold != nil {
			untold := told(50, id, c.untold...)
			for line := range strings.Lines(string(untold.Body)) {
				r.take([]byte(strings.TrimSuffix(line, "\n")))
			}
		}
		ended := r.end
		r.end = false
		r.read(t.Context(), []time.Time{testNow, testNow.Add(9 * time.Second)})
		r.end = r.end || ended
		p := r.past(true)
		if len(p.Events) != c.want || p.Complete != c.complete || !strings.Contains(p.Note, c.note) || (p.Note == "") != (c.note == "") {
			t.Errorf("%s: %d events, complete %t, %q: %s", c.name, len(p.Events), p.Complete, p.Note, p.Events)
		}
	}
}

func TestLastOf(t *testing.T) {
	for state, want := range map[job.State]string{
		job.Waiting: "DispatchQueued", job.Delayed: "DispatchFailed", job.Active: "worker.assigned",
		job.Completed: "DispatchDelivered", job.Failed: "DispatchFailed",
	} {
		if got := lastOf(&ledger.Plight{View: job.View{State: state, Dispatches: 3}}); got.Event != want || got.Dispatch != 3 {
			t.Errorf("%s: %+v", state, got)
		}
	}
}
