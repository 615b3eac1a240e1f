package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Parameters of the lag of the index.
const (
	lagRate   = 5000 // jobs per second
	lagRounds = 5    // times the length of a round, so that documents become segments meanwhile
	// lagEvery is of how many jobs one is searched. Each search makes the index of a node read the
	// ledger, so there must be few.
	lagEvery = 500
	lagPause = 20 * time.Millisecond // between searches for one job
	maxLag   = 1000                  // in ms, the target
	// lagTimeout is how long a job is searched, also on a machine that does not reach lagRate.
	lagTimeout = 2 * time.Minute
)

// lagSuite measures how long jobs take until searches find them, on a node that runs alone: three on one
// machine of two processors do not keep up with lagRate if it has other work.
func (b *bench) lagSuite() suite {
	var cl *benchCluster
	open := b.startCluster(procs.Options{Nodes: 1})
	lag := shared(func(t *task) lagRound { return b.measureLag(t, cl) })
	load := fmt.Sprintf("an open loop of %d jobs/s, one of %d of which is searched", lagRate, lagEvery)
	return suite{
		name: "lag",
		open: func(t *task) { cl = open(t) },
		names: []experiment{
			{name: "index.lag.rate", unit: jobsPerSecond, target: target{atLeast: 0.98 * lagRate}, run: lag(func(r lagRound) round { return r.jobs }),
				note: "jobs that ended under " + load},
			{name: "index.lag.accepted", unit: milliseconds, target: target{p99: maxLag}, run: lag(func(r lagRound) round { return latencyRound(r.accepted) }),
				note: "from the acknowledgement of the acceptance until a search finds the job"},
			{name: "index.lag.ended", unit: milliseconds, target: target{p99: maxLag}, run: lag(func(r lagRound) round { return latencyRound(r.ended) }),
				note: "from the end of the job, by the ledger's time, until a search finds that it has ended"},
			{name: "index.lag.longest", unit: milliseconds, target: target{atMost: maxLag}, run: lag(func(r lagRound) round { return round{value: max(quantile(r.accepted, 1), quantile(r.ended, 1))} }),
				note: "the longest of both in a round"},
		},
	}
}

// lagRound is the result of one round.
type lagRound struct {
	jobs            round
	accepted, ended []float64 // in ms, of each job that was searched
}

// measureLag measures how long some of the jobs of a load take until they are found.
func (b *bench) measureLag(t *task, cl *benchCluster) (r lagRound) {
	ctx, stop := context.WithCancel(t)
	defer stop()
	s := &lagSearches{ctx: ctx, node: cl.Nodes[0]}
	l := cl.newLoad(keyed(queuePlain))
	l.transports = nil
	for _, c := range cl.callers {
		l.transports = append(l.transports, lagConn{c, s})
	}
	err := must.Try(func() {
		r.jobs = cl.runBy(t, cl.sampleSize(queuePlain), l, false, func(t *task, l *load) { l.openLoop(t, lagRate, during(lagRounds*b.Round)) })
	})
	if err != nil {
		stop()
	}
	s.running.Wait()
	must.Do(cmp.Or(err, s.err))
	r.accepted, r.ended = s.accepted, s.ended
	return r
}

// lagConn is a connection that has one of lagEvery jobs searched from its acceptance on.
type lagConn struct {
	*natsConn
	searches *lagSearches
}

func (c lagConn) submit(l *load, i int, due time.Duration, done func(error)) {
	c.call(l.message(i, due), &l.repeated, func(m *nats.Msg, err error) {
		if err == nil && i%lagEvery == 0 {
			c.searches.start(m.Data)
		}
		done(err)
	})
}

// lagSearches are the searches for jobs of a round.
type lagSearches struct {
	ctx     context.Context
	node    *procs.Node
	running sync.WaitGroup

	mu              sync.Mutex
	accepted, ended []float64
	err             error // the first
}

// start begins to search the job of an answer that was just received, until it has ended.
func (s *lagSearches) start(answer []byte) {
	began := time.Now()
	s.running.Go(func() {
		var job struct{ ID string }
		err := json.Unmarshal(answer, &job)
		var accepted, ended time.Duration
		if err == nil {
			accepted, ended, err = s.follow(job.ID, began)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			if s.err == nil {
				s.err = err
			}
			return
		}
		s.accepted, s.ended = append(s.accepted, ms(accepted)), append(s.ended, ms(ended))
	})
}

// follow searches a job that was accepted at a time until it is found, and until it is found as ended. It
// returns how late both are.
func (s *lagSearches) follow(id string, at time.Time) (accepted, ended time.Duration, err error) {
	for time.Since(at) < lagTimeout {
		found, err := find(s.ctx, s.node, "id:"+id, 1)
		if err != nil {
			return 0, 0, err
		}
		if len(found.Jobs) > 0 {
			if accepted == 0 {
				accepted = time.Since(at)
			}
			if j := &found.Jobs[0]; j.State == job.Completed.String() {
				return accepted, time.Since(*j.Ended), nil
			}
		}
		if err := backoff.Sleep(s.ctx, lagPause); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, fmt.Errorf("job %s is not found on %s as completed within %v after its acceptance", id, s.node.Name, lagTimeout)
}
