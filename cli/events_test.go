package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"

	"github.com/google/go-cmp/cmp"
)

const (
	jobA = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"
	jobB = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a11"
)

var history = strings.Join([]string{
	`{"event":"AuthorityAcquired","owner":"n1","lease_id":"n1-1","leased_until":"2026-01-02T03:04:15.000Z","seq":1,"at":"2026-01-02T03:04:05.000Z"}`,
	`{"event":"DispatchQueued","request_id":"` + jobA + `#1","target":"mail","seq":2,"at":"2026-01-02T03:04:06.000Z"}`,
	`{"event":"DispatchQueued","request_id":"` + jobB + `#1","target":"rrq/demo","seq":3,"at":"2026-01-02T03:04:07.000Z"}`,
	`{"event":"worker.assigned","worker":"overhop/w1","task_id":"mail:` + jobA + `","seq":4,"at":"2026-01-02T03:04:07.000Z"}`,
	`{"event":"DispatchNotified","request_id":"` + jobA + `#1","channel":"overhop/w1","seq":5,"at":"2026-01-02T03:04:08.000Z"}`,
	`{"event":"DispatchFailed","request_id":"` + jobB + `#1","reason":"no route","seq":6,"at":"2026-01-02T03:04:09.000Z"}`,
	`{"event":"DispatchQueued","request_id":"own","target":"mail","metadata":{"a":1},"seq":7,"at":"2026-01-02T03:04:09.500Z"}`,
	`{"event":"ReplayRequested","cursor":"0@1","seq":8,"at":"2026-01-02T03:04:10.000Z"}`,
	"",
}, "\n")

func TestEventFilter(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    eventFilter
		want []uint64
		asks int
	}{
		{"all", eventFilter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 8}, 0},
		{"since", eventFilter{since: time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC)}, []uint64{6, 7, 8}, 0},
		{"type", eventFilter{event: "dispatchqueued"}, []uint64{2, 3, 7}, 0},
		{"dotted type", eventFilter{event: plainName("worker.assigned")}, []uint64{4}, 0},
		{"job", eventFilter{job: jobA}, []uint64{2, 4, 5}, 0},
		{"queue told by its events", eventFilter{queue: "mail"}, []uint64{2, 4, 5}, 1},
		{"queue asked for", eventFilter{queue: "slow"}, []uint64{3, 6}, 1},
	} {
		asks := 0
		tt.f.queues = map[string]string{}
		tt.f.queueOf = func(_ context.Context, id string) (string, error) {
			asks++
			if id != jobB {
				t.Errorf("%s: asked for %s", tt.name, id)
			}
			return "slow", nil
		}
		var got []uint64
		err := tt.f.tale(t.Context(), []byte(history), func(_ []byte, e *eventLine) error {
			got = append(got, e.Number)
			return nil
		})
		if err != nil || asks != tt.asks {
			t.Errorf("%s: %v after %d questions", tt.name, err, asks)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestEvents(t *testing.T) {
	f := startFake(t, answers{})
	layout := cluster.Layout{Create: true, Identities: []string{""}}
	if _, err := f.c.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if got := f.run(t, "events", "--since", "0"); got.code != 0 || got.out != "" {
		t.Fatalf("no events yet: %+v", got)
	}
	tale := cluster.Tale{Subject: cluster.SubjectHistory, First: 1, Count: 8, Body: []byte(history)}
	if _, err := f.c.Append(t.Context(), cluster.StreamEvents, tale, cluster.NoExpectation); err != nil {
		t.Fatal(err)
	}
	golden(t, "events.txt", f.run(t, "events", "--since", "0").out)
	got := f.run(t, "events", "--since", "0", "--type", "Dispatch_Failed", "--json")
	if got.code != 0 || strings.Count(got.out, "\n") != 1 {
		t.Errorf("one event as JSON: %+v", got)
	}
	sameJSON(t, got.out, strings.Split(history, "\n")[5])
}
