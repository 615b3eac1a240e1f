package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// Stage is where a drill is played: a yard, work for it, and a report of what
// became of both. Its methods are for the goroutine of the drill, but for Say,
// Promise and Figure, which any may call.
type Stage struct {
	*Yard
	Seed  uint64
	Dice  *rand.Rand // of the schedule: the same seed, the same schedule
	Quick bool       // as little as shows the thing

	out    io.Writer
	began  time.Time
	loads  []*Load
	load   sync.WaitGroup
	ended  int64 // when the loads were ended, by the host's clock
	faults []fault
	within map[string]Limits
	spans  []span
	smooth func(refusal string) bool // nil: publishes may fail and runs be repeated

	watch     watch
	contest   contest
	orphans   orphans
	calm      context.CancelFunc // ends watching and contending
	baselines map[string]usage

	mu        sync.Mutex
	report    *Report
	loadError error
}

// fault is a moment at which something was broken.
type fault struct {
	what string
	at   int64 // by the host's clock
}

// span is a time in which authority should not wander about.
type span struct {
	name      string
	from, til int64 // by the host's clock
	most      int   // changes of authority
}

// Limits are what a kind of fault may cost; 0: there is no limit.
type Limits struct {
	Dispatch time.Duration // in which no job begins, the 99th of 100
	Ack      time.Duration // in which no job is acknowledged
}

// Say tells what happens.
func (s *Stage) Say(format string, v ...any) {
	line := fmt.Sprintf("%7.2fs  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, v...))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Timeline = append(s.report.Timeline, line)
	if s.out != nil {
		fmt.Fprintln(s.out, line)
	}
}

// Promise records a promise as broken unless it was kept.
func (s *Stage) Promise(kept bool, format string, v ...any) {
	if kept {
		return
	}
	what := fmt.Sprintf(format, v...)
	s.Say("BROKEN: %s", what)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Broken = append(s.report.Broken, what)
}

// Figure records a figure.
func (s *Stage) Figure(name string, value any) {
	if d, ok := value.(time.Duration); ok {
		value = d.Round(time.Millisecond).String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Figures = append(s.report.Figures, Figure{name, fmt.Sprint(value)})
}

// Target records a figure that should be at most so long. To miss it on a busy
// machine breaks no promise, and is told.
func (s *Stage) Target(name string, got, most time.Duration) {
	s.Figure(name, got)
	if got > most {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.report.Missed = append(s.report.Missed, fmt.Sprintf("%s %s, target %s", name, got.Round(time.Millisecond), most))
	}
}

// Within sets the targets for a kind of fault; they are held against the gaps
// around every fault of that name.
func (s *Stage) Within(what string, l Limits) { s.within[what] = l }

// Fault notes that something is broken now: from now on, or from the fault
// before on, gaps count as this one's.
func (s *Stage) Fault(what, detail string) {
	s.faults = append(s.faults, fault{what, Clock()})
	s.Say("%s: %s", what, detail)
}

// Whole notes that what was broken is mended, and waits until every node is
// ready.
func (s *Stage) Whole(ctx context.Context) error {
	s.faults = append(s.faults, fault{Mended, Clock()})
	return s.Heal(ctx)
}

// Mended is the name under which gaps after the mending are counted.
const Mended = "mended"

// Times is how often something is repeated: n times, or few if it must be
// quick.
func (s *Stage) Times(n int) int {
	if s.Quick {
		return min(n, 2)
	}
	return n
}

// Between is a time between two, by the dice.
func (s *Stage) Between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.Dice.Int64N(int64(most-least)+1))
}

// Smooth says that no run may be repeated, and that no publish may fail but for
// reasons that are nothing to a publisher.
func (s *Stage) Smooth(nothing func(refusal string) bool) { s.smooth = nothing }

// judgeSmooth holds the verdict against that.
func (s *Stage) judgeSmooth(v *Verdict) {
	if s.smooth == nil {
		return
	}
	failed := 0
	for why, times := range v.Refusals {
		if !s.smooth(why) {
			s.Say("%d publishes failed: %s", times, why)
			failed += times
		}
	}
	s.Figure("publishes that failed, and those that were sent elsewhere", fmt.Sprintf("%d, %d", failed, v.Retried-failed))
	s.Figure("attempts repeated", v.Again)
	s.Promise(failed == 0, "%d publishes failed", failed)
	s.Promise(v.Again == 0, "%d attempts were repeated", v.Again)
}

// Settled says that authority should have changed at most so often since a
// moment of the host's clock.
func (s *Stage) Settled(name string, since int64, most int) {
	s.spans = append(s.spans, span{name, since, Clock(), most})
}

// Clock is the host's clock: the same for all processes, in nanoseconds, and it
// never steps.
func Clock() int64 {
	now, _ := hostClock() // it cannot fail
	return now
}

// Rest lets time pass.
func (s *Stage) Rest(ctx context.Context, d time.Duration) error { return pause(ctx, d) }

// Begin publishes loads until they are through, or the drill is.
func (s *Stage) Begin(ctx context.Context, loads ...*Load) {
	for _, l := range loads {
		s.loads = append(s.loads, l)
		s.load.Go(func() {
			if err := l.Run(ctx, s.Yard); err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.loadError = errors.Join(s.loadError, err)
			}
		})
	}
}

// Queues of [Stage.Steady].
const (
	FreeQueue    = "free"
	LimitedQueue = "limited" // strictly, to Strict at once
	RunnerQueue  = "rrq"
	Strict       = 3
)

// Steady makes the queues, starts workers and publishes jobs of every kind over
// every road, some hundreds in a second, until the drill ends.
func (s *Stage) Steady(ctx context.Context) error {
	if err := s.Crew(ctx, 3, 16, 2*time.Millisecond); err != nil {
		return err
	}
	const pace = 20 * time.Millisecond
	loads := []*Load{
		{Queue: LimitedQueue, Parallel: 1, Pace: pace},
		{Queue: RunnerQueue, Function: "demo#echo", Parallel: 1, Pace: pace},
	}
	for _, r := range Roads {
		loads = append(loads, &Load{Queue: FreeQueue, Road: r, Parallel: 2, Pace: pace})
	}
	s.Begin(ctx, loads...)
	s.contend(ctx)
	return until(ctx, "jobs run", func() error {
		for _, l := range s.loads {
			if l.Acked() < 10 {
				return fmt.Errorf("%d of %s are acknowledged: %v", l.Acked(), l.Key(0), l.Refused())
			}
		}
		return nil
	})
}

// contend begins the contest and the watch, which end with the loads.
func (s *Stage) contend(ctx context.Context) {
	ctx, s.calm = context.WithCancel(ctx)
	for i, n := range s.Nodes {
		dice := rand.New(rand.NewPCG(s.Seed, uint64(1000+i)))
		s.contest.write(ctx, i, n, dice.IntN)
		s.watch.follow(ctx, n)
	}
}

// Crew makes the queues, and starts so many workers of the free queue and as
// many of the limited one, each for so many jobs at once.
func (s *Stage) Crew(ctx context.Context, workers int, credits uint32, hold time.Duration) error {
	for queue, limit := range map[string]int{FreeQueue: 0, LimitedQueue: Strict, RunnerQueue: 0} {
		if err := s.AddQueue(ctx, queue, limit); err != nil {
			return err
		}
	}
	for range workers {
		for _, t := range []Task{{Queue: FreeQueue, Credits: credits, Hold: hold}, {Queue: LimitedQueue, Credits: 4, Hold: 2 * hold}} {
			t.Nodes = s.Edges()
			if _, err := s.AddWorker(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// Acked is how many jobs are acknowledged so far.
func (s *Stage) Acked() (n int) {
	for _, l := range s.loads {
		n += l.Acked()
	}
	return n
}

// AwaitAuthority waits until somebody decides.
func (s *Stage) AwaitAuthority(ctx context.Context) (n *Node, err error) {
	return n, until(ctx, "there is an authority", func() (err error) { n, err = s.Authority(ctx); return err })
}

// AwaitOther waits until another node than one decides, which is not asked.
func (s *Stage) AwaitOther(ctx context.Context, but *Node) (n *Node, err error) {
	rest := Yard{}
	for _, other := range s.Nodes {
		if other != but {
			rest.Nodes = append(rest.Nodes, other)
		}
	}
	return n, until(ctx, "another than "+but.Name+" decides", func() (err error) { n, err = rest.Authority(ctx); return err })
}

// Heal undoes what was broken: links, disks, nodes that stand still, nodes that
// ended.
// It returns when every node is ready.
func (s *Stage) Heal(ctx context.Context) error {
	if s.Net != nil {
		if err := s.Net.Heal(); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, n := range s.Nodes {
		if n.Disk != nil {
			if err := n.Disk.Mend(); err != nil {
				return err
			}
		}
		if n.Running() {
			if err := n.Signal(syscall.SIGCONT); err != nil {
				return fmt.Errorf("let %s go on: %w", n.Name, err)
			}
		} else if err := n.Start(); err != nil {
			return err
		}
	}
	if err := s.WaitReady(ctx); err != nil {
		return err
	}
	s.Say("all nodes are ready after %s", time.Since(began).Round(time.Millisecond))
	return nil
}

// Still ends the loads before the drill ends: nothing is published any more.
func (s *Stage) Still() error { return s.end() }

// end ends the loads and those who write in contest.
func (s *Stage) end() error {
	if s.ended == 0 {
		s.ended = Clock()
	}
	for _, l := range s.loads {
		l.Stop()
	}
	s.load.Wait()
	s.calm()
	s.watch.done.Wait()
	s.contest.done.Wait()
	return s.loadError
}
