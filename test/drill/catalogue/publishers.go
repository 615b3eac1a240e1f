package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

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
