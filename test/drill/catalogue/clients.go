package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/hostile"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// Drills with clients that attack a node or exhaust its resources.
var clients = []drill.Drill{
	{
		Number: 33, Name: "hostile-clients", Breaks: "hundreds of clients of one node send a byte per second, nothing, garbage or too much, or never read",
		Promises: "they are disconnected, the memory they use is bounded and released, and other clients' jobs proceed",
		Plan:     drill.Layout{Config: "[limits]\nwrite_timeout = \"1s\"\nmax_connections_per_address = 20000\n"},
		Run:      hostileClients,
	},
	{
		Number: 34, Name: "no-descriptors", Breaks: "a node may open only a few more files and sockets, and clients use them up",
		Promises: "it stays a member, and accepts clients again as soon as descriptors are free",
		Run:      noDescriptors,
	},
}

// hostileMemory is the maximum growth of a node under attack, in bytes.
const hostileMemory = 600 << 20

// hostileClients attacks one node, and compares the latency of jobs at that node and the
// node's memory with the values before the attack.
func hostileClients(s *drill.Harness) {
	s.StartSteadyLoad()
	victim := randomNode(s)
	bait := layBait(s, victim)
	p := newProbe(s, []string{victim.Edge})
	defer p.close()
	span := 30 * time.Second
	if s.Quick {
		span = 15 * time.Second // longer than a connection may stay unregistered
	}
	calm := p.measure(span / 3)
	before := procstat.PID(victim.PID()).Memory()
	attackers, stop := context.WithCancel(s.Ctx)
	defer stop()
	var all sync.WaitGroup
	count := 0
	for _, a := range hostile.All(bait) {
		for range max(1, a.Weight/2) {
			all.Go(func() { a.Run(attackers, victim.Edge) })
			count++
		}
	}
	s.Fault("attack", fmt.Sprintf("%d clients at %s", count, victim.Name))
	attacked := p.measure(span)
	grown := procstat.PID(victim.PID()).Memory() - before
	stop()
	all.Wait()
	p.compare("attack", calm, attacked, 10)
	s.Figure("attackers", count)
	s.Figure("growth of the node's memory", fmt.Sprintf("%d MB", grown>>20))
	s.Require(grown < hostileMemory, "the node's memory grew by %d MB", grown>>20)
	s.Recover()
}

// layBait enqueues a job with a large body in a paused queue and returns its JID.
func layBait(s *drill.Harness, at *drill.Node) (jid string) {
	const queue = "lure"
	s.AddQueues(queue)
	setPaused(s, queue, "pause")
	p := &overhop.Producer{Nodes: []string{at.Edge}, Name: "lure"}
	defer p.Close()
	return must.Get(p.Enqueue(s.Ctx, overhop.Enqueue{Queue: queue, Payload: overhop.AppendBin(nil, bytes.Repeat([]byte("x"), 256<<10))}))
}

// spareDescriptors is how many more files and sockets a node may open.
const spareDescriptors = 30

// noDescriptors repeatedly limits the open files of a random node to a few more than it
// has, and exhausts them.
func noDescriptors(s *drill.Harness) {
	s.StartSteadyLoad()
	for range s.Repeats(3) {
		victim := randomNode(s)
		pid := victim.PID()
		var was unix.Rlimit
		must.Do(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
		open := procstat.PID(pid).Descriptors()
		few := unix.Rlimit{Cur: uint64(open + spareDescriptors), Max: was.Max}
		must.Do(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
		s.Fault("no descriptors", fmt.Sprintf("%s has %d open and may open %d more", victim.Name, open, spareDescriptors))
		since := drill.HostClock()
		exhaustFor(s, victim, 10*time.Second)
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); victim.Running() {
			must.Do(err)
		}
		s.Require(victim.Running(), "%s exited without free descriptors", victim.Name)
		s.LimitAuthorityChanges("no descriptors", since, 1)
		began := time.Now()
		s.Recover()
		s.Target("all nodes are ready again after", time.Since(began), 5*time.Second)
	}
}

// exhaustFor opens more connections to a node's Overhop listener than it can accept,
// and closes them after d.
func exhaustFor(s *drill.Harness, n *drill.Node, d time.Duration) {
	dialer := net.Dialer{Timeout: time.Second}
	for range 4 * spareDescriptors {
		if nc, err := dialer.DialContext(s.Ctx, "tcp", n.Edge); err == nil {
			defer nc.Close()
		}
	}
	s.Sleep(d)
}

// Drills with publishers that send malformed, too many or repeated records.
var publishers = []drill.Drill{
	{
		Number: 31, Name: "poison-log", Breaks: "publish malformed records past all checks: not JSON, wrong fields, headers of 64 KiB or garbage, overlong keys, unknown queues",
		Promises: "each acknowledged record ends once, as a dead letter if it is malformed; the jobs behind it start as usual",
		Run:      poisonLog,
	},
	{
		Number: 36, Name: "publisher-flood", Breaks: "flood one queue as fast as its publishers can",
		Promises: "jobs of another queue do not wait behind the flood; publishers that must back off get an error",
		Timeout:  10 * time.Minute, Run: publisherFlood,
	},
	{
		Number: 37, Name: "duplicate-publishes", Breaks: "publish the same ids a hundred times: through every node, after a failover, and when the streams have forgotten them",
		Promises: "each id is one job and runs once",
		Run:      duplicatePublishes,
	},
}

// badRecord is a malformed or unusual record and its expected outcome.
type badRecord struct {
	name   string
	queue  string
	header nats.Header
	body   []byte
	fine   bool // unusual, but a valid job
}

// badRecords returns the records that poisonLog publishes in each round.
func badRecords() []badRecord {
	header := func(key, value string) nats.Header { return nats.Header{key: []string{value}} }
	job := []byte(`{"params":{}}`)
	return []badRecord{
		{name: "nothing", body: nil},
		{name: "binary", body: bytes.Repeat([]byte{0xff, 0x00, 0x84, 0xc1}, 1000)},
		{name: "truncated JSON", body: []byte(`{"params":{"a":`)},
		{name: "a list", body: []byte(`[1,2,3]`)},
		{name: "deep", body: []byte(`{"params":{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`)},
		{name: "wrong priority", body: []byte(`{"priority":"high"}`)},
		{name: "wrong time", body: []byte(`{"run_at":"yesterday"}`)},
		{name: "negative", body: []byte(`{"timeout_ms":-1}`)},
		{name: "unknown blob", body: []byte(`{"blob":{"name":"../../x","chunks":-1,"size":9,"sha256":"?"}}`)},
		{name: "wrong header", header: header("Yard-Delay", "\xff\xfe"), body: job},
		{name: "wrong time in a header", header: header("Yard-Delay", "-5s"), body: job},
		{name: "long key", header: header("Nats-Msg-Id", strings.Repeat("k", 4000)), body: job},
		{name: "large header", header: header("X-Large", strings.Repeat("h", 60<<10)), body: job, fine: true},
		{name: "invalid queue name", queue: "-%20", body: job},
		{name: "a system queue", queue: "_system", body: job},
	}
}

const badQueue = "junk"

// poisonLog publishes malformed and unusual records through all nodes, and checks how
// they end.
func poisonLog(s *drill.Harness) {
	s.StartSteadyLoad()
	s.AddQueues(badQueue)
	s.AddWorker(drill.Task{Queue: badQueue, Credits: 16})
	var js []jetstream.JetStream // through each node
	for _, n := range s.Nodes {
		nc := must.Get(nats.Connect(n.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond)))
		defer nc.Close()
		js = append(js, must.Get(jetstream.New(nc)))
	}
	s.SetTargets("junk", drill.Limits{Dispatch: time.Second})
	s.Fault("junk", "malformed records")
	refused := make(map[string]int)
	stored, fine := 0, 0
	for round := range s.Repeats(20) {
		for _, j := range badRecords() {
			m := &nats.Msg{Subject: "yard.jobs." + badQueue, Header: j.header, Data: j.body}
			if j.queue != "" {
				m.Subject = "yard.jobs." + j.queue
			}
			one, cancel := context.WithTimeout(s.Ctx, 5*time.Second)
			_, err := js[round%len(js)].PublishMsg(one, m, jetstream.WithRetryAttempts(0))
			cancel()
			switch {
			case err != nil:
				refused[j.name]++
			case j.fine:
				fine++
			default:
				stored++
			}
		}
	}
	s.Figure("malformed records stored", stored)
	s.Figure("unusual jobs stored", fine)
	s.Figure("refused by the stream", fmt.Sprint(refused))
	s.Require(stored > 0 && fine > 0, "no record was stored")
	checkBadRecords(s, stored, fine)
}

// checkBadRecords waits until every stored record has ended, and has a dead letter if
// it is malformed: dead letters are published after the commit. Dead letters of
// unknown queues belong to the queue _system.
func checkBadRecords(s *drill.Harness, stored, fine int) {
	var failed, completed, letters int
	s.Within(30*time.Second, func() bool {
		failed, completed, letters = badRecordCounts(s)
		return failed == stored && completed == fine && letters == stored
	})
	s.Require(failed == stored, "%d malformed records were stored, %d were rejected", stored, failed)
	s.Require(completed == fine, "%d unusual jobs were stored, %d completed", fine, completed)
	s.Require(letters == stored, "%d malformed records were stored, and there are %d dead letters", stored, letters)
}

// badRecordCounts returns the number of records that have failed and completed so
// far, and of dead letters.
func badRecordCounts(s *drill.Harness) (failed, completed, letters int) {
	for _, queue := range []string{badQueue, "_system"} {
		counts := countsOf(s, queue)
		failed, completed = failed+counts["failed"], completed+counts["completed"]
	}
	var stats struct{ Count int }
	s.Ask("dlq.stats", map[string]any{}, &stats)
	return failed, completed, stats.Count
}

// publisherFlood compares the latency of jobs while 64 publishers flood another queue
// with the latency before.
func publisherFlood(s *drill.Harness) {
	s.StartWorkers(1, 64, 0)
	p := newProbe(s, s.Edges())
	defer p.close()
	span := 15 * time.Second
	if s.Quick {
		span = 4 * time.Second
	}
	p.measure(time.Second) // warm up
	calm := p.measure(span)
	flood := []*drill.Load{
		{Queue: drill.FreeQueue, Parallel: 48},
		{Queue: drill.FreeQueue, Transport: drill.Enqueue, Parallel: 16},
	}
	s.Fault("flood", "64 publishers without pauses")
	s.StartLoads(flood...)
	flooded := p.measure(span)
	for _, l := range flood {
		l.Stop()
	}
	s.Figure("flood: jobs per second", int(float64(s.Acked())/span.Seconds()))
	p.compare("flood", calm, flooded, 2)
}

// duplicatePublishes publishes the same jobs again in every phase of a failover. Each
// must have run once.
func duplicatePublishes(s *drill.Harness) {
	s.StartSteadyLoad()
	const queue = "same"
	s.AddQueues(queue)
	s.AddWorker(drill.Task{Queue: queue, Credits: 16})
	same := &drill.Load{Queue: queue, Jobs: 40, Parallel: 4}
	s.StartLoads(same)
	must.Do(s.Await(s.Ctx, same))
	again := func(when string, times int) {
		acked, refused := republish(s, same, times)
		s.Figure("published again "+when, fmt.Sprintf("%d acknowledged, %d not", acked, refused))
		s.Require(acked > 0, "no publish is acknowledged %s", when)
	}
	again("immediately", 100/len(s.Nodes))
	s.Sleep(time.Second) // far beyond the streams' duplicate window
	again("when the streams have forgotten", 10)
	authority := s.AwaitAuthority()
	s.Fault(kill, authority.Name+", the authority")
	s.Kill(authority)
	again("after a failover", 5)
	s.Recover()
	again("when all nodes are ready", 5)
	runs := 0
	for _, f := range must.Get(filepath.Glob(filepath.Join(s.Dir, "*.witness"))) {
		runs += strings.Count(string(must.Get(os.ReadFile(f))), "begin "+queue+":")
	}
	s.Require(runs == same.Jobs, "%d jobs ran %d times", same.Jobs, runs)
}

// republish publishes every job of a load times more, through all running nodes
// concurrently. It returns the numbers of acknowledged and failed publishes.
func republish(s *drill.Harness, l *drill.Load, times int) (acked, refused int) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for _, n := range s.Running() {
		work.Go(func() {
			nc, err := nats.Connect(n.URL())
			if err != nil {
				return
			}
			defer nc.Close()
			for i := range times * l.Jobs {
				key, subject := l.Key(i%l.Jobs), "yard.jobs."
				if i%3 == 0 {
					subject = "yard.enqueue."
				}
				one, cancel := context.WithTimeout(s.Ctx, 2*time.Second)
				answer, err := nc.RequestMsgWithContext(one, &nats.Msg{
					Subject: subject + l.Queue, Header: nats.Header{"Nats-Msg-Id": []string{key}}, Data: []byte(`{"params":{}}`)})
				cancel()
				good := err == nil && answer.Header.Get("Nats-Service-Error") == "" && !bytes.Contains(answer.Data, []byte(`"error"`))
				mu.Lock()
				if good {
					acked++
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	return acked, refused
}

// probe measures, with jobs in a queue of their own, the latency from the enqueue
// call to the begin of the handler.
type probe struct {
	s        *drill.Harness
	producer *overhop.Producer
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu    sync.Mutex
	began map[string]chan time.Time // receives the begin of a job, by key
	count int                       // of jobs enqueued
}

const probeQueue = "probe"

// newProbe starts a worker and a producer that use these nodes.
func newProbe(s *drill.Harness, nodes []string) *probe {
	s.AddQueues(probeQueue)
	p := &probe{s: s, producer: &overhop.Producer{Nodes: nodes, Name: "probe"}, began: map[string]chan time.Time{}}
	ctx, stop := context.WithCancel(s.Ctx)
	p.stop = stop
	w := overhop.Worker{Nodes: nodes, Name: "probe", Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Second}
	w.Handle(probeQueue, 8, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		at := time.Now()
		key, _ := q.Payload.Str()
		p.mu.Lock()
		defer p.mu.Unlock()
		if c := p.began[key]; c != nil {
			c <- at
			delete(p.began, key)
		}
		return nil, nil
	})
	p.done.Go(func() { _ = w.Run(ctx) }) // ends with ctx
	return p
}

// close stops the worker and closes the producer.
func (p *probe) close() {
	p.stop()
	p.done.Wait()
	_ = p.producer.Close() // an error does not matter here
}

// probeInterval is the pause between two jobs, and probeTimeout limits each job.
const (
	probeInterval = 20 * time.Millisecond
	probeTimeout  = 20 * time.Second
)

// measure enqueues jobs one after the other during span, and returns their sorted
// latencies.
func (p *probe) measure(span time.Duration) (took []time.Duration) {
	for began := time.Now(); time.Since(began) < span; p.s.Sleep(probeInterval) {
		took = append(took, p.once())
	}
	slices.Sort(took)
	return took
}

// once measures the latency of one job.
func (p *probe) once() time.Duration {
	p.mu.Lock()
	p.count++
	key := fmt.Sprintf("probe-%d", p.count)
	started := make(chan time.Time, 1)
	p.began[key] = started
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.s.Ctx, probeTimeout)
	defer cancel()
	asked := time.Now()
	must.Get(p.producer.Enqueue(ctx, overhop.Enqueue{Queue: probeQueue, Key: key, Payload: overhop.AppendStr(nil, key)}))
	select {
	case at := <-started:
		return at.Sub(asked)
	case <-ctx.Done():
		must.Do(errors.Join(errors.New("the job of the probe has not begun"), ctx.Err()))
		return 0
	}
}

// compare reports the latencies under a fault next to the normal ones. The target for
// the p99 is factor times the normal p99. On a machine without idle processors the
// figures depend on the machine as well.
func (p *probe) compare(name string, normal, faulty []time.Duration, factor float64) {
	c, n := quantile(normal, 99), quantile(faulty, 99)
	p.s.Figure(name+": latency before", fmt.Sprintf("p50 %s p99 %s", quantile(normal, 50), c))
	p.s.Figure(name+": latency during", fmt.Sprintf("p50 %s p99 %s", quantile(faulty, 50), n))
	p.s.Target(name+": latency p99", n, max(time.Duration(factor*float64(c)), 20*time.Millisecond))
}

// quantile returns a percentile of sorted durations, 0 if there are none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(100 * time.Microsecond)
}
