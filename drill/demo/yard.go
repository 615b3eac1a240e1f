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

	"yardmaster/cluster"
	procs "yardmaster/drill/yard"
	"yardmaster/internal/backoff"
)

const (
	startPatience = 25 * time.Second
	stopPatience  = 5 * time.Second
	answerTime    = 3 * time.Second // for one request
	workers       = 2
	credits       = 16
	slots         = 8 // of each node's RRQ runner
)

// The queues: one for Overhop workers, one for RRQ runners.
const (
	queueOverhop = "demo-workers"
	queueRRQ     = "demo-runners"
)

// yard is everything that was started.
type yard struct {
	o        Options
	dir      string
	terminal bool // Out is one
	members  []*member
	workers  []*process
	killed   time.Time // when the authority was; zero: not yet

	inCharge atomic.Pointer[string] // who, as narrate says it

	out sync.Mutex // for writing to o.Out
}

// member is a node.
type member struct {
	name                    string
	nats, edge, route, raft string // addresses
	process                 atomic.Pointer[process]
	client                  *cluster.Client
	dead                    atomic.Bool
}

// layOut writes the configurations; nothing runs yet.
func layOut(o Options, dir string) (*yard, error) {
	y := &yard{o: o, dir: dir}
	y.inCharge.Store(new(string))
	if out, ok := o.Out.(*os.File); ok {
		info, err := out.Stat()
		y.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	addresses, err := procs.FreeAddresses(4 * o.Nodes)
	if err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		a := addresses[4*i:]
		y.members = append(y.members, &member{name: fmt.Sprintf("n%d", i+1), nats: a[0], edge: a[1], route: a[2], raft: a[3]})
	}
	for _, m := range y.members {
		if err := os.WriteFile(y.path(m.name+".toml"), []byte(y.config(m)), 0o600); err != nil {
			return nil, fmt.Errorf("write the configuration of %s: %w", m.name, err)
		}
	}
	return y, nil
}

func (y *yard) path(name string) string { return filepath.Join(y.dir, name) }

// config is the file a person would write for this node.
func (y *yard) config(m *member) string {
	var b strings.Builder
	host, port, _ := strings.Cut(m.edge, ":")
	fmt.Fprintf(&b, "[node]\nname = %q\ndata_dir = %q\n\n", m.name, y.path(m.name))
	fmt.Fprintf(&b, "[nats]\nlisten = %q\nmax_store_bytes = %d\n\n", m.nats, 2<<30)
	fmt.Fprint(&b, "[http]\nlisten = \"127.0.0.1:0\"\n\n")
	fmt.Fprintf(&b, "[server]\nhost = %q\nport = %s\n\n", host, port)
	fmt.Fprintf(&b, "[scheduler]\nretry_base = \"200ms\"\nretry_max = \"2s\"\n\n")
	fmt.Fprintf(&b, "[rrq.runners.demo]\ntype = \"socket\"\ncmd = [%q, \"runner\"]\npool_size = 1\nmax_in_flight = %d\n", y.o.Binary, slots)
	fmt.Fprintf(&b, "env = { YARD_WITNESS = %q }\n", y.path("runner-"+m.name+".witness"))
	if len(y.members) > 1 {
		fmt.Fprintf(&b, "\n[cluster]\nname = \"demo\"\nmembers = [\n")
		for _, peer := range y.members {
			fmt.Fprintf(&b, "  { name = %q, route = %q, raft = %q },\n", peer.name, peer.route, peer.raft)
		}
		fmt.Fprint(&b, "]\n")
	}
	return b.String()
}

// startNode starts a member, also one that ran before.
func (y *yard) startNode(m *member) error {
	p, err := start("node "+m.name, y.path(m.name+".log"), y.o.Binary, "node", "--config", y.path(m.name+".toml"))
	if err != nil {
		return err
	}
	m.process.Store(p)
	return nil
}

// awaitReady connects to every node and waits until all of them see a yard
// that is ready, with every member and every runner up.
func (y *yard) awaitReady(ctx context.Context) error {
	for _, m := range y.members {
		err := y.until(ctx, "node "+m.name+" accepts connections", func() (err error) {
			m.client, err = cluster.Dial(ctx, "nats://"+m.nats, cluster.DialOptions{Name: "yardmaster demo", Timeout: answerTime})
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, m := range y.members {
		err := y.until(ctx, "node "+m.name+" is ready", func() error {
			s, err := y.status(ctx, m)
			if err != nil {
				return err
			}
			return procs.Whole(&s, len(y.members))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// startWorkers starts the Overhop workers: each knows all nodes, so that it
// can change over when one dies.
func (y *yard) startWorkers(ctx context.Context) error {
	for i := range workers {
		name := fmt.Sprintf("worker-%d", i+1)
		args := []string{"worker", "--queue", queueOverhop, "--credits", fmt.Sprint(credits), "--name", name, "--witness", y.path(name + ".witness")}
		for j := range y.members {
			args = append(args, "--addr", y.members[(i+j)%len(y.members)].edge)
		}
		p, err := start(name, y.path(name+".log"), y.o.Binary, args...)
		if err != nil {
			return err
		}
		y.workers = append(y.workers, p)
	}
	return y.until(ctx, "the workers are subscribed", func() error {
		subscribed := 0
		for _, m := range y.members {
			s, err := y.status(ctx, m)
			if err != nil {
				return err
			}
			subscribed += s.Workers.Subscriptions
		}
		if subscribed < workers {
			return fmt.Errorf("%d of %d are", subscribed, workers)
		}
		return nil
	})
}

// until repeats fact until it gives no error.
func (y *yard) until(ctx context.Context, what string, fact func() error) error {
	for {
		err := fact()
		if err == nil {
			return nil
		}
		if fallen := y.fallen(); fallen != nil {
			return fallen
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, err)
		}
	}
}

// fallen tells of a process that has ended by itself.
func (y *yard) fallen() error {
	for _, m := range y.members {
		if p := m.process.Load(); p != nil && p.fell() != nil {
			return p.fell()
		}
	}
	for _, w := range y.workers {
		if err := w.fell(); err != nil {
			return err
		}
	}
	return nil
}

// guard ends the show when a process falls that nobody pushed.
func (y *yard) guard(ctx context.Context) error {
	for backoff.Sleep(ctx, 100*time.Millisecond) == nil {
		if err := y.fallen(); err != nil {
			return err
		}
	}
	return nil
}

// stop ends everything: workers first, so that they can tell their last ends.
func (y *yard) stop() {
	for _, m := range y.members {
		if m.client != nil {
			m.client.Close()
		}
	}
	for _, w := range y.workers {
		w.ask()
	}
	for _, w := range y.workers {
		w.stop(stopPatience)
	}
	for _, m := range y.members {
		if p := m.process.Load(); p != nil {
			p.ask()
		}
	}
	for _, m := range y.members {
		if p := m.process.Load(); p != nil {
			p.stop(stopPatience)
		}
	}
}
