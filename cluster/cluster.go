package cluster

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"yardmaster/internal/certs"
)

// Config says who this node is and where its server listens.
type Config struct {
	Node     string // member name, as people see it: ^[a-z0-9][a-z0-9-]*$
	Identity string // server name, bound to Dir: "<node>-<8 hex>"
	Yard     string // the yard's id; servers of another yard are not let in
	Dir      string // where the streams' files are
	Client   string // host:port for clients; port 0 picks one
	Route    string // host:port for the other members; "" runs alone
	Peers    []Peer // every member, this one included; empty when alone
	Secret   string // shared by the members, asked of who connects to Route; "" asks nothing
	Internal string // password of this node's own connections; "" draws one
	// ClientTLS is spoken with clients, and nothing else; nil: none is spoken.
	ClientTLS *tls.Config
	// MemberTLS is what members show each other on routes; nil: they speak none.
	MemberTLS *certs.Store
	MaxStore  int64 // bytes the streams may fill; 0: three quarters of the disk's room

	// Users are who may connect to Client, the same on every member. Without
	// any, whoever connects is the operator.
	Users []User
	// Anonymous is the role of who connects without a name while there are
	// Users; "" lets nobody.
	Anonymous Role

	// PrimaryLane makes every node use lane 0 while it has few publishes under
	// way: fewer and larger writes for all, at the price of one hop.
	PrimaryLane bool
	// Patience is how long a publish is tried before its end is unknown; 0: 1.8 s,
	// so that callers of a node hear within two seconds.
	Patience time.Duration
}

// Peer is one member of the yard.
type Peer struct {
	Node     string
	Identity string // may be unknown: ""
	Route    string // host:port
}

var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

func (c *Config) clustered() bool { return c.Route != "" }

func (c *Config) withDefaults() (Config, error) {
	d := *c
	d.Peers = slices.SortedFunc(slices.Values(c.Peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
	if d.Identity == "" {
		d.Identity = d.Node
	}
	if d.Client == "" {
		d.Client = "127.0.0.1:4222"
	}
	if d.Patience == 0 {
		d.Patience = 1800 * time.Millisecond
	}
	if err := d.validate(); err != nil {
		return d, err
	}
	if d.MaxStore == 0 {
		room, err := roomIn(d.Dir)
		if err != nil {
			return d, fmt.Errorf("measure the room in %s: %w", d.Dir, err)
		}
		d.MaxStore = room / 4 * 3
	}
	return d, nil
}

func (c *Config) validate() error {
	if !nodeName.MatchString(c.Node) {
		return fmt.Errorf("member name %q: must start with a lower-case letter or digit and hold only those and '-'", c.Node)
	}
	if c.Dir == "" {
		return errors.New("data directory is not given")
	}
	if err := ValidateUsers(c.Users, c.Anonymous); err != nil {
		return err
	}
	if !c.clustered() {
		return nil
	}
	if c.Yard == "" || strings.ContainsAny(c.Yard, " \t") {
		return fmt.Errorf("yard id %q: must not be empty and must hold no spaces", c.Yard)
	}
	if len(c.Peers) < 2 || len(c.Peers) > MaxLanes {
		return fmt.Errorf("%d members: a yard of several nodes has 3 or 5", len(c.Peers))
	}
	if c.index() < 0 {
		return fmt.Errorf("member %q is not among the members %v", c.Node, c.Peers)
	}
	return nil
}

// index is this node's place among the declared members.
func (c *Config) index() int {
	return slices.IndexFunc(c.Peers, func(p Peer) bool { return p.Node == c.Node })
}

// Cluster is this node's part in the yard's messaging.
type Cluster struct {
	cfg   Config
	log   *slog.Logger
	srv   *server.Server
	words *serverLog
	conns []*nats.Conn
	js    jetstream.JetStream
	lost  map[string]bool // streams on disk that could not be recovered at start; of a node alone

	lanes atomic.Int32           // how many lanes there are
	peers atomic.Pointer[[]Peer] // the members, by name

	// One connection per kind of traffic, so that a slow listener of one kind
	// stalls no other.
	ingest, reads, history, fleet, api, boards *inbox

	system *inbox // of the server's own account; nil when the node runs alone

	publisher *publisher
	router    *router
	readers   *readers // nil: users have no roles
	copies    *standstill
	aside     []asideGroup // the damaged ones, at start
	foreign   *foreignWatch
}

// Start brings the embedded server up and connects to it. JetStream may still
// be electing when it returns: see [Cluster.Health]. [Cluster.Run] has to run
// for publishes and requests to reach their end.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Cluster, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	password := full.Internal
	if password == "" {
		password = randomHex(16)
	}
	c := &Cluster{cfg: full, log: log}
	c.copies = &standstill{c: c, every: copiesEvery, after: standsFor}
	c.peers.Store(&full.Peers)
	if c.aside, err = setAside(c.storeDir(), log); err != nil {
		return nil, err
	}
	if c.srv, c.words, err = openServer(&full, password, c.peerList, log); err != nil {
		return nil, err
	}
	if !full.clustered() {
		c.lost = unrecovered(c.srv)
	}
	if err := c.connect(password); err != nil {
		c.Stop()
		return nil, err
	}
	c.SetLanes(len(c.members()))
	c.publisher = newPublisher(c)
	c.foreign = newForeignWatch(c)
	c.router = newRouter(c)
	if err := c.router.mapLocal(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("map the node's own subjects: %w", err)
	}
	c.router.mapJobs()
	if err := c.hearMoves(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("listen for lanes that move: %w", err)
	}
	if len(full.Users) > 0 {
		if c.readers, err = c.openReaders(); err != nil {
			c.Stop()
			return nil, fmt.Errorf("listen for users' consumers: %w", err)
		}
	}
	return c, nil
}

func (c *Cluster) connect(password string) error {
	type traffic struct {
		name string
		box  **inbox
		user string
	}
	kinds := []traffic{
		{"ingest", &c.ingest, userInternal}, {"reads", &c.reads, userInternal}, {"history", &c.history, userInternal},
		{"fleet", &c.fleet, userInternal}, {"api", &c.api, userInternal}, {"boards", &c.boards, userInternal},
	}
	if c.cfg.clustered() {
		kinds = append(kinds, traffic{"system", &c.system, userSystem})
	}
	for _, kind := range kinds {
		nc, err := nats.Connect("", nats.InProcessServer(c.srv), nats.UserInfo(kind.user, password),
			nats.Name("yard-"+kind.name), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.ErrorHandler(c.connectionError))
		if err != nil {
			return fmt.Errorf("connect %s to the node's own server: %w", kind.name, err)
		}
		c.conns = append(c.conns, nc)
		if *kind.box, err = newInbox(nc); err != nil {
			return fmt.Errorf("listen for answers of %s: %w", kind.name, err)
		}
	}
	js, err := jetstream.New(c.api.nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	c.js = js
	return nil
}

func (c *Cluster) connectionError(nc *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	c.log.Warn("connection to the own server errs", "connection", nc.Opts.Name, "subject", subject, "error", err)
}

// Run steers publishers to lanes that answer and ends what waited too long. It
// returns nil when ctx ends, and an error when the embedded server gave up.
func (c *Cluster) Run(ctx context.Context) error {
	if c.cfg.clustered() {
		var helper sync.WaitGroup
		helping, stop := context.WithCancel(ctx)
		helper.Go(func() { (&catchUp{c: c}).run(helping) })
		helper.Go(func() { c.copies.run(helping) })
		helper.Go(func() { c.foreign.run(helping) })
		defer helper.Wait()
		defer stop()
	}
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.words.failed:
			return fmt.Errorf("NATS server failed: %s", c.words.fatal)
		case now := <-tick.C:
			c.router.turn(now)
			c.publisher.turn(now)
			for _, box := range c.boxes() {
				box.expire(now)
			}
		}
	}
}

const tickEvery = 100 * time.Millisecond

// boxes are the inboxes of all connections that are open.
func (c *Cluster) boxes() []*inbox {
	all := []*inbox{c.ingest, c.reads, c.history, c.fleet, c.api, c.boards, c.system}
	return slices.DeleteFunc(all, func(b *inbox) bool { return b == nil })
}

// Stop closes the connections and the server. Whatever waits for an answer
// gets an error first.
func (c *Cluster) Stop() {
	if c.readers != nil {
		c.readers.close()
	}
	for _, nc := range c.conns {
		nc.Close()
	}
	for _, box := range c.boxes() {
		box.close()
	}
	if c.publisher != nil {
		c.publisher.close()
	}
	c.srv.Shutdown()
	c.srv.WaitForShutdown()
}

// SetLanes tells how many lanes the ledger says there are. At start there are
// as many as members.
func (c *Cluster) SetLanes(n int) { c.lanes.Store(int32(min(max(n, 1), MaxLanes))) }

// Lanes is the number of lanes.
func (c *Cluster) Lanes() int { return int(c.lanes.Load()) }

// Node is this member's name.
func (c *Cluster) Node() string { return c.cfg.Node }

// Members lists all members' names, in the order of their lanes.
func (c *Cluster) Members() []string { return c.members() }

// ClientURL is where clients connect.
func (c *Cluster) ClientURL() string { return c.srv.ClientURL() }

// RouteURL is where members connect; "" when the node runs alone.
func (c *Cluster) RouteURL() string {
	if addr := c.srv.ClusterAddr(); addr != nil && c.cfg.clustered() {
		return "nats-route://" + addr.String()
	}
	return ""
}

// Reachable lists the members this node has a route to, and itself.
func (c *Cluster) Reachable() []string {
	nodes := []string{c.cfg.Node}
	if !c.cfg.clustered() {
		return nodes
	}
	routes, err := c.srv.Routez(nil)
	if err != nil {
		return nodes
	}
	for _, r := range routes.Routes {
		if node := NodeOf(r.RemoteName); !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// roomIn is what is free around dir and what the streams in it hold already,
// so that a yard that fills its disk does not shrink with every restart.
func roomIn(dir string) (int64, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return 0, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	room := int64(st.Bavail) * int64(st.Bsize)
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if info, err := e.Info(); err == nil {
			room += info.Size()
		}
		return nil
	})
	return room, err
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
