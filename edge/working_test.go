package edge

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"yardmaster/job"
)

// workingYard is a yard of memory that gives its jobs out, so that one
// conversation can be played against it and against a real yard.
type workingYard struct {
	*memoryYard
	server *Server
	wake   chan struct{}

	hands   sync.Mutex // guards what follows; taken before memoryYard.mu
	free    map[job.Offer]int
	at      map[job.ID]job.Assignment // the last of each job
	holding bool                      // outcomes wait in held
	held    []func()
}

func newWorkingYard() *workingYard {
	return &workingYard{memoryYard: newMemoryYard(), wake: make(chan struct{}, 1), free: make(map[job.Offer]int), at: make(map[job.ID]job.Assignment)}
}

func (y *workingYard) Session() Session { return y }

// run gives jobs out whenever something has changed.
func (y *workingYard) run(ctx context.Context) {
	for {
		for y.giveOne() {
		}
		select {
		case <-ctx.Done():
			return
		case <-y.wake:
		}
	}
}

func (y *workingYard) look() {
	select {
	case y.wake <- struct{}{}:
	default:
	}
}

// giveOne starts the oldest job that can start.
func (y *workingYard) giveOne() bool {
	a, spec, ok := y.next()
	if !ok {
		return false
	}
	if !y.server.Start(a, spec) {
		y.Offer(job.Offer{Kind: a.Kind, Key: a.Key, Worker: a.Worker})
		y.change(a.Job, func(v *job.View) { v.State = job.Waiting })
	}
	return true
}

func (y *workingYard) next() (a job.Assignment, spec job.Spec, ok bool) {
	y.hands.Lock()
	defer y.hands.Unlock()
	y.mu.Lock()
	defer y.mu.Unlock()
	views := slices.SortedFunc(maps.Values(y.jobs), func(a, b job.View) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Position.Seq, b.Position.Seq))
	})
	active := map[string]int{}
	for _, v := range views {
		if v.State == job.Active {
			active[v.Queue]++
		}
	}
	for _, v := range views {
		q := y.queues[v.Queue]
		if v.State != job.Waiting || q.Paused || q.Config.Limit > 0 && active[v.Queue] >= int(q.Config.Limit) {
			continue
		}
		for o, free := range y.free {
			if o.Key != v.Queue || free <= 0 {
				continue
			}
			v.State, v.Node, v.Worker, v.Started = job.Active, "n1", "overhop/"+o.Worker, time.Now()
			v.Dispatches++
			a := job.Assignment{
				Job: v.ID, N: v.Dispatches, Attempt: v.Attempts + 1, MaxAttempts: v.MaxAttempts, Queue: v.Queue, Function: v.Function,
				Kind: job.Overhop, Key: v.Queue, Worker: o.Worker, Fence: uint64(v.Dispatches), Timeout: v.Timeout,
				Accepted: v.Created, RunAt: v.RunAt, Redelivered: v.Dispatches > v.Attempts+1,
			}
			y.jobs[v.ID], y.at[v.ID] = v, a
			return a, *v.Spec, true
		}
	}
	return a, spec, false
}

// change changes a job.
func (y *workingYard) change(id job.ID, how func(*job.View)) {
	y.mu.Lock()
	v, ok := y.jobs[id]
	ended := v.State.Ended()
	how(&v)
	if ok {
		y.jobs[id] = v
	}
	if ok && v.State.Ended() && !ended {
		close(y.memoryYard.ended[id])
	}
	if ok && !v.State.Ended() && ended {
		y.memoryYard.ended[id] = make(chan struct{})
	}
	y.mu.Unlock()
	if ok && v.State == job.Delayed {
		time.AfterFunc(time.Until(v.RunAt), func() {
			y.change(id, func(v *job.View) {
				if v.State == job.Delayed && !v.RunAt.After(time.Now()) {
					v.State = job.Waiting
				}
			})
		})
	}
	y.look()
}

// refuses is what the yard answers while it fails.
func (y *workingYard) refuses() (err error) {
	y.set(func() { err = y.fails })
	return err
}

func (y *workingYard) AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	if err := y.refuses(); err != nil {
		return job.ID{}, err
	}
	return y.memoryYard.AddQueue(ctx, name, cfg)
}

func (y *workingYard) Enqueue(ctx context.Context, queue string, spec job.Spec, key string, then func(job.ID, error)) {
	if err := y.refuses(); err != nil {
		then(job.ID{}, err)
		return
	}
	y.memoryYard.Enqueue(ctx, queue, spec, key, func(id job.ID, err error) {
		if err == nil {
			y.change(id, func(v *job.View) {
				if spec.TimeoutMS != nil {
					v.Timeout = time.Duration(*spec.TimeoutMS) * time.Millisecond
				}
				if v.RunAt.After(time.Now()) {
					v.State = job.Delayed
				}
			})
		}
		then(id, err)
	})
}

func (y *workingYard) PauseQueue(ctx context.Context, name string, paused bool) error {
	defer y.look()
	return y.memoryYard.PauseQueue(ctx, name, paused)
}

// set changes what the yard answers.
func (y *workingYard) set(how func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	how()
}

// hold keeps outcomes from being committed, or commits them.
func (y *workingYard) hold(holding bool) {
	y.hands.Lock()
	defer y.hands.Unlock()
	y.holding = holding
	for _, settle := range y.held {
		go settle()
	}
	y.held = nil
}

func (y *workingYard) Cancel(_ context.Context, id job.ID, reason string) (state job.State, err error) {
	active := false
	y.change(id, func(v *job.View) {
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
		y.recall(id, job.RecallCancelled)
	}
	return state, err
}

// recall stops a job where it runs.
func (y *workingYard) recall(id job.ID, why job.RecallReason) {
	y.hands.Lock()
	n := y.at[id].N
	y.hands.Unlock()
	y.server.Stop(id, n, why)
}

func (y *workingYard) Retry(_ context.Context, id job.ID) (state job.State, err error) {
	y.change(id, func(v *job.View) {
		if v.State != job.Failed {
			err = job.ErrNotFailed
			return
		}
		v.State, v.Attempts, v.RunAt = job.Waiting, 0, time.Now()
		state = v.State
	})
	return state, err
}

func (y *workingYard) Clear(_ context.Context, queue string, states []job.State) (removed int, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for id, v := range y.jobs {
		if v.Queue == queue && slices.Contains(states, v.State) {
			delete(y.jobs, id)
			removed++
		}
	}
	return removed, nil
}

func (y *workingYard) Obliterate(ctx context.Context, queue string, force bool) (removed int, err error) {
	active := map[job.ID]chan struct{}{}
	y.set(func() {
		for id, v := range y.jobs {
			if v.Queue == queue && v.State == job.Active {
				active[id] = y.memoryYard.ended[id]
			}
		}
	})
	if len(active) > 0 && !force {
		return 0, job.ErrQueueNotEmpty
	}
	clear := func() {
		for id, v := range y.jobs {
			if v.Queue == queue && v.State != job.Active {
				delete(y.jobs, id)
				removed++
			}
		}
	}
	y.set(clear) // lest it begins on a credit that is given back
	for id, ended := range active {
		y.recall(id, job.RecallQueueGone)
		<-ended
	}
	y.set(func() {
		clear()
		delete(y.queues, queue)
	})
	return removed, nil
}

// Resume gives back the dispatch that y.at holds, as another node's.
func (y *workingYard) Resume(_ context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	y.hands.Lock()
	defer y.hands.Unlock()
	a := y.at[id]
	y.mu.Lock()
	defer y.mu.Unlock()
	if v := y.jobs[id]; v.State != job.Active || a.N != n {
		return job.Assignment{}, job.ErrLeaseLost
	}
	a.Worker, a.Started = worker, y.jobs[id].Started
	return a, nil
}

func (y *workingYard) Adopt(job.Assignment) bool { return true }
func (y *workingYard) Stalled(string, string)    {}
func (y *workingYard) Recovered(string, string)  {}
func (y *workingYard) Log(job.LogLine)           {}

func (y *workingYard) Offer(o job.Offer) {
	y.hands.Lock()
	y.free[job.Offer{Key: o.Key, Worker: o.Worker}] = o.Free
	y.hands.Unlock()
	y.look()
}

func (y *workingYard) Report(o job.Outcome, then func(job.Settled)) {
	settle := func() {
		settled := y.settle(o)
		y.look()
		if then != nil {
			then(settled)
		}
	}
	y.hands.Lock()
	defer y.hands.Unlock()
	if y.holding {
		y.held = append(y.held, settle)
		return
	}
	go settle()
}

// settle does what a ledger does with an outcome.
func (y *workingYard) settle(o job.Outcome) (settled job.Settled) {
	y.change(o.Job, func(v *job.View) {
		settled = job.Settled{State: v.State}
		if v.State != job.Active || v.Dispatches != o.N {
			settled.Dup = v.Dispatches == o.N && v.State != job.Waiting && (v.State == job.Completed) == (o.Status == job.Success)
			settled.Stale = !settled.Dup
			return
		}
		again := time.Duration(0)
		switch {
		case o.RetryAfter != nil:
			again = *o.RetryAfter
		case o.Status == job.Error && v.RetryInterval > 0:
			again = v.RetryInterval
		}
		v.Fault = o.Fault
		if (o.Started || o.Status == job.Success) && o.Status != job.Lost && o.Status != job.Interrupted {
			v.Attempts++
		}
		noHandler := o.Fault != nil && o.Fault.Type == job.HandlerNotFound
		switch last := v.MaxAttempts > 0 && v.Attempts >= v.MaxAttempts; {
		case o.Status == job.Success:
			v.State, v.Result, v.Fault = job.Completed, o.Result, nil
		case o.Status == job.TimedOut, o.Status == job.Cancelled, o.Final, o.Status == job.Error && (last || noHandler):
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
