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
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/hostile"
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
func removeLanes(ctx context.Context, s *drill.Harness) error {
	dir := filepath.Join(s.Dir, "second")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	second, err := procs.Start(ctx, procs.Options{Nodes: 3, Dir: dir, Binary: s.Binary})
	if err != nil {
		return err
	}
	defer second.Stop()
	c := &laneLossCluster{Cluster: second, s: s, ran: map[string]int{}}
	if c.intruder, err = hostile.Connect(second.Nodes[0].URL(), second.Nodes[0].Route(), second.Nodes[1].Route(), second.Nodes[2].Route()); err != nil {
		return err
	}
	defer c.intruder.Close()
	for _, queue := range []string{"kept", "later"} {
		var answer any
		if err := second.Nodes[0].Ask(ctx, api.SubjectAPI+".queue.add", map[string]string{"name": queue}, &answer); err != nil {
			return err
		}
	}
	life, end := context.WithCancel(ctx)
	c.life = life
	defer c.workers.Wait()
	defer end()
	if err := c.checkRemovedLane(ctx); err != nil {
		return fmt.Errorf("a lane is removed: %w", err)
	}
	if err := c.checkRecreatedLane(ctx); err != nil {
		return fmt.Errorf("a lane is recreated: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	twice := maps.Clone(c.ran)
	maps.DeleteFunc(twice, func(_ string, times int) bool { return times == 1 })
	s.Require(len(twice) == 0, "jobs ran more than once: %v", twice)
	s.Require(len(c.wrong) == 0, "jobs got bodies of other jobs: %q", c.wrong)
	return nil
}

// checkRemovedLane removes a lane. The jobs with bodies in it must wait, all other
// jobs run, and the remaining lanes accept more.
func (c *laneLossCluster) checkRemovedLane(ctx context.Context) error {
	const each = 30
	var removed, elsewhere []string
	for i := range c.Nodes {
		jids, err := c.enqueue(ctx, i, "kept", each)
		if err != nil {
			return err
		}
		if i == 0 { // lane 0 belongs to the first member
			removed = jids
		} else {
			elsewhere = append(elsewhere, jids...)
		}
	}
	if err := c.awaitIngested(ctx); err != nil {
		return err
	}
	c.s.Fault("remove lane", "lane 0 of a second cluster")
	var done any
	if err := c.intruder.Ask(ctx, "$JS.API.STREAM.DELETE."+cluster.LaneStream(0), nil, &done); err != nil {
		return err
	}
	c.awaitReported(ctx, "a removed lane", "lane 0 is not ingested: ")
	c.work("kept")
	for i := range c.Nodes {
		jids, err := c.enqueue(ctx, i, "kept", each)
		if err != nil {
			return err
		}
		elsewhere = append(elsewhere, jids...)
	}
	c.expectAllRun(ctx, "while a lane is removed", elsewhere)
	return c.expectWaiting(ctx, removed)
}

// checkRecreatedLane recreates a lane. No job must be accepted into the new stream,
// and no job must get its records as a body.
func (c *laneLossCluster) checkRecreatedLane(ctx context.Context) error {
	const each = 30
	waiting, err := c.enqueue(ctx, 1, "later", each)
	if err != nil {
		return err
	}
	if err := c.awaitIngested(ctx); err != nil {
		return err
	}
	c.s.Fault("recreate lane", "lane 1 of a second cluster")
	stream := cluster.LaneStream(1)
	var was struct {
		Config map[string]any
	}
	var done any
	if err := c.intruder.Ask(ctx, "$JS.API.STREAM.INFO."+stream, nil, &was); err != nil {
		return err
	}
	delete(was.Config, "metadata")
	if err := c.intruder.Ask(ctx, "$JS.API.STREAM.DELETE."+stream, nil, &done); err != nil {
		return err
	}
	if err := c.intruder.Ask(ctx, "$JS.API.STREAM.CREATE."+stream, was.Config, &done); err != nil {
		return err
	}
	meanwhile, err := c.enqueue(ctx, 1, "kept", 4*each)
	if err != nil {
		return err
	}
	for i := range 4 * each { // other records at the old sequence numbers
		record := map[string]any{"params": map[string]any{"key": fmt.Sprintf("foreign-%d", i)}}
		if err := c.intruder.Ask(ctx, "yard.lane.1.n.later", record, &done); err != nil {
			return err
		}
	}
	c.awaitReported(ctx, "a recreated lane", "lane 1 is not ingested: its stream is another one than the ledger's")
	c.work("later")
	after, err := c.enqueue(ctx, 1, "later", each)
	if err != nil {
		return err
	}
	c.expectAllRun(ctx, "while a lane is recreated", append(meanwhile, after...))
	return c.expectWaiting(ctx, waiting)
}

// enqueue enqueues jobs at one node, one after the other, and returns their JIDs.
// The bodies are too large to be sent with an assignment.
func (c *laneLossCluster) enqueue(ctx context.Context, node int, queue string, jobs int) (jids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := &overhop.Producer{Nodes: []string{c.Nodes[node].Edge}, Name: "second"}
	defer p.Close() //nolint:errcheck // every request has been answered
	for i := range jobs {
		key := fmt.Sprintf("n%d-%d-%d", node+1, time.Now().UnixNano(), i)
		body := overhop.AppendStr(nil, key+" "+strings.Repeat("x", 8<<10))
		jid, err := p.Enqueue(ctx, overhop.Enqueue{Queue: queue, Key: key, Payload: body})
		if err != nil {
			return nil, err
		}
		jids = append(jids, jid)
	}
	return jids, nil
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
func (c *laneLossCluster) awaitIngested(ctx context.Context) error {
	var left []any
	if within(ctx, 20*time.Second, func() bool {
		st, err := c.Nodes[0].Status(ctx)
		left = []any{err}
		for _, lane := range st.Lanes {
			if lane.Leader != "" && lane.Lag > 0 {
				left = append(left, lane)
			}
		}
		return err == nil && len(left) == 1
	}) {
		return nil
	}
	return fmt.Errorf("lanes are not completely ingested: %v", left)
}

// awaitReported waits until the third member reports a readiness reason with this
// prefix.
func (c *laneLossCluster) awaitReported(ctx context.Context, what, prefix string) {
	began := time.Now()
	var reasons []string
	found := within(ctx, 40*time.Second, func() bool {
		st, err := c.Nodes[2].Status(ctx)
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
func (c *laneLossCluster) expectAllRun(ctx context.Context, when string, jids []string) {
	var left []string
	all := within(ctx, time.Minute, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		left = slices.DeleteFunc(slices.Clone(jids), func(jid string) bool { return c.ran[jid] > 0 })
		return len(left) == 0
	})
	c.s.Require(all, "%s, %d of %d accepted jobs have not run: %q", when, len(left), len(jids), left)
	c.s.Figure("jobs that ran "+when, len(jids)-len(left))
}

// expectWaiting requires that the jobs are known and have not run.
func (c *laneLossCluster) expectWaiting(ctx context.Context, jids []string) error {
	for _, jid := range jids {
		queue, id, _ := strings.Cut(jid, ":")
		var view struct{ State string }
		if err := c.Nodes[2].Ask(ctx, api.SubjectAPI+".job.show", map[string]string{"id": id, "queue": queue}, &view); err != nil {
			return err
		}
		c.mu.Lock()
		ran := c.ran[jid]
		c.mu.Unlock()
		c.s.Require(ran == 0 && (view.State == "waiting" || view.State == "active"), "job %s, whose body is lost, is %s and ran %d times", jid, view.State, ran)
	}
	c.s.Figure("jobs that wait for a lost body", len(jids))
	return nil
}
