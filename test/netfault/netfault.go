// Package netfault provides a TCP proxy that stalls or cuts connections on
// demand, to simulate network faults between two programs.
package netfault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Proxy forwards TCP connections to one target address.
type Proxy struct {
	target string
	ln     net.Listener

	mu        sync.Mutex
	unblocked chan struct{} // closed while bytes are forwarded
	cut       bool          // connections are closed and refused
	conns     map[net.Conn]struct{}
}

// New listens on a free loopback port for connections to target. They are
// forwarded once [Proxy.Serve] runs.
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, ln: ln, unblocked: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(p.unblocked)
	return p, nil
}

// Addr returns the address that clients connect to in place of the target.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Stall stops forwarding without an error to either side: connections stay open
// and silent, as behind a dead switch. Bytes sent in the meantime are delivered
// after [Proxy.Heal].
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.unblocked:
		p.unblocked = make(chan struct{})
	default:
	}
}

// Cut closes all connections. New ones are closed as soon as they are accepted,
// until [Proxy.Heal].
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		c.Close()
	}
}

// Heal undoes [Proxy.Stall] and [Proxy.Cut].
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	select {
	case <-p.unblocked:
	default:
		close(p.unblocked)
	}
}

// Serve forwards connections until ctx ends, and returns when the last of them
// has been closed.
func (p *Proxy) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		p.ln.Close()
		p.Cut()
	})
	defer stop()
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		work.Go(func() { p.forward(ctx, c) })
	}
}

// forward copies bytes between near and a new connection to the target, in both
// directions, until either side closes.
func (p *Proxy) forward(ctx context.Context, near net.Conn) {
	defer near.Close()
	if !p.track(near) {
		return
	}
	defer p.untrack(near)
	if p.awaitUnblocked(ctx) != nil {
		return
	}
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !p.track(far) {
		return
	}
	defer p.untrack(far)
	var directions sync.WaitGroup
	for _, direction := range [2][2]net.Conn{{near, far}, {far, near}} {
		directions.Go(func() {
			p.pipe(ctx, direction[1], direction[0])
			near.Close()
			far.Close()
		})
	}
	directions.Wait()
}

// pipe copies bytes until either connection or ctx ends. It waits while the proxy is
// stalled.
func (p *Proxy) pipe(ctx context.Context, to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if p.awaitUnblocked(ctx) != nil {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// awaitUnblocked blocks until the proxy is not stalled, or ctx ends.
func (p *Proxy) awaitUnblocked(ctx context.Context) error {
	p.mu.Lock()
	open := p.unblocked
	p.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// track registers c, so that Cut closes it. It returns false if the proxy is
// cut.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) untrack(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
