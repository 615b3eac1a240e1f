package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The queues: without a limit; with a limit slightly below the workers' capacity;
// with a limit equal to the workers' capacity; with a schema; for runners; and without jobs.
const (
	queuePlain      = "bench"
	queueLimited    = "bench-limited"
	queueAtCapacity = "bench-room"
	queueChecked    = "bench-checked"
	queueRRQ        = "bench-rrq"
	queueIdle       = "bench-idle"
	strictLimit     = 5000

	functionRRQ = "demo#echo"
	runnerSlots = 32  // of each node
	trips       = 200 // sequential jobs of a round
)

// benchSchema is the schema of queueChecked, which the jobs of all loads match.
const benchSchema = `{"type":"object","properties":{"due":{"type":"integer","minimum":0},"pad":{"type":"string","maxLength":4096}},"required":["due","pad"]}`

// benchCluster is a cluster to measure, with a NATS connection to each node.
type benchCluster struct {
	*procs.Cluster
	callers []*natsConn
	runs    int // number of loads, for their keys
	parked  int // jobs of a queue without workers
}

// startCluster starts nodes, after prepare was called for each of them, and creates the queues.
func startCluster(t *task, o procs.Options, prepare ...func(*procs.Node)) *benchCluster {
	o.Config += fmt.Sprintf("[rrq.runners.demo]\ntype = \"socket\"\ncmd = [%q, \"runner\"]\npool_size = 1\nmax_in_flight = %d\n",
		o.Binary, runnerSlots)
	cl := &benchCluster{Cluster: must.Get(procs.LayOut(o))}
	for _, n := range cl.Nodes {
		for _, f := range prepare {
			f(n)
		}
	}
	t.cleanup(cl.Stop)
	must.Do(cl.Start(t))
	cl.awaitLanes(t)
	cl.dial(t)
	for queue, limit := range map[string]int{queuePlain: 0, queueLimited: strictLimit, queueAtCapacity: limitAtCapacity, queueChecked: 0, queueRRQ: 0, queueIdle: 0} {
		must.Do(cl.AddQueue(t, queue, limit))
	}
	must.Do(cl.Nodes[0].Ask(t, api.Subject("schema-set"), api.SchemaChange{
		SchemaRequest: api.SchemaRequest{Queue: queueChecked, Function: ledger.AnyFunction}, Schema: []byte(benchSchema),
	}, new(api.Schema)))
	return cl
}

// dial connects to all nodes, and closes the connections that there were.
func (c *benchCluster) dial(t *task) {
	var urls []string
	for _, n := range c.Nodes {
		urls = append(urls, n.URL())
	}
	for _, caller := range c.callers {
		caller.nc.Close()
	}
	c.callers = dialAllNATS(t, urls)
}

// cpu returns the processor time used by all nodes.
func (c *benchCluster) cpu() (sum time.Duration) {
	for _, n := range c.Nodes {
		sum += cpuOf(n.Process)
	}
	return sum
}

// newClusterForRound starts a cluster for one round, in a new directory.
func (b *bench) newClusterForRound(t *task, o procs.Options) *benchCluster {
	o.Dir, o.Binary = t.newDir(), b.Binary
	return startCluster(t, o)
}

// addSnapshots adds the paths of the snapshots that the nodes have on disk.
func (c *benchCluster) addSnapshots(seen map[string]bool) {
	for _, n := range c.Nodes {
		for _, path := range must.Get(filepath.Glob(filepath.Join(n.DataDir, "raft", "snapshots", "*", "meta.json"))) {
			seen[path] = true
		}
	}
}

// awaitLanes waits until every node leads its own lane. The authority moves the
// leaders soon after the cluster is ready. A lane has three replicas, so with more nodes
// it may have none on its own, and need only have a leader.
func (c *benchCluster) awaitLanes(t *task) {
	c.await(t, c.Nodes[0], "each node leads its lane", func(s *api.Status) error {
		for i, l := range s.Lanes {
			if l.Leader == "" || len(c.Nodes) <= 3 && l.Leader != c.Nodes[i].Name {
				return fmt.Errorf("lane %d is led by %q", i, l.Leader)
			}
		}
		return nil
	})
}

// await waits until the status of a node satisfies fact, at most waitTimeout.
func (c *benchCluster) await(t *task, n *procs.Node, what string, fact func(*api.Status) error) {
	ctx, cancel := context.WithTimeout(t, waitTimeout)
	defer cancel()
	must.Do(c.Until(ctx, what, func() error {
		s, err := n.Status(ctx)
		if err != nil {
			return err
		}
		return fact(&s)
	}))
}

// way is the way in which a load is enqueued over NATS.
type way struct {
	subject string
	keyed   bool // with keys for deduplication
}

func plain(queue string) way    { return way{subjects.Jobs + "." + queue, true} }
func enqueued(queue string) way { return way{api.SubjectEnqueue + "." + queue, false} }

// keyed is enqueued with keys, so that a request whose outcome is not known may be repeated.
func keyed(queue string) way { return way{api.SubjectEnqueue + "." + queue, true} }

// newLoad returns a load over the connections to all nodes.
func (c *benchCluster) newLoad(w way) *load {
	l := &load{transports: asTransports(c.callers), subject: w.subject}
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

// sampleSize returns a plan with workers of a queue enough for a full pipeline.
func (c *benchCluster) sampleSize(queue string) workerPlan {
	return workerPlan{queue: queue, workers: connections * len(c.Nodes), credits: credits}
}

// overhop measures jobs that a few Overhop workers run.
func (c *benchCluster) overhop(t *task, queue string, w way, latency bool, generate generator) round {
	return c.runBy(t, c.sampleSize(queue), c.newLoad(w), latency, generate)
}

// runBy measures a load that workers run while it is enqueued. The round is a latency
// or, if latency is false, a rate.
func (c *benchCluster) runBy(t *task, plan workerPlan, l *load, latency bool, generate generator) round {
	h := startWorkers(t, c.Nodes, plan, l)
	defer h.close()
	c.awaitCapacity(t, plan.capacity())
	before := c.delivered(t)
	r := l.measure(t, c.cpu, latency, generate)
	c.verify(t, before, l)
	return r
}

// roundTrip measures one job at a time, from the enqueue call to the answer of
// job.wait: the time that a caller waits for a result. The jobs are run by a runner
// if function is set, otherwise by Overhop workers.
func (c *benchCluster) roundTrip(t *task, queue, function string) round {
	l := c.newLoad(enqueued(queue))
	l.function = function
	if function == "" {
		plan := c.sampleSize(queue)
		h := startWorkers(t, c.Nodes, plan, l)
		defer h.close()
		c.awaitCapacity(t, plan.capacity())
	}
	m := startMeter(c.cpu)
	l.begin()
	var took []float64
	for i := range trips {
		nc := c.callers[i%len(c.callers)].nc
		began := time.Now()
		must.Do(oneTrip(nc, l.message(i, began.Sub(l.began))))
		took = append(took, float64(time.Since(began))/1e6)
	}
	return m.end(latencyRound(took))
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
func (c *benchCluster) history(t *task, generate generator) round {
	before := c.historyBytes(t)
	r := c.overhop(t, queuePlain, plain(queuePlain), false, generate)
	return round{value: float64(c.historyBytes(t)-before) / float64(r.jobs), jobs: r.jobs, settled: r.settled}
}

// historyBytes returns the size of the stream of events after everything has been
// published.
func (c *benchCluster) historyBytes(t *task) (size uint64) {
	c.await(t, c.Nodes[0], "the outbox is empty", func(s *api.Status) error {
		if s.OutboxBytes > 0 {
			return fmt.Errorf("%d bytes are not published", s.OutboxBytes)
		}
		return nil
	})
	m := must.Get(c.callers[0].nc.Request("$JS.API.STREAM.INFO."+subjects.StreamEvents, nil, waitTimeout))
	var info struct {
		State struct {
			Bytes uint64 `json:"bytes"`
		} `json:"state"`
	}
	must.Do(json.Unmarshal(m.Data, &info))
	return info.State.Bytes
}

// awaitCapacity waits until the authority knows exactly this capacity of Overhop
// workers. If it still counted workers that are gone, their dispatches would be
// declined.
func (c *benchCluster) awaitCapacity(t *task, slots int) {
	slots += runnerSlots * len(c.Nodes)
	c.await(t, c.Nodes[0], "the workers' capacity is known", func(s *api.Status) error {
		available := 0
		for _, n := range s.Nodes {
			available += n.Available
		}
		if available != slots {
			return fmt.Errorf("it is %d, want %d", available, slots)
		}
		return nil
	})
}

// delivered returns the number of delivered dispatches according to the authority.
func (c *benchCluster) delivered(t *task) int64 {
	return int64(must.Get(must.Get(c.Authority(t)).Status(t)).Backlog.Delivered)
}

// verify checks that every accepted job was delivered once and no dispatch is left,
// according to every node.
func (c *benchCluster) verify(t *task, before int64, l *load) {
	must.Do(l.failure())
	for _, n := range c.Nodes {
		c.await(t, n, n.Name+" shows every job's end", func(s *api.Status) error {
			ended := int64(s.Backlog.Delivered) - before
			if left := int(s.Backlog.Pending+s.Backlog.Notified) - c.parked; left > 0 || s.Backlog.Failed > 0 || ended != l.accepted.Load() {
				return fmt.Errorf("accepted %d, delivered %d, left %d, failed %d", l.accepted.Load(), ended, left, s.Backlog.Failed)
			}
			return nil
		})
	}
}

// natsConn sends many concurrent requests over one NATS connection, each at the cost
// of a map entry, so that the load generator uses little of the machine.
type natsConn struct {
	nc     *nats.Conn
	prefix string // of the reply subjects

	mu      sync.Mutex
	last    uint64           // number of calls
	waiting map[string]*call // by the rest of the reply subject
}

// call is a request without an answer.
type call struct {
	message *nats.Msg
	sent    time.Time // the last time
	again   *atomic.Int64
	done    func(*nats.Msg, error)
}

// dialNATS connects to a NATS server and subscribes to the answers of its requests.
func dialNATS(url string) (*natsConn, error) {
	nc, err := nats.Connect(url, nats.Name("yardmaster bench"), nats.Timeout(5*time.Second), nats.NoReconnect(),
		nats.UseOldRequestStyle())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	c := &natsConn{nc: nc, prefix: nats.NewInbox() + ".", waiting: make(map[string]*call)}
	if _, err := nc.Subscribe(c.prefix+"*", c.answered); err != nil {
		nc.Close()
		return nil, fmt.Errorf("listen for answers: %w", err)
	}
	return c, nil
}

// dialAllNATS opens one connection to each address, as soon as the processes that run
// there accept it. The connections are closed at the end of the task.
func dialAllNATS(t *task, urls []string, running ...*procs.Process) (callers []*natsConn) {
	for _, url := range urls {
		t.await(url+" accepts clients", func() error {
			c, err := dialNATS(url)
			if err == nil {
				t.cleanup(c.nc.Close)
				callers = append(callers, c)
			}
			return err
		}, running...)
	}
	return callers
}

func (c *natsConn) submit(l *load, i int, due time.Duration, done func(error)) {
	c.call(l.message(i, due), &l.repeated, func(_ *nats.Msg, err error) { done(err) })
}

// call sends m, and again while the node asks to try later, which repeated counts. done is
// called once, from the goroutine of the connection, and must not block.
func (c *natsConn) call(m *nats.Msg, repeated *atomic.Int64, done func(*nats.Msg, error)) {
	c.mu.Lock()
	c.last++
	token := strconv.FormatUint(c.last, 36)
	m.Reply = c.prefix + token
	c.waiting[token] = &call{m, time.Now(), repeated, done}
	c.mu.Unlock()
	if err := c.nc.PublishMsg(m); err != nil && c.takePending(token) != nil {
		done(nil, err)
	}
}

// takePending removes a waiting call and returns its callback, or nil if the call is unknown.
func (c *natsConn) takePending(token string) func(*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil {
		return nil
	}
	delete(c.waiting, token)
	return k.done
}

// repeat sends calls again that were not answered within after, and returns their
// number. A publish that reaches a stream during an election is dropped without an
// answer, and the publisher must repeat it under the same key.
func (c *natsConn) repeat(after time.Duration) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.waiting {
		if time.Since(k.sent) < after {
			continue
		}
		k.sent = time.Now()
		_ = c.nc.PublishMsg(k.message) // on failure, repeated next time
		n++
	}
	return n
}

// answered handles an answer.
func (c *natsConn) answered(m *nats.Msg) {
	token := m.Subject[len(c.prefix):]
	err := refusal(m)
	if isUndecided(err) && c.retryLater(token) || isBusy(err) && c.retryBusy(token) {
		return
	}
	if done := c.takePending(token); done != nil {
		done(m, err)
	}
}

// undecidedDelay is the pause before a publish is repeated to which isUndecided applies.
const undecidedDelay = 250 * time.Millisecond

// isUndecided reports whether err says that a publish has no outcome yet: its stream has no
// leader, and a node redirects its clients to another lane meanwhile, or the call has been
// repeated while the stream was still storing the first message with its key.
func isUndecided(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || err != nil && strings.Contains(err.Error(), duplicateInProcess)
}

// duplicateInProcess is in the refusal that nats-server calls JSStreamDuplicateMessageConflict.
const duplicateInProcess = "duplicate message id is in process"

// retryLater reports whether a call whose outcome is open has a key, and if so leaves it
// to repeat.
func (c *natsConn) retryLater(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil || k.message.Header == nil {
		return false
	}
	k.sent = time.Now().Add(undecidedDelay - repeatAfter)
	return true
}

// busyDelay is the delay that a node asks for when it refuses a job because of its load.
const busyDelay = time.Second

// isBusy reports whether err is the refusal of a node that asks to try again.
func isBusy(err error) bool { return err != nil && strings.Contains(err.Error(), "try again in") }

// retryBusy reports whether a call is waiting, and if so sends it again after busyDelay.
func (c *natsConn) retryBusy(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[token]
	if k == nil {
		return false
	}
	k.sent = time.Now().Add(busyDelay)
	k.again.Add(1)
	time.AfterFunc(busyDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.waiting[token] == k {
			_ = c.nc.PublishMsg(k.message) // on failure, repeated like an unanswered one
		}
	})
	return true
}

// refusal returns the error in an answer of a stream, a node or the NATS server.
func refusal(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return errors.New(text)
	}
	// A stream refuses a publish with {"error":{…}} and acknowledges it with
	// {"stream":…}; the answer of a node begins with {"id":….
	if len(m.Data) > 9 && string(m.Data[:9]) == `{"error":` {
		return errors.New(string(m.Data))
	}
	return nil
}
