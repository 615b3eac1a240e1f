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

	"yardmaster/drill"
)

// Publishers write nonsense, too much, or the same again.
var publishers = []drill.Drill{
	{
		Number: 31, Name: "poison-log", Breaks: "records that are no jobs are published past all checks: no JSON, wrong fields, headers of 64 KiB and of nonsense, keys too long, queues that there are not",
		Promises: "each that was acknowledged ends once, as a dead letter if it is none; the jobs behind them start as ever",
		Run:      poisonLog,
	},
	{
		Number: 36, Name: "publisher-flood", Breaks: "one queue is flooded as fast as its publishers can",
		Promises: "jobs of another queue do not wait behind the flood; whoever is told to come later is told so",
		Patience: 10 * time.Minute, Run: publisherFlood,
	},
	{
		Number: 37, Name: "duplicate-publishes", Breaks: "the same ids are published a hundred times, by every node, after a failover and when streams have forgotten them",
		Promises: "each is one job and runs once",
		Run:      duplicatePublishes,
	},
}

// junk is a record that somebody publishes, and what must become of it.
type junk struct {
	name   string
	queue  string
	header nats.Header
	body   []byte
	fine   bool // it is a job, if an odd one
}

// nonsense are the records of which poisonLog publishes so many each.
func nonsense() []junk {
	header := func(key, value string) nats.Header { return nats.Header{key: []string{value}} }
	job := []byte(`{"params":{}}`)
	return []junk{
		{name: "nothing", body: nil},
		{name: "binary", body: bytes.Repeat([]byte{0xff, 0x00, 0x84, 0xc1}, 1000)},
		{name: "half a JSON", body: []byte(`{"params":{"a":`)},
		{name: "a list", body: []byte(`[1,2,3]`)},
		{name: "deep", body: []byte(`{"params":{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}}`)},
		{name: "wrong priority", body: []byte(`{"priority":"high"}`)},
		{name: "wrong time", body: []byte(`{"run_at":"yesterday"}`)},
		{name: "negative", body: []byte(`{"timeout_ms":-1}`)},
		{name: "a blob of nobody's", body: []byte(`{"blob":{"name":"../../x","chunks":-1,"size":9,"sha256":"?"}}`)},
		{name: "wrong header", header: header("Yard-Delay", "\xff\xfe"), body: job},
		{name: "wrong time in a header", header: header("Yard-Delay", "-5s"), body: job},
		{name: "long key", header: header("Nats-Msg-Id", strings.Repeat("k", 4000)), body: job},
		{name: "large header", header: header("X-Large", strings.Repeat("h", 60<<10)), body: job, fine: true},
		{name: "a name for a queue that is none", queue: "-%20", body: job},
		{name: "a system queue", queue: "_system", body: job},
	}
}

const junkQueue = "junk"

func poisonLog(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	if err := s.AddQueue(ctx, junkQueue, 0); err != nil {
		return err
	}
	if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: junkQueue, Credits: 16}); err != nil {
		return err
	}
	_, js, closeAll, err := connect(s)
	if err != nil {
		return err
	}
	defer closeAll()
	s.Within("junk", drill.Limits{Dispatch: time.Second})
	s.Fault("junk", "records that are no jobs")
	refused := make(map[string]int)
	stored, fine := 0, 0
	for round := range s.Times(20) {
		for _, j := range nonsense() {
			m := &nats.Msg{Subject: "yard.jobs." + junkQueue, Header: j.header, Data: j.body}
			if j.queue != "" {
				m.Subject = "yard.jobs." + j.queue
			}
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
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
	s.Figure("records that are no jobs, stored", stored)
	s.Figure("odd jobs, stored", fine)
	s.Figure("refused by the stream", fmt.Sprint(refused))
	s.Promise(stored > 0 && fine > 0, "none was stored")
	return judgeJunk(ctx, s, stored, fine)
}

// judgeJunk waits until every record that was stored has its end, and its letter
// if it is no job: letters are told after the end. Those for queues that there are
// not lie with the system's.
func judgeJunk(ctx context.Context, s *drill.Stage, stored, fine int) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		failed, completed, letters, err := junkEnds(ctx, s)
		if err != nil {
			return err
		}
		if failed == stored && completed == fine && letters == stored || time.Now().After(deadline) {
			s.Promise(failed == stored, "%d records were stored that are no jobs, %d were rejected", stored, failed)
			s.Promise(completed == fine, "%d odd jobs were stored, %d completed", fine, completed)
			s.Promise(letters == stored, "%d records were stored that are no jobs, there are %d dead letters", stored, letters)
			return nil
		}
		if err := s.Rest(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// junkEnds counts how the records ended so far, and the dead letters.
func junkEnds(ctx context.Context, s *drill.Stage) (failed, completed, letters int, err error) {
	for _, queue := range []string{junkQueue, "_system"} {
		var q struct{ Counts map[string]int }
		if err := ask(ctx, s, "queue.show", map[string]any{"name": queue}, &q); err != nil {
			return 0, 0, 0, err
		}
		failed += q.Counts["failed"]
		completed += q.Counts["completed"]
	}
	var told struct{ Count int }
	err = ask(ctx, s, "dlq.stats", map[string]any{}, &told)
	return failed, completed, told.Count, err
}

// connect opens a plain NATS connection to each node.
func connect(s *drill.Stage) (conns []*nats.Conn, streams []jetstream.JetStream, closeAll func(), err error) {
	closeAll = func() {
		for _, nc := range conns {
			nc.Close()
		}
	}
	for _, n := range s.Nodes {
		nc, err := nats.Connect(n.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		if err != nil {
			closeAll()
			return nil, nil, nil, fmt.Errorf("connect to %s: %w", n.Name, err)
		}
		conns = append(conns, nc)
		js, err := jetstream.New(nc)
		if err != nil {
			closeAll()
			return nil, nil, nil, err
		}
		streams = append(streams, js)
	}
	return conns, streams, closeAll, nil
}

func publisherFlood(ctx context.Context, s *drill.Stage) error {
	if err := s.Crew(ctx, 1, 64, 0); err != nil {
		return err
	}
	p, err := newProbe(ctx, s, s.Edges())
	if err != nil {
		return err
	}
	defer p.close()
	span := 15 * time.Second
	if s.Quick {
		span = 4 * time.Second
	}
	if _, err := p.measure(ctx, time.Second); err != nil { // warm
		return err
	}
	calm, err := p.measure(ctx, span)
	if err != nil {
		return err
	}
	flood := []*drill.Load{
		{Queue: drill.FreeQueue, Parallel: 48},
		{Queue: drill.FreeQueue, Road: drill.Enqueue, Parallel: 16},
	}
	s.Fault("flood", "64 publishers without a pause")
	s.Begin(ctx, flood...)
	meanwhile, err := p.measure(ctx, span)
	if err != nil {
		return err
	}
	for _, l := range flood {
		l.Stop()
	}
	s.Figure("flood, jobs in a second", int(float64(s.Acked())/span.Seconds()))
	p.compare("flood", calm, meanwhile, 2)
	return nil
}

func duplicatePublishes(ctx context.Context, s *drill.Stage) error {
	if err := s.Steady(ctx); err != nil {
		return err
	}
	const queue = "same"
	if err := s.AddQueue(ctx, queue, 0); err != nil {
		return err
	}
	if _, err := s.AddWorker(drill.Task{Nodes: s.Edges(), Queue: queue, Credits: 16}); err != nil {
		return err
	}
	same := &drill.Load{Queue: queue, Jobs: 40, Parallel: 4}
	s.Begin(ctx, same)
	if err := s.Await(ctx, &drill.Load{Queue: queue, Jobs: same.Jobs}); err != nil {
		return err
	}
	again := func(when string, times int) {
		acked, refused := publishAgain(ctx, s, same, times)
		s.Figure("published again "+when, fmt.Sprintf("%d acknowledged, %d not", acked, refused))
		s.Promise(acked > 0, "%s nothing is acknowledged", when)
	}
	again("at once", 100/len(s.Nodes))
	if err := s.Rest(ctx, time.Second); err != nil { // far beyond what a stream remembers
		return err
	}
	again("when the streams have forgotten", 10)
	authority, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	s.Fault(kill, authority.Name+" decides")
	s.Kill(authority)
	again("after a failover", 5)
	if err := s.Whole(ctx); err != nil {
		return err
	}
	again("when all are back", 5)
	runs, err := runsOf(s, queue)
	s.Promise(runs == same.Jobs, "%d jobs ran %d times", same.Jobs, runs)
	return err
}

// publishAgain publishes every job of a load so many times more, through every
// node that runs, all at once.
func publishAgain(ctx context.Context, s *drill.Stage, l *drill.Load, times int) (acked, refused int) {
	var mu sync.Mutex
	var work sync.WaitGroup
	for _, n := range s.Up() {
		work.Go(func() {
			nc, err := nats.Connect(n.NATS)
			if err != nil {
				return
			}
			defer nc.Close()
			for i := range times * l.Jobs {
				key, subject := l.Key(i%l.Jobs), "yard.jobs."
				if i%3 == 0 {
					subject = "yard.enqueue."
				}
				one, cancel := context.WithTimeout(ctx, 2*time.Second)
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

// runsOf counts what witnesses saw begin of a queue.
func runsOf(s *drill.Stage, queue string) (runs int, err error) {
	files, err := filepath.Glob(filepath.Join(s.Dir, "*.witness"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return runs, err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "begin "+queue+":") {
				runs++
			}
		}
	}
	return runs, err
}
