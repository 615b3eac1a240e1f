package diagnose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// historyBatch returns a batch of events: "Queued#1" is about the job, others are not.
func historyBatch(seq uint64, id job.ID, events ...string) streams.Batch {
	t := streams.Batch{Seq: seq}
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

// pages returns functions that read batches one at a time, like a stream whose n-th message
// was stored n seconds after testNow.
func pages(batches []streams.Batch, failing error) (since func(context.Context, time.Time, int) ([]streams.Batch, error), from func(context.Context, uint64, int) ([]streams.Batch, error)) {
	from = func(_ context.Context, seq uint64, _ int) ([]streams.Batch, error) {
		for i := range batches {
			if batches[i].Seq >= seq {
				return batches[i : i+1], nil
			}
		}
		return nil, failing
	}
	since = func(ctx context.Context, at time.Time, most int) ([]streams.Batch, error) {
		return from(ctx, uint64(max(0, at.Add(historySlack).Sub(testNow)/time.Second)), most)
	}
	return since, from
}

func TestHistoryReader(t *testing.T) {
	id := job.ID{7}
	first := historyBatch(1, id, "DispatchQueued#1", "Other", "DispatchNotified#1", "worker.assigned#")
	big := historyBatch(2, id, "Other")
	big.Body = append(big.Body, make([]byte, historyMaxBytes)...)
	compact := streams.Batch{Seq: 5, Body: []byte(`{"seq":500,"at":"2026-11-26T02:24:27.972Z"}
["qna","BwAAAAAAAAAAAAAAAAAAAA","mail","send","overhop/w1"]
["d","CAAAAAAAAAAAAAAAAAAAAA",0]
["d",0,0]
`)}
	last := historyBatch(9, id, "DispatchFailed#1", "DispatchQueued#2", "DispatchNotified#2", "worker.assigned#", "DispatchDelivered#2")
	for _, c := range []struct {
		name     string
		tales    []streams.Batch
		failing  error
		last     historyEvent
		untold   []string
		want     int
		complete bool
		note     string
	}{
		{"all", []streams.Batch{first, historyBatch(2, id, "Other"), last}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 8, true, ""},
		{"compact", []streams.Batch{compact}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 1}, nil, 4, true, ""},
		{"compact of a newer build", []streams.Batch{{Seq: 5, Body: bytes.ReplaceAll(compact.Body, []byte(`"d",0`), []byte(`"z",0`))}}, nil,
			historyEvent{Event: "DispatchDelivered", Dispatch: 1}, nil, 0, false, "newer build"},
		{"up to where it runs", []streams.Batch{first}, nil, historyEvent{Event: "worker.assigned", Dispatch: 1}, nil, 3, true, ""},
		{"much between", []streams.Batch{first, big, historyBatch(3, id, "Other"), last}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 8, true, ""},
		{"missing between", []streams.Batch{first, big, historyBatch(3, id, "DispatchFailed#1"), historyBatch(9, id, "DispatchQueued#2", "DispatchNotified#2", "DispatchDelivered#2")}, nil,
			historyEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 6, false, "too much history"},
		{"the beginning is gone", []streams.Batch{historyBatch(9, id, "DispatchQueued#2", "DispatchDelivered#2")}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 2, false, "no longer kept"},
		{"the end is not told", []streams.Batch{first}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 1}, nil, 3, false, "not published yet"},
		{"the end is in the outbox", []streams.Batch{first}, nil, historyEvent{Event: "DispatchDelivered", Dispatch: 1},
			[]string{"worker.assigned#", "DispatchDelivered#1"}, 5, true, ""},
		{"unreadable", []streams.Batch{first}, errors.New("nobody answers"), historyEvent{Event: "DispatchDelivered", Dispatch: 2}, nil, 3, false, "nobody answers"},
	} {
		r := &historyReader{id: id, lastEvent: c.last}
		r.readSince, r.readFrom = pages(c.tales, c.failing)
		if c.untold != nil {
			untold := historyBatch(50, id, c.untold...)
			for line := range strings.Lines(string(untold.Body)) {
				r.addLine([]byte(strings.TrimSuffix(line, "\n")))
			}
		}
		ended := r.ended
		r.ended = false
		r.read(t.Context(), []time.Time{testNow, testNow.Add(9 * time.Second)})
		r.ended = r.ended || ended
		p := r.history(true)
		if len(p.Events) != c.want || p.Complete != c.complete || !strings.Contains(p.Note, c.note) || (p.Note == "") != (c.note == "") {
			t.Errorf("%s: %d events, complete %t, %q: %s", c.name, len(p.Events), p.Complete, p.Note, p.Events)
		}
	}
}

func TestLastEventOf(t *testing.T) {
	for state, want := range map[job.State]string{
		job.Waiting: "DispatchQueued", job.Delayed: "DispatchFailed", job.Active: "worker.assigned",
		job.Completed: "DispatchDelivered", job.Failed: "DispatchFailed", job.Cancelled: "DispatchFailed",
	} {
		if got := lastEventOf(&ledger.JobDiagnosis{View: job.View{State: state, Dispatches: 3}}); got.Event != want || got.Dispatch != 3 {
			t.Errorf("%s: %+v", state, got)
		}
	}
}
