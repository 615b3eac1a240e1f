package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yardmaster/drill"
	"yardmaster/drill/hostile"
	"yardmaster/drill/yard"
	"yardmaster/edge/overhop"
)

// Clients attack a node, or use up what it has.
var clients = []drill.Drill{
	{
		Number: 33, Name: "hostile-clients", Breaks: "hundreds of clients say a byte a second, nothing, nonsense, too much, or never read, at one node",
		Promises: "they are put out, what they cost is bounded and given back, and honest jobs go on",
		Plan: drill.Plan{Config: "[wire.session]\nunhelloed_max_lifetime_seconds = 2\nhelloed_unregistered_max_lifetime_seconds = 2\n" +
			"[limits]\nwrite_timeout = \"1s\"\nmax_connections_per_address = 20000\n"},
		Run: hostileClients,
	},
	{
		Number: 34, Name: "no-descriptors", Breaks: "a node may open only a few more files and sockets, and clients take them all",
		Promises: "it stays with the others, and takes clients again when there is room",
		Run:      noDescriptors,
	},
}

// hostileMemory is what attackers may cost a node while they are there.
const hostileMemory = 600 << 20 // bytes

func hostileClients(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	victim := s.Nodes[s.Dice.IntN(len(s.Nodes))]
	lure, err := layLure(ctx, s, victim)
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
		span = 5 * time.Second
	}
	calm, err := p.measure(ctx, span/3)
	if err != nil {
		return err
	}
	before := yard.PID(victim.PID()).Memory()
	attackers, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	count := 0
	for _, a := range hostile.Attacks(lure) {
		for range max(1, a.Share/2) {
			all.Go(func() { a.Run(attackers, victim.Overhop) })
			count++
		}
	}
	s.Fault("attack", fmt.Sprintf("%d clients at %s", count, victim.Name))
	meanwhile, err := p.measure(ctx, span)
	grown := yard.PID(victim.PID()).Memory() - before
	stop()
	all.Wait()
	if err != nil {
		return err
	}
	p.compare("attack", calm, meanwhile, 10)
	s.Figure("attackers", count)
	s.Figure("memory that they cost", fmt.Sprintf("%d MB", grown>>20))
	s.Promise(grown < hostileMemory, "the node grew by %d MB", grown>>20)
	return s.Whole(ctx)
}

// layLure keeps a job with a large body in a paused queue.
func layLure(ctx context.Context, s *drill.Stage, at *drill.Node) (jid string, err error) {
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

// spare is how many files and sockets more a node may open.
const spare = 30

func noDescriptors(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for range s.Times(3) {
		victim := s.Nodes[s.Dice.IntN(len(s.Nodes))]
		pid := victim.PID()
		var was unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
			return fmt.Errorf("read the limit of %s: %w", victim.Name, err)
		}
		open := yard.PID(pid).Descriptors()
		few := unix.Rlimit{Cur: uint64(open + spare), Max: was.Max}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
			return fmt.Errorf("set the limit of %s: %w", victim.Name, err)
		}
		s.Fault("no descriptors", fmt.Sprintf("%s has %d open and may open %d more", victim.Name, open, spare))
		since := drill.Clock()
		let := occupy(ctx, victim, 4*spare)
		err := s.Rest(ctx, 10*time.Second)
		for _, nc := range let {
			nc.Close()
		}
		if lift := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); lift != nil && victim.Running() {
			return fmt.Errorf("lift the limit of %s: %w", victim.Name, lift)
		}
		if err != nil {
			return err
		}
		s.Promise(victim.Running(), "%s ended for want of descriptors", victim.Name)
		s.Settled("no descriptors", since, 1)
		began := time.Now()
		if err := s.Whole(ctx); err != nil {
			return err
		}
		s.Target("all are ready again after", time.Since(began), 5*time.Second)
	}
	return nil
}

// occupy opens connections to a node's doors and says nothing.
func occupy(ctx context.Context, n *drill.Node, count int) (held []net.Conn) {
	d := net.Dialer{Timeout: time.Second}
	for range count {
		if nc, err := d.DialContext(ctx, "tcp", n.Overhop); err == nil {
			held = append(held, nc)
		}
	}
	return held
}
