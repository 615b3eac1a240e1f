package clustertest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// replayed is the answer to a replay of a job.
type replayed struct {
	ID        string
	Queue     string
	Duplicate bool
	ReplayOf  string `json:"replay_of"`
}

func replay(t *testing.T, m *clustertest.Member, question map[string]any) (r replayed) {
	t.Helper()
	if err := m.API("job.replay", question, &r); err != nil {
		t.Fatalf("replay %v: %v", question, err)
	}
	return r
}

// replays checks that an ended job can be replayed at any node, with the body in its lane
// or its dead letter.
func replays(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "replayed", 0)
	a.AddQueue(t, "elsewhere", 0)
	work := func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if q.Function == "bad" {
			return nil, &overhop.FailError{Message: "no luck"}
		}
		return q.Payload, nil
	}
	b.Worker(t, "replayed", 4, work)
	c.Worker(t, "elsewhere", 4, work)
	done := a.Enqueue(t, "replayed", `{"id":"first","function":"good","params":{"n":1},"unique_key":"replayed","timeout_ms":7000}`).String()
	a.WaitOutcome(t, done)

	r := replay(t, b, map[string]any{"id": "first", "queue": "replayed", "new_id": "second"})
	if r.Duplicate || r.ReplayOf != done || r.Queue != "replayed" || r.ID == done {
		t.Errorf("%+v", r)
	}
	if j := c.WaitOutcome(t, r.ID); j.State != "completed" || string(j.Params) != `{"n":1}` || j.Function != "good" {
		t.Errorf("%+v with %s", j, j.Params)
	}
	if again := replay(t, c, map[string]any{"id": done, "new_id": "second"}); again.ID != r.ID || !again.Duplicate {
		t.Errorf("%+v, want %s again", again, r.ID)
	}
	r = replay(t, c, map[string]any{"id": done, "to": "elsewhere", "params": map[string]any{"n": 2}})
	if j := a.WaitOutcome(t, r.ID); j.Queue != "elsewhere" || string(j.Params) != `{"n":2}` {
		t.Errorf("%+v with %s", j, j.Params)
	}

	failed := a.Enqueue(t, "replayed", `{"function":"bad","params":{"n":3},"max_attempts":1}`).String()
	a.WaitOutcome(t, failed)
	waitDeadLetters(t, cl, b, 1, failed)
	if err := a.API("job.remove", map[string]any{"id": failed}, nil); err != nil {
		t.Fatal(err)
	}
	r = replay(t, b, map[string]any{"id": failed}) // although the cluster has forgotten the job
	if j := c.WaitOutcome(t, r.ID); j.State != "failed" || j.Function != "bad" || j.Attempts != 1 {
		t.Errorf("%+v", j)
	}

	a.AddQueue(t, "idle", 0)
	waits := a.Enqueue(t, "idle", `{"function":"good"}`)
	wantCode(t, b.API("job.replay", map[string]any{"id": waits}, nil), "409")
	for code, question := range map[string]string{
		"404": fmt.Sprintf(`{"id":%q}`, job.ID{1}),
		"400": fmt.Sprintf(`{"id":%q,"parms":{}}`, failed),
	} {
		wantCode(t, b.API("job.replay", question, nil), code)
	}
	wantCode(t, b.API("job.replay", map[string]any{"id": r.ID, "new_id": r.ID}, nil), "400")
	wantCode(t, b.API("job.replay", map[string]any{"id": r.ID, "to": "nowhere"}, nil), "404")
	wantCode(t, b.API("job.replay", `{}`, nil), "400")
}
