package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
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

func halfOpenWorker(ctx context.Context, s *drill.Harness) error {
	if err := s.StartWorkers(ctx, 1, 16, 2*time.Millisecond); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, "slow", 0); err != nil {
		return err
	}
	var slow []*procs.Process
	for range 3 {
		w, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 4, Hold: slowHold})
		if err != nil {
			return err
		}
		slow = append(slow, w)
	}
	jobs := &drill.Load{Queue: "slow", Parallel: 1, Pace: 300 * time.Millisecond}
	s.StartLoads(ctx, jobs, &drill.Load{Queue: drill.FreeQueue, Parallel: 1, Pace: 50 * time.Millisecond})
	var back []time.Duration
	for i := range s.Repeats(5) {
		if err := s.Sleep(ctx, s.RandDuration(3*time.Second, 5*time.Second)); err != nil {
			return err
		}
		w := slow[i%len(slow)]
		node, port, err := connectionOf(s, w.PID())
		if err != nil {
			return err
		}
		s.Fault("half open", fmt.Sprintf("%s drops all packets of a worker's connection from port %d", node.Name, port))
		began := time.Now()
		if err := node.Host.AddRule(fmt.Sprintf("tcp sport %d drop", port)); err != nil {
			return err
		}
		for { // until the worker has another connection
			other, now, err := connectionOf(s, w.PID())
			if err == nil && (now != port || other != node) {
				break
			}
			if time.Since(began) > 4*workerLease { // reported as a missed target
				break
			}
			if err := s.Sleep(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
		back = append(back, time.Since(began))
		if err := node.Host.Heal(); err != nil {
			return err
		}
	}
	slices.Sort(back)
	s.Figure(fmt.Sprintf("longest time until a cut-off worker has reconnected (waited up to %s)", 4*workerLease), back[len(back)-1])
	s.Target("a cut-off worker reconnects before its leases expire", back[len(back)-1], workerLease)
	return nil
}

func workersMisbehave(ctx context.Context, s *drill.Harness) error {
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	for _, queue := range []string{"liar", "slow"} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return err
		}
	}
	s.StartLoads(ctx, &drill.Load{Queue: "slow", Parallel: 1, Pace: 100 * time.Millisecond})
	for i := range s.Repeats(6) {
		w, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 8, Hold: time.Second})
		if err != nil {
			return err
		}
		if err := s.Sleep(ctx, s.RandDuration(2*time.Second, 3*time.Second)); err != nil {
			return err
		}
		s.Fault("kill a worker", fmt.Sprintf("round %d, with up to 8 running jobs", i+1))
		w.Kill()
	}
	if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 16, Hold: 10 * time.Millisecond}); err != nil {
		return err
	}
	return misbehavingWorker(ctx, s)
}

// misbehavingWorker takes jobs and reports their outcomes with wrong tokens and twice.
func misbehavingWorker(ctx context.Context, s *drill.Harness) error {
	quests := make(chan overhop.Quest, 16)
	c, err := overhop.Dial(ctx, s.Nodes[0].Overhop, overhop.Options{Name: "liar", OnQuest: func(q overhop.Quest) {
		q.Payload = slices.Clone(q.Payload)
		quests <- q
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	inner, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(inner) }) // ends with inner
	defer running.Wait()
	defer stop()
	if _, err := c.Call(ctx, overhop.TSubscribe, overhop.AppendValue(nil, overhop.Fields{"q": "liar", "credits": 2})); err != nil {
		return err
	}
	for range 2 {
		if _, err := c.Call(ctx, overhop.TEnqueue, overhop.AppendValue(nil, overhop.Fields{"q": "liar"})); err != nil {
			return err
		}
	}
	var mine [2]overhop.Quest
	for i := range mine {
		select {
		case mine[i] = <-quests:
			c.Ack(&mine[i], nil)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := func(q overhop.Quest) error {
		answered := make(chan error, 1)
		c.Done(&q, nil, 0, func(_ overhop.Raw, err error) { answered <- err })
		select {
		case err := <-answered:
			return err
		case <-ctx.Done():
			return ctx.Err()
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
		id, err := job.ParseID(text)
		if err != nil {
			return err
		}
		if err := awaitState(ctx, s, id, "completed"); err != nil { // the node asked may lag
			return err
		}
	}
	return nil
}

// reconnectingWorkers is how many workers reconnect at once.
const reconnectingWorkers = 3000

func thunderingReconnect(ctx context.Context, s *drill.Harness) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	many := min(reconnectingWorkers, int(limit.Max)/2)
	if s.Quick {
		many = min(many, 300)
	}
	if err := s.StartSteadyLoad(ctx); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, "crowd", 0); err != nil {
		return err
	}
	p, err := newProbe(ctx, s, s.Edges())
	if err != nil {
		return err
	}
	defer p.close()
	inner, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	before := registered(ctx, s)
	for i := range many {
		w := overhop.Worker{Nodes: s.Edges(), Name: fmt.Sprintf("crowd-%d", i), Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Second}
		w.Handle("crowd", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
		all.Go(func() { _ = w.Run(inner) }) // ends with inner
	}
	many += before
	took, err := awaitRegistered(ctx, s, many)
	if err != nil {
		return err
	}
	s.Figure(fmt.Sprintf("time until %d workers were registered", many), took)
	calm, err := p.measure(ctx, 3*time.Second)
	if err != nil {
		return err
	}
	for range s.Repeats(3) {
		victim := s.Nodes[s.Rand.IntN(len(s.Nodes))]
		s.Fault(kill, fmt.Sprintf("%s, with a third of %d workers", victim.Name, many))
		s.Kill(victim)
		began := make(chan error, 1)
		go func() {
			took, err := awaitRegistered(ctx, s, many*95/100)
			s.Target("95 % of the workers are registered again after", took, 10*time.Second)
			began <- err
		}()
		killed, err := p.measure(ctx, 6*time.Second)
		if err := errors.Join(err, <-began); err != nil {
			return err
		}
		p.compare("reconnect", calm, killed, 20)
		if err := s.Recover(ctx); err != nil {
			return err
		}
	}
	return nil
}

// registered returns the number of workers registered at all running nodes.
func registered(ctx context.Context, s *drill.Harness) (n int) {
	for _, node := range s.Running() {
		if status, err := node.Status(ctx); err == nil {
			n += int(status.Workers.Registered)
		}
	}
	return n
}

// awaitRegistered waits until count workers are registered, and returns how long that
// took.
func awaitRegistered(ctx context.Context, s *drill.Harness, count int) (time.Duration, error) {
	began := time.Now()
	for registered(ctx, s) < count {
		if err := s.Sleep(ctx, 100*time.Millisecond); err != nil {
			return time.Since(began), fmt.Errorf("%d of %d workers are registered: %w", registered(ctx, s), count, err)
		}
	}
	return time.Since(began), nil
}
