// Package yard starts nodes as separate processes of the program itself, on
// loopback and in a directory of the caller's, for whoever wants to measure or
// break a real yard.
package yard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/node"
)

const (
	startPatience = 30 * time.Second
	stopPatience  = 5 * time.Second
	answerTime    = 3 * time.Second
)

// Options say what to start.
type Options struct {
	Nodes  int    // 1, 3 or 5
	Dir    string // an empty directory, the caller's to remove
	Binary string // the program; "": this one
	Config string // TOML that is added to every node's file
	Env    []string
	// Profile opens every node's profiling listener, at Node.Profile.
	Profile bool
}

// Yard is some nodes that run as processes.
type Yard struct {
	Nodes []*Node
	o     Options
}

// Node is one of them, running or not.
type Node struct {
	Name    string
	NATS    string // host:port for clients
	Edge    string // host:port for Overhop workers
	Profile string // host:port of its profiles; "" if not asked for
	*Process
	yard        *Yard
	route, raft string
}

// Start starts the nodes and returns when all of them see a yard that is
// ready. After an error nothing runs.
func Start(ctx context.Context, o Options) (*Yard, error) {
	y, err := layOut(o)
	if err != nil {
		return nil, err
	}
	for _, n := range y.Nodes {
		err = errors.Join(err, n.Start())
	}
	if err == nil {
		err = y.AwaitReady(ctx)
	}
	if err != nil {
		y.Stop()
		return nil, err
	}
	return y, nil
}

func layOut(o Options) (*Yard, error) {
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the program itself: %w", err)
		}
		o.Binary = self
	}
	y := &Yard{o: o}
	const ports = 5
	a, err := FreeAddresses(ports * o.Nodes)
	if err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		a := a[ports*i:]
		n := &Node{Name: fmt.Sprintf("n%d", i+1), yard: y, NATS: a[0], Edge: a[1], route: a[2], raft: a[3]}
		if o.Profile {
			n.Profile = a[4]
		}
		y.Nodes = append(y.Nodes, n)
	}
	for _, n := range y.Nodes {
		if err := os.WriteFile(n.path("toml"), []byte(n.config()), 0o600); err != nil {
			return nil, fmt.Errorf("write the configuration of %s: %w", n.Name, err)
		}
	}
	return y, nil
}

func (n *Node) path(suffix string) string { return filepath.Join(n.yard.o.Dir, n.Name+"."+suffix) }

// config is the file a person would write for this node.
func (n *Node) config() string {
	var b strings.Builder
	host, port, _ := net.SplitHostPort(n.Edge)
	fmt.Fprintf(&b, "[node]\nname = %q\ndata_dir = %q\n\n", n.Name, n.path("data"))
	fmt.Fprintf(&b, "[nats]\nlisten = %q\n\n", n.NATS)
	fmt.Fprint(&b, "[http]\nlisten = \"127.0.0.1:0\"\n\n")
	fmt.Fprintf(&b, "[server]\nhost = %q\nport = %s\n", host, port)
	if len(n.yard.Nodes) > 1 {
		fmt.Fprintf(&b, "\n[cluster]\nmembers = [\n")
		for _, m := range n.yard.Nodes {
			fmt.Fprintf(&b, "  { name = %q, route = %q, raft = %q },\n", m.Name, m.route, m.raft)
		}
		fmt.Fprint(&b, "]\n")
	}
	return b.String() + "\n" + n.yard.o.Config
}

// FreeAddresses finds loopback addresses below the ports that the kernel gives
// to outgoing connections: those could be taken before anybody listens.
func FreeAddresses(n int) ([]string, error) {
	var found []string
	for range 100 * n {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(10000))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close() // only now: the same address must not be found twice
		if found = append(found, address); len(found) == n {
			return found, nil
		}
	}
	return nil, fmt.Errorf("found only %d of %d free ports on 127.0.0.1 between 10000 and 20000", len(found), n)
}

// Start starts the node's process, for the first time or again.
func (n *Node) Start() error {
	env := n.yard.o.Env
	if n.Profile != "" {
		env = append(env[:len(env):len(env)], "YARD_PPROF="+n.Profile)
	}
	p, err := StartProcess("node "+n.Name, n.path("log"), env, n.yard.o.Binary, "node", "--config", n.path("toml"))
	if err == nil {
		n.Process = p
	}
	return err
}

// URL is where NATS clients connect to the node.
func (n *Node) URL() string { return "nats://" + n.NATS }

// Route is where the other members' servers connect to the node.
func (n *Node) Route() string { return n.route }

// Ask sends a node one request and reads its JSON answer.
func (n *Node) Ask(ctx context.Context, subject string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("write the question %s: %w", subject, err)
	}
	raw, err := n.Request(ctx, subject, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("read the answer of %s to %s: %w", n.Name, subject, err)
	}
	return nil
}

// Request sends a node one request and gives its answer as it is.
func (n *Node) Request(ctx context.Context, subject string, question []byte) ([]byte, error) {
	c, err := cluster.Dial(ctx, n.URL(), cluster.DialOptions{Timeout: answerTime})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	raw, err := c.Request(ctx, subject, question)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", n.Name, err)
	}
	return raw, nil
}

// Status asks a node how it stands.
func (n *Node) Status(ctx context.Context) (s node.Status, err error) {
	err = n.Ask(ctx, cluster.SubjectStatus, struct{}{}, &s)
	return s, err
}

// AwaitReady waits until every node says that the yard is ready, every member
// up and every runner.
func (y *Yard) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for _, n := range y.Nodes {
		err := y.Until(ctx, "node "+n.Name+" is ready", func() error {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			return Whole(&s, len(y.Nodes))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Whole says what a ready yard of so many members is missing, as one node sees
// it; nil if nothing is.
func Whole(s *node.Status, members int) error {
	up := 0
	for _, m := range s.Members {
		if m.State == "up" {
			up++
		}
	}
	if up < members {
		return fmt.Errorf("%d of %d members are up", up, members)
	}
	for _, p := range s.Pools {
		if p.Up < p.Size {
			return fmt.Errorf("%d of %d runners are up", p.Up, p.Size)
		}
	}
	if !s.Readiness.Ready {
		return fmt.Errorf("not ready: %v", s.Readiness.Reasons)
	}
	return nil
}

// Authority is the node that holds the authority, as the others say.
func (y *Yard) Authority(ctx context.Context) (*Node, error) {
	var last error
	for _, asked := range y.Nodes {
		s, err := asked.Status(ctx)
		if err != nil {
			last = err
			continue
		}
		for _, n := range y.Nodes {
			if n.Name == s.Authority.Owner {
				return n, nil
			}
		}
		last = fmt.Errorf("%s knows no authority", asked.Name)
	}
	return nil, last
}

// Until repeats fact until it gives no error, ctx ends, or a node has ended by
// itself.
func (y *Yard) Until(ctx context.Context, what string, fact func() error) error {
	for {
		err := fact()
		if err == nil {
			return nil
		}
		for _, n := range y.Nodes {
			if ended := n.Ended(); ended != nil {
				return ended
			}
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, err)
		}
	}
}

// CPU is the processor time that all nodes have used.
func (y *Yard) CPU() (sum time.Duration) {
	for _, n := range y.Nodes {
		if n.Process != nil {
			sum += n.CPU()
		}
	}
	return sum
}

// Stop ends all nodes.
func (y *Yard) Stop() {
	for _, n := range y.Nodes {
		if n.Process != nil {
			n.Term()
		}
	}
	for _, n := range y.Nodes {
		if n.Process != nil {
			n.Process.Stop(stopPatience)
		}
	}
}
