package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/agent"
	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/edge"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/membership"
	"yardmaster/runnerpool"
	"yardmaster/scheduler"
	"yardmaster/scrub"
	"yardmaster/tracing"
	"yardmaster/vigil"
	"yardmaster/web"
)

// Node is one member of a yard, or a yard of its own.
type Node struct {
	cfg     Config
	version string
	log     *slog.Logger
	began   time.Time
	serving chan struct{}            // closed when everything listens
	waiting atomic.Pointer[[]string] // for whom, or for what, before the node belongs to a yard

	certs     certificates
	id        *consensus.Identity
	messages  *cluster.Cluster
	raft      *consensus.Node
	fleet     *cluster.Fleet
	watch     *authorityWatch
	edge      *edge.Server
	edgeAddr  net.Addr
	web       *web.Server
	metrics   *web.Metrics
	httpAddr  string // "" if there is no such door
	runners   *runnerpool.Pools
	hands     *agent.Agent
	mind      *scheduler.Scheduler
	door      *door
	notices   *notices
	rulings   *rulings
	ends      *ends
	commander *commander
	viewer    *viewer
	dlq       *dlq
	running   *runningDesk
	footprint footprint
	proof     proof
	tracer    *tracing.Tracer // nil: runs are not traced
	journal   *journal
	keeper    *vigil.Keeper
	proofs    *proofs
	roll      *membership.Keeper // of who belongs to the yard
	dismissed chan error         // why this node is out of it
	goes      bool               // this node is being taken out; of followRoll
	backups   *backups
	scrubber  *scrub.Scrubber
	drain     *drain
	rebuilds  *rebuilder
}

// New makes a node from a config with defaults. It opens nothing yet, and runs
// once.
func New(cfg Config, version string, log *slog.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Node{cfg: cfg, version: version, log: log.With("node", cfg.Node.Name), serving: make(chan struct{}), dismissed: make(chan error, 1)}, nil
}

// Serving is closed when the node listens everywhere. Whether it has work to
// do yet is a question of readiness.
func (n *Node) Serving() <-chan struct{} { return n.serving }

// Addresses are where a node listens, also where it was to pick a port itself.
type Addresses struct {
	NATS    string // URL for NATS clients
	Overhop string // host:port for Overhop workers
	HTTP    string // host:port for HTTP clients; "" if there is no such door
}

// Addresses tells where the node listens, once it is [Node.Serving].
func (n *Node) Addresses() Addresses {
	return Addresses{NATS: n.messages.ClientURL(), Overhop: n.edgeAddr.String(), HTTP: n.httpAddr}
}

// Ledger is a copy of the record as this node has it now, once it is
// [Node.Serving].
func (n *Node) Ledger() *ledger.Ledger { return n.raft.Copy() }

// Disturb changes this node's ledger behind agreement's back, for tests of what
// becomes of such a node.
func (n *Node) Disturb(change func(*ledger.Ledger)) { n.raft.Disturb(change) }

// Run starts the node and blocks until ctx ends or a room fails.
//
// Foundations come first and go last. What others can do goes to them first,
// see leave; the hands outlive the agent that feeds them, so that a draining node
// finishes what it has accepted.
func (n *Node) Run(ctx context.Context) (err error) {
	n.began = time.Now()
	defer func() { err = n.haltOf(err) }()
	closeWeb, err := n.openWeb(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeb()) }()
	if n.id, err = consensus.Identify(ctx, n.identityConfig(), n.log); err != nil {
		return portInUse(err, "raft.listen")
	}
	n.waiting.Store(nil)
	defer n.id.Close()
	store, err := n.openStore()
	if err != nil {
		return fmt.Errorf("open consensus: %w", err)
	}
	defer store.Close()

	messages := n.clusterConfig()
	if messages.Users, err = n.cfg.NATS.users(); err != nil {
		return fmt.Errorf("nats.users: %w", err)
	}
	if n.messages, err = cluster.Start(ctx, messages, n.log); err != nil {
		return n.noMessages(err)
	}
	defer n.messages.Stop()

	if n.raft, err = consensus.Open(n.raftConfig(), n.id, store, n.log); err != nil {
		return fmt.Errorf("open consensus: %w", err)
	}
	defer n.raft.Close()

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
	if err := n.build(); err != nil {
		return err
	}

	// What stops first stands on top: the agent gives its work back while there is
	// a mind, here or elsewhere, and whoever asks is answered until that is done.
	cellar, base, mind, hands, desk, repair := newFloor(ctx), newFloor(ctx), newFloor(ctx), newFloor(ctx), newFloor(ctx), newFloor(ctx)
	cellar.Go(n.journal.run) // until nobody says anything any more
	for _, loop := range []func(context.Context) error{
		n.messages.Run, n.followRoll, n.notices.run, n.rulings.run, n.ends.run, n.backups.run, n.runners.Run, n.keepDrained,
	} {
		base.Go(loop)
	}
	base.Go(func(ctx context.Context) error { return n.watch.run(ctx, n.raft) })
	base.Go(func(ctx context.Context) error { return n.fleet.Serve(ctx, n.handlers()) })
	base.Go(func(ctx context.Context) error { return n.edge.Serve(ctx, listener) })
	n.watchItself(base)
	mind.Go(func(ctx context.Context) error { return n.raft.Lead(ctx, n.tenure) })

	hands.Go(n.hands.Run)
	n.serve(desk)
	repair.Go(n.rebuilds.run)
	err = n.announce(ctx, base.ctx, mind.ctx, hands.ctx, desk.ctx, repair.ctx)
	if ended := repair.stop(); err == nil {
		err = ended
	}
	left := n.leave(base.ctx)
	err = errors.Join(err, hands.stop())
	if left {
		n.abandon(base.ctx) // what has come back meanwhile
	}
	err = errors.Join(err, desk.stop(), mind.stop())
	n.takeAway(base.ctx, err)
	return errors.Join(err, base.stop(), n.door.close(), cellar.stop())
}

// serve answers whoever asks, over NATS and HTTP.
func (n *Node) serve(desk *floor) {
	service := n.service()
	for _, s := range []cluster.Service{n.described(service), n.ownService(), n.backups.service()} {
		desk.Go(func(ctx context.Context) error { return n.messages.Serve(ctx, s) })
	}
	desk.Go(func(ctx context.Context) error { return n.web.ServeAPI(ctx, n.webRoutes(service.Endpoints)) })
}

// openStore opens what agreement keeps on the disk, before a word of this node is
// heard: what it has may not be what it had.
func (n *Node) openStore() (*consensus.Store, error) {
	if err := n.refuseDiverged(); err != nil {
		return nil, err
	}
	n.layBallast() // before anything else needs the room
	return consensus.OpenStore(n.raftConfig(), n.id, n.log)
}

// watchItself starts what looks after the node itself.
func (n *Node) watchItself(base *floor) {
	base.Go(n.keeper.Run)
	base.Go(n.thaw)
	base.Go(n.proofs.run)
	base.Go(n.watchCertificates)
	base.Go(n.scrubber.Run)
}

// floor is a group of loops that stops when it is told to, not when the node's
// context ends.
type floor struct {
	group *errgroup.Group
	ctx   context.Context // ends when a loop fails
	end   context.CancelFunc
}

func newFloor(ctx context.Context) *floor {
	inner, end := context.WithCancel(context.WithoutCancel(ctx))
	group, inner := errgroup.WithContext(inner)
	return &floor{group, inner, end}
}

// Go starts a loop.
func (f *floor) Go(loop func(context.Context) error) {
	f.group.Go(func() error { return loop(f.ctx) })
}

// stop ends the loops and waits for them.
func (f *floor) stop() error {
	f.end()
	return f.group.Wait()
}

// build makes the rooms that need no start of their own and binds them.
func (n *Node) build() (err error) {
	cfg := &n.cfg
	n.fleet = n.messages.Fleet()
	n.watch = newAuthorityWatch()
	n.mind = scheduler.New(n.schedulerConfig(), agreement{n.raft}, lanes{n.messages, n.poor, n.laneIdentity}, orders{n.fleet}, tales{n.messages}, n.log)
	n.notices = newNotices(n.sendNotices)
	n.commander = &commander{
		node: cfg.Node.Name, raft: n.raft, mind: n.mind, fleet: n.fleet, watch: n.watch, leaving: new(atomic.Bool),
	}
	n.keeper = n.newKeeper()
	n.rulings = newRulings(n.raft, cfg.Limits.RequestTimeout)
	n.ends = newEnds(n.raft)
	n.door = newDoor(n.messages, n.raft.View, n.commander.current, *cfg.Scheduler.CreateQueues, n.noticeAccepted, n.rulings)
	n.door.refused = func(err error) { n.metrics.Refused(cluster.RefusalOf(err).Code) }
	n.viewer = &viewer{raft: n.raft, messages: n.messages, load: n.loadBody, current: n.commander.current}
	n.proof.copy = n.raft.Copy
	n.proofs = newProofs(n)
	n.dlq = newDLQ(n)
	n.roll = membership.New(n.id.ID(), cfg.Cluster.Name, roster{n}, n.log)
	n.backups = newBackups(n)
	n.scrubber = scrub.New(scrub.Config{Node: cfg.Node.Name, Every: cfg.Scrub.Every, Rate: cfg.Scrub.Rate}, copies{n}, n.log)
	n.drain = newDrain(n.commander.leaving)
	n.rebuilds = newRebuilder(n)
	n.hands = agent.New(agent.Config{
		Node: cfg.Node.Name, Incarnation: n.id.Incarnation, Runners: cfg.RRQ.Names(), Lanes: n.messages.Led, Edge: n.advertised(),
	}, bus{n.fleet, n.messages, n.watch, n.loadBody}, n.log)
	n.journal = newJournal(cfg.Node.Name, n.id.Incarnation, n.messages.AppendLog, n.log)
	door := cfg.Config
	door.Version = n.version
	counts := newCounts(n.metrics)
	hands := countedHands{tracedHands{n.hands, n.journal, n.tracer}, counts}
	if n.edge, err = edge.New(door, yard{n}, hands, n.log); err != nil {
		return fmt.Errorf("open the Overhop edge: %w", err)
	}
	n.running = &runningDesk{node: cfg.Node.Name, edge: n.edge, fleet: n.fleet}
	n.viewer.running = n.running.add
	n.runners = runnerpool.New(cfg.RRQ, cfg.Node.Name, hands, n.log)
	n.hands.Add(countedTarget{n.traced(n.edge), counts})
	n.hands.Add(countedTarget{n.traced(n.runners), counts})
	return nil
}

// advertised is where clients of other nodes reach this one's edge, "" if nobody
// can tell: an edge that listens everywhere is best reached as the other members
// reach this one.
func (n *Node) advertised() string {
	server, me := n.cfg.Server, n.cfg.me()
	_, port, err := net.SplitHostPort(n.edgeAddr.String())
	switch {
	case server.Advertise != "":
		return server.Advertise
	case err != nil:
		return ""
	case !server.Everywhere():
		return net.JoinHostPort(server.Host, port)
	case me != nil:
		host, _, _ := net.SplitHostPort(me.Route)
		return net.JoinHostPort(host, port)
	}
	return ""
}

func (n *Node) identityConfig() consensus.IdentityConfig {
	c := consensus.IdentityConfig{
		Yard: n.cfg.Cluster.Name, Node: n.cfg.Node.Name, Dir: n.cfg.Node.DataDir,
		Build: consensus.Build{Version: n.version, Level: protocolLevel}, Certificates: n.certs.cluster,
	}
	if n.cfg.Clustered() {
		c.Listen, c.Members, c.Route = n.cfg.Raft.Listen, n.raftMembers(), n.cfg.me().Route
		c.Waiting = func(reasons []string) { n.waiting.Store(&reasons) }
	}
	return c
}

func (n *Node) raftMembers() []consensus.Member {
	var members []consensus.Member
	for _, m := range n.cfg.Cluster.Members {
		members = append(members, consensus.Member{Name: m.Name, Addr: m.Raft})
	}
	return members
}

func (n *Node) clusterConfig() cluster.Config {
	c := cluster.Config{
		Node: n.cfg.Node.Name, Identity: n.id.Seat.ID(), Yard: n.id.Yard,
		Dir: filepath.Join(n.cfg.Node.DataDir, "nats"), Client: n.cfg.NATS.Listen,
		Secret: n.cfg.Cluster.Secret, MaxStore: n.cfg.NATS.MaxStore, PrimaryLane: n.cfg.NATS.PrimaryLane,
		ClientTLS: serverTLS(n.certs.nats), MemberTLS: n.certs.cluster,
	}
	c.Anonymous = cluster.Role(n.cfg.NATS.Anonymous)
	if n.cfg.Clustered() {
		c.Route = n.cfg.NATS.RouteListen
		for _, p := range n.id.Peers() {
			if p.Node == n.id.Node && p.Seat != n.id.Seat {
				continue // whose place this node takes
			}
			route := n.routeTo(p)
			if !slices.ContainsFunc(c.Peers, func(o cluster.Peer) bool { return o.Route == route }) {
				c.Peers = append(c.Peers, cluster.Peer{Node: p.Node, Identity: p.ID(), Route: route})
			}
		}
	}
	return c
}

// routeTo is where a member's route port is: where this node's configuration
// says, which may have its own way there, unless the member came later.
func (n *Node) routeTo(p consensus.Peer) string {
	for _, m := range n.cfg.Cluster.Members {
		if m.Name == p.Node && (p.Since == 0 || p.Route == "" || m.Name == n.cfg.Node.Name) {
			return m.Route
		}
	}
	return p.Route
}

func (n *Node) raftConfig() consensus.Config {
	return consensus.Config{Dir: n.cfg.Node.DataDir, SnapshotBytes: n.cfg.Raft.SnapshotBytes, Stuck: n.diskHalted}
}

func (n *Node) schedulerConfig() scheduler.Config {
	s := n.cfg.Scheduler
	crons, _ := declaredCrons(n.cfg.RRQ.CronJobs, n.cfg.RRQ.Queue()) // checked by Validate
	return scheduler.Config{
		Node: n.cfg.Node.Name, Members: n.cfg.members(),
		Policy:         job.Policy{MaxAttempts: s.MaxAttempts, Base: s.RetryBase, Max: s.RetryMax},
		Defaults:       n.cfg.RRQ.Defaults(),
		DefaultTimeout: s.DefaultTimeout, Routes: n.cfg.RRQ.Routed(), DefaultRunner: n.cfg.RRQ.Default(),
		CreateQueues: *s.CreateQueues, Crons: crons,
		ProveEvery: s.ProveEvery, Held: func() string { return n.keeper.Held() },
	}
}

// handlers are what other nodes may say to this one.
func (n *Node) handlers() cluster.Handlers {
	return cluster.Handlers{
		Assign: func(b job.Batch, reply func([]job.Answer)) { reply(n.hands.Assign(b)) },
		Recall: n.hands.Recall,
		Notice: n.mind.Notice,
		Report: func(r job.Report, reply func(job.ReportAck)) { _ = n.mind.Report(r, reply) }, // no tenure: no answer
		Beat:   func(b job.Beat, reply func(job.BeatAck)) { _ = n.mind.Beat(b, reply) },
		Request: map[string]func(context.Context, []byte) ([]byte, error){
			verbDo: n.commander.serveDo, verbTransfer: n.commander.serveTransfer, verbFollow: n.commander.serveFollow,
			verbIndex: n.commander.serveIndex, verbLook: n.serveLook, verbRunning: n.running.serve,
			verbWhy: n.serveWhy, verbHands: n.serveHands, verbProof: n.proofs.serve,
			verbMembers: n.serveMembers, verbWord: n.serveWord, verbVouch: n.serveVouch, verbDismiss: n.serveDismiss,
			verbCopy: n.serveCopy, verbScrub: n.serveScrub,
			verbRebuild: n.serveRebuild, verbCheck: n.serveCheck, verbSpares: n.serveSpares,
		},
	}
}

// sendNotices tells the authority of acknowledged records. It may get lost:
// the authority reads the lanes anyway.
func (n *Node) sendNotices(records []job.Record) {
	owner, _, ok := n.watch.authority()
	switch {
	case !ok:
	case owner == n.cfg.Node.Name:
		n.mind.Notice(records)
	default:
		if err := n.fleet.Notify(owner, records); err != nil {
			n.log.Debug("notice is not sent", "to", owner, "error", err)
		}
	}
}

// announce says that the node serves, and ends when ctx does or, with the
// reason, when a floor below has failed.
func (n *Node) announce(ctx context.Context, floors ...context.Context) error {
	if idle := n.cfg.RRQ.Idle; len(idle) > 0 {
		n.log.Warn("keys of the configuration have no effect here", "keys", strings.Join(idle, "; "))
	}
	n.log.Info("node serves", "nats", n.messages.ClientURL(), "overhop", n.edgeAddr.String(), "http", n.httpAddr, "version", n.version)
	close(n.serving)
	n.metrics.Ask(n.gather)
	failed := make(chan error, len(floors))
	for _, f := range floors {
		defer context.AfterFunc(f, func() { failed <- context.Cause(f) })()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// portInUse adds what to do to the commonest reason why a node cannot start.
func portInUse(err error, key string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; another program listens there: stop it or choose another address by %s", err, key)
	}
	return err
}
