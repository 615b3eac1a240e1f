package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill/yard"

	"github.com/nats-io/nats.go"
)

// The queues: one without a limit, one whose limit is counted and lies a little
// below the workers' room, one whose limit is just that room, one for runners,
// and one without jobs.
const (
	queuePlain   = "bench"
	queueLimited = "bench-limited"
	queueRoom    = "bench-room"
	queueRRQ     = "bench-rrq"
	queueIdle    = "bench-idle"
	strictLimit  = 5000

	functionRRQ = "demo#echo"
	runnerSlots = 32  // of each node
	trips       = 200 // jobs of one round that go one after the other
)

// yards measures a yard of some nodes.
type yards struct {
	*yard.Yard
	callers []*caller
	runs    int
}

// startYard starts nodes and makes the queues.
func startYard(ctx context.Context, o yard.Options) (*yards, error) {
	o.Config += fmt.Sprintf("[rrq.runners.demo]\ntype = \"socket\"\ncmd = [%q, \"runner\"]\npool_size = 1\nmax_in_flight = %d\n",
		o.Binary, runnerSlots)
	running, err := yard.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	y := &yards{Yard: running}
	if err := y.awaitLanes(ctx); err != nil {
		y.close()
		return nil, err
	}
	var urls []string
	for _, n := range y.Nodes {
		urls = append(urls, n.URL())
	}
	if y.callers, err = dialCallers(urls); err != nil {
		y.close()
		return nil, err
	}
	for _, q := range []struct {
		Name  string `json:"name"`
		Limit int    `json:"concurrency_limit,omitempty"`
	}{{Name: queuePlain}, {Name: queueLimited, Limit: strictLimit}, {Name: queueRoom, Limit: limitOfRoom}, {Name: queueRRQ}, {Name: queueIdle}} {
		var made json.RawMessage
		if err := y.Nodes[0].Ask(ctx, cluster.SubjectAPI+".queue.add", q, &made); err != nil {
			y.close()
			return nil, fmt.Errorf("add queue %s: %w", q.Name, err)
		}
	}
	return y, nil
}

// freshYard starts nodes for one round, in a directory of their own below dir.
func (b *bench) freshYard(ctx context.Context, dir string, o yard.Options) (*yards, error) {
	dir, err := os.MkdirTemp(dir, "round-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	o.Dir, o.Binary = dir, b.Binary
	return startYard(ctx, o)
}

// awaitLanes waits until every node leads its own lane, as the authority wants
// it soon after the yard is ready.
func (y *yards) awaitLanes(ctx context.Context) error {
	return y.await(ctx, "each node leads its lane", func() error {
		s, err := y.Nodes[0].Status(ctx)
		if err != nil {
			return err
		}
		for i, l := range s.Lanes {
			if l.Leader != y.Nodes[i].Name {
				return fmt.Errorf("lane %d is led by %q", i, l.Leader)
			}
		}
		return nil
	})
}

// await is Until with an end: what has not happened by then will not.
func (y *yards) await(ctx context.Context, what string, fact func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return y.Until(ctx, what, fact)
}

func (y *yards) close() {
	closeCallers(y.callers)
	y.Stop()
}

// A way is how jobs get in.
type way struct {
	subject string
	keyed   bool // a plain publish: its key is the producer's
}

func plain(queue string) way    { return way{cluster.JobsSubject(queue), true} }
func enqueued(queue string) way { return way{cluster.SubjectEnqueue + "." + queue, false} }

func (y *yards) newLoad(w way) *load {
	l := &load{entries: throughCallers(y.callers), subject: w.subject}
	if w.keyed {
		l.key = y.newKey()
	}
	return l
}

// newKey begins the keys of a load.
func (y *yards) newKey() string {
	y.runs++
	return fmt.Sprintf("%x-%d-", time.Now().UnixNano(), y.runs)
}

// few are workers enough for a full pipeline.
func (y *yards) few() staff { return staff{connections * len(y.Nodes), credits} }

// overhop measures jobs that a few Overhop workers of a queue run.
func (y *yards) overhop(ctx context.Context, queue string, w way, latency bool, hand func(context.Context, *load) error) (round, error) {
	return y.runBy(ctx, y.few(), queue, y.newLoad(w), latency, hand)
}

// runBy measures a load that a queue's workers run while it comes in.
func (y *yards) runBy(ctx context.Context, s staff, queue string, l *load, latency bool, hand func(context.Context, *load) error) (round, error) {
	h, err := openHands(ctx, y.Nodes, s, queue, l)
	if err != nil {
		return round{}, err
	}
	defer h.close()
	if err := y.awaitRoom(ctx, s.room()); err != nil {
		return round{}, err
	}
	before, err := y.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	m := startMeter(y.CPU)
	l.begin()
	if err := l.run(ctx, hand); err != nil {
		return round{}, err
	}
	if err := l.awaitEnds(ctx); err != nil {
		return round{}, err
	}
	r := m.end(l.round(latency))
	return r, y.verify(ctx, before, l)
}

// trip measures one job at a time, from the enqueue call to the news of its
// end: what a caller waits who needs the result. By Overhop if queue has
// workers, else by the function's runner.
func (y *yards) trip(ctx context.Context, queue, function string) (round, error) {
	l := y.newLoad(enqueued(queue))
	l.function = function
	if function == "" {
		h, err := openHands(ctx, y.Nodes, y.few(), queue, l)
		if err != nil {
			return round{}, err
		}
		defer h.close()
		if err := y.awaitRoom(ctx, y.few().room()); err != nil {
			return round{}, err
		}
	}
	m := startMeter(y.CPU)
	l.begin()
	var took []float64
	for i := range trips {
		nc := y.callers[i%len(y.callers)].nc
		began := time.Now()
		if err := oneTrip(nc, l.message(i, began.Sub(l.began))); err != nil {
			return round{}, err
		}
		took = append(took, float64(time.Since(began))/1e6)
	}
	return m.end(round{value: quantile(took, 0.5), p99: quantile(took, 0.99), jobs: trips, settled: trips}), nil
}

func oneTrip(nc *nats.Conn, m *nats.Msg) error {
	accepted, err := nc.RequestMsg(m, patience)
	if err == nil {
		err = refusal(accepted)
	}
	if err != nil {
		return err
	}
	var job struct{ ID, State string }
	if err := json.Unmarshal(accepted.Data, &job); err != nil {
		return err
	}
	question := fmt.Appendf(nil, `{"id":%q,"timeout_ms":%d}`, job.ID, patience.Milliseconds())
	ended, err := nc.Request(cluster.SubjectAPI+".job.wait", question, patience)
	if err == nil {
		err = refusal(ended)
	}
	if err == nil {
		err = json.Unmarshal(ended.Data, &job)
	}
	if err == nil && job.State != "completed" {
		return fmt.Errorf("job %s is %s: %s", job.ID, job.State, ended.Data)
	}
	return err
}

// history measures what a job leaves in the events' stream, in bytes: written
// as often as there are replicas, it costs more than the job itself.
func (y *yards) history(ctx context.Context, hand func(context.Context, *load) error) (round, error) {
	before, err := y.historyBytes(ctx)
	if err != nil {
		return round{}, err
	}
	r, err := y.overhop(ctx, queuePlain, plain(queuePlain), false, hand)
	if err != nil {
		return round{}, err
	}
	after, err := y.historyBytes(ctx)
	return round{value: float64(after-before) / float64(r.jobs), jobs: r.jobs, settled: r.settled}, err
}

// historyBytes is the size of the events' stream once all is told.
func (y *yards) historyBytes(ctx context.Context) (size uint64, err error) {
	err = y.await(ctx, "all is told", func() error {
		s, err := y.Nodes[0].Status(ctx)
		if err == nil && s.OutboxBytes > 0 {
			err = fmt.Errorf("%d bytes are not", s.OutboxBytes)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	m, err := y.callers[0].nc.Request("$JS.API.STREAM.INFO."+cluster.StreamEvents, nil, patience)
	if err != nil {
		return 0, err
	}
	var info struct {
		State struct {
			Bytes uint64 `json:"bytes"`
		} `json:"state"`
	}
	err = json.Unmarshal(m.Data, &info)
	return info.State.Bytes, err
}

// awaitRoom waits until the authority has heard of the workers' room, and of no
// worker that is gone: what is placed with one of those comes back declined.
func (y *yards) awaitRoom(ctx context.Context, room int) error {
	room += runnerSlots * len(y.Nodes)
	return y.await(ctx, "the workers' room is known", func() error {
		s, err := y.Nodes[0].Status(ctx)
		if err != nil {
			return err
		}
		heard := 0
		for _, n := range s.Nodes {
			heard += n.Room
		}
		if heard != room {
			return fmt.Errorf("%d, not %d", heard, room)
		}
		return nil
	})
}

// delivered counts the dispatches that ended well, as the authority has it.
func (y *yards) delivered(ctx context.Context) (int64, error) {
	s, err := y.Nodes[0].Status(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(y.Nodes, func(n *yard.Node) bool { return n.Name == s.Authority.Owner })
	if i > 0 {
		s, err = y.Nodes[i].Status(ctx)
	}
	return int64(s.Backlog.Delivered), err
}

// verify asks the yard itself: everything accepted was delivered once, and
// nothing is left.
func (y *yards) verify(ctx context.Context, before int64, l *load) error {
	if err := l.failure(); err != nil {
		return err
	}
	for _, n := range y.Nodes {
		err := y.await(ctx, n.Name+" shows every job's end", func() error {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			ended := int64(s.Backlog.Delivered) - before
			if left := s.Backlog.Pending + s.Backlog.Notified; left > 0 || s.Backlog.Failed > 0 || ended != l.accepted.Load() {
				return fmt.Errorf("accepted %d, delivered %d, left %d, failed %d", l.accepted.Load(), ended, left, s.Backlog.Failed)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
