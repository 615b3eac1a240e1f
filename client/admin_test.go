package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestTransports runs the same program over both ways to the cluster.
func TestTransports(t *testing.T) {
	cl := clustertest.Start(t, 1)
	addresses := cl.Members[0].Node().Addresses()
	nc, err := nats.Connect(addresses.NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, way := range []struct {
		name string
		opts client.Options
		body int // bytes of large params: a NATS message has at most 1 MiB
	}{
		{"edge", client.Options{Nodes: []string{addresses.Overhop}}, 3 << 20},
		{"NATS", client.Options{NATS: nc}, 600 << 10},
	} {
		t.Run(way.name, func(t *testing.T) {
			c, err := client.Open(t.Context(), way.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			p := program{t, c, "queue-" + way.name, way.body}
			p.runsJobs()
			p.showsAndChangesJobs()
			p.changesQueues()
			p.requeuesDeadLetters()
			p.changesManyJobs()
			p.changesCron()
			p.setsSchemas()
			p.setsLimits()
			p.refusesConflicts()
			if s, err := c.Status(t.Context()); err != nil || len(s.Nodes) != 1 {
				t.Errorf("status: %+v, %v", s.Nodes, err)
			}
		})
	}
	if nc.IsClosed() {
		t.Error("the client has closed the caller's connection")
	}
}

// program is a program that uses a client.
type program struct {
	*testing.T
	c     *client.Client
	queue string
	body  int // bytes of large params
}

// need ends the test if err is not nil.
func (p program) need(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// runsJobs runs jobs whose values are those that are hard to carry.
func (p program) runsJobs() {
	w := p.c.Worker()
	w.Handle(p.queue, "echo", func(_ context.Context, job *client.JobInfo) (any, error) {
		var v any
		err := job.Decode(&v)
		return v, err
	})
	w.Handle(p.queue, "size", func(_ context.Context, job *client.JobInfo) (any, error) {
		var b []byte
		err := job.Decode(&b)
		return len(b), err
	})
	w.Handle(p.queue, "fail", func(context.Context, *client.JobInfo) (any, error) {
		return nil, client.Permanent(client.Coded(errors.New("no"), "NO", map[string]int{"left": 3}))
	})
	work(p.T, w)
	run := func(function string, params, result any) {
		p.Helper()
		id, err := p.c.Enqueue(p.Context(), client.Spec{Queue: p.queue, Function: function, Params: params})
		p.need(err)
		r, err := p.c.Wait(p.Context(), id)
		p.need(err)
		p.need(r.Decode(result))
		if j, err := p.c.Jobs().Get(p.Context(), id); err != nil || j.Key != "" {
			p.Errorf("a job without a key has the key %q, %v", j.Key, err)
		}
	}
	var numbers struct{ Big, Half any }
	run("echo", map[string]any{"Big": int64(1<<62 + 1), "Half": 0.5}, &numbers)
	if fmt.Sprint(numbers) != fmt.Sprintf("{%d 0.5}", int64(1<<62+1)) {
		p.Errorf("numbers came back as %v", numbers)
	}
	var size int
	if run("size", make([]byte, p.body), &size); size != p.body {
		p.Errorf("the worker got %d bytes", size)
	}
	large := strings.Repeat("x", p.body)
	var echo struct {
		Text string `json:"text"`
	}
	if run("echo", map[string]string{"text": large}, &echo); echo.Text != large {
		p.Errorf("a large result has %d bytes", len(echo.Text))
	}
	id, err := p.c.Enqueue(p.Context(), client.Spec{Queue: p.queue, Function: "fail"})
	p.need(err)
	_, err = p.c.Wait(p.Context(), id)
	failed, ok := errors.AsType[*client.JobError](err)
	var details struct {
		Left int `json:"left"`
	}
	if !ok || failed.Code != "NO" || failed.Message != "no" || failed.DecodeDetails(&details) != nil || details.Left != 3 {
		p.Errorf("error is %+v, details %+v", err, details)
	}
}

// showsAndChangesJobs lists, changes, cancels, retries, replays and removes jobs.
func (p program) showsAndChangesJobs() {
	ctx, jobs := p.Context(), p.c.Jobs()
	queue := p.queue + "-parked"
	var ids []string
	for i := range 5 {
		id, err := p.c.Enqueue(ctx, client.Spec{
			Queue: queue, Function: "f", Params: map[string]int{"n": i}, Key: fmt.Sprint("key", i), ResultTTL: time.Hour,
		})
		p.need(err)
		ids = append(ids, id)
	}
	eventually(p.T, func() error { // over NATS, a read does not wait for what the client has just enqueued
		j, err := jobs.Get(ctx, ids[4])
		if err == nil && j.State != "waiting" {
			err = fmt.Errorf("the job is %s", j.State)
		}
		return err
	})
	listed := 0
	for j, err := range jobs.List(ctx, api.JobListRequest{Queues: []string{queue}, Order: api.OrderOldest, Limit: 2}) {
		p.need(err)
		if j.JID != ids[listed] {
			p.Errorf("job %d of the list is %s, want %s", listed, j.JID, ids[listed])
		}
		listed++
	}
	if listed != 5 {
		p.Errorf("%d jobs are listed", listed)
	}
	j, err := jobs.Get(ctx, queue+":key1")
	if err != nil || j.JID != ids[1] || j.State != "waiting" || j.ResultTTL != time.Hour.Milliseconds() {
		p.Errorf("by key: %+v, %v", j, err)
	}
	var named struct {
		N int `json:"n"`
	}
	if err := p.c.Params(ctx, queue+":key1", &named); err != nil || named.N != 1 {
		p.Errorf("params by key: %+v, %v", named, err)
	}
	if e, err := jobs.Explain(ctx, ids[1]); err != nil || e.ID.String() == "" {
		p.Errorf("explain: %+v, %v", e, err)
	}
	if state, err := jobs.Set(ctx, ids[1], client.JobSettings{Delay: time.Hour}); err != nil || state != "delayed" {
		p.Errorf("delayed: %s, %v", state, err)
	}
	if state, err := jobs.Cancel(ctx, ids[2], "not needed"); err != nil || state != "cancelled" {
		p.Errorf("cancelled: %s, %v", state, err)
	}
	_, err = p.c.Wait(ctx, ids[2])
	if failed, ok := errors.AsType[*client.JobError](err); !ok || !errors.Is(err, client.ErrCancelled) || failed.Reason != "not needed" {
		p.Errorf("the end of a cancelled job: %v", err)
	}
	if _, err := jobs.Cancel(ctx, ids[2], ""); !errors.Is(err, client.ErrConflict) {
		p.Errorf("cancelled twice: %v", err)
	}
	if state, err := jobs.Retry(ctx, ids[2]); err != nil || state != "waiting" {
		p.Errorf("retried: %s, %v", state, err)
	}
	p.need(jobs.Remove(ctx, ids[3]))
	if _, err := jobs.Get(ctx, ids[3]); !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrGone) {
		p.Errorf("a removed job: %v", err)
	}
	if _, err := jobs.Cancel(ctx, ids[4], ""); err != nil {
		p.Error(err)
	}
	again, err := jobs.Replay(ctx, api.ReplayRequest{ID: ids[4], Params: []byte(`{"n":9}`)})
	p.need(err)
	var params struct {
		N int `json:"n"`
	}
	if err := p.c.Params(ctx, again, &params); err != nil || params.N != 9 {
		p.Errorf("params of the copy: %+v, %v", params, err)
	}
	reply, err := p.c.Queues().ClearJobs(ctx, api.QueueJobsRequest{Name: queue, All: true})
	if err != nil || reply.Changed < 4 {
		p.Errorf("cleared: %+v, %v", reply, err)
	}
	p.need(p.c.Queues().Remove(ctx, queue))
}

// changesQueues adds, changes, pauses, lists and removes queues.
func (p program) changesQueues() {
	ctx, queues := p.Context(), p.c.Queues()
	name := p.queue + "-settings"
	p.need(queues.Create(ctx, name))
	p.need(queues.Create(ctx, name))
	if _, err := queues.Add(ctx, api.QueueRequest{Name: name}); !errors.Is(err, client.ErrConflict) {
		p.Errorf("added twice: %v", err)
	}
	if err := queues.Create(ctx, "no queue"); !errors.Is(err, client.ErrInvalid) {
		p.Errorf("a bad name: %v", err)
	}
	q, err := queues.Set(ctx, api.QueueChange{Name: name, Limit: api.SetTo[int64](3)})
	if err != nil || q.Limit == nil || *q.Limit != 3 {
		p.Errorf("changed: %+v, %v", q, err)
	}
	for range 2 {
		p.need(queues.Pause(ctx, name))
	}
	if q, err = queues.Get(ctx, name); err != nil || q.State != "paused" {
		p.Errorf("paused: %+v, %v", q, err)
	}
	if e, err := queues.Explain(ctx, name); err != nil || e.Queue.State != "paused" {
		p.Errorf("explain: %+v, %v", e, err)
	}
	for range 2 {
		p.need(queues.Resume(ctx, name))
	}
	found := false
	for q, err := range queues.List(ctx) {
		p.need(err)
		found = found || q.Name == name
	}
	if !found {
		p.Errorf("queue %s is not listed", name)
	}
	p.need(queues.Remove(ctx, name))
	if _, err := queues.Get(ctx, name); !errors.Is(err, client.ErrNotFound) {
		p.Errorf("removed: %v", err)
	}
}

// requeuesDeadLetters shows, requeues and removes dead letters.
func (p program) requeuesDeadLetters() {
	ctx, letters := p.Context(), p.c.DeadLetters()
	id, err := p.c.Enqueue(ctx, client.Spec{Queue: p.queue, Function: "fail"})
	p.need(err)
	if _, err := p.c.Wait(ctx, id); err == nil {
		p.Fatal("the job has completed")
	}
	letter := dead(p.T, p.c, id)
	if shown, err := letters.Get(ctx, letter.Number); err != nil || shown.ID != letter.ID || shown.Function != "fail" {
		p.Errorf("shown: %+v, %v", shown, err)
	}
	if stats, err := letters.Stats(ctx, api.DeadLetterRequest{Queue: p.queue}); err != nil || stats.Queues[p.queue] == 0 {
		p.Errorf("counted: %+v, %v", stats, err)
	}
	results, err := letters.Requeue(ctx, api.DeadLetterRequest{Letters: []uint64{letter.Number}})
	if err != nil || len(results.Items) != 1 || results.Items[0].Result != api.ResultRetried {
		p.Errorf("requeued: %+v, %v", results, err)
	}
	if _, err := p.c.Wait(ctx, id); err == nil {
		p.Error("the job has completed")
	}
	eventually(p.T, func() error {
		results, err := letters.Remove(ctx, api.DeadLetterRequest{Queue: p.queue})
		if err == nil && len(results.Items) == 0 {
			return nil
		}
		return fmt.Errorf("removed: %+v, %w", results, err)
	})
}

// changesManyJobs cancels jobs by a query, and looks at the operation.
func (p program) changesManyJobs() {
	queue := p.queue + "-many"
	for i := range 3 {
		_, err := p.c.Enqueue(p.Context(), client.Spec{Queue: queue, Function: fmt.Sprint("f", i)})
		p.need(err)
	}
	request := api.OperationStart{Action: "cancel", Query: "queue:" + queue + " -function:f2", Key: queue}
	for {
		preview, err := p.c.Operations().Preview(p.Context(), request)
		p.need(err)
		if preview.Applicable == 2 && len(preview.Sample) == 2 {
			break
		}
	}
	var found []string
	for j, err := range p.c.Jobs().Find(p.Context(), api.JobFindRequest{Query: request.Query, Sort: "created", Limit: 1}) {
		p.need(err)
		found = append(found, j.Function)
	}
	if !slices.Equal(found, []string{"f0", "f1"}) {
		p.Errorf("found the jobs of %q", found)
	}
	p.refusesQueries()
	started, err := p.c.Operations().Start(p.Context(), request)
	p.need(err)
	again, err := p.c.Operations().Start(p.Context(), request)
	p.need(err)
	done, err := p.c.Operations().Wait(p.Context(), started.ID)
	p.need(err)
	if again.ID != started.ID || done.State != "done" || done.Changed != 2 || done.Matched != 2 {
		p.Errorf("started %d and %d: %+v", started.ID, again.ID, done)
	}
	for op, err := range p.c.Operations().List(p.Context()) {
		if p.need(err); op.ID == started.ID {
			return
		}
	}
	p.Error("the operation is not in the list")
}

// refusesQueries looks for the part of a query that is wrong in the errors.
func (p program) refusesQueries() {
	const wrong = "queue:mail stat:failed"
	check := func(err error) {
		p.Helper()
		refused, ok := errors.AsType[*client.Error](err)
		if !ok || !errors.Is(err, client.ErrInvalid) || refused.Query == nil || wrong[refused.Query.Offset:][:refused.Query.Length] != "stat" {
			p.Errorf("the error of a query that is wrong is %#v", err)
		}
	}
	for _, err := range p.c.Jobs().Find(p.Context(), api.JobFindRequest{Query: wrong}) {
		check(err)
	}
	_, err := p.c.Operations().Start(p.Context(), api.OperationStart{Action: "cancel", Query: wrong})
	check(err)
}

// changesCron adds, pauses, runs, lists and removes a cron entry.
func (p program) changesCron() {
	ctx, cron := p.Context(), p.c.Cron()
	name := p.queue + "-nightly"
	entry, err := client.AddCron(ctx, p.c, api.CronChange{Name: name, Schedule: "@daily"}, chore{"sweep"}, client.Queue(p.queue+"-cron"), client.Priority(7))
	if err != nil || entry.Queue != p.queue+"-cron" || entry.Next == nil {
		p.Fatalf("added: %+v, %v", entry, err)
	}
	if _, err := client.AddCron(ctx, p.c, api.CronChange{Name: name, Schedule: "@daily"}, chore{}, client.Key("k")); !errors.Is(err, client.ErrInvalidJob) {
		p.Errorf("with a key: %v", err)
	}
	if entry, err = cron.Pause(ctx, name); err != nil || entry.State != "paused" {
		p.Errorf("paused: %+v, %v", entry, err)
	}
	if entry, err = cron.Resume(ctx, name); err != nil || entry.State != "running" {
		p.Errorf("resumed: %+v, %v", entry, err)
	}
	ticks, err := cron.Ticks(ctx, name, 20)
	if err != nil || len(ticks) != 20 || !ticks[0].At.Equal(*entry.Next) || ticks[0].Local != entry.Next.Format(time.RFC3339) {
		p.Errorf("next ticks: %+v, %v", ticks, err)
	}
	id, err := cron.Run(ctx, name)
	p.need(err)
	if j, err := p.c.Jobs().Get(ctx, id); err != nil || j.Function != "chore" || j.Priority != 7 {
		p.Errorf("its job: %+v, %v", j, err)
	}
	found := false
	for e, err := range cron.List(ctx) {
		p.need(err)
		found = found || e.Name == name
	}
	if !found {
		p.Errorf("cron entry %s is not listed", name)
	}
	p.need(cron.Remove(ctx, name))
	if _, err := cron.Get(ctx, name); !errors.Is(err, client.ErrNotFound) {
		p.Errorf("removed: %v", err)
	}
}

// setsSchemas sets, shows, lists and removes a schema, and enqueues jobs that match and that do
// not.
func (p program) setsSchemas() {
	ctx, queue := p.Context(), p.queue+"-checked"
	set, err := client.SetSchema[chore](ctx, p.c, client.Queue(queue))
	if err != nil || set.Queue != queue || set.Function != "chore" {
		p.Fatalf("set: %+v, %v", set, err)
	}
	if _, err := client.Enqueue(ctx, p.c, chore{"sweep"}, client.Queue(queue)); err != nil {
		p.Errorf("params that match: %v", err)
	}
	_, err = p.c.Enqueue(ctx, client.Spec{Queue: queue, Function: "chore", Params: map[string]any{"name": 7}})
	if refused, ok := errors.AsType[*client.Error](err); !errors.Is(err, client.ErrInvalid) || !ok || refused.Path != "/name" {
		p.Errorf("params that do not match: %v", err)
	}
	if shown, err := p.c.Schemas().Get(ctx, queue, "chore"); err != nil || shown.Version != set.Version || shown.Refused != 1 {
		p.Errorf("shown: %+v, %v", shown, err)
	}
	if list, err := p.c.Schemas().List(ctx, queue); err != nil || len(list.Schemas) != 1 {
		p.Errorf("listed: %+v, %v", list, err)
	}
	p.need(p.c.Schemas().Remove(ctx, queue, "chore"))
	if _, err := p.c.Schemas().Get(ctx, queue, "chore"); !errors.Is(err, client.ErrNotFound) {
		p.Errorf("removed: %v", err)
	}
}

// setsLimits sets, shows, lists, pauses and removes a limit, and lets a queue use it.
func (p program) setsLimits() {
	ctx, limits, name, queue := p.Context(), p.c.Limits(), p.queue, p.queue+"-limited"
	set, err := limits.Set(ctx, api.LimitChange{Name: name, Total: api.SetTo[int64](2), PerKey: api.SetTo[int64](1), Rate: api.SetTo("100/s")})
	if err != nil || *set.Total != 2 || *set.PerKey != 1 || set.Rate != "100/s" || set.Burst != 10 || *set.Tokens != 10 {
		p.Fatalf("set: %+v, %v", set, err)
	}
	settings := api.StartSettings{
		Limits: api.SetTo([]string{name}), Key: api.SetTo("params.customer"), KeyOptional: api.SetTo(true), Fair: api.SetTo(true),
		Weights: map[string]*int64{"acme": new(int64(3))}, Priority: api.SetTo[int64](0), Age: api.SetTo[int64](60_000),
	}
	q, err := p.c.Queues().Add(ctx, api.QueueRequest{Name: queue, StartSettings: settings})
	if err != nil || !slices.Equal(q.Limits, []string{name}) || q.Key != "params.customer" || !q.Fair || q.Weights["acme"] != 3 || *q.Priority != 0 || q.Age != 60_000 {
		p.Errorf("added: %+v, %v", q, err)
	}
	q, err = p.c.Queues().Set(ctx, api.QueueChange{Name: queue, StartSettings: api.StartSettings{
		Key: api.Reset[string](), Priority: api.Reset[int64](), Weights: map[string]*int64{"acme": nil},
	}})
	if err != nil || !slices.Equal(q.Limits, []string{name}) || q.Key != "" || q.Priority != nil || len(q.Weights) != 0 || !q.Fair {
		p.Errorf("changed: %+v, %v", q, err)
	}
	if _, err := p.c.Queues().Set(ctx, api.QueueChange{Name: queue, StartSettings: api.StartSettings{Limits: api.SetTo([]string{"nosuch"})}}); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "limits: ") {
		p.Errorf("a limit that does not exist: %v", err)
	}
	if _, err := limits.Set(ctx, api.LimitChange{Name: name, Rate: api.SetTo("fast")}); !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), `rate is "fast"`) {
		p.Errorf("a malformed rate: %v", err)
	}

	if _, err := p.c.Enqueue(ctx, client.Spec{Queue: queue, Function: "f"}); err != nil {
		p.Fatal(err)
	}
	eventually(p.T, func() error {
		shown, err := limits.Get(ctx, name)
		if err == nil && (shown.Waiting != 1 || len(shown.Queues) != 1 || len(shown.Keys) != 1) {
			err = fmt.Errorf("shown: %+v", shown)
		}
		return err
	})
	p.need(limits.Pause(ctx, name))
	p.need(limits.Pause(ctx, name))
	var listed []api.Limit
	for l, err := range limits.List(ctx) {
		p.need(err)
		if l.Name == name {
			listed = append(listed, l)
		}
	}
	if len(listed) != 1 || !listed[0].Paused {
		p.Errorf("listed: %+v", listed)
	}
	explained, err := p.c.Queues().Explain(ctx, queue)
	if err != nil || !slices.ContainsFunc(explained.Reasons, func(r api.Reason) bool { return r.Code == api.ReasonLimitPaused && r.Data.Name == name }) {
		p.Errorf("explained: %+v, %v", explained.Reasons, err)
	}
	p.need(limits.Resume(ctx, name))
	if err := limits.Remove(ctx, name, false); !errors.Is(err, client.ErrConflict) || !strings.Contains(err.Error(), queue) {
		p.Errorf("removed while a queue uses it: %v", err)
	}
	p.need(limits.Remove(ctx, name, true))
	if _, err := limits.Get(ctx, name); !errors.Is(err, client.ErrNotFound) {
		p.Errorf("removed: %v", err)
	}
}

// refusesConflicts enqueues two jobs with the same unique key, and one of them again.
func (p program) refusesConflicts() {
	ctx := p.Context()
	unique := client.Spec{Queue: p.queue + "-unique", Function: "f", UniqueKey: p.queue, Key: "first"}
	id, err := p.c.Enqueue(ctx, unique)
	p.need(err)
	if again, err := p.c.Enqueue(ctx, unique); err != nil || again != id {
		p.Errorf("the same job again: %s, %v; want %s", again, err, id)
	}
	unique.Key = "second"
	_, err = p.c.Enqueue(ctx, unique)
	if refused, ok := errors.AsType[*client.Error](err); !errors.Is(err, client.ErrConflict) || !ok || refused.JobID != id {
		p.Errorf("another job: %v", err)
	}
	unique.ExistingOnConflict = true
	if existing, err := p.c.Enqueue(ctx, unique); err != nil || existing != id {
		p.Errorf("the existing job is %s, %v; want %s", existing, err, id)
	}
	_, err = p.c.Jobs().Cancel(ctx, id, "")
	p.need(err)
	p.need(p.c.Jobs().Remove(ctx, id))
	unique.Key = "first"
	if existing, err := p.c.Enqueue(ctx, unique); !errors.Is(err, client.ErrConflict) {
		p.Errorf("the key of a removed job: %q, %v", existing, err)
	}
}
