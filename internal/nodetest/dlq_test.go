package nodetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// deadJob is a dead letter as the command line shows it.
type deadJob struct {
	Letter   uint64
	ID       string
	Queue    string
	State    string
	Attempts int
	Reason   string
}

// letterDone is what became of one.
type letterDone struct {
	Letter                              uint64
	ID, Result, Job, Queue, Note, Error string
}

// lettersAt waits until a member lists so many dead letters.
func lettersAt(t *testing.T, y *nodetest.Yard, m *nodetest.Member, want int, filter ...string) (letters []deadJob) {
	t.Helper()
	y.Eventually(fmt.Sprintf("%s lists %d letters of %v", m.Name, want, filter), func() error {
		out, code := command(t, m, append([]string{"dlq", "list", "--json"}, filter...)...)
		var answer struct{ Letters []deadJob }
		if err := json.Unmarshal([]byte(out), &answer); code != 0 || err != nil {
			return fmt.Errorf("exit code %d, %q, %v", code, out, err)
		}
		if letters = answer.Letters; len(letters) != want {
			return fmt.Errorf("there are %+v", letters)
		}
		return nil
	})
	return letters
}

// dlqDoes runs a change and gives what it did, and the exit code.
func dlqDoes(t *testing.T, m *nodetest.Member, args ...string) ([]letterDone, int) {
	t.Helper()
	out, code := command(t, m, append([]string{"dlq", args[0], "--json"}, args[1:]...)...)
	var answer struct{ Items []letterDone }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("%v: %q, %v", args, out, err)
	}
	return answer.Items, code
}

// wantResults checks that so many letters came to the same end, and gives the
// jobs that live on.
func wantResults(t *testing.T, items []letterDone, n int, result string) (jobs []string) {
	t.Helper()
	for _, i := range items {
		if i.Result != result {
			t.Errorf("%+v, want %s", i, result)
		}
		jobs = append(jobs, i.Job)
	}
	if len(items) != n {
		t.Errorf("%d letters, want %d %s: %+v", len(items), n, result, items)
	}
	return jobs
}

// deadLetters: jobs fail until their worker is mended; then their letters are
// requeued from other nodes, each job once.
func deadLetters(t *testing.T, y *nodetest.Yard) {
	a, b, c := y.Members[0], y.Members[1], y.Members[2]
	a.AddQueue(t, "sick", 0)
	a.AddQueue(t, "ward", 0)
	var broken atomic.Bool
	broken.Store(true)
	work := func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if broken.Load() {
			return nil, &overhop.FailError{Message: "no luck", Type: "luck"}
		}
		return q.Payload, nil
	}
	a.Worker(t, "sick", 4, work)
	c.Worker(t, "ward", 4, work)

	large := `{"a":"` + strings.Repeat("x", 100<<10) + `"}`
	var ids []string
	for i := range 4 {
		ids = append(ids, a.Enqueue(t, "sick", fmt.Sprintf(`{"params":{"i":%d},"max_attempts":1}`, i)).String())
	}
	ids = append(ids, a.Enqueue(t, "sick", `{"params":`+large+`,"max_attempts":1}`).String())
	if _, err := a.Client().PublishJob(soon(t), "sick", "no-job", []byte("no job")); err != nil {
		t.Fatal(err)
	}
	letters := lettersAt(t, y, b, 6, "--queue", "sick")
	for _, id := range ids {
		b.WaitOutcome(t, id) // a letter may be there before this node's ledger tells of the end
	}
	for _, l := range lettersAt(t, y, b, 5, "--queue", "sick", "--error", "LUCK") {
		if l.State != "failed" || l.Attempts != 1 || l.Queue != "sick" {
			t.Errorf("%+v", l)
		}
	}
	lettersAt(t, y, b, 0, "--queue", "sick", "--older-than", "1h")
	lettersAt(t, y, b, 3, "--queue", "sick", "--newer-than", "1h", "--limit", "3")
	lettersAt(t, y, b, 1, fmt.Sprint(letters[0].Letter))

	// A dry run tells it all and does nothing.
	items, code := dlqDoes(t, c, "requeue", "--queue", "sick", "--error", "luck", "--dry-run")
	if wantResults(t, items, 5, "retried"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	lettersAt(t, y, c, 6, "--queue", "sick")

	// The attempts so far count on: one more is all there is.
	items, _ = dlqDoes(t, c, "requeue", ids[0], "--keep-attempts")
	wantResults(t, items, 1, "retried")
	y.Eventually("it fails again", func() error {
		if j := a.Job(t, ids[0]); j.State != "failed" || j.Attempts != 2 || j.Dispatches != 2 {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	lettersAt(t, y, b, 5, "--queue", "sick", "--error", "luck")

	broken.Store(false)
	// What the yard has forgotten becomes a new job; so does what goes elsewhere.
	for _, id := range []string{ids[0], ids[4]} {
		if err := b.API("job.remove", map[string]any{"id": id}, nil); err != nil {
			t.Fatal(err)
		}
	}
	items, _ = dlqDoes(t, b, "requeue", ids[0], ids[4])
	renewed := wantResults(t, items, 2, "enqueued")
	items, _ = dlqDoes(t, b, "requeue", ids[1], "--to", "ward")
	renewed = append(renewed, wantResults(t, items, 1, "enqueued")...)
	for _, id := range renewed {
		if j := c.WaitOutcome(t, id); j.State != "completed" || j.Attempts != 1 {
			t.Errorf("%+v", j)
		}
	}
	if j := c.Job(t, renewed[2]); j.Queue != "ward" || string(j.Params) != `{"i":1}` {
		t.Errorf("%+v with %s", j, j.Params)
	}
	// Whoever was retried by other means has gone on.
	if err := c.API("job.retry", map[string]any{"id": ids[2]}, nil); err != nil {
		t.Fatal(err)
	}
	c.WaitOutcome(t, ids[2]) // the other nodes may still show its former end, and its letter
	items, _ = dlqDoes(t, c, "requeue", ids[2])
	wantResults(t, items, 1, "stale")

	// All that is left: one can run, one never could.
	lettersAt(t, y, c, 2, "--queue", "sick")
	items, code = dlqDoes(t, c, "requeue", "--queue", "sick")
	items = slices.DeleteFunc(items, func(i letterDone) bool { return i.Result == "stale" }) // any copy of the stream answers, also one that lags
	if len(items) != 2 || items[0].Result == items[1].Result || code != 1 {
		t.Errorf("exit code %d, %+v", code, items)
	}
	if j := c.WaitOutcome(t, ids[3]); j.State != "completed" || j.Attempts != 1 {
		t.Errorf("%+v", j)
	}
	lettersAt(t, y, a, 1, "--queue", "sick")
	if items, code = dlqDoes(t, a, "requeue", "--queue", "sick", "--error", "luck"); len(items) != 0 || code != 0 {
		t.Errorf("a second time: exit code %d, %+v", code, items)
	}
	if err := a.Holds("sick", "completed", 4); err != nil { // two, and two anew
		t.Error(err)
	}
	if _, code := command(t, a, "dlq", "requeue", "--queue", "sick", "--to", "nowhere"); code != 1 {
		t.Errorf("to a queue that does not exist: exit code %d", code)
	}
	items, code = dlqDoes(t, b, "rm", "--queue", "sick")
	if wantResults(t, items, 1, "removed"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	lettersAt(t, y, c, 0, "--queue", "sick")
}

// askLetters: questions that are wrong in themselves, asked over NATS.
func askLetters(t *testing.T, y *nodetest.Yard) {
	a := y.Members[0]
	for _, question := range []string{`{"queu":"sick"}`, `{"limit":1001}`, `{"letters":[0.5]}`, `{"jobs":["7"]}`} {
		wantCode(t, a.API("dlq.list", question, nil), "400")
	}
	for _, verb := range []string{"dlq.requeue", "dlq.remove"} {
		wantCode(t, a.API(verb, `{}`, nil), "400")
		wantCode(t, a.API(verb, "", nil), "400")
	}
	wantCode(t, a.API("dlq.show", `{"letters":[987654321]}`, nil), "404")
	wantCode(t, a.API("dlq.requeue", `{"all":true,"to":"nowhere"}`, nil), "404")
	var stats struct {
		Count  int
		Queues map[string]int
	}
	y.Eventually("the letters that were removed are not counted", func() error {
		stats.Queues = nil
		if err := a.API("dlq.stats", "", &stats); err != nil || stats.Count < 2 || stats.Queues["garbage"] == 0 || stats.Queues["sick"] != 0 {
			return fmt.Errorf("%+v, %w", stats, err)
		}
		return nil
	})
}
