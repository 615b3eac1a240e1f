package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/agent/observe"
	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/chronicle"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/diagnose"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/health/consistency"
	"github.com/yardmaster-dev/yardmaster/health/metrics"
	"github.com/yardmaster-dev/yardmaster/index"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/consolecalls"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/joblog"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/server/limitkeys"
	"github.com/yardmaster-dev/yardmaster/server/overview"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
	"github.com/yardmaster-dev/yardmaster/server/worker"
	"github.com/yardmaster-dev/yardmaster/tracing"
	"github.com/yardmaster-dev/yardmaster/web"
)

// Node is one member of a cluster, or a cluster of one.
type Node struct {
	cfg        config.Config
	version    string
	log        *slog.Logger
	started    time.Time
	serving    chan struct{}            // closed when all listeners are open
	waitingFor atomic.Pointer[[]string] // what the node waits for before it belongs to a cluster

	certs       certificates
	id          *consensus.Identity
	cluster     *cluster.Server
	raft        *consensus.Node
	index       *index.Index
	fleet       *cluster.Fleet
	authority   *authority.Watch
	edge        *edge.Server
	edgeAddr    net.Addr
	web         *web.Server
	metrics     *web.Metrics
	httpAddr    string // "" without an HTTP listener
	runners     *runnerpool.Pools
	agent       *agent.Agent
	workers     *worker.Cluster
	endpoints   func() []cluster.Endpoint // of [api.Endpoints]
	statistics  *overview.Recorder
	scheduler   *scheduler.Scheduler
	schemas     *schemas.Checker
	limitKeys   *limitkeys.Finder
	intake      *intake.Intake
	newQueues   *intake.NewQueues
	queuesFull  atomic.Bool // the ledger has as many queues as it may have
	notifier    *intake.Notifier
	waiters     *ledgerwait.Waiters
	proposer    *authority.Client
	viewer      *jobview.Viewer
	retrier     *jobview.Retrier
	deadLetters *deadletters.Server
	enqueue     *server.Enqueue
	diagnoser   *diagnose.Diagnoser
	hasher      *consistency.Hasher
	tracer      *tracing.Tracer // nil: dispatches are not traced
	jobLog      *joblog.Writer
	monitor     *health.Monitor
	reporter    *health.Reporter
	consistency *consistency.Check
	chronicle   *chronicle.Chronicle
	backups     *backup.Server
	transfer    *membership.Transferer
	drainer     *membership.Drainer
	member      *membership.Member

	consoleCaller *consolecalls.Caller
}

// New returns a node with the given configuration, whose defaults are set. The node
// opens nothing before [Node.Run], and runs only once.
func New(cfg config.Config, version string, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log = log.With("node", cfg.Node.Name)
	return &Node{cfg: cfg, version: version, log: log, statistics: overview.NewRecorder(log), serving: make(chan struct{})}, nil
}

// Serving returns a channel that is closed when all listeners are open. Whether the
// node can accept and start jobs is a matter of its readiness.
func (n *Node) Serving() <-chan struct{} { return n.serving }

// Addresses are where a node listens, with the ports that it picked itself.
type Addresses struct {
	NATS    string // URL for NATS clients
	Overhop string // host:port for Overhop workers
	HTTP    string // host:port for HTTP clients; "" without an HTTP listener
}

// Addresses returns where the node listens. It must not be called before
// [Node.Serving] is closed.
func (n *Node) Addresses() Addresses {
	return Addresses{NATS: n.cluster.ClientURL(), Overhop: n.edgeAddr.String(), HTTP: n.httpAddr}
}

// Ledger returns a copy of this node's ledger. It must not be called before
// [Node.Serving] is closed.
func (n *Node) Ledger() *ledger.Ledger { return n.raft.Copy() }

// Run starts the node and blocks until ctx ends or a part of the node fails.
//
// Parts stop in the reverse order of their start. Before that the node transfers
// leadership and clients to other members, see [membership.Drainer.HandOff]. The
// executors stop after the agent, so that a draining node finishes the dispatches that
// it has accepted.
func (n *Node) Run(ctx context.Context) (err error) {
	n.started = time.Now()
	stopping := false
	defer func() {
		if !stopping && ctx.Err() != nil { // while it started
			n.logStop(ctx, nil)
		}
		err = exitError(err, &n.cfg)
	}()
	closeWeb, err := n.openHTTP(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeb()) }()
	if err := checkPorts(&n.cfg); err != nil {
		return err
	}
	if n.id, err = consensus.Identify(ctx, n.identityConfig(), n.log); err != nil {
		return portInUse(err, "raft.listen")
	}
	n.waitingFor.Store(nil)
	defer n.id.Close()
	if err := recordCrashes(n.cfg.Node.DataDir, n.log); err != nil {
		n.log.Warn("crash file not opened, traces of crashes go to stderr only", "err", err)
	}
	store, err := n.openStore()
	if err != nil {
		return fmt.Errorf("open consensus: %w", err)
	}
	defer store.Close()

	natsConfig := n.clusterConfig()
	if natsConfig.Users, err = n.cfg.NATS.ServerUsers(); err != nil {
		return fmt.Errorf("nats.users: %w", err)
	}
	if n.cluster, err = cluster.Start(ctx, natsConfig, n.log); err != nil {
		return portInUse(fmt.Errorf("start NATS: %w", err), "nats.listen")
	}
	defer n.cluster.Stop()

	if err := n.openRaft(store); err != nil {
		return err
	}
	defer n.closeRaft()

	listener, err := net.Listen("tcp", n.cfg.Server.Address())
	if err != nil {
		return portInUse(fmt.Errorf("open the Overhop edge: %w", err), "server.port")
	}
	defer listener.Close()
	n.edgeAddr = listener.Addr()
	if n.tracer, err = tracing.Open(ctx, n.cfg.Node.Name, n.version, n.log); err != nil {
		return fmt.Errorf("trace runs: %w", err)
	}
	if n.tracer != nil {
		defer n.tracer.Close()
	}
	if err := n.wire(); err != nil {
		return err
	}

	// Each group stops before those that it depends on: the agent returns its
	// dispatches while some node runs a scheduler, and requests are answered until then.
	logLoops, baseLoops, leaderLoops, agentLoops, endpointLoops := n.newLoops(ctx), n.newLoops(ctx), n.newLoops(ctx), n.newLoops(ctx), n.newLoops(ctx)
	logLoops.Go(n.jobLog.Run) // stops last: all other loops may log
	n.runBase(baseLoops, listener)
	leaderLoops.Go(func(ctx context.Context) error { return n.raft.Lead(ctx, n.runTenure) })
	agentLoops.Go(n.agent.Run)
	n.serveEndpoints(endpointLoops)
	failure := n.serveUntilFailure(ctx, baseLoops.ctx, leaderLoops.ctx, agentLoops.ctx, endpointLoops.ctx)
	stopping = true
	n.logStop(ctx, failure) // the group that failed returns it when it stops
	handedOff := n.drainer.HandOff(baseLoops.ctx)
	err = agentLoops.stop()
	if handedOff {
		n.drainer.LeaveStreams(baseLoops.ctx) // leadership that has returned since HandOff
	}
	err = errors.Join(err, endpointLoops.stop(), leaderLoops.stop())
	return errors.Join(err, baseLoops.stop(), n.intake.Close(), logLoops.stop())
}

// openStore checks the data directory and opens the consensus store, before this
// node sends its first message: a node whose data has diverged must not vote.
func (n *Node) openStore() (*consensus.Store, error) {
	if err := consistency.CheckDir(n.cfg.Node.DataDir, replaceAdvice(&n.cfg)); err != nil {
		return nil, err
	}
	makeBallast(&n.cfg, n.log) // before the store takes the free space
	return consensus.OpenStore(n.raftConfig(), n.id, n.log)
}

// openRaft opens the index and then consensus, whose ledger the index follows from the first entry on. The
// caller calls closeRaft.
func (n *Node) openRaft(store *consensus.Store) (err error) {
	n.index = index.New(n.indexConfig(), n.log)
	cfg := n.raftConfig()
	cfg.Changes, cfg.Saved = n.index.Changes(), n.index.Sync
	if n.raft, err = consensus.Open(cfg, n.id, store, n.log); err != nil {
		n.index.Close()
		return fmt.Errorf("open consensus: %w", err)
	}
	n.index.Follow(n.raft)
	return nil
}

func (n *Node) closeRaft() {
	_ = n.raft.Close() // a failure was logged, or the next start finds it
	n.index.Close()
}

// wire creates the parts that need no start of their own and connects them.
func (n *Node) wire() (err error) {
	cfg := &n.cfg
	n.fleet, n.authority = n.cluster.Fleet, authority.NewWatch()
	identities := laneIdentities{n.raft}
	lanes := laneAdapter{
		Reader: n.cluster.Reader, Admin: n.cluster.Admin, Writer: n.cluster.Writer, publisher: n.cluster.Publisher, replication: n.cluster.Replication,
		node: cfg.Node.Name, shouldNotLead: func(member string) bool { return n.monitor.ShouldNotLead(member) },
		behind: func(member string) bool { return n.monitor.Behind(member) }, identity: identities.of,
	}
	n.schemas = schemas.New(n.schemasConfig())
	n.limitKeys = &limitkeys.Finder{ParamPaths: n.raft.ParamPaths, ToJSON: edge.JSONOf}
	n.scheduler = scheduler.New(n.schedulerConfig(), n.raft, lanes, fleetAdapter{n.fleet}, outboxAdapter{n.cluster.Writer, n.cluster.Reader}, n.log)
	n.notifier = intake.NewNotifier(n.notifyAuthority)
	n.cluster.Publisher.OnStored(n.notifier.Add)
	n.proposer = &authority.Client{Node: cfg.Node.Name, Raft: n.raft, Scheduler: n.scheduler, Fleet: n.fleet, Watch: n.authority, Log: n.log}
	n.transfer = &membership.Transferer{
		RecordAct: func(ctx context.Context, action, target string) {
			n.proposer.RecordAct(ctx, &ledger.RecordAct{Action: action, Target: target})
		},
		Node: cfg.Node.Name, Raft: n.raft, Fleet: n.fleet, Propose: transferProposer(n.proposer), Owner: n.authority.Holder, Leaving: new(atomic.Bool),
	}
	n.monitor = n.newMonitor()
	n.waiters = ledgerwait.New(n.raft, cfg.Limits.RequestTimeout)
	n.newQueues = &intake.NewQueues{View: n.raft.View, Max: cfg.Scheduler.NewQueuesPerMinute}
	n.intake = intake.New(intake.Config{
		Publish: n.cluster.Publisher.Publish, CheckLoad: n.cluster.Publisher.CheckLoad, DelayAck: n.cluster.Publisher.DelayAck, StoreBody: n.cluster.Writer.StoreBody, RemoveBody: n.cluster.Admin.RemoveBody, Waiters: n.waiters, ReadBarrier: n.proposer.ReadBarrier, CreateQueues: *cfg.Scheduler.CreateQueues, QueuesFull: n.queuesFull.Load, NewQueues: n.newQueues, Schemas: n.schemas, Keys: n.limitKeys,
		OnAccept: n.metrics.Accepted,
		OnReject: func(err error) { n.metrics.Rejected(cluster.AsAPIError(err).Code) },
	})
	n.viewer = &jobview.Viewer{
		Index: n.index, Ledger: n.raft, Waiters: n.waiters, Reader: n.cluster.Reader, Lanes: n.cluster.Lanes, ReadBarrier: n.proposer.ReadBarrier,
		Record: func(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
			r, err := n.cluster.Reader.LoadVerified(ctx, at, id, identities.of(at.Lane))
			return r.Body, err
		},
	}
	n.retrier = &jobview.Retrier{Viewer: n.viewer, Propose: n.proposer.Propose, StoreRelocated: n.storeRetried}
	n.deadLetters = deadletters.New(deadletters.Config{
		Reader: n.cluster.Reader, Remove: n.cluster.Admin.RemoveDeadLetter, View: n.raft.View, Authority: n.proposer,
		Jobs: n.viewer, Retrier: n.retrier, Intake: n.intake, MaxAttempts: cfg.Scheduler.MaxAttempts,
	})
	n.enqueue = &server.Enqueue{Intake: n.intake, Viewer: n.viewer, Waiters: n.waiters, Log: n.log}
	n.hasher = consistency.NewHasher(cfg.Node.Name, n.raft.Copy)
	n.consistency = consistency.New(consistency.Config{
		Node: cfg.Node.Name, Dir: cfg.Node.DataDir, Advice: replaceAdvice(&n.cfg),
		Copies: n.raft.ConsistencyChecks(), Members: voters(n.raft, cfg.MemberNames()), Request: n.fleet.RequestJSON,
	}, n.log)
	n.chronicle = chronicle.New(chronicle.Config{
		View: n.raft.View, Copy: n.raft.Copy, IsAuthority: func() bool { return n.authority.Holder() == cfg.Node.Name },
		Reader: n.cluster.Reader, Append: n.cluster.Writer.AppendAsync,
	}, n.log)
	n.backups = backup.NewServer(n.backupConfig())
	n.agent = agent.New(agent.Config{
		Node: cfg.Node.Name, Incarnation: n.id.Incarnation, Runners: cfg.RRQ.RunnerNames(), LedLanes: n.cluster.Publisher.LedLanes, Edge: n.cfg.EdgeAddress(n.edgeAddr.String()),
		MaxError: cfg.Scheduler.MaxErrorBytes,
	}, agentAdapter{n.fleet, n.cluster.Writer, n.authority, n.viewer.LoadBody}, n.log)
	n.jobLog = joblog.New(cfg.Node.Name, n.id.Incarnation, n.cluster.Writer.AppendLog, n.log)
	n.endpoints = sync.OnceValue(func() []cluster.Endpoint { return n.binding().Bind(api.Endpoints, n.apiHandlers()) })
	n.workers = &worker.Cluster{
		Node: cfg.Node.Name, ClusterName: cfg.Cluster.Name, DataDir: cfg.Node.DataDir, Incarnation: n.id.Incarnation, DefaultTimeout: cfg.Scheduler.DefaultTimeout,
		Ledger: n.raft, Now: n.raft.LedgerTime, Authority: n.proposer, Intake: n.intake, Waiters: n.waiters, Viewer: n.viewer, Retrier: n.retrier,
		RaftLeader: func() string { return n.raft.Status().Leader }, OtherEdges: n.agent.Edges,
		Operations: sync.OnceValue(n.overhopOperations),
	}
	edgeConfig := cfg.Config
	edgeConfig.Version, edgeConfig.Built = n.version, buildTime()
	observer := observe.New(cfg.Node.Name, n.agent, n.jobLog, n.tracer, n.metrics)
	if n.edge, err = edge.New(edgeConfig, n.workers, observer.Executor(), n.log); err != nil {
		return fmt.Errorf("open the Overhop edge: %w", err)
	}
	n.runners = runnerpool.New(cfg.RRQ, cfg.Node.Name, observer.Executor(), n.log)
	n.drainer = membership.NewDrainer(n.transfer, n.drainConfig())
	n.member = membership.New(n.membershipConfig(), n.drainer)
	n.diagnoser, n.reporter = n.newDiagnoser(), n.newReporter()
	n.viewer.AddProgress = n.diagnoser.AddProgress
	n.consoleCaller = n.newConsoleCaller()
	observer.AddTarget(n.edge)
	observer.AddTarget(n.runners)
	return nil
}

// handlers returns the handlers of messages from other nodes.
func (n *Node) handlers() cluster.Handlers {
	h := cluster.Handlers{
		Assign:    func(b job.AssignmentBatch, reply func([]job.Answer)) { reply(n.agent.Assign(b)) },
		Recall:    n.agent.Recall,
		Notice:    n.scheduler.ReceiveRecords,
		Report:    func(r job.Report, reply func(job.ReportAck)) { _ = n.scheduler.Report(r, reply) }, // no answer if this node is not the authority
		Heartbeat: func(b job.Heartbeat, reply func(job.HeartbeatAck)) { _ = n.scheduler.Heartbeat(b, reply) },
		Request: map[string]func(context.Context, []byte) ([]byte, error){
			health.VerbAuthorityStatus: n.reporter.ServeAuthorityStatus, consistency.VerbLedgerHash: n.consistency.ServeHash,
			consistency.VerbDiverged: n.consistency.ServeDiverged,
		},
	}
	maps.Copy(h.Request, n.proposer.Handlers())
	maps.Copy(h.Request, n.transfer.Handlers())
	maps.Copy(h.Request, n.member.Handlers())
	maps.Copy(h.Request, n.diagnoser.PeerHandlers())
	maps.Copy(h.Request, n.workerHandlers().PeerHandlers())
	maps.Copy(h.Request, n.schemaPeers().Handlers())
	maps.Copy(h.Request, n.consoleCaller.PeerHandlers())
	return h
}

// notifyAuthority sends acknowledged records to the authority, so that it need not
// wait for its next read of the lanes. A lost message does no harm.
func (n *Node) notifyAuthority(records []job.Record) {
	owner, _, ok := n.authority.Current()
	switch {
	case !ok:
	case owner == n.cfg.Node.Name:
		n.scheduler.ReceiveRecords(records)
	default:
		if err := n.fleet.Notify(owner, records); err != nil {
			n.log.Debug("record notice not sent", "node", owner, "err", err)
		}
	}
}

// serveUntilFailure closes n.serving and blocks until ctx ends, which returns nil, or
// one of the parents ends, which returns its cause.
func (n *Node) serveUntilFailure(ctx context.Context, parents ...context.Context) error {
	if ignored := n.cfg.RRQ.Ignored; len(ignored) > 0 {
		n.log.Warn("configuration keys without effect on this node", "keys", strings.Join(ignored, "; "))
	}
	n.log.Info("node serving", "nats", n.cluster.ClientURL(), "overhop", n.edgeAddr.String(), "http", n.httpAddr, "version", n.version)
	close(n.serving)
	collector := &metrics.Collector{
		Node: n.cfg.Node.Name, DataDir: n.cfg.Node.DataDir, View: n.raft.View, Raft: n.raft.Status, Storage: n.cluster.Replication.Storage, Intake: n.cluster.Publisher, Decisions: n.scheduler.Counts,
		Changes: n.authority.ChangeCount, Certificates: func() []*certs.Store { return n.certs.stores(n.edge) }, Monitor: n.monitor, Chronicle: n.chronicle, Index: n.index.Report, Reporter: n.reporter,
		Schemas: n.schemas.Collect,
	}
	n.metrics.SetCollector(collector.Collect)
	failed := make(chan error, len(parents))
	for _, parent := range parents {
		defer context.AfterFunc(parent, func() { failed <- context.Cause(parent) })()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// checkPorts returns an error if the node cannot listen at one of its addresses, so that it
// does not first become a member, or create a cluster, in its data directory. The HTTP
// listener is open before.
func checkPorts(cfg *config.Config) error {
	addresses := map[string]string{"nats.listen": cfg.NATS.Listen, "server.port": cfg.Server.Address()}
	if cfg.Clustered() {
		addresses["nats.route_listen"], addresses["raft.listen"] = cfg.NATS.RouteListen, cfg.Raft.Listen
	}
	for _, key := range slices.Sorted(maps.Keys(addresses)) {
		listener, err := net.Listen("tcp", addresses[key])
		if err != nil {
			return portInUse(fmt.Errorf("check %s: %w", key, err), key)
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("check %s: %w", key, err)
		}
	}
	return nil
}

// portInUse adds the remedy to err if an address is already in use. key is the
// configuration key of the address.
func portInUse(err error, key string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; another program listens there: stop it or choose another address by %s", err, key)
	}
	return err
}
