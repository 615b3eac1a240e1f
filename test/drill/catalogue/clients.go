package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/hostile"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// Drills with clients that attack a node or exhaust its resources.
var clients = []drill.Drill{
	{
		Number: 33, Name: "hostile-clients", Breaks: "hundreds of clients of one node send a byte per second, nothing, garbage or too much, or never read",
		Promises: "they are disconnected, the memory they use is bounded and released, and other clients' jobs proceed",
		Plan:     drill.Layout{Config: "[limits]\nwrite_timeout = \"1s\"\nmax_connections_per_address = 20000\n"},
		Run:      hostileClients,
	},
	{
		Number: 34, Name: "no-descriptors", Breaks: "a node may open only a few more files and sockets, and clients use them up",
		Promises: "it stays a member, and accepts clients again as soon as descriptors are free",
		Run:      noDescriptors,
	},
}

// hostileMemory is the maximum growth of a node under attack, in bytes.
const hostileMemory = 600 << 20

func hostileClients(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	victim := s.Nodes[s.Rand.IntN(len(s.Nodes))]
	bait, err := layBait(ctx, s, victim)
	if err != nil {
		return err
	}
	p, err := newProbe(ctx, s, []string{victim.Overhop})
	if err != nil {
		return err
	}
	defer p.close()
	span := 30 * time.Second
	if s.Quick {
		span = 15 * time.Second // longer than a connection may stay unregistered
	}
	calm, err := p.measure(ctx, span/3)
	if err != nil {
		return err
	}
	before := procstat.PID(victim.PID()).Memory()
	attackers, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	count := 0
	for _, a := range hostile.All(bait) {
		for range max(1, a.Weight/2) {
			all.Go(func() { a.Run(attackers, victim.Overhop) })
			count++
		}
	}
	s.Fault("attack", fmt.Sprintf("%d clients at %s", count, victim.Name))
	attacked, err := p.measure(ctx, span)
	grown := procstat.PID(victim.PID()).Memory() - before
	stop()
	all.Wait()
	if err != nil {
		return err
	}
	p.compare("attack", calm, attacked, 10)
	s.Figure("attackers", count)
	s.Figure("growth of the node's memory", fmt.Sprintf("%d MB", grown>>20))
	s.Require(grown < hostileMemory, "the node's memory grew by %d MB", grown>>20)
	return s.Recover(ctx)
}

// layBait enqueues a job with a large body in a paused queue and returns its JID.
func layBait(ctx context.Context, s *drill.Harness, at *drill.Node) (jid string, err error) {
	const queue = "lure"
	if err := s.AddQueue(ctx, queue, 0); err != nil {
		return "", err
	}
	if err := ask(ctx, s, "queue.pause", map[string]any{"name": queue}, nil); err != nil {
		return "", err
	}
	p := &overhop.Producer{Nodes: []string{at.Overhop}, Name: "lure"}
	defer p.Close()
	return p.Enqueue(ctx, overhop.Enqueue{Queue: queue, Payload: overhop.AppendBin(nil, bytes.Repeat([]byte("x"), 256<<10))})
}

// spareDescriptors is how many more files and sockets a node may open.
const spareDescriptors = 30

func noDescriptors(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for range s.Repeats(3) {
		victim := s.Nodes[s.Rand.IntN(len(s.Nodes))]
		pid := victim.PID()
		var was unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
			return fmt.Errorf("read the limit of %s: %w", victim.Name, err)
		}
		open := procstat.PID(pid).Descriptors()
		few := unix.Rlimit{Cur: uint64(open + spareDescriptors), Max: was.Max}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			return fmt.Errorf("set the limit of %s: %w", victim.Name, err)
		}
		s.Fault("no descriptors", fmt.Sprintf("%s has %d open and may open %d more", victim.Name, open, spareDescriptors))
		since := drill.HostClock()
		conns := openIdleConns(ctx, victim, 4*spareDescriptors)
		err := s.Sleep(ctx, 10*time.Second)
		for _, nc := range conns {
			nc.Close()
		}
		if lift := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); lift != nil && victim.Running() {
			return fmt.Errorf("lift the limit of %s: %w", victim.Name, lift)
		}
		if err != nil {
			return err
		}
		s.Require(victim.Running(), "%s exited without free descriptors", victim.Name)
		s.LimitAuthorityChanges("no descriptors", since, 1)
		began := time.Now()
		if err := s.Recover(ctx); err != nil {
			return err
		}
		s.Target("all nodes are ready again after", time.Since(began), 5*time.Second)
	}
	return nil
}

// openIdleConns opens count connections to a node's Overhop listener.
func openIdleConns(ctx context.Context, n *drill.Node, count int) (conns []net.Conn) {
	d := net.Dialer{Timeout: time.Second}
	for range count {
		if nc, err := d.DialContext(ctx, "tcp", n.Overhop); err == nil {
			conns = append(conns, nc)
		}
	}
	return conns
}
