package yardtest

import (
	"context"
	"fmt"
	"sync"
	"syscall"
)

// network connects clients and members.
type network struct {
	mu    sync.Mutex // guards the fields below
	nodes []*node    // the present run of each member
	links []*link    // open, or closed a moment ago
	next  int        // index of the node to which the next client connects
	count int        // links so far
}

// link is a connection of a client.
type link struct {
	host string // address of the client, without its port
	conn *conn  // the client's end
	node *node
	work *work // the worker; nil: another client
}

// yardAddress is the address under which clients reach any member, as behind a load
// balancer.
const yardAddress = "yard:9876"

// workKey is the key of a *work in the context of its connections.
type workKey struct{}

// dial connects a client to the member with the address, or to one of those that run, in
// turn.
func (n *network) dial(ctx context.Context, addr string) (*conn, error) {
	w, _ := ctx.Value(workKey{}).(*work)
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.targetLocked(addr)
	if to == nil || w != nil && w.lost {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	n.count++
	l := &link{host: fmt.Sprintf("client-%d", n.count), node: to, work: w}
	var server *conn
	l.conn, server = newPipe(address(l.host+":1"), to.listener.addr)
	select {
	case to.listener.conns <- server:
	default:
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	n.links = append(n.openLocked(), l)
	return l.conn, nil
}

// targetLocked returns the running member for a new connection, or nil. mu is held.
func (n *network) targetLocked(addr string) *node {
	for range n.nodes {
		to := n.nodes[n.next%len(n.nodes)]
		n.next++
		if to.Running() && (addr == yardAddress || addr == string(to.listener.addr)) {
			return to
		}
	}
	return nil
}

// openLocked returns the links that are not closed. mu is held.
func (n *network) openLocked() (open []*link) {
	for _, l := range n.links {
		if l.conn.open() {
			open = append(open, l)
		}
	}
	return open
}

// open reports whether neither end has closed the connection.
func (c *conn) open() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.in.err == nil
}

// linkOf returns the link of the client with a host, or nil.
func (n *network) linkOf(host string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		if l.host == host {
			return l
		}
	}
	return nil
}

// cut cuts the links for which match returns true.
func (n *network) cut(match func(*link) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.openLocked() {
		if match(l) {
			l.conn.cut()
		}
	}
}

// lose cuts the connections of a worker and refuses new ones.
func (n *network) lose(w *work) {
	n.mu.Lock()
	w.lost = true
	n.mu.Unlock()
	n.cut(func(l *link) bool { return l.work == w })
}

// replace puts a new run of a member in the place of the last one.
func (n *network) replace(old, next *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.nodes {
		if n.nodes[i] == old {
			n.nodes[i] = next
		}
	}
}

// running returns the members that run.
func (n *network) running() (all []*node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.nodes {
		if m.Running() {
			all = append(all, m)
		}
	}
	return all
}
