package catalogue

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/hostile"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// laneLossCluster is a second cluster, beside the drill's own, whose lanes are removed
// for good.
type laneLossCluster struct {
	*procs.Cluster
	s        *drill.Harness
	intruder *hostile.Intruder
	life     context.Context // ends the workers
	workers  sync.WaitGroup

	mu    sync.Mutex
	ran   map[string]int // number of runs by JID
	wrong []string       // JIDs of jobs that got another job's body
}

// removeLanes starts a second cluster, and in it removes one lane and recreates
// another, as a client with full privileges could. The cluster is discarded
// afterwards.
func removeLanes(s *drill.Harness) {
	dir := filepath.Join(s.Dir, "second")
	must.Do(os.Mkdir(dir, 0o700))
	second := must.Get(procs.Start(s.Ctx, procs.Options{Nodes: 3, Dir: dir, Binary: s.Binary}))
	defer second.Stop()
	c := &laneLossCluster{Cluster: second, s: s, ran: map[string]int{}}
	c.intruder = must.Get(hostile.Connect(second.Nodes[0].URL(), second.Nodes[0].Route, second.Nodes[1].Route, second.Nodes[2].Route))
	defer c.intruder.Close()
	for _, queue := range []string{"kept", "later"} {
		var answer any
		must.Do(second.Nodes[0].Ask(s.Ctx, api.SubjectAPI+".queue.add", map[string]string{"name": queue}, &answer))
	}
	life, end := context.WithCancel(s.Ctx)
	c.life = life
	defer c.workers.Wait()
	defer end()
	c.checkRemovedLane()
	c.checkRecreatedLane()
	c.mu.Lock()
	defer c.mu.Unlock()
	twice := maps.Clone(c.ran)
	maps.DeleteFunc(twice, func(_ string, times int) bool { return times == 1 })
	s.Require(len(twice) == 0, "jobs ran more than once: %v", twice)
	s.Require(len(c.wrong) == 0, "jobs got bodies of other jobs: %q", c.wrong)
}

// checkRemovedLane removes a lane. The jobs with bodies in it must wait, all other
// jobs run, and the remaining lanes accept more.
func (c *laneLossCluster) checkRemovedLane() {
	const each = 30
	var removed, elsewhere []string
	for i := range c.Nodes {
		jids := c.enqueue(i, "kept", each)
		if i == 0 { // lane 0 belongs to the first member
			removed = jids
		} else {
			elsewhere = append(elsewhere, jids...)
		}
	}
	c.awaitIngested()
	c.s.Fault("remove lane", "lane 0 of a second cluster")
	var done any
	must.Do(c.intruder.Ask(c.s.Ctx, "$JS.API.STREAM.DELETE."+subjects.LaneStream(0), nil, &done))
	c.awaitReported("a removed lane", "lane 0 is not ingested: ")
	c.work("kept")
	for i := range c.Nodes {
		jids := c.enqueue(i, "kept", each)
		elsewhere = append(elsewhere, jids...)
	}
	c.expectAllRun("while a lane is removed", elsewhere)
	c.expectWaiting(removed)
}

// checkRecreatedLane recreates a lane. No job must be accepted into the new stream,
// and no job must get its records as a body.
func (c *laneLossCluster) checkRecreatedLane() {
	const each = 30
	waiting := c.enqueue(1, "later", each)
	c.awaitIngested()
	c.s.Fault("recreate lane", "lane 1 of a second cluster")
	stream := subjects.LaneStream(1)
	var was struct {
		Config map[string]any
	}
	var done any
	must.Do(c.intruder.Ask(c.s.Ctx, "$JS.API.STREAM.INFO."+stream, nil, &was))
	delete(was.Config, "metadata")
	must.Do(c.intruder.Ask(c.s.Ctx, "$JS.API.STREAM.DELETE."+stream, nil, &done))
	must.Do(c.intruder.Ask(c.s.Ctx, "$JS.API.STREAM.CREATE."+stream, was.Config, &done))
	meanwhile := c.enqueue(1, "kept", 4*each)
	for i := range 4 * each { // other records at the old sequence numbers
		record := map[string]any{"params": map[string]any{"key": fmt.Sprintf("foreign-%d", i)}}
		must.Do(c.intruder.Ask(c.s.Ctx, "yard.lane.1.n.later", record, &done))
	}
	c.awaitReported("a recreated lane", "lane 1 is not ingested: its stream is another one than the ledger's")
	c.work("later")
	after := c.enqueue(1, "later", each)
	c.expectAllRun("while a lane is recreated", append(meanwhile, after...))
	c.expectWaiting(waiting)
}

// enqueue enqueues jobs at one node, one after the other, and returns their JIDs.
// The bodies are too large to be sent with an assignment.
func (c *laneLossCluster) enqueue(node int, queue string, jobs int) (jids []string) {
	ctx, cancel := context.WithTimeout(c.s.Ctx, time.Minute)
	defer cancel()
	p := &overhop.Producer{Nodes: []string{c.Nodes[node].Edge}, Name: "second"}
	defer p.Close() //nolint:errcheck // every request has been answered
	for i := range jobs {
		key := fmt.Sprintf("n%d-%d-%d", node+1, time.Now().UnixNano(), i)
		body := overhop.AppendStr(nil, key+" "+strings.Repeat("x", 8<<10))
		jids = append(jids, must.Get(p.Enqueue(ctx, overhop.Enqueue{Queue: queue, Key: key, Payload: body})))
	}
	return jids
}

// work starts a worker for a queue. It records the runs, and the jobs whose body is
// not their own.
func (c *laneLossCluster) work(queue string) {
	w := overhop.Worker{Name: "second", Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Second, CreateQueues: true}
	for _, n := range c.Nodes {
		w.Nodes = append(w.Nodes, n.Edge)
	}
	w.Handle(queue, 16, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		text, _ := q.Payload.Str()
		key, _, _ := strings.Cut(text, " ")
		id, err := job.KeyID(queue, key)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ran[q.JID]++
		if err != nil || q.JID != queue+":"+id.String() {
			c.wrong = append(c.wrong, q.JID)
		}
		return nil, nil
	})
	c.workers.Go(func() { _ = w.Run(c.life) }) // ends with c.life
}

// awaitIngested waits until the ledger has every accepted record.
func (c *laneLossCluster) awaitIngested() {
	var left []any
	ingested := c.s.Within(20*time.Second, func() bool {
		st, err := c.Nodes[0].Status(c.s.Ctx)
		left = []any{err}
		for _, lane := range st.Lanes {
			if lane.Leader != "" && lane.Lag > 0 {
				left = append(left, lane)
			}
		}
		return err == nil && len(left) == 1
	})
	if !ingested {
		must.Do(fmt.Errorf("lanes are not completely ingested: %v", left))
	}
}

// awaitReported waits until the third member reports a readiness reason with this
// prefix.
func (c *laneLossCluster) awaitReported(what, prefix string) {
	began := time.Now()
	var reasons []string
	found := c.s.Within(40*time.Second, func() bool {
		st, err := c.Nodes[2].Status(c.s.Ctx)
		if err == nil {
			reasons = st.Readiness.Reasons
		}
		return slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(r, prefix) })
	})
	c.s.Require(found, "%s is not reported: %q", what, reasons)
	c.s.Figure("until this was reported: "+what, time.Since(began))
	c.s.Logf("readiness reasons: %q", reasons)
}

// expectAllRun requires that all jobs run within a minute.
func (c *laneLossCluster) expectAllRun(when string, jids []string) {
	var left []string
	all := c.s.Within(time.Minute, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		left = slices.DeleteFunc(slices.Clone(jids), func(jid string) bool { return c.ran[jid] > 0 })
		return len(left) == 0
	})
	c.s.Require(all, "%s, %d of %d accepted jobs have not run: %q", when, len(left), len(jids), left)
	c.s.Figure("jobs that ran "+when, len(jids)-len(left))
}

// expectWaiting requires that the jobs are known and have not run.
func (c *laneLossCluster) expectWaiting(jids []string) {
	for _, jid := range jids {
		queue, id, _ := strings.Cut(jid, ":")
		var view struct{ State string }
		must.Do(c.Nodes[2].Ask(c.s.Ctx, api.SubjectAPI+".job.show", map[string]string{"id": id, "queue": queue}, &view))
		c.mu.Lock()
		ran := c.ran[jid]
		c.mu.Unlock()
		c.s.Require(ran == 0 && (view.State == "waiting" || view.State == "active"), "job %s, whose body is lost, is %s and ran %d times", jid, view.State, ran)
	}
	c.s.Figure("jobs that wait for a lost body", len(jids))
}
