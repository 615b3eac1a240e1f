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
	"github.com/yardmaster-dev/yardmaster/test/must"
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

func hostileClients(s *drill.Harness) {
	s.StartSteadyLoad()
	victim := randomNode(s)
	bait := layBait(s, victim)
	p := newProbe(s, []string{victim.Edge})
	defer p.close()
	span := 30 * time.Second
	if s.Quick {
		span = 15 * time.Second // longer than a connection may stay unregistered
	}
	calm := p.measure(span / 3)
	before := procstat.PID(victim.PID()).Memory()
	attackers, stop := context.WithCancel(s.Ctx)
	defer stop()
	var all sync.WaitGroup
	count := 0
	for _, a := range hostile.All(bait) {
		for range max(1, a.Weight/2) {
			all.Go(func() { a.Run(attackers, victim.Edge) })
			count++
		}
	}
	s.Fault("attack", fmt.Sprintf("%d clients at %s", count, victim.Name))
	attacked := p.measure(span)
	grown := procstat.PID(victim.PID()).Memory() - before
	stop()
	all.Wait()
	p.compare("attack", calm, attacked, 10)
	s.Figure("attackers", count)
	s.Figure("growth of the node's memory", fmt.Sprintf("%d MB", grown>>20))
	s.Require(grown < hostileMemory, "the node's memory grew by %d MB", grown>>20)
	s.Recover()
}

// layBait enqueues a job with a large body in a paused queue and returns its JID.
func layBait(s *drill.Harness, at *drill.Node) (jid string) {
	const queue = "lure"
	s.AddQueues(queue)
	setPaused(s, queue, "pause")
	p := &overhop.Producer{Nodes: []string{at.Edge}, Name: "lure"}
	defer p.Close()
	return must.Get(p.Enqueue(s.Ctx, overhop.Enqueue{Queue: queue, Payload: overhop.AppendBin(nil, bytes.Repeat([]byte("x"), 256<<10))}))
}

// spareDescriptors is how many more files and sockets a node may open.
const spareDescriptors = 30

func noDescriptors(s *drill.Harness) {
	s.StartSteadyLoad()
	for range s.Repeats(3) {
		victim := randomNode(s)
		pid := victim.PID()
		var was unix.Rlimit
		must.Do(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
		open := procstat.PID(pid).Descriptors()
		few := unix.Rlimit{Cur: uint64(open + spareDescriptors), Max: was.Max}
		must.Do(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
		s.Fault("no descriptors", fmt.Sprintf("%s has %d open and may open %d more", victim.Name, open, spareDescriptors))
		since := drill.HostClock()
		exhaustFor(s, victim, 10*time.Second)
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); victim.Running() {
			must.Do(err)
		}
		s.Require(victim.Running(), "%s exited without free descriptors", victim.Name)
		s.LimitAuthorityChanges("no descriptors", since, 1)
		began := time.Now()
		s.Recover()
		s.Target("all nodes are ready again after", time.Since(began), 5*time.Second)
	}
}

// exhaustFor opens more connections to a node's Overhop listener than it can accept,
// and closes them after d.
func exhaustFor(s *drill.Harness, n *drill.Node, d time.Duration) {
	dialer := net.Dialer{Timeout: time.Second}
	for range 4 * spareDescriptors {
		if nc, err := dialer.DialContext(s.Ctx, "tcp", n.Edge); err == nil {
			defer nc.Close()
		}
	}
	s.Sleep(d)
}
