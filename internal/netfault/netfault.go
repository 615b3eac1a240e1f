// Package netfault stands between two programs that talk TCP and breaks the
// line when a test says so.
package netfault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Proxy carries connections to one address.
type Proxy struct {
	target string
	ln     net.Listener

	mu    sync.Mutex
	open  chan struct{} // closed while bytes may pass
	cut   bool
	conns map[net.Conn]struct{}
}

// New listens on a free port of the loopback for connections to target.
// [Proxy.Serve] carries them.
func New(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, ln: ln, open: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(p.open)
	return p, nil
}

// Addr is what to connect to instead of the target.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Hold lets nothing through, and nobody is told: connections stay open and
// silent, as behind a switch that died. What was sent meanwhile arrives after
// [Proxy.Heal].
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Cut ends all connections, and new ones at once, as if nobody listened.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		c.Close()
	}
}

// Heal undoes [Proxy.Hold] and [Proxy.Cut].
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Serve carries connections until ctx ends, and returns when the last is gone.
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
		work.Go(func() { p.carry(ctx, c) })
	}
}

// carry joins one connection with the target until either end closes.
func (p *Proxy) carry(ctx context.Context, near net.Conn) {
	defer near.Close()
	if !p.keep(near) {
		return
	}
	defer p.drop(near)
	if p.pass(ctx) != nil {
		return
	}
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !p.keep(far) {
		return
	}
	defer p.drop(far)
	var ways sync.WaitGroup
	for _, way := range [2][2]net.Conn{{near, far}, {far, near}} {
		ways.Go(func() {
			p.copy(ctx, way[1], way[0])
			near.Close()
			far.Close()
		})
	}
	ways.Wait()
}

func (p *Proxy) copy(ctx context.Context, to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if p.pass(ctx) != nil {
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

// pass waits until bytes may go through.
func (p *Proxy) pass(ctx context.Context) error {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep remembers a connection, so that Cut ends it; false if all are cut.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
