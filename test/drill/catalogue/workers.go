package catalogue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with workers that vanish, report wrong outcomes or reconnect all at once.
var workers = []drill.Drill{
	{
		Number: 25, Name: "half-open-worker", Breaks: "drop everything that some workers send, while their connections stay open",
		Promises: "the workers reconnect before their leases expire; no second outcome counts",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 10 * time.Minute, Run: halfOpenWorker,
	},
	{
		Number: 26, Name: "workers-misbehave", Breaks: "workers are killed during jobs, report an outcome twice, and report outcomes of other workers' jobs",
		Promises: "each job ends once, by its own worker",
		Run:      workersMisbehave,
	},
	{
		Number: 35, Name: "thundering-reconnect", Breaks: "kill -9 a node with a third of thousands of workers",
		Promises: "they are connected to the other nodes within seconds, and jobs start meanwhile",
		Timeout:  10 * time.Minute, Run: thunderingReconnect,
	},
}

// workerLease is the lease of a job without messages from its worker, which renews it
// three times in that time. slowHold is how long a worker takes over a job.
const (
	workerLease = 6 * time.Second
	slowHold    = 2 * time.Second
)

func halfOpenWorker(s *drill.Harness) {
	s.StartWorkers(1, 16, 2*time.Millisecond)
	s.AddQueues("slow")
	var slow [3]*procs.Process
	for i := range slow {
		slow[i] = s.AddWorker(drill.Task{Queue: "slow", Credits: 4, Hold: slowHold})
	}
	s.StartLoads(&drill.Load{Queue: "slow", Parallel: 1, Pace: 300 * time.Millisecond}, &drill.Load{Queue: drill.FreeQueue, Parallel: 1, Pace: 50 * time.Millisecond})
	var back []time.Duration
	for i := range s.Repeats(5) {
		s.Pause(3*time.Second, 5*time.Second)
		w := slow[i%len(slow)]
		node, port, err := connectionOf(s, w.PID())
		must.Do(err)
		s.Fault("half open", fmt.Sprintf("%s drops all packets of a worker's connection from port %d", node.Name, port))
		began := time.Now()
		must.Do(node.Host.AddRule(fmt.Sprintf("tcp sport %d drop", port)))
		s.Within(4*workerLease, func() bool { // or reported as a missed target
			other, now, err := connectionOf(s, w.PID())
			return err == nil && (now != port || other != node)
		})
		back = append(back, time.Since(began))
		must.Do(node.Host.Heal())
	}
	longest := slices.Max(back)
	s.Figure(fmt.Sprintf("longest time until a cut-off worker has reconnected (waited up to %s)", 4*workerLease), longest)
	s.Target("a cut-off worker reconnects before its leases expire", longest, workerLease)
}

func workersMisbehave(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues("liar", "slow")
	s.StartLoads(&drill.Load{Queue: "slow", Parallel: 1, Pace: 100 * time.Millisecond})
	for i := range s.Repeats(6) {
		w := s.AddWorker(drill.Task{Queue: "slow", Credits: 8, Hold: time.Second})
		s.Pause(2*time.Second, 3*time.Second)
		s.Fault("kill a worker", fmt.Sprintf("round %d, with up to 8 running jobs", i+1))
		w.Kill()
	}
	s.AddWorker(drill.Task{Queue: "slow", Credits: 16, Hold: 10 * time.Millisecond})
	misbehavingWorker(s)
}

// misbehavingWorker takes jobs and reports their outcomes with wrong tokens and twice.
func misbehavingWorker(s *drill.Harness) {
	quests := make(chan overhop.Quest, 16)
	c := must.Get(overhop.Dial(s.Ctx, s.Nodes[0].Edge, overhop.Options{Name: "liar", OnQuest: func(q overhop.Quest) {
		q.Payload = slices.Clone(q.Payload)
		quests <- q
	}}))
	defer c.Close()
	inner, stop := context.WithCancel(s.Ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(inner) }) // ends with inner
	defer running.Wait()
	defer stop()
	must.Get(c.Call(s.Ctx, overhop.TSubscribe, overhop.AppendValue(nil, overhop.Fields{"q": "liar", "credits": 2})))
	for range 2 {
		must.Get(c.Call(s.Ctx, overhop.TEnqueue, overhop.AppendValue(nil, overhop.Fields{"q": "liar"})))
	}
	var mine [2]overhop.Quest
	for i := range mine {
		select {
		case mine[i] = <-quests:
			c.Ack(&mine[i], nil)
		case <-s.Ctx.Done():
			must.Do(s.Ctx.Err())
		}
	}
	done := func(q overhop.Quest) error {
		answered := make(chan error, 1)
		c.Done(&q, nil, 0, func(_ overhop.Raw, err error) { answered <- err })
		select {
		case err := <-answered:
			return err
		case <-s.Ctx.Done():
			return s.Ctx.Err()
		}
	}
	foreign := mine[0]
	foreign.Token = mine[1].Token
	s.Require(done(foreign) != nil, "an outcome with the token of another job was accepted")
	forged := mine[0]
	forged.Token[overhop.TokenLen-1] ^= 1
	s.Require(done(forged) != nil, "an outcome with a forged token was accepted")
	s.Require(done(mine[0]) == nil, "a valid outcome was refused")
	s.Figure("answer to a repeated outcome", fmt.Sprint(done(mine[0])))
	s.Require(done(mine[1]) == nil, "a valid outcome was refused")
	for _, q := range mine {
		_, text, _ := strings.Cut(q.JID, ":")
		awaitState(s, must.Get(job.ParseID(text)), "completed") // the node asked may lag
	}
}

// reconnectingWorkers is how many workers reconnect at once.
const reconnectingWorkers = 3000

func thunderingReconnect(s *drill.Harness) {
	var limit unix.Rlimit
	must.Do(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = limit.Max
	must.Do(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	many := min(reconnectingWorkers, int(limit.Max)/2)
	if s.Quick {
		many = min(many, 300)
	}
	s.StartSteadyLoad()
	s.AddQueues("crowd")
	p := newProbe(s, s.Edges())
	defer p.close()
	inner, stop := context.WithCancel(s.Ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	before := registered(s)
	for i := range many {
		w := overhop.Worker{Nodes: s.Edges(), Name: fmt.Sprintf("crowd-%d", i), Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Second}
		w.Handle("crowd", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
		all.Go(func() { _ = w.Run(inner) }) // ends with inner
	}
	many += before
	took := awaitRegistered(inner, s, many)
	s.Figure(fmt.Sprintf("time until %d workers were registered", many), took)
	calm := p.measure(3 * time.Second)
	for range s.Repeats(3) {
		victim := randomNode(s)
		s.Fault(kill, fmt.Sprintf("%s, with a third of %d workers", victim.Name, many))
		s.Kill(victim)
		var again sync.WaitGroup
		again.Go(func() {
			s.Target("95 % of the workers are registered again after", awaitRegistered(inner, s, many*95/100), 10*time.Second)
		})
		killed := p.measure(6 * time.Second)
		again.Wait()
		p.compare("reconnect", calm, killed, 20)
		s.Recover()
	}
}

// registered returns the number of workers registered at all running nodes.
func registered(s *drill.Harness) (n int) {
	for _, node := range s.Running() {
		if status, err := node.Status(s.Ctx); err == nil {
			n += int(status.Workers.Registered)
		}
	}
	return n
}

// awaitRegistered waits until count workers are registered, or ctx ends, and returns
// how long that took.
func awaitRegistered(ctx context.Context, s *drill.Harness, count int) time.Duration {
	began := time.Now()
	for registered(s) < count && backoff.Sleep(ctx, 100*time.Millisecond) == nil {
	}
	return time.Since(began)
}
