package clustertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// deadLetterRow is a dead letter as printed by the command line.
type deadLetterRow struct {
	Letter   uint64
	ID       string
	Queue    string
	State    string
	Attempts int
	Reason   string
}

// deadLetterResult is the result of a change of one dead letter.
type deadLetterResult struct {
	Letter                              uint64
	ID, Result, Job, Queue, Note, Error string
}

// waitDeadLetters waits until a member lists this number of dead letters.
func waitDeadLetters(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, want int, filter ...string) (letters []deadLetterRow) {
	t.Helper()
	cl.Eventually(fmt.Sprintf("%s lists %d letters of %v", m.Name, want, filter), func() error {
		out, code := command(t, m, append([]string{"dlq", "list", "--json"}, filter...)...)
		var answer struct{ Letters []deadLetterRow }
		if err := json.Unmarshal([]byte(out), &answer); code != 0 || err != nil {
			return fmt.Errorf("exit code %d, %q, %v", code, out, err)
		}
		if letters = answer.Letters; len(letters) != want {
			return fmt.Errorf("the dead letters are %+v", letters)
		}
		return nil
	})
	return letters
}

// runDLQ runs a "dlq" command and returns the results and the exit code.
func runDLQ(t *testing.T, m *clustertest.Member, args ...string) ([]deadLetterResult, int) {
	t.Helper()
	out, code := command(t, m, append([]string{"dlq", args[0], "--json"}, args[1:]...)...)
	var answer struct{ Items []deadLetterResult }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("%v: %q, %v", args, out, err)
	}
	return answer.Items, code
}

// wantResults checks that n dead letters have the same result, and returns the ids of
// their jobs.
func wantResults(t *testing.T, items []deadLetterResult, n int, result string) (jobs []string) {
	t.Helper()
	for _, i := range items {
		if i.Result != result {
			t.Errorf("%+v, want %s", i, result)
		}
		jobs = append(jobs, i.Job)
	}
	if len(items) != n {
		t.Errorf("%d dead letters, want %d %s: %+v", len(items), n, result, items)
	}
	return jobs
}

// deadLetters requeues the dead letters of jobs that failed, from other nodes, once their
// worker succeeds: each job must run once more.
func deadLetters(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
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
	if _, err := publishJob(t, a, "sick", "no-job", "no job"); err != nil {
		t.Fatal(err)
	}
	letters := waitDeadLetters(t, cl, b, 6, "--queue", "sick")
	for _, id := range ids {
		b.WaitOutcome(t, id) // a dead letter may exist before this node has applied the end
	}
	for _, l := range waitDeadLetters(t, cl, b, 5, "--queue", "sick", "--error", "LUCK") {
		if l.State != "failed" || l.Attempts != 1 || l.Queue != "sick" {
			t.Errorf("%+v", l)
		}
	}
	waitDeadLetters(t, cl, b, 0, "--queue", "sick", "--older-than", "1h")
	waitDeadLetters(t, cl, b, 3, "--queue", "sick", "--newer-than", "1h", "--limit", "3")
	waitDeadLetters(t, cl, b, 1, fmt.Sprint(letters[0].Letter))

	// A dry run reports the same and changes nothing.
	items, code := runDLQ(t, c, "requeue", "--queue", "sick", "--error", "luck", "--dry-run")
	if wantResults(t, items, 5, "retried"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	waitDeadLetters(t, cl, c, 6, "--queue", "sick")

	// The attempts so far are kept: one more is allowed.
	items, _ = runDLQ(t, c, "requeue", ids[0], "--keep-attempts")
	wantResults(t, items, 1, "retried")
	cl.Eventually("it fails again", func() error {
		if j := a.Job(t, ids[0]); j.State != "failed" || j.Attempts != 2 || j.Dispatches != 2 {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	waitDeadLetters(t, cl, b, 5, "--queue", "sick", "--error", "luck")

	broken.Store(false)
	// A dead letter of a forgotten job, or into another queue, becomes a new job.
	for _, id := range []string{ids[0], ids[4]} {
		if err := b.API("job.remove", map[string]any{"id": id}, nil); err != nil {
			t.Fatal(err)
		}
	}
	items, _ = runDLQ(t, b, "requeue", ids[0], ids[4])
	renewed := wantResults(t, items, 2, "enqueued")
	items, _ = runDLQ(t, b, "requeue", ids[1], "--to", "ward")
	renewed = append(renewed, wantResults(t, items, 1, "enqueued")...)
	for _, id := range renewed {
		if j := c.WaitOutcome(t, id); j.State != "completed" || j.Attempts != 1 {
			t.Errorf("%+v", j)
		}
	}
	if j := c.Job(t, renewed[2]); j.Queue != "ward" || string(j.Params) != `{"i":1}` {
		t.Errorf("%+v with %s", j, j.Params)
	}
	// A job that was retried by other means is not requeued.
	if err := c.API("job.retry", map[string]any{"id": ids[2]}, nil); err != nil {
		t.Fatal(err)
	}
	c.WaitOutcome(t, ids[2]) // other nodes may still show the previous end and dead letter
	items, _ = runDLQ(t, c, "requeue", ids[2])
	wantResults(t, items, 1, "stale")

	// Of the remaining jobs, one can run and one cannot.
	waitDeadLetters(t, cl, c, 2, "--queue", "sick")
	items, code = runDLQ(t, c, "requeue", "--queue", "sick")
	items = slices.DeleteFunc(items, func(i deadLetterResult) bool { return i.Result == "stale" }) // any replica of the stream may answer, even a lagging one
	if len(items) != 2 || items[0].Result == items[1].Result || code != 1 {
		t.Errorf("exit code %d, %+v", code, items)
	}
	if j := c.WaitOutcome(t, ids[3]); j.State != "completed" || j.Attempts != 1 {
		t.Errorf("%+v", j)
	}
	waitDeadLetters(t, cl, a, 1, "--queue", "sick")
	if items, code = runDLQ(t, a, "requeue", "--queue", "sick", "--error", "luck"); len(items) != 0 || code != 0 {
		t.Errorf("a second time: exit code %d, %+v", code, items)
	}
	if err := a.CheckCount("sick", "completed", 4); err != nil { // two requeued, and two new jobs
		t.Error(err)
	}
	if _, code := command(t, a, "dlq", "requeue", "--queue", "sick", "--to", "nowhere"); code != 3 {
		t.Errorf("to a queue that does not exist: exit code %d", code)
	}
	items, code = runDLQ(t, b, "rm", "--queue", "sick")
	if wantResults(t, items, 1, "removed"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	waitDeadLetters(t, cl, c, 0, "--queue", "sick")
}

// deadLetterErrors checks that invalid requests over NATS are refused.
func deadLetterErrors(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
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
	cl.Eventually("removed dead letters are not counted", func() error {
		stats.Queues = nil
		if err := a.API("dlq.stats", "", &stats); err != nil || stats.Count < 2 || stats.Queues["garbage"] == 0 || stats.Queues["sick"] != 0 {
			return fmt.Errorf("%+v, %w", stats, err)
		}
		return nil
	})
}
