package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// Parameters of the pages.
const (
	pageJobs      = 50  // of a page
	pagesOfRound  = 300 // of each kind of query
	pageTarget    = 100 // in ms
	pageFailEvery = 25  // of how many jobs one has failed
	pageRate      = 2000
	pageUnsettled = 8192 // jobs that are unfinished while the index is filled

	pageQueues, pageFunctions, pageTags, pageKeys = 50, 200, 100, 100_000
)

// pages is a node with many ended jobs in its index.
type pages struct {
	*bench
	cl     *benchCluster
	random *rand.Rand
	filled round  // the rate at which these jobs were enqueued and run
	id     string // of a job that was found
}

// pageSuite measures searches in the index of a node that has run Options.Documents jobs.
func (b *bench) pageSuite() suite {
	p := &pages{bench: b, random: rand.New(rand.NewPCG(1, 2))}
	open := b.startCluster(procs.Options{Nodes: 1})
	asFast := target{p99: pageTarget}
	s := suite{name: "page", interleaved: true, open: func(t *task) {
		p.cl = open(t)
		p.fill(t)
	}}
	s.names = []experiment{
		{name: "index.fill", unit: jobsPerSecond, rounds: 1, run: func(*task) round { return p.filled },
			note: fmt.Sprintf("jobs of %d queues and functions, enqueued and ended before pages are requested", pageQueues)},
		{name: "index.resident", unit: "MB", rounds: 1, run: func(*task) round {
			return round{value: float64(procstat.PID(p.cl.Nodes[0].PID()).Memory()) / 1e6}
		}, note: fmt.Sprintf("of the node, %v after these jobs", settleTime)},
		{name: "index.disk", unit: "bytes/job", rounds: 1, run: func(t *task) round {
			found := must.Get(find(t, p.cl.Nodes[0], "", 1))
			return round{value: float64(found.Index.Bytes) / float64(found.Index.Ended)}
		}, note: "size of the index's files"},
	}
	for _, k := range pageKinds() {
		s.names = append(s.names, experiment{name: "index.page." + k.name, unit: milliseconds, target: asFast, note: k.note, run: func(t *task) round { return p.round(t, k) }})
	}
	s.names = append(s.names, experiment{name: "index.page.busy", unit: milliseconds, target: asFast, run: p.busy,
		note: fmt.Sprintf("all of these in turn, while the node runs %d jobs/s", pageRate)})
	return s
}

// pageKind is a kind of query.
type pageKind struct {
	name, note string
	query      func(p *pages) string
	empty      bool // the query finds no job
}

func pageKinds() []pageKind {
	return []pageKind{
		{name: "newest", note: "the newest jobs", query: func(*pages) string { return "" }},
		{name: "failed", note: "failed jobs of a queue", query: func(p *pages) string { return "state:failed queue:" + pageQueue(p.random.IntN(pageQueues)) }},
		{name: "oldest", note: "the same, the oldest first", query: func(p *pages) string {
			return "sort:created state:failed queue:" + pageQueue(p.random.IntN(pageQueues))
		}},
		{name: "key", note: "jobs of one of 100,000 limit keys", query: func(p *pages) string { return fmt.Sprintf("limit_key:customer-%d", p.random.IntN(pageKeys)) }},
		{name: "id", note: "one job", query: func(p *pages) string { return "id:" + p.id }},
		{name: "terms", note: "failed jobs of a function with a tag, since an hour", query: func(p *pages) string {
			return fmt.Sprintf("state:failed function:function-%d tag:tag-%d since:1h", p.random.IntN(pageFunctions), p.random.IntN(pageTags))
		}},
		{name: "text", note: "failed jobs with words of an error", query: func(p *pages) string { return fmt.Sprintf(`text:"mailbox %d"`, p.random.IntN(failTexts)) }},
		{name: "took", note: "jobs of a function that took more than 5 ms, the last to end first", query: func(p *pages) string {
			return fmt.Sprintf("function:function-%d took:>5ms sort:-ended", p.random.IntN(pageFunctions))
		}},
		{name: "none", note: "no job: a duration that none took, and a prefix of limit keys", empty: true, query: func(*pages) string { return "took:>10m limit_key:customer-1*" }},
	}
}

func pageQueue(i int) string { return fmt.Sprintf("bench-page-%02d", i) }

// pageFields returns fields of the record of job i, which are spread evenly.
func pageFields(i int) string {
	mixed := uint64(i+1) * 0x9e3779b97f4a7c15
	part := func(shift, n uint64) uint64 { return mixed >> shift % n }
	return fmt.Sprintf(`,"function":"function-%d","limit_key":"customer-%d","tags":["tag-%d","tag-%d"]`,
		part(8, pageFunctions), part(16, pageKeys), part(24, pageTags), part(40, pageTags))
}

// fill runs the jobs of which pages are requested, and waits until the index has them.
func (p *pages) fill(t *task) {
	var queues []string
	for i := range pageQueues {
		queues = append(queues, pageQueue(i))
	}
	p.cl.addQueues(t, queues)
	p.logf("  running %d jobs", p.Documents)
	l := p.cl.newLoadOf(queues, keyed)
	l.fields, l.failEvery = pageFields, pageFailEvery
	plan := workerPlan{queues: queues, workers: 2 * connections, credits: creditsOfAllQueues / pageQueues}
	h := startWorkers(t, p.cl.Nodes, plan, l)
	p.cl.awaitCapacity(t, plan.capacity())
	p.filled = l.measure(t, p.cl.cpu, false, func(t *task, l *load) {
		l.saturate(t, pageUnsettled, func(i int) bool { return i < p.Documents })
	})
	h.close()
	p.cl.awaitIndexed(t, p.cl.Nodes[0], uint64(p.Documents))
	must.Do(backoff.Sleep(t, settleTime))
	p.request(t, pageKinds()[0])
}

// round requests pages of one kind, one after the other.
func (p *pages) round(t *task, k pageKind) round {
	took, found := make([]float64, pagesOfRound), 0
	for i := range took {
		var n int
		took[i], n = p.request(t, k)
		found += n
	}
	if (found == 0) != k.empty {
		must.Do(fmt.Errorf("%d queries have found %d jobs", pagesOfRound, found))
	}
	return latencyOf(took)
}

// request requests a page, and returns how long that took, in ms, and the number of jobs found.
func (p *pages) request(t *task, k pageKind) (took float64, jobs int) {
	query := k.query(p)
	began := time.Now()
	found := must.Get(find(t, p.cl.Nodes[0], query, pageJobs))
	took = ms(time.Since(began))
	if len(found.Jobs) > 0 {
		p.id = found.Jobs[p.random.IntN(len(found.Jobs))].ID.String()
	}
	return took, len(found.Jobs)
}

// busy measures pages of all kinds in turn while jobs are enqueued and run.
func (p *pages) busy(t *task) round {
	l := p.cl.newLoad(keyed(queuePlain))
	h := startWorkers(t, p.cl.Nodes, p.cl.sampleSize(queuePlain), l)
	defer h.close()
	p.cl.awaitCapacity(t, p.cl.sampleSize(queuePlain).capacity())
	var took []float64
	r := l.measure(t, p.cl.cpu, true, func(t *task, l *load) {
		var failed error
		var searching sync.WaitGroup
		end := time.Now().Add(p.Round)
		searching.Go(func() {
			failed = must.Try(func() {
				for i := 0; time.Now().Before(end); i++ {
					one, _ := p.request(t, pageKinds()[i%len(pageKinds())])
					took = append(took, one)
				}
			})
		})
		p.open(pageRate)(t, l)
		searching.Wait()
		must.Do(failed)
	})
	busy := latencyOf(took)
	r.value, r.p99 = busy.value, busy.p99
	return r
}

// latencyOf summarizes latencies that are not those of jobs.
func latencyOf(took []float64) round {
	took = slices.Clone(took)
	return round{value: quantile(took, 0.5), p99: quantile(took, 0.99)}
}
