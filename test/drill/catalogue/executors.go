package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// halfOpenWorker repeatedly drops the packets of one worker's connection, and measures how
// long the worker takes to connect again.
func halfOpenWorker(s *drill.Harness) {
	s.StartWorkers(1, 16, 2*time.Millisecond)
	s.AddQueues("slow")
	var slow [3]*procs.Process
	for i := range slow {
		slow[i] = s.AddWorker(drill.Task{Queue: "slow", Credits: 4, Hold: slowHold})
	}
	s.StartLoads(&drill.Load{Queue: "slow", Parallel: 1, Pace: 300 * time.Millisecond}, &drill.Load{Queue: drill.FreeQueue, Parallel: 1, Pace: 50 * time.Millisecond})
	var reconnects []time.Duration
	for i := range s.Repeats(5) {
		s.Pause(3*time.Second, 5*time.Second)
		w := slow[i%len(slow)]
		node, port, err := connectionOf(s, w.PID())
		must.Do(err)
		s.Fault("half open", fmt.Sprintf("%s drops all packets of a worker's connection from port %d", node.Name, port))
		began := time.Now()
		must.Do(node.Host.AddRules(fmt.Sprintf("tcp sport %d drop", port)))
		s.Within(4*workerLease, func() bool { // or reported as a missed target
			other, now, err := connectionOf(s, w.PID())
			return err == nil && (now != port || other != node)
		})
		reconnects = append(reconnects, time.Since(began))
		must.Do(node.Host.Heal())
	}
	longest := slices.Max(reconnects)
	s.Figure(fmt.Sprintf("longest time until a cut-off worker has reconnected (waited up to %s)", 4*workerLease), longest)
	s.Target("a cut-off worker reconnects before its leases expire", longest, workerLease)
}

// workersMisbehave kills workers during jobs, and then reports wrong outcomes.
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

// thunderingReconnect kills a node to which a third of thousands of workers is connected,
// and measures how soon they are registered elsewhere.
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

// Drills with runners that misbehave or outlive their node.
var runners = []drill.Drill{
	{
		Number: 27, Name: "runners-misbehave", Breaks: "runners are killed, exit with code 0 during a job, are stopped, run beyond the job's timeout, and ignore a cancel",
		Promises: "each job ends as it should; a runner that does not stop is killed soon and replaced",
		Run:      runnersMisbehave,
	},
	{
		Number: 28, Name: "orphan-runners", Breaks: "kill -9 nodes whose runners have forked processes",
		Promises: "2 s later no process started by the node is left", Plan: drill.Layout{Config: forkingRunner},
		Run: func(s *drill.Harness) {
			killRepeatedly(s, 6, func(*drill.Node) *drill.Node { return randomNode(s) })
		},
	},
	{
		Number: 30, Name: "poison-payload", Breaks: "jobs that crash every runner that takes them, and jobs that always fail",
		Promises: "each is tried a limited number of times and becomes a dead letter; other jobs complete",
		Run:      poisonPayload,
	},
}

// forkingRunner configures a pool whose processes start as a shell that forks. The
// runner is the program that started the shell.
const forkingRunner = `
[rrq.runners.forks]
cmd = ["sh", "-c", "sleep 1000 & exec /proc/$PPID/exe runner"]
pool_size = 2
`

// hangFor is the timeout of the jobs that hang. killSoon is how soon after a cancel
// such a job must have ended: its handler has a grace of one second, and its process
// five more after SIGTERM. The job must not end while its process may be running.
const (
	hangFor  = 700 * time.Millisecond
	killSoon = 8 * time.Second
)

// runnersMisbehave kills and stops runners while jobs hang and end their runner.
func runnersMisbehave(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues("hangs", "ends")
	n := s.Repeats(8)
	s.StartLoads(
		&drill.Load{Queue: "hangs", Function: "demo#hang", Jobs: n, Pace: time.Second, Fields: fmt.Sprintf(`"timeout_ms":%d,"max_attempts":1`, hangFor.Milliseconds())},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"code":0,"times":1}`, Prefix: "zero", Jobs: n, Pace: time.Second},
		&drill.Load{Queue: "ends", Function: "demo#crash", JobParams: `{"times":2}`, Prefix: "one", Jobs: n, Pace: time.Second})
	for i := range s.Repeats(6) {
		n := randomNode(s)
		pids, err := poolOf(s, n)
		if err != nil || len(pids) == 0 {
			s.Logf("%s has no running runner: %v", n.Name, err)
		} else if i%2 == 0 {
			s.Fault("kill a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGKILL) // it may have exited
		} else {
			s.Fault("stop a runner", fmt.Sprintf("%d of %s", pids[0], n.Name))
			_ = syscall.Kill(pids[0], syscall.SIGSTOP)
			s.Sleep(time.Second)
			_ = syscall.Kill(pids[0], syscall.SIGCONT) // the node may not have replaced it yet
		}
		s.Pause(time.Second, 2*time.Second)
	}
	s.Recover()
	cancelHanging(s)
}

// cancelHanging cancels a job whose handler ignores it, and measures how soon the job
// has ended.
func cancelHanging(s *drill.Harness) {
	one := &drill.Load{Queue: "hangs", Function: "demo#hang", Prefix: "deaf", Jobs: 1, Fields: `"max_attempts":1`}
	s.StartLoads(one)
	id := must.Get(job.KeyID(one.Queue, one.Key(0)))
	awaitState(s, id, "active")
	asked := time.Now()
	s.Ask("job.cancel", map[string]any{"id": id}, nil)
	awaitState(s, id, "cancelled")
	s.Target("a cancelled job that ignores the cancel ends after", time.Since(asked), killSoon)
	began := time.Now()
	again := &drill.Load{Queue: drill.RunnerQueue, Prefix: "after", Function: "demo#echo", Jobs: 1}
	s.StartLoads(again)
	id = must.Get(job.KeyID(again.Queue, again.Key(0)))
	awaitState(s, id, "completed")
	s.Figure("a job afterwards takes", time.Since(began))
}

// lossesAtMost is the number of lost dispatches after which a job fails.
const lossesAtMost = 10

// poisonPayload runs jobs that kill their runner at each attempt. They must become dead
// letters after a limited number of losses, while other jobs complete.
func poisonPayload(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues("poison")
	s.Fault("poison", "jobs that kill their runner, and jobs that fail")
	crash := &drill.Load{Queue: "poison", Function: "demo#crash", Prefix: "crash", Jobs: s.Repeats(3)}
	fail := &drill.Load{Queue: "poison", Function: "demo#fail", JobParams: "{}", Prefix: "fail", Jobs: 20, Fields: `"max_attempts":3`}
	crash.JobParams = "{}"
	s.StartLoads(crash, fail)
	dispatches := map[string]uint32{} // maximum by prefix
	for _, l := range []*drill.Load{crash, fail} {
		for n := range l.Jobs {
			id := must.Get(job.KeyID(l.Queue, l.Key(n)))
			awaitState(s, id, "failed")
			var view struct {
				Reason                       string
				Attempts, Dispatches, Losses uint32
			}
			s.Ask("job.show", map[string]any{"id": id}, &view)
			dispatches[l.Prefix] = max(dispatches[l.Prefix], view.Dispatches)
			switch l.Prefix {
			case "crash": // a dispatch declined by a restarting runner is not a loss
				s.Require(strings.HasPrefix(view.Reason, job.ReasonLostTooOften) && view.Losses <= lossesAtMost,
					"%s ended as %q after %d losses, want %s after at most %d", l.Key(n), view.Reason, view.Losses, job.ReasonLostTooOften, lossesAtMost)
			case "fail": // crashes of its runner cost dispatches, but no attempts
				s.Require(view.Attempts == 3, "%s ended at attempt %d, want 3", l.Key(n), view.Attempts)
			}
		}
	}
	s.Figure("maximum dispatches of a job that crashes its runner", dispatches["crash"])
	s.Figure("maximum dispatches of a job that fails at attempt 3", dispatches["fail"])
	var letters struct{ Count int }
	s.Ask("dlq.stats", map[string]any{"queue": "poison"}, &letters)
	s.Require(letters.Count == crash.Jobs+fail.Jobs, "there are %d dead letters, want %d", letters.Count, crash.Jobs+fail.Jobs)
}

// poolOf returns the pids of a node's running runners.
func poolOf(s *drill.Harness, n *drill.Node) (pids []int, err error) {
	status, err := n.Status(s.Ctx)
	for _, p := range status.Pools {
		for _, m := range p.Members {
			if m.PID > 0 {
				pids = append(pids, m.PID)
			}
		}
	}
	return pids, err
}

// awaitState waits until a job is in a state.
func awaitState(s *drill.Harness, id job.ID, state string) {
	s.Until("job "+id.String()+" is "+state, func() error {
		var view struct{ State string }
		if s.Ask("job.show", map[string]any{"id": id}, &view); view.State != state {
			return errors.New("it is " + view.State)
		}
		return nil
	})
}

// connectionOf finds the connection of a process to the Overhop listener of a node. It
// returns the node and the local port.
func connectionOf(s *drill.Harness, pid int) (*drill.Node, uint16, error) {
	list, err := exec.CommandContext(s.Ctx, "ss", "-H", "-t", "-n", "-p", "state", "established").Output()
	if err != nil {
		return nil, 0, fmt.Errorf("list the connections of this host: %w", err)
	}
	for line := range strings.Lines(string(list)) { // "<queue> <queue> <local address> <peer address> <process>"
		words := strings.Fields(line)
		if len(words) < 5 || !strings.Contains(words[4], fmt.Sprintf(",pid=%d,", pid)) {
			continue
		}
		local, err := netip.ParseAddrPort(words[2])
		i := slices.IndexFunc(s.Nodes, func(n *drill.Node) bool { return n.Edge == words[3] })
		if err == nil && i >= 0 {
			return s.Nodes[i], local.Port(), nil
		}
	}
	return nil, 0, fmt.Errorf("process %d has no connection to a node", pid)
}
