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

	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

// Config configures this node's server and connections.
type Config struct {
	Node             string // member name: ^[a-z0-9][a-z0-9-]*$
	Identity         string // server name, bound to Dir: "<node>-<8 hex>"
	Yard             string // the yard's id; servers of other yards are refused
	Dir              string // directory of the streams' files
	ClientListen     string // host:port for clients; port 0 picks a free one
	RouteListen      string // host:port for routes to other members; "": the node runs alone
	Peers            []Peer // all members, including this one; empty if the node runs alone
	Secret           string // shared secret of the members for routes; "": not required
	InternalPassword string // password of this node's own connections; "": random
	// ClientTLS is required of clients; nil: plain TCP.
	ClientTLS *tls.Config
	// MemberTLS holds the certificates for routes; nil: plain TCP.
	MemberTLS *certs.Store
	MaxStore  int64 // bytes that streams may use; 0: three quarters of the available disk space

	// Users may connect to ClientListen. They are the same on every member. Without
	// users every client is an operator.
	Users []User
	// Anonymous is the role of clients without a user name if there are Users; "":
	// such clients are refused.
	Anonymous Role

	// PrimaryLane makes every node use lane 0 while it has few publishes in flight.
	// This gives fewer and larger writes, at the price of one network hop.
	PrimaryLane bool
	// PublishTimeout is how long a publish is retried before it fails; 0: 1.8 s, so
	// that a node answers its callers within two seconds.
	PublishTimeout time.Duration
}

// Peer is one member of the yard.
type Peer struct {
	Node     string
	Identity string // "" if unknown
	Route    string // host:port
}

var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// clustered reports whether the node has other members.
func (c *Config) clustered() bool { return c.RouteListen != "" }

// withDefaults returns a validated copy of c with defaults filled in and Peers
// sorted by name.
func (c *Config) withDefaults() (Config, error) {
	d := *c
	d.Peers = slices.SortedFunc(slices.Values(c.Peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
	if d.Identity == "" {
		d.Identity = d.Node
	}
	if d.ClientListen == "" {
		d.ClientListen = "127.0.0.1:4222"
	}
	if d.PublishTimeout == 0 {
		d.PublishTimeout = 1800 * time.Millisecond
	}
	if err := d.validate(); err != nil {
		return d, err
	}
	if d.MaxStore == 0 {
		space, err := availableSpace(d.Dir)
		if err != nil {
			return d, fmt.Errorf("measure the free space of %s: %w", d.Dir, err)
		}
		d.MaxStore = space / 4 * 3
	}
	return d, nil
}

// validate returns an error that names the first invalid field.
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
		return fmt.Errorf("%d members: a cluster has 3 or 5", len(c.Peers))
	}
	if c.index() < 0 {
		return fmt.Errorf("member %q is not among the members %v", c.Node, c.Peers)
	}
	return nil
}

// index returns the position of this node in Peers, -1 if it is missing.
func (c *Config) index() int {
	return slices.IndexFunc(c.Peers, func(p Peer) bool { return p.Node == c.Node })
}

// Cluster is this node's part of the yard's messaging: the embedded server, the
// connections to it, and everything built on them. Its methods may be called
// concurrently.
type Cluster struct {
	cfg         Config
	log         *slog.Logger
	srv         *server.Server
	serverLog   *serverLog
	conns       []*nats.Conn
	js          jetstream.JetStream
	unrecovered map[string]bool // streams on disk that could not be recovered at start; only of a node that runs alone

	lanes atomic.Int32           // number of lanes
	peers atomic.Pointer[[]Peer] // the members, sorted by name

	// One connection per kind of traffic, so that a slow consumer of one kind does
	// not delay the others.
	ingest, reads, history, fleet, api, boards *inbox

	system *inbox // system account; nil if the node runs alone

	publisher     *publisher
	router        *router
	userConsumers *userConsumers // nil if there are no users
	stalled       *stallDetector
	mismatch      *mismatchWatch
}

// Start starts the embedded server and connects to it. JetStream may still be
// electing its leader when Start returns; see [Cluster.Health]. Publishes and
// requests only complete or time out while [Cluster.Run] runs.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Cluster, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	password := full.InternalPassword
	if password == "" {
		password = randomHex(16)
	}
	c := &Cluster{cfg: full, log: log}
	c.stalled = &stallDetector{c: c, interval: stallCheckInterval, timeout: stallTimeout}
	c.peers.Store(&full.Peers)
	if c.srv, c.serverLog, err = startServer(&full, password, c.peerList, log); err != nil {
		return nil, err
	}
	if !full.clustered() {
		c.unrecovered = unrecoveredStreams(c.srv)
	}
	if err := c.connect(password); err != nil {
		c.Stop()
		return nil, err
	}
	c.SetLanes(len(c.members()))
	c.publisher = newPublisher(c)
	c.mismatch = newMismatchWatch(c)
	c.router = newRouter(c)
	if err := c.router.mapLocalSubjects(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("map the node's local subjects: %w", err)
	}
	c.router.updateMapping()
	if err := c.subscribeMoves(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("subscribe to leader moves: %w", err)
	}
	if len(full.Users) > 0 {
		if c.userConsumers, err = c.startUserConsumers(); err != nil {
			c.Stop()
			return nil, fmt.Errorf("serve consumer requests of users: %w", err)
		}
	}
	return c, nil
}

// connect opens the in-process connections, each with its inbox.
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
			nats.ErrorHandler(c.logConnError))
		if err != nil {
			return fmt.Errorf("connect %s to the node's own server: %w", kind.name, err)
		}
		c.conns = append(c.conns, nc)
		if *kind.box, err = newInbox(nc); err != nil {
			return fmt.Errorf("subscribe to the inbox of %s: %w", kind.name, err)
		}
	}
	js, err := jetstream.New(c.api.nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	c.js = js
	return nil
}

// logConnError logs an asynchronous error of one of the node's own connections.
func (c *Cluster) logConnError(nc *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	c.log.Warn("error on in-process NATS connection", "connection", nc.Opts.Name, "subject", subject, "err", err)
}

// Run routes publishes to lanes that answer and fails requests that have timed
// out. It returns nil when ctx ends, [ErrDamaged] if the server found damage that
// it cannot repair, and another error if the server failed.
func (c *Cluster) Run(ctx context.Context) error {
	var helper sync.WaitGroup
	helping, stop := context.WithCancel(ctx)
	defer helper.Wait()
	defer stop()
	helper.Go(func() { c.stalled.run(helping) })
	if c.cfg.clustered() {
		helper.Go(func() { (&snapshotSender{c: c}).run(helping) })
		helper.Go(func() { c.mismatch.run(helping) })
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.serverLog.failed:
			return fmt.Errorf("NATS server failed: %s", c.serverLog.fatal)
		case <-c.serverLog.damaged:
			return fmt.Errorf("%w: %s", ErrDamaged, c.serverLog.damage)
		case now := <-tick.C:
			c.router.tick(now)
			c.publisher.retryParked(now)
			for _, box := range c.inboxes() {
				box.expire(now)
			}
		}
	}
}

// tickInterval is how often Run routes publishes and expires requests.
const tickInterval = 100 * time.Millisecond

// inboxes returns the inboxes of all open connections.
func (c *Cluster) inboxes() []*inbox {
	all := []*inbox{c.ingest, c.reads, c.history, c.fleet, c.api, c.boards, c.system}
	return slices.DeleteFunc(all, func(b *inbox) bool { return b == nil })
}

// Stop closes the connections and stops the server. Pending publishes and requests
// fail first.
func (c *Cluster) Stop() {
	if c.userConsumers != nil {
		c.userConsumers.close()
	}
	for _, nc := range c.conns {
		nc.Close()
	}
	for _, box := range c.inboxes() {
		box.close()
	}
	if c.publisher != nil {
		c.publisher.close()
	}
	c.srv.Shutdown()
	c.srv.WaitForShutdown()
}

// SetLanes sets the number of lanes, which the ledger decides. It is the number of
// members until the first call.
func (c *Cluster) SetLanes(n int) { c.lanes.Store(int32(min(max(n, 1), MaxLanes))) }

// Lanes returns the number of lanes.
func (c *Cluster) Lanes() int { return int(c.lanes.Load()) }

// Node returns this member's name.
func (c *Cluster) Node() string { return c.cfg.Node }

// Members returns all members' names, in the order of their lanes.
func (c *Cluster) Members() []string { return c.members() }

// ClientURL returns the URL for clients.
func (c *Cluster) ClientURL() string { return c.srv.ClientURL() }

// RouteURL returns the URL for other members, "" if the node runs alone.
func (c *Cluster) RouteURL() string {
	if addr := c.srv.ClusterAddr(); addr != nil && c.cfg.clustered() {
		return "nats-route://" + addr.String()
	}
	return ""
}

// ReachableMembers returns the sorted names of the members that this node has a
// route to, including itself.
func (c *Cluster) ReachableMembers() []string {
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

// availableSpace returns the bytes that are free in dir's file system plus those
// that files in dir already use, so that the default of MaxStore does not shrink
// with each restart of a node whose disk fills.
func availableSpace(dir string) (int64, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return 0, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	space := int64(st.Bavail) * int64(st.Bsize)
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if info, err := e.Info(); err == nil {
			space += info.Size()
		}
		return nil
	})
	return space, err
}

// randomHex returns n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
