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

	"yardmaster/drill"
	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// Workers vanish, lie, or come back all at once.
var workers = []drill.Drill{
	{
		Number: 25, Name: "half-open-worker", Breaks: "what some workers say is not heard any more, and their connections stay open",
		Promises: "the workers come back over another connection before their leases are over; no second outcome counts",
		Plan:     drill.Plan{Apart: true}, Patience: 10 * time.Minute, Run: halfOpenWorker,
	},
	{
		Number: 26, Name: "workers-misbehave", Breaks: "workers are killed in the middle of jobs, tell an end twice, and tell the end of jobs that are not theirs",
		Promises: "each job ends once, by its own worker",
		Run:      workersMisbehave,
	},
	{
		Number: 35, Name: "thundering-reconnect", Breaks: "kill -9 a node with a third of thousands of workers",
		Promises: "they are back at the others within seconds, and jobs start meanwhile",
		Patience: 10 * time.Minute, Run: thunderingReconnect,
	},
}

// What a worker that is not heard any more has in hand is begun again after its
// lease, which it renews three times in that time.
const (
	workerLease = 6 * time.Second
	slowHold    = 2 * time.Second
)

func halfOpenWorker(ctx context.Context, s *drill.Stage) error {
	if err := s.Crew(ctx, 1, 16, 2*time.Millisecond); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, "slow", 0); err != nil {
		return err
	}
	var slow []*drill.Process
	for range 3 {
		w, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 4, Hold: slowHold})
		if err != nil {
			return err
		}
		slow = append(slow, w)
	}
	jobs := &drill.Load{Queue: "slow", Parallel: 1, Pace: 300 * time.Millisecond}
	s.Begin(ctx, jobs, &drill.Load{Queue: drill.FreeQueue, Parallel: 1, Pace: 50 * time.Millisecond})
	var back []time.Duration
	for i := range s.Times(5) {
		if err := s.Rest(ctx, s.Between(3*time.Second, 5*time.Second)); err != nil {
			return err
		}
		w := slow[i%len(slow)]
		node, port, err := connectionOf(s, w.PID())
		if err != nil {
			return err
		}
		s.Fault("half open", fmt.Sprintf("%s hears nothing of a worker's connection from port %d", node.Name, port))
		began := time.Now()
		if err := node.Host.Drop(fmt.Sprintf("tcp sport %d drop", port)); err != nil {
			return err
		}
		for { // until the worker has found another way in
			other, now, err := connectionOf(s, w.PID())
			if err == nil && (now != port || other != node) {
				break
			}
			if time.Since(began) > 4*workerLease { // the target says that this is too long
				break
			}
			if err := s.Rest(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
		back = append(back, time.Since(began))
		if err := node.Host.Heal(); err != nil {
			return err
		}
	}
	slices.Sort(back)
	s.Figure(fmt.Sprintf("a worker that is not heard is back over another connection after, at most (looked for %s)", 4*workerLease), back[len(back)-1])
	s.Target("a worker is back before its lease is over, and brings its jobs", back[len(back)-1], workerLease)
	return nil
}

func workersMisbehave(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	for _, queue := range []string{"liar", "slow"} {
		if err := s.AddQueue(ctx, queue, 0); err != nil {
			return err
		}
	}
	s.Begin(ctx, &drill.Load{Queue: "slow", Parallel: 1, Pace: 100 * time.Millisecond})
	for i := range s.Times(6) {
		w, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 8, Hold: time.Second})
		if err != nil {
			return err
		}
		if err := s.Rest(ctx, s.Between(2*time.Second, 3*time.Second)); err != nil {
			return err
		}
		s.Fault("kill a worker", fmt.Sprintf("time %d, with up to 8 jobs in hand", i+1))
		w.Kill()
	}
	if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: "slow", Credits: 16, Hold: 10 * time.Millisecond}); err != nil {
		return err
	}
	return liar(ctx, s)
}

// liar takes jobs and tells their ends wrongly.
func liar(ctx context.Context, s *drill.Stage) error {
	quests := make(chan overhop.Quest, 16)
	c, err := overhop.Dial(ctx, s.Nodes[0].Overhop, overhop.Options{Name: "liar", Quests: func(q overhop.Quest) {
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
	s.Promise(done(foreign) != nil, "a job was ended with the token of another")
	forged := mine[0]
	forged.Token[overhop.TokenLen-1] ^= 1
	s.Promise(done(forged) != nil, "a job was ended with a forged token")
	s.Promise(done(mine[0]) == nil, "a job's own end was refused")
	s.Figure("an end that is told again is answered", fmt.Sprint(done(mine[0])))
	s.Promise(done(mine[1]) == nil, "a job's own end was refused")
	for _, q := range mine {
		_, text, _ := strings.Cut(q.JID, ":")
		id, err := job.ParseID(text)
		if err != nil {
			return err
		}
		if err := awaitState(ctx, s, id, "completed"); err != nil { // the node asked may be behind
			return err
		}
	}
	return nil
}

// crowd is how many workers come back at once.
const crowd = 3000

func thunderingReconnect(ctx context.Context, s *drill.Stage) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	many := min(crowd, int(limit.Max)/2)
	if s.Quick {
		many = min(many, 300)
	}
	if err := s.Steady(ctx); err != nil {
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
		w := overhop.Worker{Nodes: s.Edges(), Name: fmt.Sprintf("crowd-%d", i), Log: slog.New(slog.DiscardHandler), Grace: time.Second}
		w.Handle("crowd", 1, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
		all.Go(func() { _ = w.Run(inner) }) // ends with inner
	}
	many += before
	took, err := awaitCrowd(ctx, s, many)
	if err != nil {
		return err
	}
	s.Figure(fmt.Sprintf("%d workers have come after", many), took)
	calm, err := p.measure(ctx, 3*time.Second)
	if err != nil {
		return err
	}
	for range s.Times(3) {
		victim := s.Nodes[s.Dice.IntN(len(s.Nodes))]
		s.Fault(kill, fmt.Sprintf("%s, with a third of %d workers", victim.Name, many))
		s.Kill(victim)
		began := make(chan error, 1)
		go func() {
			took, err := awaitCrowd(ctx, s, many*95/100)
			s.Target("95 of 100 workers are back after", took, 10*time.Second)
			began <- err
		}()
		meanwhile, err := p.measure(ctx, 6*time.Second)
		if err := errors.Join(err, <-began); err != nil {
			return err
		}
		p.compare("reconnect", calm, meanwhile, 20)
		if err := s.Whole(ctx); err != nil {
			return err
		}
	}
	return nil
}

// registered is how many workers all nodes have.
func registered(ctx context.Context, s *drill.Stage) (n int) {
	for _, node := range s.Up() {
		if status, err := node.Status(ctx); err == nil {
			n += int(status.Workers.Registered)
		}
	}
	return n
}

// awaitCrowd waits until so many workers are registered.
func awaitCrowd(ctx context.Context, s *drill.Stage, many int) (time.Duration, error) {
	began := time.Now()
	for registered(ctx, s) < many {
		if err := s.Rest(ctx, 100*time.Millisecond); err != nil {
			return time.Since(began), fmt.Errorf("%d of %d workers are registered: %w", registered(ctx, s), many, err)
		}
	}
	return time.Since(began), nil
}
