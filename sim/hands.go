package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
)

// hands play what runs jobs at a node: workers that came over TCP, and runner
// processes. All of it is called while nothing else happens, or by the agent
// with the agent's own order.
type hands struct {
	*life
	crews map[job.Kind]*crew
}

// crew is the workers of one kind. It is an agent.Target.
type crew struct {
	*hands
	kind job.Kind
	room map[string]int // by key and worker
}

// run is one copy of a job that runs.
type run struct {
	job.Assignment
	life  *life
	over  bool
	loose time.Time // until when its worker works without a node; zero: it has one
	guest bool      // its worker has brought it, and takes no room here
}

const runnerName = "rr"

// largeResult does not travel with its outcome.
var largeResult = []byte(`"` + strings.Repeat("r", 2*job.MaxInlineResult) + `"`)

// The room of each node.
var seats = []job.Offer{
	{Kind: job.Overhop, Key: "mail", Worker: "w1", Free: 2},
	{Kind: job.Overhop, Key: "mail", Worker: "w2", Free: 1},
	{Kind: job.Overhop, Key: "narrow", Worker: "w2", Free: 3},
	{Kind: job.RRQ, Key: runnerName, Worker: runnerName + "/4001", Free: 1},
	{Kind: job.RRQ, Key: runnerName, Worker: runnerName + "/4002", Free: 1},
}

func newHands(l *life) *hands {
	h := &hands{life: l, crews: map[job.Kind]*crew{}}
	for _, k := range []job.Kind{job.Overhop, job.RRQ} {
		c := &crew{hands: h, kind: k, room: map[string]int{}}
		h.crews[k] = c
		l.agent.Add(c)
	}
	return h
}

var _ agent.Target = (*crew)(nil)

// offerAll announces everybody.
func (h *hands) offerAll() {
	for _, o := range seats {
		h.crews[o.Kind].free(o.Key, o.Worker, o.Free)
	}
}

func (c *crew) free(key, worker string, n int) {
	at := key + " " + worker
	c.room[at] += n
	c.agent.Offer(job.Offer{Kind: c.kind, Key: key, Worker: worker, Free: c.room[at]})
}

// die ends the runner processes with their node, which the judge then knows.
func (h *hands) die() {
	if h == nil {
		return
	}
	var mine []*run
	for _, r := range h.y.judge.runs {
		if r.life == h.life && !r.over && r.loose.IsZero() {
			mine = append(mine, r)
		}
	}
	slices.SortFunc(mine, func(a, b *run) int { return strings.Compare(a.key(), b.key()) })
	for _, r := range mine {
		if r.Kind == job.Overhop && h.y.chance("wanders "+r.key(), 500) {
			r.wander(h.y)
			continue
		}
		r.over = true
		if r.Kind == job.Overhop {
			h.crews[r.Kind].lateWord(r)
		}
	}
}

// Kind is agent.Target's.
func (c *crew) Kind() job.Kind { return c.kind }

// Start is agent.Target's. What becomes of the job goes by the dice, and when.
func (c *crew) Start(a job.Assignment, _ job.Spec) bool {
	y := c.y
	key := fmt.Sprintf("run %s", a.RequestID())
	if !c.up || c.room[a.Key+" "+a.Worker] == 0 || y.mishaps() && y.chance("gone "+key, 20) {
		return false
	}
	c.free(a.Key, a.Worker, -1)
	r := &run{Assignment: a, life: c.life}
	y.judge.started(r)
	y.tell("%s starts %s attempt %d fence %d", c.id, a.RequestID(), a.Attempt, a.Fence)
	o := job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(fmt.Sprint(a.N))}}
	lasts := y.between(key, time.Millisecond, 1500*time.Millisecond)
	switch n := y.pick("how "+key, 100); {
	case !y.mishaps() && n > 90, n < 70:
	case n < 80:
		o.Status, o.Result, o.Fault = job.Error, job.Value{}, &job.Fault{Message: "it failed"}
	case n < 85:
		o.Status, o.Result, o.Fault = job.Retry, job.Value{}, &job.Fault{Message: "again"}
	case n < 90:
		o = job.Outcome{Job: a.Job, N: a.N, Status: job.Declined}
	case n < 95: // its process or connection ends
		o.Status, o.Result, o.Fault = job.Lost, job.Value{}, &job.Fault{Message: "it crashed", Type: job.FaultLost}
	case n < 97 && c.kind == job.Overhop: // its connection breaks, and it goes on
		y.after(lasts, "loose "+c.id+key, func() {
			if !r.over && c.up && r.loose.IsZero() {
				r.wander(y)
			}
		})
		return true
	default: // it stalls until its time is up
		lasts = a.Timeout
	}
	if o.Status == job.Success && y.chance("large "+key, 60) {
		o.Result.Data = largeResult
	}
	if lasts >= a.Timeout {
		lasts = a.Timeout
		o.Status, o.Result, o.Fault = job.TimedOut, job.Value{}, &job.Fault{Message: "too long", Type: job.FaultTimeout}
	}
	y.after(lasts, "end "+c.id+key, func() { c.ends(r, o) })
	return true
}

// leaseSlack is how long stopping everything may take once a lease is over.
const leaseSlack = 100 * time.Millisecond

// ends is when a job ends by itself or because it was stopped, whichever is
// first.
func (c *crew) ends(r *run, o job.Outcome) {
	if r.over || !c.up || !r.loose.IsZero() {
		return
	}
	if past := time.Since(c.agent.Lease()); past > leaseSlack {
		c.y.fail("%s is at work at %s for %s after its node's lease", r.RequestID(), c.id, past)
	}
	r.over = true
	c.y.judge.reported(o)
	c.y.tell("%s ends %s %s", c.id, r.RequestID(), o.Status)
	c.agent.Report(o, nil)
	if !r.guest {
		c.free(r.Key, r.Worker, 1)
	}
}

// Stop is agent.Target's. A worker stops soon; when its lease is over it is
// taken to have stopped at once.
func (c *crew) Stop(id job.ID, n uint32, why job.RecallReason) {
	y := c.y
	key := fmt.Sprintf("stop %s %s %s", c.id, job.RequestID(id, n), why)
	wait := y.between(key, time.Microsecond, 80*time.Millisecond)
	if why == job.RecallLease {
		wait = 0
	}
	y.after(wait, key, func() {
		r := y.judge.runs[runKey{id, n, c.id}]
		if r == nil || r.over || !c.up {
			return
		}
		o := job.Outcome{Job: id, N: n, Status: job.Lost, Started: true, Fault: &job.Fault{Message: strings.ToLower(string(why)), Type: job.FaultLost}}
		switch why {
		case job.RecallCancelled, job.RecallQueueGone:
			o.Status, o.Fault.Type = job.Cancelled, job.FaultCancelled
		case job.RecallShutdown:
			o.Status = job.Interrupted
		case job.RecallSuperseded:
			if c.kind == job.Overhop { // it is let go, and says nothing here
				r.over = true
				if !r.guest {
					c.free(r.Key, r.Worker, 1)
				}
				return
			}
		}
		if why == job.RecallLease && c.kind == job.Overhop {
			c.lateWord(r)
		}
		c.ends(r, o)
	})
}

// lateWord has a worker whose node is gone say later, at another, that its job
// went well. It counts only if nobody else has the job by then.
func (c *crew) lateWord(r *run) {
	y := c.y
	key := "late " + r.RequestID()
	if !y.chance(key, 400) {
		return
	}
	y.after(y.between(key, 50*time.Millisecond, 9*time.Second), key, func() {
		n := y.nodes[y.pick("at "+key, members)]
		if !n.life.up {
			return
		}
		o := job.Outcome{Job: r.Job, N: r.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(`"late"`)}}
		y.judge.reported(o)
		y.tell("%s hears late of %s", n.life.id, r.RequestID())
		n.life.agent.Report(o, nil)
	})
}
