package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"yardmaster/cluster"
	"yardmaster/node"
)

// Yard is three nodes as processes.
type Yard struct {
	Dir    string // holds everything
	Binary string // the program to start
	Nodes  []*Node

	workers []*Process
	kills   []time.Time
}

// Node is one member.
type Node struct {
	Name    string
	NATS    string // URL for clients
	Overhop string // host:port for workers
	DataDir string
	Witness string // of its runners

	*Process
	config string
}

// New lays a yard out in dir: a config file and addresses for each node.
func New(dir, binary string) (*Yard, error) {
	y := &Yard{Dir: dir, Binary: binary}
	var members []string
	ports := make(map[string]int)
	for _, name := range []string{"n1", "n2", "n3"} {
		for _, use := range []string{"nats", "overhop", "route", "raft"} {
			port, err := freePort()
			if err != nil {
				return nil, err
			}
			ports[name+use] = port
		}
		y.Nodes = append(y.Nodes, &Node{
			Name: name, DataDir: filepath.Join(dir, name), config: filepath.Join(dir, name+".toml"),
			NATS:    fmt.Sprintf("nats://127.0.0.1:%d", ports[name+"nats"]),
			Overhop: fmt.Sprintf("127.0.0.1:%d", ports[name+"overhop"]),
			Witness: filepath.Join(dir, name+"-runners.witness"),
		})
		members = append(members, fmt.Sprintf("  { name = %q, route = \"127.0.0.1:%d\", raft = \"127.0.0.1:%d\" },\n",
			name, ports[name+"route"], ports[name+"raft"]))
	}
	for _, n := range y.Nodes {
		n.Process = &Process{name: n.Name, log: filepath.Join(dir, n.Name+".log"), args: []string{binary, "node", "--config", n.config}}
		if err := os.WriteFile(n.config, []byte(n.text(binary, ports, members)), 0o600); err != nil {
			return nil, fmt.Errorf("write config: %w", err)
		}
	}
	return y, nil
}

func (n *Node) text(binary string, ports map[string]int, members []string) string {
	return fmt.Sprintf(`[node]
name = %q
data_dir = %q

[nats]
listen = "127.0.0.1:%d"
max_store_bytes = 2147483648

[http]
listen = "127.0.0.1:0"

[server]
port = %d

[scheduler]
retry_base = "50ms"
retry_max = "500ms"

[cluster]
name = "drill"
members = [
%s]

[rrq.runners.demo]
type = "socket"
cmd = [%q, "runner"]
pool_size = 1
max_in_flight = 4
env = { YARD_WITNESS = %q }
`, n.Name, n.DataDir, ports[n.Name+"nats"], ports[n.Name+"overhop"], strings.Join(members, ""), binary, n.Witness)
}

// given holds the ports that were found free: none is given twice.
var given sync.Map

// freePort finds a port below those the kernel gives to outgoing connections.
func freePort() (int, error) {
	for range 200 {
		port := 12000 + rand.IntN(18000)
		if _, before := given.LoadOrStore(port, true); before {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, ln.Close()
		}
	}
	return 0, errors.New("no free port found")
}

// Open starts all nodes and returns when every one is ready.
func (y *Yard) Open(ctx context.Context) error {
	for _, n := range y.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return y.WaitReady(ctx)
}

// Close ends every process, without asking.
func (y *Yard) Close() {
	for _, w := range y.workers {
		w.Kill()
	}
	for _, n := range y.Nodes {
		n.Kill()
	}
}

// Kill ends nodes with SIGKILL, all at once, and notes when.
func (y *Yard) Kill(nodes ...*Node) {
	y.kills = append(y.kills, time.Now())
	for _, n := range nodes {
		n.cmd.Process.Kill()
	}
	for _, n := range nodes {
		n.Process.Kill() // waits for its end
	}
}

// Up lists the nodes that run.
func (y *Yard) Up() (up []*Node) {
	for _, n := range y.Nodes {
		if n.Running() {
			up = append(up, n)
		}
	}
	return up
}

// URLs are the NATS addresses of all nodes.
func (y *Yard) URLs() string {
	var urls []string
	for _, n := range y.Nodes {
		urls = append(urls, n.NATS)
	}
	return strings.Join(urls, ",")
}

// Edges are the Overhop addresses of all nodes.
func (y *Yard) Edges() (edges []string) {
	for _, n := range y.Nodes {
		edges = append(edges, n.Overhop)
	}
	return edges
}

// Ask asks one node.
func (n *Node) Ask(ctx context.Context, subject string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := cluster.Dial(ctx, n.NATS, cluster.DialOptions{Name: "drill", Timeout: 2 * time.Second})
	if err != nil {
		return fmt.Errorf("ask %s: %w", n.Name, err)
	}
	defer c.Close()
	raw, err := c.Request(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", n.Name, err)
	}
	return json.Unmarshal(raw, answer)
}

// Status is what a node says of itself.
func (n *Node) Status(ctx context.Context) (s node.Status, err error) {
	return s, n.Ask(ctx, cluster.SubjectStatus, struct{}{}, &s)
}

// Authority asks the running nodes who holds the authority; the highest epoch
// counts.
func (y *Yard) Authority(ctx context.Context) (*Node, error) {
	var found *Node
	epoch := uint64(0)
	for _, n := range y.Up() {
		s, err := n.Status(ctx)
		if err != nil || s.Authority.Epoch <= epoch || s.Authority.Expired {
			continue
		}
		for _, owner := range y.Up() {
			if owner.Name == s.Authority.Owner {
				found, epoch = owner, s.Authority.Epoch
			}
		}
	}
	if found == nil {
		return nil, errors.New("no running node holds the authority")
	}
	return found, nil
}

// WaitReady waits until every running node says that it is ready and sees all
// that run.
func (y *Yard) WaitReady(ctx context.Context) error {
	return until(ctx, "the yard is ready", func() error {
		up := y.Up()
		for _, n := range up {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			seen := 0
			for _, m := range s.Members {
				if m.State == "up" {
					seen++
				}
			}
			if !s.Readiness.Ready || seen < len(up) {
				return fmt.Errorf("%s sees %d up and says %v", n.Name, seen, s.Readiness.Reasons)
			}
		}
		return nil
	})
}

// AddQueue makes a queue; limit 0 is none.
func (y *Yard) AddQueue(ctx context.Context, name string, limit int) error {
	question := map[string]any{"name": name}
	if limit > 0 {
		question["concurrency_limit"] = limit
	}
	return until(ctx, "queue "+name+" is made", func() error {
		var made any
		err := y.Nodes[0].Ask(ctx, cluster.SubjectAPI+".queue.add", question, &made)
		var refused *cluster.APIError
		if errors.As(err, &refused) && refused.Code == "409" { // an earlier try did it
			return nil
		}
		return err
	})
}

// until looks for a fact until ctx ends, and then says what was missing.
func until(ctx context.Context, what string, fact func() error) error {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		err := fact()
		if err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// Process is a child of ours. Its methods are for one goroutine.
type Process struct {
	name string
	args []string
	env  []string
	log  string

	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// Start starts it, appending what it says to its log.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), p.env...), log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	go func() { p.err = cmd.Wait(); close(ended) }() // joined by whoever waits on ended
	return nil
}

// Running tells that it was started and has not ended.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to it.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends it with SIGKILL and waits for its end.
func (p *Process) Kill() {
	if p.Running() {
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// Wait waits for its end and gives its exit error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended: %w", p.name, ctx.Err())
	}
}

// Log is what it has said so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
