package catalogue

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drills with a store so small that all its bounds are passed.
var bounds = []drill.Drill{{
	Number: 42, Name: "kill-at-eviction", Breaks: "kill -9 the authority while records are relocated, lanes purged, results and dead letters evicted, and settings changed; once all nodes",
	Promises: keepsBounds,
	Plan:     drill.Layout{Env: smallStore, Config: smallRetention},
	Timeout:  10 * time.Minute, Run: func(s *drill.Harness) { stopAtEvictions(s, "kill", s.Kill) },
}, {
	Number: 43, Name: "power-loss-at-eviction", Breaks: "cut the power of the authority while records are relocated, lanes purged, results and dead letters evicted, and settings changed: data that was not synced is lost; once of all nodes",
	Promises: keepsBounds,
	Plan:     drill.Layout{Env: smallStore, Config: smallRetention, Disk: diskSize},
	Timeout:  10 * time.Minute, Run: func(s *drill.Harness) { stopAtEvictions(s, "power loss", s.CutPower) },
}}

const keepsBounds = "nothing is lost and no success becomes a failure; every acknowledged setting is in force, streams keep their bounds, dead letters that are kept can be retried"

var smallStore = []string{"YARD_NATS_MAX_STORE_BYTES=268435456"}

// smallRetention has bounds that are passed within a minute, except those of history, by
// which the drill is judged.
const smallRetention = `
[retention]
failed = { count = 200, bytes = 4194304 }
results = { bytes = 8388608 }
events = { bytes = 67108864 }
logs = { bytes = 4194304 }
`

// The queues of the drill besides those of the steady load.
const (
	laterQueue   = "later"   // paused, except for a while
	bulkQueue    = "bulk"    // records that fill the lanes
	resultQueue  = "results" // large results
	failingQueue = "failing"
	briefQueue   = "brief" // the ledger forgets its jobs soon
)

// stopAtEvictions stops the authority, by a fault, at the moments at which data is moved or
// removed.
func stopAtEvictions(s *drill.Harness, fault string, stop func(nodes ...*drill.Node)) {
	s.AddQueues(laterQueue, bulkQueue, resultQueue, failingQueue, briefQueue)
	setPaused(s, laterQueue, "pause")
	for _, queue := range []string{laterQueue, bulkQueue, bulkQueue, briefQueue} {
		s.AddWorker(drill.Task{Queue: queue, Credits: 8, Hold: time.Millisecond})
	}
	s.StartSteadyLoadAt(100 * time.Millisecond)
	s.StartLoads(boundLoads()...)
	brief := &drill.Load{Queue: briefQueue, Transport: drill.Enqueue, Parallel: 1, Pace: 30 * time.Millisecond}
	var published sync.WaitGroup
	published.Go(func() { _ = brief.Run(s.Ctx, s.Cluster) }) // checked below: it stops early
	operator := startSettingsOperator(s, changedSettings())
	w := watchStreams(s)
	defer w.nc.Close()
	moments := w.moments(operator)
	seen := 0
	for i := range s.Repeats(len(moments)) {
		victims := []*drill.Node{s.AwaitAuthority()}
		if i == len(moments)-1 || s.Quick && i == 1 {
			victims = s.Nodes
		}
		if moments[i].released {
			setPaused(s, laterQueue, "resume")
		}
		if moments[i].await(s) {
			seen++
		}
		s.Pause(0, 30*time.Millisecond) // a relocation and a purge have several steps
		s.Fault(fault+" at an eviction", fmt.Sprintf("%s; %d nodes", moments[i].what, len(victims)))
		stop(victims...)
		s.Pause(2*time.Second, 5*time.Second)
		s.Recover()
		if moments[i].released {
			setPaused(s, laterQueue, "pause")
		}
	}
	s.Figure("faults at the moment that was waited for", seen)
	s.RequireTried(seen >= s.Repeats(5), "only %d of the moments came", seen)
	operator.stop()
	brief.Stop()
	published.Wait()
	must.Do(s.StopLoads())
	setPaused(s, laterQueue, "resume")
	operator.requireInForce()
	checkForgotten(s, brief)
	checkOutcomes(s)
	checkBounds(s, w)
	retryDeadLetters(s)
}

// boundLoads returns loads that pass the bounds of the streams.
func boundLoads() []*drill.Load {
	text := func(size int) string { return fmt.Sprintf(`{"text":%q}`, strings.Repeat("bound ", size/6)) }
	return []*drill.Load{
		{Queue: bulkQueue, JobParams: text(16 << 10), Parallel: 2, Pace: 60 * time.Millisecond},
		{Queue: bulkQueue, Transport: drill.Overhop, JobParams: text(16 << 10), Parallel: 2, Pace: 60 * time.Millisecond},
		{Queue: bulkQueue, Transport: drill.HTTP, JobParams: text(120 << 10), Pace: 400 * time.Millisecond},
		{Queue: laterQueue, JobParams: text(12 << 10), Pace: 200 * time.Millisecond},
		{Queue: laterQueue, Transport: drill.HTTP, JobParams: text(120 << 10), Jobs: 20, Pace: time.Second},
		{Queue: bulkQueue, Prefix: "delayed", JobParams: text(6 << 10), Fields: `"delay_ms":120000`, Jobs: 100, Pace: 200 * time.Millisecond},
		{Queue: resultQueue, Function: "demo#big", JobParams: `{"bytes":100000}`, Pace: 200 * time.Millisecond},
		{Queue: resultQueue, Prefix: "echo", Function: "demo#echo", JobParams: text(960), Parallel: 4, Pace: 50 * time.Millisecond},
		{Queue: failingQueue, Function: "demo#fail", JobParams: text(6 << 10), Fields: `"max_attempts":1`, Pace: 150 * time.Millisecond},
		{Queue: failingQueue, Transport: drill.HTTP, Function: "demo#fail", JobParams: text(120 << 10), Fields: `"max_attempts":1`, Pace: 400 * time.Millisecond},
	}
}

// changedSettings returns the settings that are changed during the drill. Those of
// history and of the yard's finished jobs stay so large that the drill can be judged.
func changedSettings() []setting {
	const mib, hour = 1 << 20, 3_600_000
	return []setting{
		{name: "failed.count", min: 100, max: 300}, {name: "failed.bytes", min: 4 * mib, max: 6 * mib}, {name: "failed.age", min: hour, max: 9 * hour},
		{name: "results.bytes", min: 8 * mib, max: 12 * mib}, {name: "results.age", min: hour, max: 9 * hour},
		{name: "events.age", min: hour, max: 9 * hour},
		{name: "logs.count", min: 1000, max: 9000}, {name: "logs.bytes", min: 4 * mib, max: 6 * mib},
		{name: "finished.age", min: hour, max: 9 * hour}, {name: "finished.count", min: 150_000, max: 250_000},
		{queue: failingQueue, name: "failed.count", min: 50, max: 250},
		{queue: briefQueue, name: "finished.count", min: 50, max: 250},
		{queue: bulkQueue, name: "concurrency_limit", min: 8, max: 64},
	}
}

// streamWatch reads the states of streams.
type streamWatch struct {
	s  *drill.Harness
	nc *nats.Conn
	js jetstream.JetStream
}

func watchStreams(s *drill.Harness) *streamWatch {
	nc := must.Get(nats.Connect(s.URLs(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)))
	return &streamWatch{s, nc, must.Get(jetstream.New(nc))}
}

// state returns a number that grows with the streams' first or last sequences. It waits
// for streams without a leader.
func (w *streamWatch) state(last bool, names ...string) (sum uint64) {
	for _, name := range names {
		var state jetstream.StreamState
		w.s.Until(name+" has a leader", func() error {
			ctx, cancel := context.WithTimeout(w.s.Ctx, time.Second)
			defer cancel()
			stream, err := w.js.Stream(ctx, name)
			if err == nil {
				state = stream.CachedInfo().State
			}
			return err
		})
		if last {
			sum += state.LastSeq
		} else {
			sum += state.FirstSeq
		}
	}
	return sum
}

// moment is something that happens again and again, at which nodes are stopped.
type moment struct {
	what     string
	now      func() uint64 // grows when it happens
	released bool          // only while the jobs of laterQueue run
}

// moments returns the moments in the order in which nodes are stopped at them.
func (w *streamWatch) moments(o *settingsOperator) []moment {
	var lanes []string
	for i := range w.s.Nodes {
		lanes = append(lanes, subjects.LaneStream(uint8(i)))
	}
	relocation := moment{what: "records are relocated", now: func() uint64 { return w.state(true, subjects.StreamRelocated) }}
	purge := moment{what: "a lane is purged", now: func() uint64 { return w.state(false, lanes...) }}
	return []moment{
		relocation,
		{what: "dead letters are evicted", now: func() uint64 { return w.state(false, subjects.StreamDLQ) }},
		purge,
		{what: "settings are changed", now: func() uint64 { return uint64(o.requests.Load()) }},
		{what: "results are evicted", now: func() uint64 { return w.state(false, subjects.StreamResults, subjects.StreamResultBlobs) }},
		relocation,
		{what: "relocated records are purged", released: true, now: func() uint64 { return w.state(false, subjects.StreamRelocated) }},
		purge, relocation,
	}
}

// await waits for the moment and reports whether it came.
func (m moment) await(s *drill.Harness) bool {
	s.Sleep(time.Second)
	before := m.now()
	came := s.Within(45*time.Second, func() bool { return m.now() > before })
	if !came {
		s.Logf("%s: has not happened", m.what)
	}
	return came
}

// checkForgotten requires that every acknowledged job of a queue whose finished jobs are
// soon forgotten has run, and that the ledger keeps as many as it should.
func checkForgotten(s *drill.Harness, brief *drill.Load) {
	var q api.Queue
	kept := 0 // also of other queues with a setting of their own
	s.Until("the jobs of queue "+briefQueue+" have ended", func() error {
		s.Ask("queue.show", map[string]any{"name": briefQueue}, &q)
		limit := retentionValue(q.Retention, "finished.count", api.FromQueue)
		kept = must.Get(randomNode(s).Status(s.Ctx)).Finished.Own
		if c := q.Counts; c["waiting"]+c["active"]+c["delayed"] > 0 || limit > 0 && int64(kept) > limit {
			return fmt.Errorf("%v, %d kept, finished.count is %d", c, kept, limit)
		}
		return nil
	})
	s.Require(q.Counts["failed"] == 0, "queue %s: %v", briefQueue, q.Counts)
	ran := make(map[string]bool)
	for _, f := range must.Get(filepath.Glob(filepath.Join(s.Dir, "w*.witness"))) {
		for _, run := range must.Get(drill.ReadWitness(f)) {
			ran[run.Job] = ran[run.Job] || run.End > 0
		}
	}
	lost := 0
	for i := range brief.Acked() { // all numbers before the first that is not acknowledged
		if !ran[must.Get(job.KeyID(briefQueue, brief.Key(i))).String()] {
			lost++
		}
	}
	s.Require(lost == 0, "%d jobs of queue %s have not run", lost, briefQueue)
	s.Figure("jobs of which the ledger keeps the last only", fmt.Sprintf("%d, kept %d", brief.Acked(), kept))
}

// checkOutcomes waits until all jobs have ended, and requires that those that succeed have
// not failed and the reverse.
func checkOutcomes(s *drill.Harness) {
	for _, queue := range []string{laterQueue, bulkQueue, resultQueue, failingQueue, drill.FreeQueue, drill.LimitedQueue, drill.RunnerQueue} {
		var counts map[string]int
		s.Until("the jobs of queue "+queue+" have ended", func() error {
			if counts = countsOf(s, queue); counts["waiting"]+counts["active"]+counts["delayed"] > 0 {
				return fmt.Errorf("%v", counts)
			}
			return nil
		})
		wrong := "failed"
		if queue == failingQueue {
			wrong = "completed"
		}
		s.Require(counts[wrong] == 0, "%d jobs of queue %s have %s: %v", counts[wrong], queue, wrong, counts)
		s.Logf("queue %s: %v", queue, counts)
	}
}
