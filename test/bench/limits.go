package bench

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// limitedQueue is a queue that uses a limit of its own, or shares its starts among keys.
type limitedQueue struct {
	name  string // of the queue and the limit
	keys  int    // that the jobs of a load have in turn; 0 means none
	limit api.LimitChange
	fair  bool
	note  string

	create sync.Once
}

// limitedQueues returns the queues whose rates are measured. Their bounds are above what the
// jobs need, so that the figures show what it costs to count.
func limitedQueues() []*limitedQueue {
	perKey := func(n int64) api.LimitChange { return api.LimitChange{PerKey: api.SetTo(n)} }
	return []*limitedQueue{
		{name: "keys10", keys: 10, limit: perKey(1000), note: "at most 1,000 jobs of each of 10 keys at a time"},
		{name: "keys10k", keys: 10_000, limit: perKey(2), note: "at most 2 of each of 10,000 keys"},
		{name: "keys100k", keys: 100_000, limit: perKey(2), note: "at most 2 of each of 100,000 keys"},
		{name: "rate", limit: api.LimitChange{Rate: api.SetTo("500000/s")}, note: "at most 500,000 starts a second"},
		{name: "rates10k", keys: 10_000, limit: api.LimitChange{RatePerKey: api.SetTo("1000/s")}, note: "at most 1,000 starts a second of each of 10,000 keys"},
		{name: "fair10k", keys: 10_000, fair: true, note: "fair among 10,000 keys"},
	}
}

// limitRates returns the experiments that measure the rates of jobs with limits.
func (y *yards) limitRates() (all []experiment) {
	for _, q := range limitedQueues() {
		all = append(all, experiment{
			name: "yard3." + q.name, unit: jobsPerSecond, target: target{floor: "yard3.plain", ratio: 0.95}, note: q.note,
			run: func(t *task) round { return y.limited(t, q, false, y.async) },
		})
	}
	return all
}

// besideSlots is how many jobs may run at the same time in the queues of besideHeavy, so that
// the rest of its window waits.
const besideSlots = 500

// limitLatencies returns the experiments that measure when jobs of one key start while another
// key has a backlog, without and with fairness.
func (y *yards) limitLatencies() (all []experiment) {
	for _, name := range []string{"fifo", "fair"} {
		q := &limitedQueue{name: "beside-" + name, keys: 2, limit: api.LimitChange{Total: api.SetTo[int64](besideSlots)}, fair: name == "fair"}
		e := experiment{
			name: "yard3." + q.name, unit: milliseconds, run: func(t *task) round { return y.limited(t, q, true, y.besideHeavy) },
			note: fmt.Sprintf("start of jobs of a key at %d/s, while another key fills %d slots and has a backlog", lightRate, besideSlots),
		}
		if q.fair {
			e.target = target{floor: "yard3.beside-fifo", maxRatio: 0.5}
		}
		all = append(all, e)
	}
	return all
}

// limited measures the jobs of a queue with limits.
func (y *yards) limited(t *task, q *limitedQueue, latency bool, generate generator) round {
	cl := y.three()
	queue := "bench-" + q.name
	q.create.Do(func() {
		must.Do(cl.AddQueue(t, queue, 0))
		settings := api.QueueChange{Name: queue, StartSettings: api.StartSettings{Fair: api.SetTo(q.fair)}}
		if q.limit != (api.LimitChange{}) {
			q.limit.Name = queue
			must.Do(cl.Nodes[0].Ask(t, api.Subject("limit-set"), q.limit, new(api.LimitDetail)))
			settings.Limits = api.SetTo([]string{queue})
		}
		must.Do(cl.Nodes[0].Ask(t, api.Subject("queue-set"), settings, new(api.Queue)))
	})
	l := cl.newLoad(plain(queue))
	if q.keys > 0 {
		l.fields = func(i int) string { return `,"limit_key":"k` + strconv.Itoa(i%q.keys) + `"` }
	}
	return cl.runBy(t, cl.sampleSize(queue), l, latency, generate)
}

// lightRate is how many jobs of the light key besideHeavy enqueues in a second.
const lightRate = 100

// besideHeavy enqueues the jobs of one key so that a window of them is not settled, and
// meanwhile some of another one. Only the latencies of the latter count. Jobs with an odd
// number have the heavy key.
func (y *yards) besideHeavy(t *task, l *load) {
	end := time.Now().Add(y.Round)
	var heavy sync.WaitGroup
	submitted := 0
	heavy.Go(func() {
		for time.Now().Before(end) {
			if submitted-int(l.settled.Load()) >= window {
				if backoff.Sleep(t, time.Millisecond) != nil {
					return
				}
				continue
			}
			l.submit(submitted, 2*submitted+1, notMeasured, func() {})
			submitted++
		}
	})
	began := time.Since(l.began)
	light := paced(t, time.Now(), lightRate, during(y.Round), func(i int, due time.Duration) { l.submit(i, 2*i, began+due, func() {}) })
	heavy.Wait()
	must.Do(t.Err())
	l.awaitAnswers(t, submitted+light)
}

// notMeasured is the due time of jobs whose latency does not count.
const notMeasured = -1
