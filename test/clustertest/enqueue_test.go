package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

func shortContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// echo is a handler that returns the payload.
func echo(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { return q.Payload, nil }

// command runs a command line against a member.
func command(t *testing.T, m *clustertest.Member, args ...string) (stdout string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	args = append(args, "--server", m.Node().Addresses().NATS)
	code = cli.Run(shortContext(t), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, cli.Program{Version: "v0.0.0-test"})
	if code != 0 {
		t.Logf("%v: exit code %d: %s", args, code, errs.String())
	}
	return out.String(), code
}

// overhopID returns the id in "<queue>:<id>".
func overhopID(t *testing.T, jid string) string {
	t.Helper()
	_, id, ok := strings.Cut(jid, ":")
	if !ok {
		t.Fatalf("jid %q has no queue", jid)
	}
	return id
}

func enqueueTransports(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "ways", 0)
	c.Worker(t, "ways", 4, echo)

	if dup, err := publishJob(t, a, "ways", "way-a", `{"params":{"way":"a"}}`); err != nil || dup {
		t.Fatal(dup, err)
	}
	ids := map[string]string{"a": "way-a"}
	ids["b"] = b.Enqueue(t, "ways", `{"id":"way-b","params":{"way":"b"}}`).String()

	out, code := command(t, c, "enqueue", "ways", "--params", `{"way":"c"}`, "--id", "way-c", "--json")
	var accepted struct{ ID string }
	if err := json.Unmarshal([]byte(out), &accepted); code != 0 || err != nil {
		t.Fatal(out, err)
	}
	ids["c"] = accepted.ID

	jid, err := a.Overhop(t, overhop.Options{}).Enqueue(shortContext(t), overhop.Enqueue{
		Queue: "ways", Key: "way-d", Payload: overhop.AppendValue(nil, overhop.Fields{"way": "d"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ids["d"] = overhopID(t, jid)

	for way, id := range ids {
		for _, m := range cl.Members {
			j := m.WaitOutcome(t, id)
			if want := `{"way":"` + way + `"}`; j.State != "completed" || string(j.Result) != want || j.Attempts != 1 {
				t.Errorf("%s, shown by %s: %+v with result %s, want %s", way, m.Name, j, j.Result, want)
			}
		}
	}
	// The same keys over another transport make no new jobs.
	for way := range ids {
		var again struct {
			ID        string
			Duplicate bool
		}
		if err := c.Request("yard.enqueue.ways", `{"id":"way-`+way+`","params":{"way":"again"}}`, &again); err != nil || !again.Duplicate {
			t.Errorf("way-%s a second time: %+v, %v", way, again, err)
		}
	}
	var q api.Queue
	if err := a.API("queue.show", map[string]any{"name": "ways"}, &q); err != nil || q.Counts["completed"] != 4 {
		t.Errorf("%+v, %v", q, err)
	}
}

func lookups(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	const own = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	byKey := a.Enqueue(t, "found", `{"id":"order 7/é","params":{}}`)
	byUUID := a.Enqueue(t, "found", `{"id":"`+strings.ToUpper(own)+`","params":{}}`)
	if want, _ := job.KeyID("found", "order 7/é"); byKey != want || byUUID.String() != own {
		t.Errorf("ids are %s and %s", byKey, byUUID)
	}
	for name, id := range map[string]job.ID{
		"order 7/é": byKey, "found:order 7/é": byKey, byKey.String(): byKey, "found:" + byKey.String(): byKey,
		own: byUUID, "found:" + strings.ToUpper(own): byUUID,
	} {
		var j api.Job
		cl.Eventually("job "+name+" is found", func() error { return b.API("job.show", map[string]any{"id": name}, &j) })
		if j.ID != id || j.State != "waiting" {
			t.Errorf("%q shows %+v", name, j)
		}
	}
	for _, name := range []string{"order 8", "nowhere:order 7/é", "0190c3d2-5b1e-7cc0-98c4-000000000000"} {
		wantCode(t, b.API("job.show", map[string]any{"id": name}, nil), "404")
	}
	wantCode(t, b.API("job.show", map[string]any{}, nil), "400")
	// The same key in another queue makes another job.
	other := b.Enqueue(t, "found-too", `{"id":"order 7/é","params":{}}`)
	if j := a.Job(t, other.String()); other == byKey || j.Queue != "found-too" {
		t.Errorf("%s in another queue: %+v", other, j)
	}
	a.Job(t, byKey.String())
	wantCode(t, a.API("job.show", map[string]any{"id": "order 7/é"}, nil), "400") // which of the two?
	if err := a.API("job.show", map[string]any{"id": "order 7/é", "queue": "found"}, nil); err != nil {
		t.Error(err)
	}
	// An id belongs to one queue.
	wantCode(t, b.Request("yard.enqueue.elsewhere", `{"id":"`+own+`","params":{}}`, nil), "409")
}

// wantCode checks that err is a refusal with this code.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("refused with %v, want code %s", err, code)
	}
}

func readYourWrites(t *testing.T, cl *clustertest.Cluster) {
	ctx := shortContext(t)
	for _, m := range cl.Members {
		c := m.Overhop(t, overhop.Options{})
		queue := "ryw-" + m.Name
		if _, err := c.AddQueue(ctx, overhop.AddQueue{Name: queue}); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			jid, err := c.Enqueue(ctx, overhop.Enqueue{Queue: queue, Payload: overhop.AppendValue(nil, overhop.Fields{"i": i})})
			if err != nil {
				t.Fatal(err)
			}
			record, err := c.Job(ctx, jid)
			if got, _ := record.Get("jid").Str(); err != nil || got != jid {
				t.Fatalf("job %d on %s is not shown right after its acceptance: %q, %v", i, m.Name, got, err)
			}
		}
		if q := m.Queue(t, queue); q.Counts["waiting"] != 20 {
			t.Errorf("%+v", q)
		}
	}
}

func priorities(t *testing.T, cl *clustertest.Cluster) {
	m := cl.Members[0]
	m.AddQueue(t, "prio", 0)
	order := []int{5, 0, 9, 3, 9, 7, 0}
	for i, p := range order {
		m.Enqueue(t, "prio", fmt.Sprintf(`{"params":{"i":%d},"priority":%d}`, i, p))
	}
	cl.Eventually("all wait", func() error { return m.CheckCount("prio", "waiting", len(order)) })
	ran := make(chan int64, len(order))
	m.Worker(t, "prio", 1, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		i, _ := q.Payload.Get("i").Int()
		ran <- i
		return nil, nil
	})
	for _, want := range []int64{2, 4, 5, 0, 3, 1, 6} {
		if got := <-ran; got != want {
			t.Errorf("job %d started, want %d", got, want)
		}
	}
}

func delayed(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "later", 0)
	a.Worker(t, "later", 1, echo)
	due := time.Now().Add(1500 * time.Millisecond)
	id := b.Enqueue(t, "later", `{"params":{},"run_at":"`+due.Format(time.RFC3339Nano)+`"}`).String()
	if j := a.WaitState(t, id, "delayed"); !j.RunAt.Equal(due.Truncate(0)) && j.RunAt.Sub(due).Abs() > time.Millisecond {
		t.Errorf("due %s, shown as %s", due, j.RunAt)
	}
	j := b.WaitOutcome(t, id)
	if late := j.Started.Sub(due); late < 0 || late > time.Second {
		t.Errorf("started %s after its time", late)
	}
}

func largeBody(t *testing.T, cl *clustertest.Cluster) {
	m := cl.Members[1]
	m.AddQueue(t, "large", 0)
	textSize := func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		text, _ := q.Payload.Get("text").Text()
		return overhop.AppendInt(nil, int64(len(text))), nil
	}
	cl.Members[2].Worker(t, "large", 1, textSize)
	for _, size := range []int{60 << 10, 70 << 10, 900 << 10} {
		id := m.Enqueue(t, "large", `{"params":{"text":"`+strings.Repeat("x", size)+`"}}`).String()
		if j := m.WaitOutcome(t, id); j.State != "completed" || string(j.Result) != fmt.Sprint(size) {
			t.Errorf("body of %d bytes: %s, result %s, %s", size, j.State, j.Result, j.Reason)
		}
	}
	// 5 MiB over Overhop. The worker comes after the record has been read, because the body
	// is freed when the job has ended.
	m.AddQueue(t, "larger", 0)
	c := m.Overhop(t, overhop.Options{})
	jid, err := c.Enqueue(shortContext(t), overhop.Enqueue{Queue: "larger", Payload: overhop.AppendValue(nil, overhop.Fields{"text": strings.Repeat("y", 5<<20)})})
	if err != nil {
		t.Fatal(err)
	}
	record, err := c.Job(shortContext(t), jid)
	if text, _ := record.Get("payload").Get("text").Text(); err != nil || len(text) != 5<<20 {
		t.Errorf("Overhop shows %d bytes, %v", len(text), err)
	}
	cl.Members[2].Worker(t, "larger", 1, textSize)
	if j := m.WaitOutcome(t, overhopID(t, jid)); j.State != "completed" || string(j.Result) != fmt.Sprint(5<<20) || j.PayloadBytes < 5<<20 {
		t.Errorf("body of 5 MiB: %s, result %s, %s, %d bytes", j.State, j.Result, j.Reason, j.PayloadBytes)
	}
}
