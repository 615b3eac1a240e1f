package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// callReply is the answer to a call.
type callReply struct {
	ID        job.ID
	Queue     string
	State     string
	Duplicate bool
	Attempts  uint32
	Result    json.RawMessage
	Error     *job.Fault
}

func calls(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "calls", 0)
	a.AddQueue(t, "nobody", 0)
	c.Worker(t, "calls", 8, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if fn := q.Function; fn == "fail" {
			return nil, &overhop.FailError{Message: "no luck", Type: "luck", Final: true}
		}
		return q.Payload, nil
	})

	// The same call is the same job at any node, also after it has ended.
	for i, m := range []*clustertest.Member{a, b, b, c} {
		var got callReply
		if i > 0 { // wait until its ledger has the first call
			m.WaitState(t, "calls:call-1", "completed")
		}
		if err := m.Request("yard.call.calls", `{"id":"call-1","params":{"n":1}}`, &got); err != nil {
			t.Fatal(err)
		}
		if got.State != "completed" || string(got.Result) != `{"n":1}` || got.Attempts != 1 || got.Queue != "calls" || got.Duplicate != (i > 0) {
			t.Errorf("call %d: %+v with %s", i, got, got.Result)
		}
	}
	// So is a call with a unique key in use.
	var first, second callReply
	if err := a.Request("yard.call.calls", `{"params":{"n":2},"unique_key":"calls-2"}`, &first); err != nil {
		t.Fatal(err)
	}
	if err := b.Request("yard.call.calls", `{"params":{"n":3},"unique_key":"calls-2"}`, &second); err != nil {
		t.Fatal(err)
	}
	if second.ID != first.ID || !second.Duplicate || string(second.Result) != `{"n":2}` {
		t.Errorf("%+v, then %+v with %s", first, second, second.Result)
	}
	// A failed job is an answer, not an error.
	var failed callReply
	if err := b.Request("yard.call.calls", `{"function":"fail"}`, &failed); err != nil {
		t.Fatal(err)
	}
	if failed.State != "failed" || failed.Error == nil || failed.Error.Message != "no luck" || failed.Error.Type != "luck" {
		t.Errorf("%+v with %+v", failed, failed.Error)
	}

	// A call that times out is answered with the job's id.
	var late *api.Error
	var known struct{ ID job.ID }
	err := a.Request("yard.call.nobody", `{"params":{"n":4},"wait_ms":1}`, nil)
	if !errors.As(err, &late) || late.Code != "408" || json.Unmarshal(late.Data, &known) != nil || !strings.Contains(late.Text, known.ID.String()) {
		t.Fatalf("%v with %+v", err, late)
	}
	b.WaitState(t, known.ID.String(), "waiting")
	b.Worker(t, "nobody", 1, echo)
	if j := c.WaitOutcome(t, known.ID.String()); string(j.Result) != `{"n":4}` {
		t.Errorf("%+v", j)
	}
	for _, bad := range []string{`{"params":{},"wait_ms":0}`, `{"params":{},"wait_ms":600001}`, `{"params":[]}`, `{`, ``, `{"params":{},"wait_ms":"1"}`} {
		wantCode(t, a.Request("yard.call.calls", bad, nil), "400")
	}
	wantCode(t, a.Request("yard.call._calls", `{"params":{}}`, nil), "400")
}

// bulkReply is the answer to a bulk enqueue.
type bulkReply struct {
	Refused int
	Jobs    []struct {
		ID        job.ID
		Queue     string
		Duplicate bool
		Error     *struct{ Code, Message string }
	}
}

func bulk(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "bulk", 0)
	a.AddQueue(t, "bulk-too", 0)
	const jobs = `{"queue":"bulk","jobs":[{"id":"bulk-1","params":{}},{"id":"bulk-2","queue":"bulk-too","params":{}},{"priority":5},7,{"params":{},"priority":99},{"queue":"_x","params":{}},{"params":{}}]}`
	for turn, m := range []*clustertest.Member{a, b} {
		var got bulkReply
		if err := m.API("job.bulk", jobs, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Jobs) != 7 || got.Refused != 4 {
			t.Fatalf("%+v", got)
		}
		for i, want := range []string{"bulk", "bulk-too", "names nothing to do", "not valid JSON", "priority is 99", "queue name", "bulk"} {
			item := got.Jobs[i]
			if item.Error != nil && (item.Error.Code != "400" || !strings.Contains(item.Error.Message, want)) || item.Error == nil && item.Queue != want {
				t.Errorf("item %d: %+v with %+v, want %s", i, item, item.Error, want)
			}
			if again := turn == 1 && i < 2; item.Duplicate != again {
				t.Errorf("item %d, turn %d: %+v", i, turn, item)
			}
		}
		cl.Eventually("the jobs are there", func() error {
			return errors.Join(b.CheckCount("bulk", "waiting", 2+turn), b.CheckCount("bulk-too", "waiting", 1))
		})
	}
	for _, bad := range []string{`{"jobs":[]}`, ``, `[]`, `{"queue":"bulk","jobs":[` + strings.Repeat(`{},`, 1000) + `{}]}`} {
		wantCode(t, a.API("job.bulk", bad, nil), "400")
	}
	var got bulkReply
	if err := a.API("job.bulk", `{"jobs":[{"params":{}}]}`, &got); err != nil || got.Refused != 1 || !strings.Contains(got.Jobs[0].Error.Message, "names no queue") {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestProducersOverFailover stops the authority while calls and bulks are running at the
// other members: each must be answered, and each job must run once.
func TestProducersOverFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	const callers, bulks, each = 12, 3, 50
	cl := clustertest.Start(t, 3, testConfig)
	cl.Members[0].AddQueue(t, "over", 0)
	old := cl.WaitAuthority()
	var others []*clustertest.Member
	for _, m := range cl.Members {
		if m != old {
			others = append(others, m)
		}
	}
	var done callCounter
	for _, m := range others {
		w := &overhop.Worker{}
		w.Handle("over", 8, done.handle)
		m.RunWorker(t, w)
	}
	var producers sync.WaitGroup
	stopped := make(chan struct{})
	going := func() bool {
		select {
		case <-stopped:
			return false
		default:
			return true
		}
	}
	var total atomic.Int64
	for i := range callers {
		producers.Go(func() {
			for n := 0; n < 5 || going(); n++ {
				callDuringFailover(t, cl, others[i%2], fmt.Sprintf("call-%d-%d", i, n))
				total.Add(1)
			}
		})
	}
	for i := range bulks {
		producers.Go(func() {
			for n := 0; n < 5 || going(); n++ {
				bulkDuringFailover(t, cl, others[i%2], fmt.Sprintf("bulk-%d-%d", i, n), each)
				total.Add(each)
			}
		})
	}
	const lines = 4000
	producers.Go(func() {
		bulkLines(t, others[1], lines)
		total.Add(lines)
	})
	old.Stop()
	close(stopped)
	producers.Wait()
	cl.WaitAuthority(old)
	want := int(total.Load())
	cl.Eventually("all have run", func() error { return others[0].CheckCount("over", "completed", want) })
	if done.jobs() != want {
		t.Errorf("%d jobs ran, want %d", done.jobs(), want)
	}
	t.Logf("%d jobs", want)
}

// callDuringFailover repeats a call until it is answered.
func callDuringFailover(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, key string) {
	want, err := job.KeyID("over", key)
	if err != nil {
		t.Error(err)
	}
	cl.Eventually(key+" is answered", func() error {
		var got callReply
		if err := m.Request("yard.call.over", `{"id":"`+key+`","params":{},"wait_ms":5000}`, &got); err != nil {
			return err
		}
		if got.ID != want || got.State != "completed" {
			t.Errorf("%s: %+v", key, got)
		}
		return nil
	})
}

// bulkLines enqueues lines without ids with the command line, which repeats requests if
// necessary.
func bulkLines(t *testing.T, m *clustertest.Member, n int) {
	var out, errs bytes.Buffer
	in := strings.NewReader(strings.Repeat("{\"params\":{}}\n", n))
	args := []string{"enqueue", "over", "--bulk", "-", "--server", m.Node().Addresses().NATS}
	if code := cli.Run(t.Context(), args, cli.Streams{In: in, Out: &out, Err: &errs}, cli.Program{Version: "v0.0.0-test"}); code != 0 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if accepted := strings.Count(out.String(), "\taccepted\n"); accepted != n {
		t.Errorf("%d of %d lines are accepted: %s", accepted, n, errs.String())
	}
}

// bulkDuringFailover repeats a bulk until none of its jobs is refused.
func bulkDuringFailover(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, key string, n int) {
	jobs := make([]map[string]any, n)
	for i := range jobs {
		jobs[i] = map[string]any{"id": fmt.Sprint(key, "-", i), "params": map[string]any{}}
	}
	cl.Eventually(key+" is accepted", func() error {
		var got bulkReply
		if err := m.API("job.bulk", map[string]any{"queue": "over", "jobs": jobs}, &got); err != nil {
			return err
		}
		if len(got.Jobs) != n {
			t.Errorf("%s: %d answers for %d jobs", key, len(got.Jobs), n)
		}
		if got.Refused > 0 {
			return fmt.Errorf("%d jobs are refused", got.Refused)
		}
		for i := range got.Jobs {
			if id, _ := job.KeyID("over", fmt.Sprint(key, "-", i)); got.Jobs[i].ID != id {
				t.Errorf("%s: job %d is %s, want %s", key, i, got.Jobs[i].ID, id)
			}
		}
		return nil
	})
}
