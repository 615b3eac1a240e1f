package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/procs"

	"github.com/nats-io/nats.go"
)

// The queues: without a limit; with a limit slightly below the workers' capacity;
// with a limit equal to the workers' capacity; for runners; and without jobs.
const (
	queuePlain      = "bench"
	queueLimited    = "bench-limited"
	queueAtCapacity = "bench-room"
	queueRRQ        = "bench-rrq"
	queueIdle       = "bench-idle"
	strictLimit     = 5000

	functionRRQ = "demo#echo"
	runnerSlots = 32  // of each node
	trips       = 200 // sequential jobs of a round
)

// benchCluster is a cluster to measure, with a NATS connection to each node.
type benchCluster struct {
	*procs.Cluster
	callers []*natsConn
	runs    int // number of loads, for their keys
}

// startCluster starts nodes and creates the queues.
func startCluster(ctx context.Context, o procs.Options) (*benchCluster, error) {
	o.Config += fmt.Sprintf("[rrq.runners.demo]\ntype = \"socket\"\ncmd = [%q, \"runner\"]\npool_size = 1\nmax_in_flight = %d\n",
		o.Binary, runnerSlots)
	running, err := procs.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	cl := &benchCluster{Cluster: running}
	if err := cl.awaitLanes(ctx); err != nil {
		cl.close()
		return nil, err
	}
	var urls []string
	for _, n := range cl.Nodes {
		urls = append(urls, n.URL())
	}
	if cl.callers, err = dialAllNATS(urls); err != nil {
		cl.close()
		return nil, err
	}
	for _, q := range []struct {
		Name  string `json:"name"`
		Limit int    `json:"concurrency_limit,omitempty"`
	}{{Name: queuePlain}, {Name: queueLimited, Limit: strictLimit}, {Name: queueAtCapacity, Limit: limitAtCapacity}, {Name: queueRRQ}, {Name: queueIdle}} {
		var answer json.RawMessage
		if err := cl.Nodes[0].Ask(ctx, api.SubjectAPI+".queue.add", q, &answer); err != nil {
			cl.close()
			return nil, fmt.Errorf("add queue %s: %w", q.Name, err)
		}
	}
	return cl, nil
}

// cpu returns the processor time used by all nodes.
func (c *benchCluster) cpu() (sum time.Duration) {
	for _, n := range c.Nodes {
		sum += cpuOf(n.Process)
	}
	return sum
}

// newClusterForRound starts a cluster for one round, in a new directory below dir.
func (b *bench) newClusterForRound(ctx context.Context, dir string, o procs.Options) (*benchCluster, error) {
	dir, err := os.MkdirTemp(dir, "round-")
	if err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	o.Dir, o.Binary = dir, b.Binary
	return startCluster(ctx, o)
}

// awaitLanes waits until every node leads its own lane. The authority moves the
// leaders soon after the cluster is ready.
func (c *benchCluster) awaitLanes(ctx context.Context) error {
	return c.await(ctx, "each node leads its lane", func() error {
		s, err := c.Nodes[0].Status(ctx)
		if err != nil {
			return err
		}
		for i, l := range s.Lanes {
			if l.Leader != c.Nodes[i].Name {
				return fmt.Errorf("lane %d is led by %q", i, l.Leader)
			}
		}
		return nil
	})
}

// await is like Until, limited to waitTimeout.
func (c *benchCluster) await(ctx context.Context, what string, fact func() error) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return c.Until(ctx, what, fact)
}

func (c *benchCluster) close() {
	closeAllNATS(c.callers)
	c.Stop()
}

// way is the way in which a load is enqueued over NATS.
type way struct {
	subject string
	keyed   bool // a publish to the stream, with keys for deduplication
}

func plain(queue string) way    { return way{cluster.JobsSubject(queue), true} }
func enqueued(queue string) way { return way{api.SubjectEnqueue + "." + queue, false} }

// newLoad returns a load over the connections to all nodes.
func (c *benchCluster) newLoad(w way) *load {
	l := &load{transports: natsTransports(c.callers), subject: w.subject}
	if w.keyed {
		l.key = c.newKey()
	}
	return l
}

// newKey returns a prefix for the keys of a load.
func (c *benchCluster) newKey() string {
	c.runs++
	return fmt.Sprintf("%x-%d-", time.Now().UnixNano(), c.runs)
}

// sampleSize returns a plan with workers enough for a full pipeline.
func (c *benchCluster) sampleSize() workerPlan {
	return workerPlan{connections * len(c.Nodes), credits}
}

// overhop measures jobs that a few Overhop workers run.
func (c *benchCluster) overhop(ctx context.Context, queue string, w way, latency bool, generate func(context.Context, *load) error) (round, error) {
	return c.runBy(ctx, c.sampleSize(), queue, c.newLoad(w), latency, generate)
}

// runBy measures a load that the workers of a queue run while it is enqueued.
func (c *benchCluster) runBy(ctx context.Context, s workerPlan, queue string, l *load, latency bool, generate func(context.Context, *load) error) (round, error) {
	h, err := startWorkers(ctx, c.Nodes, s, queue, l)
	if err != nil {
		return round{}, err
	}
	defer h.close()
	if err := c.awaitCapacity(ctx, s.capacity()); err != nil {
		return round{}, err
	}
	before, err := c.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	r, err := l.measure(ctx, c.cpu, latency, generate)
	if err != nil {
		return round{}, err
	}
	return r, c.verify(ctx, before, l)
}

// roundTrip measures one job at a time, from the enqueue call to the answer of
// job.wait: the time that a caller waits for a result. The jobs are run by a runner
// if function is set, otherwise by Overhop workers.
func (c *benchCluster) roundTrip(ctx context.Context, queue, function string) (round, error) {
	l := c.newLoad(enqueued(queue))
	l.function = function
	if function == "" {
		h, err := startWorkers(ctx, c.Nodes, c.sampleSize(), queue, l)
		if err != nil {
			return round{}, err
		}
		defer h.close()
		if err := c.awaitCapacity(ctx, c.sampleSize().capacity()); err != nil {
			return round{}, err
		}
	}
	m := startMeter(c.cpu)
	l.begin()
	var took []float64
	for i := range trips {
		nc := c.callers[i%len(c.callers)].nc
		began := time.Now()
		if err := oneTrip(nc, l.message(i, began.Sub(l.began))); err != nil {
			return round{}, err
		}
		took = append(took, float64(time.Since(began))/1e6)
	}
	return m.end(round{value: quantile(took, 0.5), p99: quantile(took, 0.99), jobs: trips, settled: trips}), nil
}

// oneTrip enqueues one job and waits until it is completed.
func oneTrip(nc *nats.Conn, m *nats.Msg) error {
	accepted, err := nc.RequestMsg(m, waitTimeout)
	if err == nil {
		err = refusal(accepted)
	}
	if err != nil {
		return err
	}
	var job struct{ ID, State string }
	if err := json.Unmarshal(accepted.Data, &job); err != nil {
		return err
	}
	request := fmt.Appendf(nil, `{"id":%q,"timeout_ms":%d}`, job.ID, waitTimeout.Milliseconds())
	ended, err := nc.Request(api.SubjectAPI+".job.wait", request, waitTimeout)
	if err == nil {
		err = refusal(ended)
	}
	if err == nil {
		err = json.Unmarshal(ended.Data, &job)
	}
	if err == nil && job.State != "completed" {
		return fmt.Errorf("job %s is %s: %s", job.ID, job.State, ended.Data)
	}
	return err
}

// history measures the size of the events of one job, in bytes. They are written to
// every replica of the stream.
func (c *benchCluster) history(ctx context.Context, generate func(context.Context, *load) error) (round, error) {
	before, err := c.historyBytes(ctx)
	if err != nil {
		return round{}, err
	}
	r, err := c.overhop(ctx, queuePlain, plain(queuePlain), false, generate)
	if err != nil {
		return round{}, err
	}
	after, err := c.historyBytes(ctx)
	return round{value: float64(after-before) / float64(r.jobs), jobs: r.jobs, settled: r.settled}, err
}

// historyBytes returns the size of the stream of events after everything has been
// published.
func (c *benchCluster) historyBytes(ctx context.Context) (size uint64, err error) {
	err = c.await(ctx, "the outbox is empty", func() error {
		s, err := c.Nodes[0].Status(ctx)
		if err == nil && s.OutboxBytes > 0 {
			err = fmt.Errorf("%d bytes are not published", s.OutboxBytes)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	m, err := c.callers[0].nc.Request("$JS.API.STREAM.INFO."+cluster.StreamEvents, nil, waitTimeout)
	if err != nil {
		return 0, err
	}
	var info struct {
		State struct {
			Bytes uint64 `json:"bytes"`
		} `json:"state"`
	}
	err = json.Unmarshal(m.Data, &info)
	return info.State.Bytes, err
}

// awaitCapacity waits until the authority knows exactly this capacity of Overhop
// workers. If it still counted workers that are gone, their dispatches would be
// declined.
func (c *benchCluster) awaitCapacity(ctx context.Context, want int) error {
	want += runnerSlots * len(c.Nodes)
	return c.await(ctx, "the workers' capacity is known", func() error {
		s, err := c.Nodes[0].Status(ctx)
		if err != nil {
			return err
		}
		available := 0
		for _, n := range s.Nodes {
			available += n.Available
		}
		if available != want {
			return fmt.Errorf("it is %d, want %d", available, want)
		}
		return nil
	})
}

// delivered returns the number of delivered dispatches according to the authority.
func (c *benchCluster) delivered(ctx context.Context) (int64, error) {
	s, err := c.Nodes[0].Status(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(c.Nodes, func(n *procs.Node) bool { return n.Name == s.Authority.Owner })
	if i > 0 {
		s, err = c.Nodes[i].Status(ctx)
	}
	return int64(s.Backlog.Delivered), err
}

// verify checks that every accepted job was delivered once and no dispatch is left,
// according to every node.
func (c *benchCluster) verify(ctx context.Context, before int64, l *load) error {
	if err := l.failure(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		err := c.await(ctx, n.Name+" shows every job's end", func() error {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			ended := int64(s.Backlog.Delivered) - before
			if left := s.Backlog.Pending + s.Backlog.Notified; left > 0 || s.Backlog.Failed > 0 || ended != l.accepted.Load() {
				return fmt.Errorf("accepted %d, delivered %d, left %d, failed %d", l.accepted.Load(), ended, left, s.Backlog.Failed)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
