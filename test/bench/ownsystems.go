package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// WorkerConns is the number of workers, each with connections of its own, among which the
// slots of a system are divided if a worker runs several jobs at once.
const WorkerConns = 3 * connections

// JetStreamQueue is the work queue of the floors: three NATS servers, with no job states,
// retries or limits. The servers are processes of the program itself, which must run [Peer]
// if it is started with [PeerVerb].
func JetStreamQueue() System {
	return System{
		Name: "jetstream", Title: "JetStream work queue, 3 nodes", Version: "nats-server " + server.VERSION,
		Durability: "3 servers, fsync on a quorum", Copies: "2 of 3",
		Start: func(ctx context.Context, dir string) (Server, error) {
			q := &queueServer{t: &task{Context: ctx, dir: dir}}
			if err := must.Try(q.start); err != nil {
				q.Stop()
				return nil, err
			}
			return q, nil
		},
	}
}

// queueServer is a work queue on JetStream that runs.
type queueServer struct {
	t      *task
	peers  *peers
	stream jetstream.Stream
}

func (q *queueServer) start() {
	q.peers = startPeers(q.t, must.Get(os.Executable()))
	q.stream = q.peers.freshStream(q.t, jetstream.WorkQueuePolicy)
}

func (q *queueServer) CPU() time.Duration { return q.peers.cpu() }
func (q *queueServer) Stop()              { q.t.close() }

func (q *queueServer) Unfinished(ctx context.Context) (int, error) {
	info, err := q.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

// connect opens connections to the servers in turn. They are closed at the end of t.
func (q *queueServer) connect(t *task, n int) (conns []jetstream.JetStream) {
	for i := range n {
		nc := must.Get(nats.Connect("nats://" + q.peers.options[i%len(q.peers.options)].NATS))
		t.cleanup(nc.Close)
		conns = append(conns, must.Get(jetstream.New(nc)))
	}
	return conns
}

func (q *queueServer) Connect(ctx context.Context, connections int) (Producer, error) {
	p := &queueProducer{t: &task{Context: ctx}}
	if err := must.Try(func() { p.conns = q.connect(p.t, connections) }); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (q *queueServer) Work(ctx context.Context, slots int, run func(Job)) (func(), error) {
	t := &task{Context: ctx}
	err := must.Try(func() {
		must.Get(q.stream.CreateConsumer(t, jetstream.ConsumerConfig{
			Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: slots,
		}))
		for _, js := range q.connect(t, WorkerConns) {
			consumer := must.Get(js.Consumer(t, floorStream, "workers"))
			consume := must.Get(consumer.Consume(func(m jetstream.Msg) {
				var j Job
				if json.Unmarshal(m.Data(), &j) == nil {
					run(j)
					_ = m.Ack() // if it is lost, Unfinished is not 0 in the end
				}
			}, jetstream.PullMaxMessages(max(1, slots/WorkerConns))))
			t.cleanup(func() {
				consume.Stop()
				<-consume.Closed()
			})
		}
	})
	if err != nil {
		t.close()
		return nil, err
	}
	return t.close, nil
}

// queueProducer publishes to the stream over its connections in turn.
type queueProducer struct {
	t     *task
	conns []jetstream.JetStream
	next  atomic.Uint64
}

func (p *queueProducer) Close() { p.t.close() }

func (p *queueProducer) Enqueue(ctx context.Context, j Job) error {
	body, err := json.Marshal(j)
	if err != nil {
		return err
	}
	_, err = p.conns[p.next.Add(1)%uint64(len(p.conns))].Publish(ctx, floorSubject, body)
	return err
}

// Yardmaster is a cluster of this number of nodes with default settings, which are
// processes of the program at path binary, used with package client.
func Yardmaster(nodes int, binary, version string) System {
	s := System{
		Name: fmt.Sprintf("yardmaster%d", nodes), Title: fmt.Sprintf("Yardmaster, %d nodes", nodes), Version: version,
		Durability: fmt.Sprintf("%d servers, fsync on a quorum", nodes), Copies: fmt.Sprintf("%d of %d", nodes/2+1, nodes),
		Start: func(ctx context.Context, dir string) (Server, error) {
			c, err := procs.Start(ctx, procs.Options{Nodes: nodes, Dir: dir, Binary: binary})
			if err != nil {
				return nil, err
			}
			n := &nodeServer{&benchCluster{Cluster: c}}
			if err := must.Try(func() { n.ready(&task{Context: ctx, dir: dir}) }); err != nil {
				n.Stop()
				return nil, err
			}
			return n, nil
		},
	}
	if nodes == 1 {
		s.Title, s.Durability, s.Copies = "Yardmaster, 1 node", "1 server, fsync", "1"
	}
	return s
}

// nodeServer is a cluster that runs.
type nodeServer struct{ *benchCluster }

func (n *nodeServer) ready(t *task) {
	n.awaitLanes(t)
	must.Do(n.AddQueue(t, queuePlain, 0))
}

func (n *nodeServer) CPU() time.Duration { return n.cpu() }

// Unfinished asks the authority, because the ledgers of other nodes may be behind.
func (n *nodeServer) Unfinished(ctx context.Context) (int, error) {
	authority, err := n.Authority(ctx)
	if err != nil {
		return 0, err
	}
	s, err := authority.Status(ctx)
	if err == nil && s.Backlog.Failed > 0 {
		err = fmt.Errorf("%d jobs have failed", s.Backlog.Failed)
	}
	return int(s.Backlog.Pending + s.Backlog.Notified), err
}

// dial opens a client of the node with this index, modulo their number.
func (n *nodeServer) dial(ctx context.Context, i int) (*client.Client, error) {
	return client.Open(ctx, client.Options{Nodes: []string{n.Nodes[i%len(n.Nodes)].Edge}, Name: "bench", Log: slog.New(slog.DiscardHandler)})
}

func (n *nodeServer) Connect(ctx context.Context, connections int) (Producer, error) {
	p := &nodeProducer{}
	for i := range connections {
		c, err := n.dial(ctx, i)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.clients = append(p.clients, c)
	}
	return p, nil
}

func (n *nodeServer) Work(ctx context.Context, slots int, run func(Job)) (func(), error) {
	running, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	stop := func() {
		cancel()
		workers.Wait()
	}
	for i := range WorkerConns {
		c, err := n.dial(ctx, i)
		if err != nil {
			stop()
			return nil, err
		}
		w := c.Worker()
		w.Concurrency = max(1, slots/WorkerConns)
		w.Handle(queuePlain, "", func(_ context.Context, info *client.JobInfo) (any, error) {
			var j Job
			if err := info.Decode(&j); err != nil {
				return nil, client.Permanent(err)
			}
			run(j)
			return nil, nil
		})
		workers.Go(func() {
			defer c.Close()
			_ = w.Run(running) // if it fails, the jobs are lost, which fails the round
		})
	}
	return stop, nil
}

// nodeProducer enqueues over its clients in turn.
type nodeProducer struct {
	clients []*client.Client
	next    atomic.Uint64
}

func (p *nodeProducer) Enqueue(ctx context.Context, j Job) error {
	c := p.clients[p.next.Add(1)%uint64(len(p.clients))]
	for {
		_, err := c.Enqueue(ctx, client.Spec{Queue: queuePlain, Params: j})
		refused, ok := errors.AsType[*client.Error](err)
		if !ok || refused.RetryAfter == 0 {
			return err
		}
		if err := backoff.Sleep(ctx, refused.RetryAfter); err != nil {
			return err
		}
	}
}

func (p *nodeProducer) Close() {
	for _, c := range slices.Backward(p.clients) {
		_ = c.Close() // nothing is in progress
	}
}
