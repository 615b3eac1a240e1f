package sim

import (
	"context"
	"fmt"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How a worker that has lost its connection goes on: until its lease is over, and
// looking for another node every now and then.
const (
	workerLease = 6 * time.Second // from its last word with a node
	wanderTries = 4
)

// wander has a worker lose its connection and go on working. It looks for a node
// to bring its job to; if it finds none before its lease is over, it stops.
func (r *run) wander(y *yard) {
	r.loose = time.Now().Add(workerLease - y.between("last word "+r.key(), 0, 2*time.Second))
	y.tell("%s is on its own at %s", r.RequestID(), r.life.id)
	y.after(time.Until(r.loose), "stop alone "+r.key(), func() {
		if r.over || r.loose.IsZero() {
			return
		}
		r.over = true
		y.tell("%s is given up by its worker", r.RequestID())
		if c := r.life.hands.crews[r.Kind]; r.life.up { // its edge has waited as long
			c.agent.Report(job.Outcome{Job: r.Job, N: r.N, Status: job.Lost, Started: true, Fault: &job.Fault{Message: "its worker is gone", Type: job.FaultLost}}, nil)
			if !r.guest {
				c.free(r.Key, r.Worker, 1)
			}
		}
	})
	y.seek(r, 1)
}

func (r *run) key() string { return fmt.Sprintf("%s %s", r.life.id, r.RequestID()) }

// seek brings a job to a node, if that can have it moved there.
func (y *yard) seek(r *run, try int) {
	key := fmt.Sprintf("seek %s %d", r.key(), try)
	y.after(y.between(key, 10*time.Millisecond, 2500*time.Millisecond), key, func() {
		l := y.nodes[y.pick("at "+key, members)].life
		again := func() {
			if try < wanderTries {
				y.seek(r, try+1)
			}
		}
		if r.over || r.loose.IsZero() || !l.up || !l.begun {
			again()
			return
		}
		worker := r.Worker
		y.move(l, r, job.Channel(job.Overhop, worker), func(index uint64) {
			if index == 0 || !r.arrive(y, l, index) {
				again()
			}
		})
	})
}

// move has the authority give a dispatch to a node, and calls done with the index
// of the entry once that node's ledger has it; 0: it was refused, or nobody knows.
func (y *yard) move(l *life, r *run, channel string, done func(index uint64)) {
	to, _, ok := l.watched.authority()
	if !ok {
		done(0)
		return
	}
	c := &ledger.MoveDispatch{Job: r.Job, N: r.N, Node: l.name, Incarnation: l.incarnation, Channel: channel}
	key := "move " + l.id + " " + r.key()
	y.net.post(l, to, key, func(at *life) {
		y.group.Go(func() {
			ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
			defer cancel()
			result, index, err := at.sched.Do(ctx, c)
			if err != nil || result.Err != nil {
				index = 0
			}
			y.after(0, "moved "+key, func() { y.applied(l, index, "await "+key, done) })
		})
	})
}

// applied waits for a node's ledger to have an entry.
func (y *yard) applied(l *life, index uint64, key string, then func(uint64)) {
	switch {
	case !l.up:
	case uint64(l.applied) >= index:
		then(index)
	default:
		y.after(5*time.Millisecond, key, func() { y.applied(l, index, key, then) })
	}
}

// arrive has a node take a job into hand that its worker has brought.
func (r *run) arrive(y *yard, l *life, index uint64) bool {
	found, ok := l.ledger.Dispatch(r.Job, r.N)
	if r.over || r.loose.IsZero() || !ok || found.Node != l.name || found.Incarnation != l.incarnation {
		return false
	}
	a := r.Assignment
	a.Epoch, a.Started, a.Moved = found.Epoch, found.Started, index
	if !l.agent.Adopt(a) {
		return false
	}
	y.tell("%s goes on at %s", r.RequestID(), l.id)
	r.over = true
	if r.life.up && !r.guest {
		r.life.hands.crews[r.Kind].free(r.Key, r.Worker, 1)
	}
	next := &run{Assignment: a, life: l, guest: true}
	y.judge.runs[runKey{r.Job, r.N, l.id}] = next
	c := l.hands.crews[r.Kind]
	o := job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(`"moved"`)}}
	key := "end moved " + next.key()
	y.after(y.between(key, time.Millisecond, 1500*time.Millisecond), key, func() { c.ends(next, o) })
	return true
}

// held tells that a copy of a job may be at work.
func (r *run) held(now time.Time) bool {
	switch {
	case r.over:
		return false
	case !r.loose.IsZero():
		return r.loose.After(now)
	}
	return r.life.up && r.life.agent.Lease().After(now)
}
