package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/drill/procs"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

const (
	startTimeout   = 25 * time.Second
	stopTimeout    = 5 * time.Second
	requestTimeout = 3 * time.Second // for one request
	workers        = 2
	credits        = 16
	slots          = 8 // of each node's RRQ runner
)

// The queues: one for Overhop workers, one for RRQ runners.
const (
	queueOverhop = "demo-workers"
	queueRRQ     = "demo-runners"
)

// demoCluster is the nodes and workers of a demo.
type demoCluster struct {
	opts     Options
	dir      string
	terminal bool // opts.Out is a terminal
	members  []*member
	workers  []*process
	killed   time.Time // when the authority was killed; zero if it was not

	currentAuthority atomic.Pointer[string] // as shown by showProgress

	out sync.Mutex // for writing to opts.Out
}

// member is a node of the demo.
type member struct {
	name                    string
	nats, edge, route, raft string // addresses
	process                 atomic.Pointer[process]
	client                  *cluster.Client
	dead                    atomic.Bool
}

// layOut chooses addresses and writes the configuration files. It starts nothing.
func layOut(o Options, dir string) (*demoCluster, error) {
	c := &demoCluster{opts: o, dir: dir}
	c.currentAuthority.Store(new(string))
	if out, ok := o.Out.(*os.File); ok {
		info, err := out.Stat()
		c.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	addresses, err := procs.FreeAddresses(4 * o.Nodes)
	if err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		a := addresses[4*i:]
		c.members = append(c.members, &member{name: fmt.Sprintf("n%d", i+1), nats: a[0], edge: a[1], route: a[2], raft: a[3]})
	}
	for _, m := range c.members {
		if err := os.WriteFile(c.path(m.name+".toml"), []byte(c.config(m)), 0o600); err != nil {
			return nil, fmt.Errorf("write the configuration of %s: %w", m.name, err)
		}
	}
	return c, nil
}

func (c *demoCluster) path(name string) string { return filepath.Join(c.dir, name) }

// config returns the configuration file of a node.
func (c *demoCluster) config(m *member) string {
	var b strings.Builder
	host, port, _ := strings.Cut(m.edge, ":")
	fmt.Fprintf(&b, "[node]\nname = %q\ndata_dir = %q\n\n", m.name, c.path(m.name))
	fmt.Fprintf(&b, "[nats]\nlisten = %q\nmax_store_bytes = %d\n\n", m.nats, 2<<30)
	fmt.Fprint(&b, "[http]\nlisten = \"127.0.0.1:0\"\n\n")
	fmt.Fprintf(&b, "[server]\nhost = %q\nport = %s\n\n", host, port)
	fmt.Fprintf(&b, "[scheduler]\nretry_base = \"200ms\"\nretry_max = \"2s\"\n\n")
	fmt.Fprintf(&b, "[rrq.runners.demo]\ntype = \"socket\"\ncmd = [%q, \"runner\"]\npool_size = 1\nmax_in_flight = %d\n", c.opts.Binary, slots)
	fmt.Fprintf(&b, "env = { YARD_WITNESS = %q }\n", c.path("runner-"+m.name+".witness"))
	if len(c.members) > 1 {
		fmt.Fprintf(&b, "\n[cluster]\nname = \"demo\"\nmembers = [\n")
		for _, peer := range c.members {
			fmt.Fprintf(&b, "  { name = %q, route = %q, raft = %q },\n", peer.name, peer.route, peer.raft)
		}
		fmt.Fprint(&b, "]\n")
	}
	return b.String()
}

// startNode starts a member, for the first time or again.
func (c *demoCluster) startNode(m *member) error {
	p, err := start("node "+m.name, c.path(m.name+".log"), c.opts.Binary, "node", "--config", c.path(m.name+".toml"))
	if err != nil {
		return err
	}
	m.process.Store(p)
	return nil
}

// awaitReady connects to every node and waits until each reports that the cluster
// is ready, with all members and runners up.
func (c *demoCluster) awaitReady(ctx context.Context) error {
	for _, m := range c.members {
		err := c.until(ctx, "node "+m.name+" accepts connections", func() (err error) {
			m.client, err = cluster.Dial(ctx, "nats://"+m.nats, cluster.DialOptions{Name: "yardmaster demo", Timeout: requestTimeout})
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, m := range c.members {
		err := c.until(ctx, "node "+m.name+" is ready", func() error {
			s, err := c.status(ctx, m)
			if err != nil {
				return err
			}
			return procs.CheckReady(&s, len(c.members))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// startWorkers starts the Overhop workers, and waits until they are subscribed.
// Each has the addresses of all nodes, so that it can reconnect when one dies.
func (c *demoCluster) startWorkers(ctx context.Context) error {
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		args := []string{"worker", "--queue", queueOverhop, "--credits", fmt.Sprint(credits), "--name", name, "--witness", c.path(name + ".witness")}
		for j := range c.members {
			args = append(args, "--addr", c.members[(i+j)%len(c.members)].edge)
		}
		p, err := start(name, c.path(name+".log"), c.opts.Binary, args...)
		if err != nil {
			return err
		}
		c.workers = append(c.workers, p)
	}
	return c.until(ctx, "the workers are subscribed", func() error {
		subscribed := 0
		for _, m := range c.members {
			s, err := c.status(ctx, m)
			if err != nil {
				return err
			}
			subscribed += s.Workers.Subscriptions
		}
		if subscribed < workers {
			return fmt.Errorf("%d of %d are subscribed", subscribed, workers)
		}
		return nil
	})
}

// until polls fact until it returns nil. It gives up when ctx ends or a process of
// the demo has exited unexpectedly.
func (c *demoCluster) until(ctx context.Context, what string, fact func() error) error {
	for {
		err := fact()
		if err == nil {
			return nil
		}
		if exited := c.exitedProcess(); exited != nil {
			return exited
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, err)
		}
	}
}

// exitedProcess returns an error if a process has exited unexpectedly.
func (c *demoCluster) exitedProcess() error {
	for _, m := range c.members {
		if p := m.process.Load(); p != nil && p.unexpectedExit() != nil {
			return p.unexpectedExit()
		}
	}
	for _, w := range c.workers {
		if err := w.unexpectedExit(); err != nil {
			return err
		}
	}
	return nil
}

// watchProcesses returns an error, which ends the demo, when a process exits
// unexpectedly.
func (c *demoCluster) watchProcesses(ctx context.Context) error {
	for backoff.Sleep(ctx, 100*time.Millisecond) == nil {
		if err := c.exitedProcess(); err != nil {
			return err
		}
	}
	return nil
}

// stop stops all processes: the workers first, so that they can report their last
// outcomes.
func (c *demoCluster) stop() {
	for _, m := range c.members {
		if m.client != nil {
			m.client.Close()
		}
	}
	for _, w := range c.workers {
		w.term()
	}
	for _, w := range c.workers {
		w.stop(stopTimeout)
	}
	for _, m := range c.members {
		if p := m.process.Load(); p != nil {
			p.term()
		}
	}
	for _, m := range c.members {
		if p := m.process.Load(); p != nil {
			p.stop(stopTimeout)
		}
	}
}
