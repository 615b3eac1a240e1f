package overhop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

const (
	// connectTimeout limits the time for connecting to a node and registering
	// there.
	connectTimeout = 5 * time.Second

	// probeTimeout is how long a node may take to answer a probe.
	probeTimeout = 2 * time.Second
)

// nodeDialer connects to the nodes of a worker or a producer in turn. Only
// alive may be called concurrently.
type nodeDialer struct {
	nodes     []string
	index     int
	preferred []string // nodes named by one that drains; each is tried once
	dial      func(ctx context.Context, addr string) (net.Conn, error)
	tls       *tls.Config
	backoff   backoff.Backoff
	lastTry   time.Time
}

// newNodeDialer returns a dialer of nodes, which starts at a random one. dial
// opens a connection; nil means TCP. tlsConfig is nil for plain connections.
func newNodeDialer(nodes []string, dial func(context.Context, string) (net.Conn, error), tlsConfig *tls.Config) *nodeDialer {
	if dial == nil {
		dial = dialTCP
	}
	return &nodeDialer{
		nodes: nodes, index: rand.IntN(len(nodes)), dial: withoutPanic(dial), tls: tlsConfig,
		backoff: backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second},
	}
}

// withoutPanic returns a function that calls dial and turns a panic of it into an error.
func withoutPanic(dial func(ctx context.Context, addr string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (nc net.Conn, err error) {
		err = usercode.Do(func() (err error) {
			nc, err = dial(ctx, addr)
			return err
		}, "Dial")
		if nc == nil && err == nil {
			err = errors.New("Dial returned no connection")
		}
		return nc, err
	}
}

// maxPreferred is the number of addresses of a DRAIN that are tried.
const maxPreferred = 16

// prefer makes next return addrs first, in random order.
func (nd *nodeDialer) prefer(addrs []string) {
	nd.preferred = addrs[:min(len(addrs), maxPreferred)]
	rand.Shuffle(len(nd.preferred), func(i, j int) { nd.preferred[i], nd.preferred[j] = nd.preferred[j], nd.preferred[i] })
}

// next returns the address to try next: a preferred one if there is any, else
// that of the next node in turn.
func (nd *nodeDialer) next() string {
	nd.lastTry = time.Now()
	if len(nd.preferred) > 0 {
		addr := nd.preferred[0]
		nd.preferred = nd.preferred[1:]
		return addr
	}
	nd.index++
	return nd.nodes[nd.index%len(nd.nodes)]
}

// connect is open within connectTimeout, with probes of the node.
func (nd *nodeDialer) connect(ctx context.Context, addr string, opts Options) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	opts.probe = func(ctx context.Context) bool { return nd.alive(ctx, addr) }
	return nd.open(ctx, addr, opts)
}

// open connects to the node at addr, with TLS if it is configured, and
// registers there. On error no connection is left open.
func (nd *nodeDialer) open(ctx context.Context, addr string, opts Options) (*Client, error) {
	nc, err := nd.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	if nc, err = wrapTLS(ctx, nc, addr, nd.tls); err != nil {
		return nil, nd.explainTLS(ctx, addr, err)
	}
	client, err := Connect(ctx, nc, opts)
	if err != nil {
		nc.Close()
		return nil, nd.explainRefusal(ctx, addr, err)
	}
	return client, nil
}

// alive reports whether the node at addr answers a HELLO over a new connection
// within probeTimeout. Any answer counts, including a refusal or a closed
// connection: a process that hangs still accepts connections, but sends
// nothing. alive may be called concurrently with the other methods.
func (nd *nodeDialer) alive(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	nc, err := nd.dial(ctx, addr)
	if err != nil {
		return false
	}
	if nc, err = wrapTLS(ctx, nc, addr, nd.tls); err != nil {
		return ctx.Err() == nil
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	if _, err = nc.Write(AppendMessage(nil, THello, "1", EmptyMap)); err == nil {
		_, err = nc.Read(make([]byte, 1))
	}
	return ctx.Err() == nil
}

// retryDelay returns how long to wait before the next attempt, 0 before the
// first. A connection that lasted resets the backoff.
func (nd *nodeDialer) retryDelay() time.Duration {
	if nd.lastTry.IsZero() {
		return 0
	}
	if time.Since(nd.lastTry) > nd.backoff.Max {
		nd.backoff.Reset()
	}
	return nd.backoff.Next()
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: setUserTimeout}
	return d.DialContext(ctx, "tcp", addr)
}

// wrapTLS returns a TLS connection over nc, or nc itself if config is nil. The
// node's certificate must be valid for the host of addr, unless config says
// otherwise. On error wrapTLS closes nc.
func wrapTLS(ctx context.Context, nc net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	if config == nil {
		return nc, nil
	}
	if config.ServerName == "" && !config.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		config = config.Clone()
		config.ServerName = host
	}
	conn := tls.Client(nc, config)
	err := usercode.Do(func() error { return conn.HandshakeContext(ctx) }, "the TLS configuration")
	if err != nil {
		nc.Close()
		return nil, err
	}
	return conn, nil
}

// isPermanent reports whether err is a refusal that another node or a later
// attempt would not change: the worker or producer is misconfigured.
func isPermanent(err error) bool {
	switch ErrorCode(err) {
	case CodeProtocolViolation, CodeQueueNotFound, CodeInvalidQueueName, CodeSystemQueue, CodeDuplicateSub, CodeNotImplemented,
		CodeUnauthorized:
		return true
	}
	return false
}
