package sim

import (
	"container/heap"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// Report is what came of one seed.
type Report struct {
	Plan
	Story    uint64   // a hash of everything that happened, in order
	Log      []string // what happened, if it was asked for
	Failures []string // what should not have happened; none: all is well
	Accepted int      // jobs
	Entries  int      // of the log
	Tenures  int
	Crashes  int
	Copies   int           // starts of jobs beyond their first, none beside another under a lease
	Stale    int           // outcomes that came too late and were ignored
	Moves    int           // dispatches that were brought to another node
	Ticks    int           // of cron entries, that made a job
	Faults   int           // of the plan
	Losses   int           // lanes that lost their end, and were noticed
	Lasted   time.Duration // by the yard's clock
}

func (r *Report) add(o *Report) {
	r.Accepted += o.Accepted
	r.Entries += o.Entries
	r.Tenures += o.Tenures
	r.Crashes += o.Crashes
	r.Copies += o.Copies
	r.Stale += o.Stale
	r.Moves += o.Moves
	r.Ticks += o.Ticks
	r.Faults += o.Faults
	r.Losses += o.Losses
	r.Lasted += o.Lasted
}

func (r *Report) figures() string {
	return fmt.Sprintf("%d jobs, %d entries, %d faults, %d leaders, %d crashes, %d lanes cut short, %d jobs started again, %d moved, %d ticks, %d outcomes too late, %s",
		r.Accepted, r.Entries, r.Faults, r.Tenures, r.Crashes, r.Losses, r.Copies, r.Moves, r.Ticks, r.Stale, r.Lasted.Round(time.Second))
}

// The times of a run, by the yard's clock.
const (
	calmFor   = time.Second      // before anything breaks
	stormFor  = 12 * time.Second // while things break
	healedIn  = 60 * time.Second // then everything must have ended
	lookEvery = 200 * time.Millisecond
)

// yard is the played world of one seed.
type yard struct {
	plan     Plan
	began    time.Time
	log      *slog.Logger
	ctx      context.Context
	end      context.CancelFunc
	group    sync.WaitGroup
	wake     chan struct{} // something earlier than known is to happen
	nodes    []*node
	raft     *raft
	lanes    *lanes
	tales    *tales
	net      *net
	load     *load
	callers  *callers
	judge    *judge
	outsider *node // stays broken when all else is healed; nil: none does
	report   Report

	mu    sync.Mutex // guards what follows, and is held by nobody who calls on
	queue queue
	hash  hash.Hash64
}

// Run plays one seed. It must be called in a bubble of testing/synctest.
func Run(p Plan) Report {
	y := &yard{plan: p, began: time.Now(), wake: make(chan struct{}, 1), hash: fnv.New64a(), log: slog.New(slog.DiscardHandler)}
	y.report.Plan = p
	y.ctx, y.end = context.WithCancel(context.Background())
	y.judge, y.net = newJudge(y), newNet(y)
	y.lanes, y.tales, y.raft = newLanes(y), newTales(y), newRaft(y)
	for i := range members {
		y.nodes = append(y.nodes, newNode(y, i))
	}
	for _, n := range y.nodes {
		n.start()
	}
	y.raft.look()
	y.load, y.callers = &load{y}, &callers{yard: y}
	y.load.begin()
	y.callers.begin()
	y.after(calmFor, "storm", y.breakThings)
	y.after(calmFor+stormFor, "heal", y.heal)
	y.play()
	y.end()
	for _, n := range y.nodes {
		n.life.end()
	}
	y.group.Wait()
	y.report.Story, y.report.Lasted = y.hash.Sum64(), time.Since(y.began)
	return y.report
}

// members is how many nodes a yard has.
const members = 3

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// heal ends all faults, perhaps but for those of one node, and begins to look
// whether the yard recovers.
func (y *yard) heal() {
	y.net.heal()
	y.lanes.heal()
	y.expel()
	for _, n := range y.nodes {
		y.restart(n)
	}
	y.raft.look()
	y.callers.clear()
	y.after(lookEvery, "look", func() { y.look(time.Now().Add(healedIn)) })
}

// look ends the run when everything has ended, or when there was time enough
// for it.
func (y *yard) look(until time.Time) {
	why := y.judge.unfinished()
	if lane := y.lanes.lost(); lane != nil && y.judge.noticed(why) {
		y.tell("the lane's end is back")
		lane.cut = 0
		y.report.Losses++
	}
	switch {
	case len(why) == 0:
		y.judge.close()
		y.end()
	case time.Now().After(until):
		y.fail("not recovered %s after all was healed: %s", healedIn, strings.Join(why, "; "))
		y.end()
	default:
		y.after(lookEvery, "look", func() { y.look(until) })
	}
}

// fail notes what should not have happened, and ends the run: what follows
// from a broken yard explains nothing.
func (y *yard) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	y.tell("FAILED %s", text)
	y.mu.Lock()
	y.report.Failures = append(y.report.Failures, text)
	y.mu.Unlock()
	y.end()
}

// traces tells that somebody wants to know what happens.
func (y *yard) traces() bool { return y.plan.Talk || y.plan.Trace }

// tell adds to the story.
func (y *yard) tell(format string, args ...any) {
	if !y.traces() {
		return
	}
	line := fmt.Sprintf("%11.6f ", time.Since(y.began).Seconds()) + fmt.Sprintf(format, args...)
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.ctx.Err() != nil {
		return // what ends now ends in any order
	}
	y.hash.Write([]byte(line))
	if y.plan.Talk {
		y.report.Log = append(y.report.Log, line)
	}
}

// happening is what is to be done at a time. Of those at one time the key says
// which is first.
type happening struct {
	at  time.Time
	key string
	do  func()
}

// after has something happen later. Nothing else goes on while it does.
func (y *yard) after(d time.Duration, key string, do func()) { y.at(time.Now().Add(d), key, do) }

func (y *yard) at(at time.Time, key string, do func()) {
	y.mu.Lock()
	heap.Push(&y.queue, &happening{at, key, do})
	first := y.queue[0].at
	y.mu.Unlock()
	if !first.Before(at) {
		select {
		case y.wake <- struct{}{}:
		default:
		}
	}
}

// play lets everything happen in its turn until the run ends.
func (y *yard) play() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		synctest.Wait()
		if y.ctx.Err() != nil {
			return
		}
		y.mu.Lock()
		var next *happening
		wait := time.Hour
		if len(y.queue) > 0 {
			if wait = time.Until(y.queue[0].at); wait <= 0 {
				next = heap.Pop(&y.queue).(*happening)
			}
		}
		y.mu.Unlock()
		if next != nil {
			next.do()
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-y.wake:
		case <-y.ctx.Done():
		}
	}
}

type queue []*happening

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].key < q[j].key
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*happening)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}
