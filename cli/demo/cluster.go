package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

const (
	startTimeout   = 25 * time.Second
	requestTimeout = 3 * time.Second // of one enqueue request
	workers        = 2
	credits        = 16 // of each worker
	slots          = 8  // of each node's RRQ runner
)

// The queues: one for Overhop workers, one for RRQ runners.
const (
	queueOverhop = "demo-workers"
	queueRRQ     = "demo-runners"
)

// demoCluster is the nodes and workers of a demo.
type demoCluster struct {
	*procs.Cluster
	opts     Options
	dir      string
	terminal bool // opts.Out is a terminal
	members  []*member
	killed   time.Time // when the authority was killed; zero if it was not

	currentAuthority atomic.Pointer[string] // as shown by showProgress

	out sync.Mutex // for writing to opts.Out
}

// member is a node of the demo.
type member struct {
	*procs.Node
	client *cluster.Client // nil until connect
}

// layOut chooses the addresses of the nodes and writes their configuration files to
// dir. It starts nothing.
func layOut(o Options, dir string) (*demoCluster, error) {
	c := &demoCluster{opts: o, dir: dir}
	c.currentAuthority.Store(new(string))
	if file, ok := o.Out.(*os.File); ok {
		info, err := file.Stat()
		c.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	env := []string{fmt.Sprintf("YARD_NATS_MAX_STORE_BYTES=%d", 2<<30)}
	if o.Nodes > 1 {
		env = append(env, "YARD_CLUSTER_NAME=demo")
	}
	var err error
	c.Cluster, err = procs.LayOut(procs.Options{Nodes: o.Nodes, Dir: dir, Binary: o.Binary, NodeConfig: c.config, Env: env})
	if err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		c.members = append(c.members, &member{Node: n})
	}
	return c, nil
}

func (c *demoCluster) path(name string) string { return filepath.Join(c.dir, name) }

// config returns what the configuration file of a node contains besides its
// addresses.
func (c *demoCluster) config(node string) string {
	return fmt.Sprintf(`[scheduler]
retry_base = "200ms"
retry_max = "2s"

[rrq.runners.demo]
type = "socket"
cmd = [%q, "runner"]
pool_size = 1
max_in_flight = %d
env = { YARD_WITNESS = %q }
`, c.opts.Binary, slots, c.path("runner-"+node+".witness"))
}

// connect connects to every node.
func (c *demoCluster) connect(ctx context.Context) (err error) {
	for _, m := range c.members {
		if m.client, err = cluster.Dial(ctx, m.URL(), cluster.DialOptions{Name: "yardmaster demo", Timeout: requestTimeout}); err != nil {
			return err
		}
	}
	return nil
}

// survivor returns a node whose process runs. The search starts at the node with the
// number turn modulo the number of nodes, so that callers can take turns. If no node
// runs, survivor returns the first, which is about to be restarted.
func (c *demoCluster) survivor(turn int) *member {
	for i := range c.members {
		if m := c.members[(turn+i)%len(c.members)]; m.Running() {
			return m
		}
	}
	return c.members[0]
}

// askSurvivors calls ask with one surviving node after the other until it returns nil,
// ctx ends, or a process exits unexpectedly. what describes the awaited fact in errors.
func (c *demoCluster) askSurvivors(ctx context.Context, what string, ask func(*member) error) error {
	turn := 0
	return c.Until(ctx, what, func() error {
		turn++
		return ask(c.survivor(turn))
	})
}

// askFunc sends a request to one node and decodes its reply.
type askFunc func(ctx context.Context, subject string, request, reply any) error

// tally returns the number of jobs in each state as one node counts them, and their
// sums "ended" and "open".
func tally(ctx context.Context, ask askFunc) (map[string]int, error) {
	var list api.QueueList
	err := ask(ctx, api.Subject("queue-list"), struct{}{}, &list)
	numbers := make(map[string]int)
	for _, queue := range list.Queues {
		for state, n := range queue.Counts {
			numbers[state] += n
		}
	}
	numbers["ended"] = numbers["completed"] + numbers["failed"] + numbers["cancelled"]
	numbers["open"] = numbers["waiting"] + numbers["delayed"] + numbers["active"]
	return numbers, err
}

// startWorkers starts the Overhop workers, and waits until they are subscribed.
// Each has the addresses of all nodes, so that it can reconnect when one dies.
func (c *demoCluster) startWorkers(ctx context.Context) error {
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		args := []string{"worker", "--queue", queueOverhop, "--credits", fmt.Sprint(credits), "--name", name, "--witness", c.path(name + ".witness")}
		for j := range c.members {
			args = append(args, "--addr", c.members[(i+j)%len(c.members)].Edge)
		}
		p, err := procs.StartProcess(name, c.path(name+".log"), nil, c.opts.Binary, args...)
		if err != nil {
			return err
		}
		c.Workers = append(c.Workers, p)
	}
	return c.Until(ctx, "the workers are subscribed", func() error {
		subscribed := 0
		for _, m := range c.members {
			s, err := m.Status(ctx)
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

// watchProcesses returns an error, which ends the demo, when a process exits
// unexpectedly.
func (c *demoCluster) watchProcesses(ctx context.Context) error {
	for backoff.Sleep(ctx, 100*time.Millisecond) == nil {
		if err := c.UnexpectedExit(); err != nil {
			return err
		}
	}
	return nil
}

// stop stops all processes.
func (c *demoCluster) stop() {
	for _, m := range c.members {
		if m.client != nil {
			m.client.Close()
		}
	}
	c.Stop()
}
