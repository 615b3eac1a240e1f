package edge

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// schedulingCluster is a cluster and executor in memory that starts its jobs,
// so that a script can be run against it as well as against a real yard.
type schedulingCluster struct {
	*memCluster
	server *Server
	wake   chan struct{}

	placeMu      sync.Mutex // guards what follows; taken before memCluster.mu
	offered      map[job.Offer]int
	placed       map[job.ID]job.Assignment // the last assignment of each job
	holdOutcomes bool                      // outcomes are kept in heldOutcomes
	heldOutcomes []func()
}

func newSchedulingCluster() *schedulingCluster {
	return &schedulingCluster{memCluster: newMemCluster(), wake: make(chan struct{}, 1), offered: make(map[job.Offer]int), placed: make(map[job.ID]job.Assignment)}
}

func (c *schedulingCluster) Session(string) Session { return c }

// run starts jobs whenever something has changed.
func (c *schedulingCluster) run(ctx context.Context) {
	for {
		for c.startNext() {
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
	}
}

func (c *schedulingCluster) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// startNext starts the oldest job that can start, and reports whether there was
// one.
func (c *schedulingCluster) startNext() bool {
	a, spec, ok := c.nextJob()
	if !ok {
		return false
	}
	if !c.server.Start(a, spec) {
		c.Offer(job.Offer{Kind: a.Kind, Key: a.Key, Worker: a.Worker})
		c.update(a.Job, func(v *job.View) { v.State = job.Waiting })
	}
	return true
}

func (c *schedulingCluster) nextJob() (a job.Assignment, spec job.Spec, ok bool) {
	c.placeMu.Lock()
	defer c.placeMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	views := slices.SortedFunc(maps.Values(c.jobs), func(a, b job.View) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Position.Seq, b.Position.Seq))
	})
	active := map[string]int{}
	for _, v := range views {
		if v.State == job.Active {
			active[v.Queue]++
		}
	}
	for _, v := range views {
		q := c.queues[v.Queue]
		if v.State != job.Waiting || q.Paused || q.Config.Limit > 0 && active[v.Queue] >= int(q.Config.Limit) {
			continue
		}
		for o, credits := range c.offered {
			if o.Key != v.Queue || credits <= 0 {
				continue
			}
			v.State, v.Node, v.Worker, v.Started = job.Active, "n1", "overhop/"+o.Worker, time.Now()
			v.Dispatches++
			a := job.Assignment{
				Job: v.ID, N: v.Dispatches, Attempt: v.Attempts + 1, MaxAttempts: v.MaxAttempts, Queue: v.Queue, Function: v.Function,
				Kind: job.Overhop, Key: v.Queue, Worker: o.Worker, Fence: uint64(v.Dispatches), Timeout: v.Timeout,
				Accepted: v.Created, RunAt: v.RunAt, Redelivered: v.Dispatches > v.Attempts+1,
			}
			c.jobs[v.ID], c.placed[v.ID] = v, a
			return a, *v.Spec, true
		}
	}
	return a, spec, false
}

// update changes a job and starts what follows from the change.
func (c *schedulingCluster) update(id job.ID, f func(*job.View)) {
	c.mu.Lock()
	v, ok := c.jobs[id]
	ended := v.State.Ended()
	f(&v)
	if ok {
		c.jobs[id] = v
	}
	if ok && v.State.Ended() && !ended {
		close(c.memCluster.ended[id])
	}
	if ok && !v.State.Ended() && ended {
		c.memCluster.ended[id] = make(chan struct{})
	}
	c.mu.Unlock()
	if ok && v.State == job.Delayed {
		time.AfterFunc(time.Until(v.RunAt), func() {
			c.update(id, func(v *job.View) {
				if v.State == job.Delayed && !v.RunAt.After(time.Now()) {
					v.State = job.Waiting
				}
			})
		})
	}
	c.notify()
}

// failure returns the error of a failing yard, nil if it works.
func (c *schedulingCluster) failure() (err error) {
	c.withLock(func() { err = c.readErr })
	return err
}

func (c *schedulingCluster) AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	if err := c.failure(); err != nil {
		return job.ID{}, err
	}
	return c.memCluster.AddQueue(ctx, name, cfg)
}

func (c *schedulingCluster) Enqueue(ctx context.Context, queue string, spec job.Spec, key string, done func(job.ID, error)) {
	if err := c.failure(); err != nil {
		done(job.ID{}, err)
		return
	}
	c.memCluster.Enqueue(ctx, queue, spec, key, func(id job.ID, err error) {
		if err == nil {
			c.update(id, func(v *job.View) {
				if spec.TimeoutMS != nil {
					v.Timeout = time.Duration(*spec.TimeoutMS) * time.Millisecond
				}
				v.RetryOnTimeout = spec.RetryOnTimeout
				if v.RunAt.After(time.Now()) {
					v.State = job.Delayed
				}
			})
		}
		done(id, err)
	})
}

func (c *schedulingCluster) PauseQueue(ctx context.Context, name string, paused bool) error {
	defer c.notify()
	return c.memCluster.PauseQueue(ctx, name, paused)
}

// withLock runs f with c.mu held.
func (c *schedulingCluster) withLock(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// setHoldOutcomes sets whether outcomes are held back, and commits those that
// were if not.
func (c *schedulingCluster) setHoldOutcomes(holding bool) {
	c.placeMu.Lock()
	defer c.placeMu.Unlock()
	c.holdOutcomes = holding
	for _, settle := range c.heldOutcomes {
		go settle()
	}
	c.heldOutcomes = nil
}

func (c *schedulingCluster) Cancel(_ context.Context, id job.ID, reason string) (state job.State, err error) {
	active := false
	c.update(id, func(v *job.View) {
		switch active = v.State == job.Active; {
		case v.State.Ended():
			err = job.ErrJobEnded
		case !active:
			v.State, v.Ended = job.Failed, time.Now()
			v.Fault = &job.Fault{Type: job.FaultCancelled, Message: reason}
		}
		state = v.State
	})
	if active {
		c.recall(id, job.RecallCancelled, reason)
	}
	return state, err
}

func (c *schedulingCluster) ChangeJob(_ context.Context, id job.ID, priority *uint8, start Start) (state job.State, err error) {
	at := start.At
	if start.Delay > 0 {
		at = time.Now().Add(start.Delay)
	}
	c.update(id, func(v *job.View) {
		if v.State != job.Waiting && v.State != job.Delayed {
			err = job.ErrNotChangeable
			return
		}
		if priority != nil {
			v.Priority = *priority
		}
		if !at.IsZero() {
			v.State, v.RunAt = job.Waiting, at
			if at.After(time.Now()) {
				v.State = job.Delayed
			}
		}
		state = v.State
	})
	return state, err
}

// recall stops a job at its worker.
func (c *schedulingCluster) recall(id job.ID, reason job.RecallReason, message string) {
	c.placeMu.Lock()
	n := c.placed[id].N
	c.placeMu.Unlock()
	c.server.Stop(job.Recall{Job: id, N: n, Reason: reason, Message: message})
}

func (c *schedulingCluster) Retry(_ context.Context, id job.ID) (state job.State, err error) {
	c.update(id, func(v *job.View) {
		if v.State != job.Failed {
			err = job.ErrNotFailed
			return
		}
		v.State, v.Attempts, v.RunAt = job.Waiting, 0, time.Now()
		state = v.State
	})
	return state, err
}

func (c *schedulingCluster) Clear(_ context.Context, queue string, states []job.State) (removed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, v := range c.jobs {
		if v.Queue == queue && slices.Contains(states, v.State) {
			delete(c.jobs, id)
			removed++
		}
	}
	return removed, nil
}

func (c *schedulingCluster) Obliterate(ctx context.Context, queue string, force bool) (removed int, err error) {
	active := map[job.ID]chan struct{}{}
	c.withLock(func() {
		for id, v := range c.jobs {
			if v.Queue == queue && v.State == job.Active {
				active[id] = c.memCluster.ended[id]
			}
		}
	})
	if len(active) > 0 && !force {
		return 0, job.ErrQueueNotEmpty
	}
	clear := func() {
		for id, v := range c.jobs {
			if v.Queue == queue && v.State != job.Active {
				delete(c.jobs, id)
				removed++
			}
		}
	}
	c.withLock(clear) // before a restored credit could start one of them
	for id, ended := range active {
		c.recall(id, job.RecallQueueGone, "")
		<-ended
	}
	c.withLock(func() {
		clear()
		delete(c.queues, queue)
	})
	return removed, nil
}

// Resume moves the dispatch in c.placed to another worker.
func (c *schedulingCluster) Resume(_ context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	c.placeMu.Lock()
	defer c.placeMu.Unlock()
	a := c.placed[id]
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.jobs[id]; v.State != job.Active || a.N != n {
		return job.Assignment{}, job.ErrLeaseLost
	}
	a.Worker, a.Started = worker, c.jobs[id].Started
	return a, nil
}

func (c *schedulingCluster) Adopt(job.Assignment) bool             { return true }
func (c *schedulingCluster) WorkerLease(until time.Time) time.Time { return until }
func (c *schedulingCluster) Stalled(string, string)                {}
func (c *schedulingCluster) Recovered(string, string)              {}
func (c *schedulingCluster) Log(job.LogLine)                       {}

func (c *schedulingCluster) Offer(o job.Offer) {
	c.placeMu.Lock()
	c.offered[job.Offer{Key: o.Key, Worker: o.Worker}] = o.Free
	c.placeMu.Unlock()
	c.notify()
}

func (c *schedulingCluster) Report(o job.Outcome, done func(job.Settled)) {
	settle := func() {
		settled := c.settle(o)
		c.notify()
		if done != nil {
			done(settled)
		}
	}
	c.placeMu.Lock()
	defer c.placeMu.Unlock()
	if c.holdOutcomes {
		c.heldOutcomes = append(c.heldOutcomes, settle)
		return
	}
	go settle()
}

// settle applies an outcome to its job as the ledger does.
func (c *schedulingCluster) settle(o job.Outcome) (settled job.Settled) {
	c.update(o.Job, func(v *job.View) {
		settled = job.Settled{State: v.State}
		if v.State != job.Active || v.Dispatches != o.N {
			settled.Duplicate = v.Dispatches == o.N && v.State != job.Waiting && (v.State == job.Completed) == (o.Status == job.Success)
			settled.Stale = !settled.Duplicate
			return
		}
		again := time.Duration(0)
		switch {
		case o.RetryAfter != nil:
			again = *o.RetryAfter
		case (o.Status == job.Error || o.Status == job.TimedOut) && v.RetryInterval > 0:
			again = v.RetryInterval
		}
		v.Fault = o.Fault
		if (o.Started || o.Status == job.Success) && o.Status != job.Lost && o.Status != job.Interrupted && o.Status != job.Declined {
			v.Attempts++
		}
		noHandler := o.Fault != nil && o.Fault.Type == job.HandlerNotFound
		finalTimeout := o.Status == job.TimedOut && (v.RetryOnTimeout == nil || !*v.RetryOnTimeout)
		switch last := v.MaxAttempts > 0 && v.Attempts >= v.MaxAttempts; {
		case o.Status == job.Success:
			v.State, v.Result, v.Fault = job.Completed, o.Result, nil
		case finalTimeout, o.Status == job.TimedOut && last, o.Status == job.RunCancelled, o.Final, o.Status == job.Error && (last || noHandler):
			v.State = job.Failed
		default:
			v.State = job.Waiting
			if o.Status == job.Lost {
				v.Losses++
			}
			if again > 0 {
				v.State, v.RunAt = job.Delayed, time.Now().Add(again)
				settled.RunAt = v.RunAt
			}
		}
		if v.State.Ended() {
			v.Ended = time.Now()
		}
		settled.State = v.State
	})
	return settled
}
