package catalogue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/check"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with named limits that are full and are changed meanwhile.
var limits = []drill.Drill{
	{
		Number: 44, Name: "limits", Breaks: "change limits while one customer floods two queues that share them in opposite order; kill the authority twice, stop it for longer than its lease, cut it off, restart every node",
		Promises: "never more jobs run, of all customers and of each, and never more start than the bounds in force allow; explain names the limit that a job waits for",
		Plan:     drill.Layout{SeparateHosts: true}, Timeout: 10 * time.Minute, Run: limitsUnderFaults,
	},
	{
		Number: 45, Name: "limit-order", Breaks: "change a limit again and again while each of a few workers runs one job after the other, and kill the authority",
		Promises: "one order of all changes, starts and ends exists in which no job starts while as many run as the limit allows",
		Run:      limitOrder,
	},
}

// The queues and limits of these drills.
const (
	callsQueue  = "calls"
	textsQueue  = "texts"
	stripeLimit = "stripe"
	lineLimit   = "line"
	orderQueue  = "switched"
	orderLimit  = "switch"
)

// flood is how many jobs the customer publishes who floods a queue.
const flood = 6000

// limitsUnderFaults floods two queues with the jobs of one customer, changes their limits, and
// injects faults.
func limitsUnderFaults(s *drill.Harness) {
	stripe := check.Bounds{Total: 20, PerKey: 2, Rate: 100, Burst: 20}
	line := check.Bounds{Total: 16, PerKey: 16, Rate: 150, Burst: 10}
	must.Do(s.SetLimit(stripeLimit, stripe))
	must.Do(s.SetLimit(lineLimit, line))
	s.AddQueues(callsQueue, textsQueue)
	s.UseLimits(callsQueue, stripeLimit, lineLimit)
	s.UseLimits(textsQueue, lineLimit, stripeLimit)
	for range 2 {
		s.AddWorker(drill.Task{Queue: callsQueue, Credits: 24, Hold: 40 * time.Millisecond})
		s.AddWorker(drill.Task{Queue: textsQueue, Credits: 24, Hold: 20 * time.Millisecond})
	}
	s.StartLoads(&drill.Load{Queue: callsQueue, Customer: "acme", Prefix: "flood", Parallel: 8, Jobs: flood})
	for i, queue := range []string{callsQueue, textsQueue} {
		for n := range 4 {
			s.StartLoads(&drill.Load{Queue: queue, Customer: fmt.Sprintf("c%d", i*2+n), Prefix: fmt.Sprintf("%s-c%d", queue, n), Parallel: 1, Pace: 250 * time.Millisecond})
		}
	}
	s.StartSteadyLoadAt(50 * time.Millisecond)
	explainFlood(s, "before the faults")
	stop := changeLimits(s, stripe, line)
	for range 2 {
		s.Pause(time.Second, 4*time.Second)
		authority := s.AwaitAuthority()
		s.Fault(kill, authority.Name+", the authority")
		s.Kill(authority)
		s.Pause(4*time.Second, 7*time.Second)
		s.Recover()
	}
	authority := s.AwaitAuthority()
	s.Fault("pause", authority.Name)
	must.Do(authority.Signal(syscall.SIGSTOP))
	s.Pause(9*time.Second, 12*time.Second)
	s.Recover()
	authority = s.AwaitAuthority()
	withFault(s, "authority cut off", authority.Name, func() { must.Do(authority.Host.Cut(authority.Host.Others()...)) })
	for _, n := range s.Nodes[:s.Repeats(len(s.Nodes))] {
		restartOne(s, n)
	}
	stop()
	must.Do(s.SetLimit(stripeLimit, stripe))
	must.Do(s.SetLimit(lineLimit, line))
	explainFlood(s, "after the faults")
	// The rest of the flood need not take minutes.
	must.Do(s.SetLimit(stripeLimit, check.Bounds{Total: 100, PerKey: 40, Rate: 2000, Burst: 100}))
	must.Do(s.SetLimit(lineLimit, check.Bounds{Total: 100, PerKey: 40, Rate: 2000, Burst: 100}))
}

// changeLimits changes both limits at random until the function that it returns is called.
func changeLimits(s *drill.Harness, stripe, line check.Bounds) (stop func()) {
	rnd := rand.New(rand.NewPCG(s.Seed, 44))
	ended := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		pick := func(of ...int) int { return of[rnd.IntN(len(of))] }
		for changes := 0; ; changes++ {
			select {
			case <-ended:
				s.Figure("changes of limits during the faults", changes)
				return
			case <-s.Ctx.Done():
				return
			case <-time.After(time.Duration(200+rnd.IntN(1800)) * time.Millisecond):
			}
			var err error
			if changes%3 == 0 {
				line.Total, line.Rate = pick(16, 8, 3), float64(pick(150, 60))
				err = s.SetLimit(lineLimit, line)
			} else {
				stripe = check.Bounds{Total: pick(20, 10, 5, 0), PerKey: pick(1, 2, 2, 4), Rate: float64(pick(100, 50, 200)), Burst: float64(pick(20, 5))}
				err = s.SetLimit(stripeLimit, stripe)
			}
			if err != nil {
				s.Require(false, "%v", err)
				return
			}
		}
	})
	return func() {
		close(ended)
		changing.Wait()
	}
}

// explainFlood requires that the explanation of a waiting job of the flood names a limit or the
// turn of its customer.
func explainFlood(s *drill.Harness, when string) {
	var codes []string
	s.Until("a waiting job is explained by its limits "+when, func() error {
		n := s.Nodes[0]
		var list api.JobList
		request := api.JobListRequest{Queues: []string{callsQueue}, States: []string{"waiting"}, Order: api.OrderOldest, Limit: 1, Brief: true}
		if err := n.Ask(s.Ctx, api.Subject("job-list"), &request, &list); err != nil || len(list.Jobs) == 0 {
			return fmt.Errorf("%d jobs wait, %w", len(list.Jobs), err)
		}
		var explained api.JobExplanation
		if err := n.Ask(s.Ctx, api.SubjectAPI+".job.explain", api.JobRequest{ID: list.Jobs[0].ID.String()}, &explained); err != nil {
			return err
		}
		codes = nil
		for _, r := range explained.Reasons {
			codes = append(codes, string(r.Code))
		}
		if !slices.ContainsFunc(codes, func(c string) bool { return strings.HasPrefix(c, "limit_") || c == "fair_turn" }) {
			return fmt.Errorf("the reasons are %q: %s", codes, explained.Verdict)
		}
		s.Logf("%s: %s", when, explained.Verdict)
		return nil
	})
	s.Figure("a waiting job is explained by, "+when, strings.Join(codes, ", "))
}

// limitOrder changes the total of a limit while four workers run one job after the other.
func limitOrder(s *drill.Harness) {
	const workers = 4
	bounds := check.Bounds{Total: 2, PerKey: workers, Rate: 10_000, Burst: 100}
	must.Do(s.SetLimit(orderLimit, bounds))
	s.AddQueues(orderQueue)
	s.UseLimits(orderQueue, orderLimit)
	s.RequireLimitOrder(orderLimit, bounds.Total)
	for range workers {
		s.AddWorker(drill.Task{Queue: orderQueue, Credits: 1, Hold: 15 * time.Millisecond})
	}
	load := &drill.Load{Queue: orderQueue, Customer: "acme", Parallel: 4, Pace: 15 * time.Millisecond}
	s.StartLoads(load)
	s.AwaitAcked(10, load)
	for round := range s.Repeats(4) {
		for range 25 {
			bounds.Total = s.Rand.IntN(workers)
			must.Do(s.SetLimit(orderLimit, bounds))
			s.Pause(0, 200*time.Millisecond)
		}
		if round == 0 {
			continue // one round without a fault
		}
		ctx, cancel := context.WithCancel(s.Ctx)
		changed := make(chan error, 1)
		bounds.Total = 1 + s.Rand.IntN(workers-1)
		go func() {
			for ctx.Err() == nil { // also while there is no authority
				if err := s.SetLimit(orderLimit, bounds); err != nil {
					changed <- err
					return
				}
			}
			changed <- nil
		}()
		authority := s.AwaitAuthority()
		s.Fault(kill, authority.Name+", the authority")
		s.Kill(authority)
		s.Pause(2*time.Second, 5*time.Second)
		s.Recover()
		cancel()
		must.Do(<-changed)
	}
	bounds.Total = workers
	must.Do(s.SetLimit(orderLimit, bounds))
}
