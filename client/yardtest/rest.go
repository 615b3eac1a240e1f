package yardtest

import (
	"context"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// rest suspends the authority of a yard that has nothing to do, because an authority works
// several times a second: hours of virtual time would take long. The same member is the
// authority again before the next job or tick of a cron entry is due, and at once when a
// client or the test asks for anything.
type rest struct {
	wake chan struct{} // buffer of one: the yard is used

	mu      sync.Mutex         // guards the fields below
	calls   int                // of the methods of Yard, in progress
	resumed chan struct{}      // closed when the rest is over; nil: there is none
	stop    context.CancelFunc // ends the present tenure
}

// Times of a rest.
const (
	restCheck = 10 * time.Second // how often it is checked whether there is something to do
	restAhead = time.Second      // the rest ends so long before something is due
	shortRest = time.Minute      // a shorter one is not taken
)

// enter begins a method of the yard: while one is in progress, the authority works. leave
// ends it.
func (y *Yard) enter() (leave func()) {
	y.t.Helper()
	r := &y.rest
	r.mu.Lock()
	r.calls++
	resting := r.resumed != nil
	r.mu.Unlock()
	if resting {
		wakeup.Send(r.wake)
		y.await("end of the authority's rest", y.authorityProblem)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls--
	}
}

// keepRest suspends the authority while there is nothing to do, until the yard stops.
func (y *Yard) keepRest() {
	for backoff.Sleep(y.ctx, restCheck) == nil {
		length, idle := y.idleTime()
		if idle && length >= shortRest && y.rest.begin() {
			select {
			case <-time.After(length - restAhead):
			case <-y.rest.wake:
			case <-y.ctx.Done():
			}
			y.rest.end()
		}
	}
}

// idleTime returns for how long there will be nothing to do. idle is false if there is
// something already.
func (y *Yard) idleTime() (length time.Duration, idle bool) {
	if y.problem() != "" {
		return 0, false
	}
	now := time.Now()
	length = 365 * 24 * time.Hour
	until := func(t time.Time) {
		if !t.IsZero() {
			length = min(length, t.Sub(now))
		}
	}
	y.anyNode().View(func(l *ledger.Ledger) {
		if wait, ok := l.NextDue().Wait(ledger.SameClock(now)); ok {
			length = min(length, wait)
		}
		l.Crons("", func(c ledger.CronView) bool {
			if !c.Paused {
				until(c.Next)
			}
			return true
		})
	})
	return length, true
}

// begin suspends the authority. It returns false if the test uses the yard.
func (r *rest) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls > 0 || r.stop == nil {
		return false
	}
	select {
	case <-r.wake:
	default:
	}
	r.resumed = make(chan struct{})
	r.stop()
	return true
}

// end ends the rest.
func (r *rest) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.resumed)
	r.resumed = nil
}

// setTenure sets the function that ends the present tenure; nil: there is none.
func (r *rest) setTenure(stop context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = stop
}

// wait blocks until the rest is over. It returns false if there is none.
func (r *rest) wait() bool {
	r.mu.Lock()
	resumed := r.resumed
	r.mu.Unlock()
	if resumed == nil {
		return false
	}
	<-resumed
	return true
}

// wakingScheduler ends a rest when a client needs the authority. It implements
// authority.Scheduler.
type wakingScheduler struct {
	*scheduler.Scheduler
	rest *rest
}

var _ authority.Scheduler = wakingScheduler{}

// Status implements authority.Scheduler.
func (s wakingScheduler) Status(ctx context.Context) (scheduler.AuthorityStatus, error) {
	wakeup.Send(s.rest.wake)
	return s.Scheduler.Status(ctx)
}

// Propose implements authority.Scheduler.
func (s wakingScheduler) Propose(ctx context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	wakeup.Send(s.rest.wake)
	return s.Scheduler.Propose(ctx, c)
}
