package overhop

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"yardmaster/internal/backoff"
)

const (
	// helloTime bounds the way from dialling a node to being registered there.
	helloTime = 5 * time.Second

	// signTime is how long a node may take for a sign of life.
	signTime = 3 * time.Second
)

// doors are the nodes that a worker or a producer may connect to, one after
// the other. It is used by one goroutine at a time.
type doors struct {
	nodes  []string
	turn   int
	wished []string // where a node that drains sends us; each is tried once
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	tls    *tls.Config
	wait   backoff.Backoff
	begun  time.Time // of the last try
}

func newDoors(nodes []string, dial func(context.Context, string) (net.Conn, error), secret *tls.Config) *doors {
	if dial == nil {
		dial = dialTCP
	}
	return &doors{
		nodes: nodes, turn: rand.IntN(len(nodes)), dial: dial, tls: secret,
		wait: backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second},
	}
}

// mostWished bounds how many addresses of one node's list are tried.
const mostWished = 16

// wish reads where a DRAIN sends its clients.
func (d *doors) wish(addrs []string) {
	d.wished = addrs[:min(len(addrs), mostWished)]
	rand.Shuffle(len(d.wished), func(i, j int) { d.wished[i], d.wished[j] = d.wished[j], d.wished[i] })
}

// next is the node to try now.
func (d *doors) next() string {
	d.begun = time.Now()
	if len(d.wished) > 0 {
		addr := d.wished[0]
		d.wished = d.wished[1:]
		return addr
	}
	d.turn++
	return d.nodes[d.turn%len(d.nodes)]
}

// open connects to a node and registers there.
func (d *doors) open(ctx context.Context, addr string, o Options) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	nc, err := d.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	if nc, err = secure(ctx, nc, addr, d.tls); err != nil {
		return nil, err
	}
	o.alive = func(ctx context.Context) bool { return d.alive(ctx, addr) }
	c, err := Connect(ctx, nc, o)
	if err != nil {
		nc.Close()
	}
	return c, err
}

// alive tells a node that answers at its door, over a connection of its own.
// Whatever is heard in time will do, be it that it has no room: a process that
// stands still lets strangers in and says nothing. It may be called while the
// doors are used.
func (d *doors) alive(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, signTime)
	defer cancel()
	nc, err := d.dial(ctx, addr)
	if err != nil {
		return false
	}
	if nc, err = secure(ctx, nc, addr, d.tls); err != nil {
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

// pause is how long to wait before the next try; the first need not wait. A
// connection that lasted begins the count anew.
func (d *doors) pause() time.Duration {
	if d.begun.IsZero() {
		return 0
	}
	if time.Since(d.begun) > d.wait.Max {
		d.wait.Reset()
	}
	return d.wait.Next()
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Control: watchPath}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	return nc, nil
}

// secure speaks TLS over nc, unless cfg is nil. It closes nc on error.
func secure(ctx context.Context, nc net.Conn, addr string, cfg *tls.Config) (net.Conn, error) {
	if cfg == nil {
		return nc, nil
	}
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secured := tls.Client(nc, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("TLS with node: %w", err)
	}
	return secured, nil
}

// hardPlaces are the refusals that no other node and no later time would take
// back: worker or producer is set up wrongly.
var hardPlaces = []Code{
	CodeProtocolViolation, CodeQueueNotFound, CodeInvalidQueueName, CodeSystemQueue, CodeDuplicateSub, CodeNotImplemented,
	CodeUnauthorized,
}
