package yardtest

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/diagnose"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/memyard"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/server/limitkeys"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
	"github.com/yardmaster-dev/yardmaster/server/worker"
)

// Timeouts of a member.
const (
	requestTimeout = 5 * time.Second // of a request that waits for the ledger
	stopTimeout    = time.Millisecond
)

// node is one run of a member: what package node wires, over streams, Raft and messages in
// memory.
type node struct {
	*memyard.Member
	yard     *Yard
	listener *listener
	proposer *authority.Client
	waiters  *ledgerwait.Waiters
	intake   *intake.Intake
	viewer   *jobview.Viewer
	retrier  *jobview.Retrier
	schemas  *schemas.Checker
	keys     *limitkeys.Finder
	handlers map[string]server.Handler // of the API, by the name of the endpoint
}

// start starts a member.
func (y *Yard) start(m *memyard.Member) (*node, error) {
	n := &node{Member: m, yard: y, listener: newListener(address(m.Name + ":9876"))}
	m.Open(agent.Config{Edge: string(n.listener.addr), DrainTimeout: stopTimeout, StopTimeout: stopTimeout, Rand: y.random})
	n.wire()
	cfg := edge.Config{Node: m.Name, Version: "yardtest"}
	server, err := edge.New(cfg, edgeCluster{n.workers(), y}, executor{m.Agent, n}, y.log)
	if err != nil {
		return nil, err
	}
	m.Agent.AddTarget(target{server, n})
	n.diagnose(server)
	if err := m.Run(y.ctx); err != nil {
		return nil, err
	}
	m.Go(func(ctx context.Context) { _ = n.waiters.Run(ctx) })
	m.Go(func(ctx context.Context) {
		if err := server.Serve(ctx, n.listener); err != nil {
			y.log.Error("edge failed", "node", m.Name, "err", err)
		}
	})
	m.Go(func(ctx context.Context) {
		<-ctx.Done()
		_ = n.intake.Close()
	})
	return n, nil
}

// wire creates the parts that answer requests.
func (n *node) wire() {
	m, streams := n.Member, memyard.Reader{Streams: n.yard.core.Streams}
	n.proposer = &authority.Client{Node: m.Name, Raft: m, Scheduler: wakingScheduler{m.Scheduler, &n.yard.rest}, Fleet: m, Watch: m.Watch, Log: n.yard.log}
	m.Handlers = n.proposer.Handlers()
	n.waiters = ledgerwait.New(m, requestTimeout)
	n.schemas = schemas.New(schemas.Config{
		Schemas: func() (all *ledger.Schemas) {
			m.View(func(l *ledger.Ledger) { all = l.Schemas() })
			return all
		},
		Secret: func() (secret []byte) {
			m.View(func(l *ledger.Ledger) { secret = l.Secret() })
			return secret
		},
		Msgpack: edge.CheckPayload, ToJSON: edge.JSONOf, LoadBody: streams.LoadRecordBody, Log: n.yard.log,
	})
	n.keys = &limitkeys.Finder{
		ParamPaths: func() (paths *ledger.AllParamPaths) {
			m.View(func(l *ledger.Ledger) { paths = l.ParamPaths() })
			return paths
		},
		ToJSON: edge.JSONOf,
	}
	n.intake = intake.New(intake.Config{
		Publish:   n.publish,
		CheckLoad: func() error { return nil },
		DelayAck:  func(_ bool, answer func()) { answer() },
		StoreBody: func(_ context.Context, id string, body []byte) (job.Blob, error) { return streams.StoreBody(id, body) },
		RemoveBody: func(_ context.Context, name string) error {
			streams.RemoveBody(name)
			return nil
		},
		Waiters: n.waiters, ReadBarrier: n.proposer.ReadBarrier, CreateQueues: true,
		QueuesFull: func() (full bool) {
			m.View(func(l *ledger.Ledger) { full = l.QueuesFull() })
			return full
		},
		OnAccept: func() {}, OnReject: func(error) {}, Schemas: n.schemas, Keys: n.keys,
	})
	n.viewer = &jobview.Viewer{
		Ledger: m, Waiters: n.waiters, Reader: streams, Lanes: func() int { return len(streams.LaneEnds()) },
		Record: streams.LoadRecord, ReadBarrier: n.proposer.ReadBarrier, AddProgress: func(context.Context, *job.View) {},
	}
	n.retrier = &jobview.Retrier{
		Viewer: n.viewer, Propose: n.proposer.Propose,
		StoreRelocated: func(_ context.Context, _ uint64, records []job.Record) ([]uint64, error) {
			return streams.StoreRelocated(records)
		},
	}
	n.handlers = n.apiHandlers(streams)
}

// diagnose adds the handlers of requests for explanations and lists of workers, which need
// the member's edge.
func (n *node) diagnose(s *edge.Server) {
	cfg := &n.yard.cfg.Scheduler
	d := diagnose.New(diagnose.Config{
		Node: n.Name, DefaultTimeout: cfg.DefaultTimeout, MaxAttempts: cfg.Policy.MaxAttempts, Defaults: cfg.Defaults, Route: cfg.Route,
		View: n.View, Members: func() []string { return n.yard.cfg.Members }, Authority: n.Watch.Known, NoQuorum: n.yard.noQuorum,
		FindJob: n.viewer.Locate, FindQueue: n.proposer.Queue, Ended: n.viewer.Ended, LetterGone: n.viewer.LetterGone, Placement: n.Scheduler.ExplainPlacement,
		Peers: n.Member, Records: memyard.Reader{Streams: n.yard.core.Streams}, Workers: s,
		Pools: func() []api.Pool { return nil }, Drained: func() bool { return false },
	})
	n.viewer.AddProgress = d.AddProgress
	maps.Copy(n.Handlers, d.PeerHandlers())
	n.handlers["job-explain"], n.handlers["queue-explain"] = server.JSON(d.ExplainJob), server.JSON(d.ExplainQueue)
	n.handlers["worker-list"] = server.JSON(d.ListWorkers)
	workers := &server.Workers{Node: n.Name, Authority: n.proposer, List: d.ListWorkers, Executors: []server.Executors{s}, Request: n.Member.RequestJSON}
	maps.Copy(n.Handlers, workers.PeerHandlers())
	maps.Copy(n.handlers, workers.Handlers())
}

// noQuorum returns why no member can lead; "" if one can.
func (y *Yard) noQuorum() string {
	if y.quorumHint() == "" {
		return ""
	}
	return "the test has killed a majority of the members"
}

// checkPayload checks the payload of a record that the authority ingests.
func (y *Yard) checkPayload(ctx context.Context, r *job.Record, spec *job.Spec, mayRead bool) (scheduler.Verdict, error) {
	n := y.anyNode()
	if n == nil {
		return scheduler.Verdict{}, nil
	}
	return n.schemas.CheckRecord(ctx, r, spec, mayRead)
}

// limitKey returns the limit key of a job that the authority ingests.
func (y *Yard) limitKey(queue string, spec *job.Spec) (*string, error) {
	n := y.anyNode()
	if n == nil {
		return spec.LimitKey, nil
	}
	return n.keys.Find(queue, spec)
}

// publish stores the record of a job and passes it to the authority. It takes no time.
func (n *node) publish(queue, key string, _ time.Time, body []byte, done func(lanes.Ack, error)) {
	record, err := n.yard.core.Streams.Publish(queue, key, body)
	if err != nil {
		done(lanes.Ack{}, err)
		return
	}
	done(lanes.Ack{Position: record.Position}, nil)
	wakeup.Send(n.yard.rest.wake)
	n.Notify([]job.Record{record})
}

// workers returns what the edge uses of the member.
func (n *node) workers() *worker.Cluster {
	return &worker.Cluster{
		Node: n.Name, ClusterName: "yardtest", Incarnation: n.Incarnation, DefaultTimeout: n.yard.cfg.Scheduler.DefaultTimeout,
		Ledger: n.Member, Now: (*ledger.Ledger).Now, Authority: n.proposer, Intake: n.intake, Waiters: n.waiters, Viewer: n.viewer, Retrier: n.retrier,
		RaftLeader: n.Watch.Holder, OtherEdges: n.Agent.Edges, Operations: sync.OnceValue(n.operations),
	}
}

// apiHandlers returns the handlers of the API's operations of jobs, queues, limits, schemas,
// retention, cron entries and dead letters.
func (n *node) apiHandlers(streams memyard.Reader) map[string]server.Handler {
	handlers := map[string]server.Handler{}
	counts := &schemas.Peers{Checker: n.schemas, Node: n.Name, Members: func() []string { return n.yard.cfg.Members }, Fleet: n.Member}
	maps.Copy(n.Handlers, counts.Handlers())
	schemas := &server.Schemas{Authority: n.proposer, View: n.View, Counts: counts}
	for _, h := range []interface {
		Handlers() map[string]server.Handler
	}{
		&server.Jobs{
			Authority: n.proposer, Viewer: n.viewer, Retrier: n.retrier, Waiters: n.waiters,
			WaitReason: func(context.Context, job.ID) string { return "" },
		},
		&server.Queues{Authority: n.proposer, View: n.View, Schemas: schemas},
		&server.Limits{Authority: n.proposer, View: n.View, DefaultTimeout: n.yard.cfg.Scheduler.DefaultTimeout},
		schemas,
		&server.Retention{Authority: n.proposer, View: n.View, Status: func(ctx context.Context) scheduler.AuthorityStatus {
			status, _ := n.Scheduler.Status(ctx) // of another member, it is not known
			return status
		}},
		&server.Crons{
			Authority: n.proposer, View: n.View, Intake: n.intake, CreateQueues: true, FindJob: n.viewer.Summary,
		},
		deadletters.New(deadletters.Config{
			Reader: streams, Remove: streams.RemoveDeadLetter, View: n.View, Authority: n.proposer,
			Jobs: n.viewer, Retrier: n.retrier, Intake: n.intake, MaxAttempts: n.yard.cfg.Scheduler.Policy.MaxAttempts,
		}),
	} {
		maps.Copy(handlers, h.Handlers())
	}
	return handlers
}

// operations returns the endpoints of the API that are served over Overhop, by name.
func (n *node) operations() map[string]cluster.Endpoint {
	binding := server.Binding{Node: n.Name, View: n.View}
	operations := map[string]cluster.Endpoint{}
	for _, e := range binding.Bind(api.Endpoints, n.handlers) {
		if op := e.OverhopOp(); op != "" && e.Handle != nil {
			operations[op] = e
		}
	}
	return operations
}

// edgeCluster notes which worker is connected over which connection.
type edgeCluster struct {
	*worker.Cluster
	yard *Yard
}

// Session implements edge.Cluster.
func (c edgeCluster) Session(client string) edge.Session {
	c.yard.register(client)
	return c.Cluster.Session(client)
}

// executor passes the capacity of workers through the gate. It implements edge.Executor.
type executor struct {
	*agent.Agent
	node *node
}

// Offer implements edge.Executor.
func (e executor) Offer(o job.Offer) { e.node.yard.gate.offer(e.node, o) }

// Log implements edge.Executor.
func (e executor) Log(l job.LogLine) {
	e.node.yard.log.Info("job log", slog.String("job", l.Job.String()), slog.String("text", l.Text))
}

// target starts the dispatches that the gate admits. It implements agent.Target.
type target struct {
	*edge.Server
	node *node
}

// failureType is the type of the error of an attempt that [Yard.Fail] makes fail.
const failureType = "yardtest"

// Start implements agent.Target.
func (t target) Start(a job.Assignment, spec job.Spec) bool {
	gate := t.node.yard.gate
	if !gate.admit(t.node, &a) {
		return false
	}
	if !gate.takeFailure(a.Queue) {
		return t.Server.Start(a, spec)
	}
	t.node.Agent.Report(job.Outcome{
		Job: a.Job, N: a.N, Status: job.Error, Started: true,
		Fault: &job.Fault{Type: failureType, Message: "the test makes this attempt fail"},
	}, nil)
	return true
}
