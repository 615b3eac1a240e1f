package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.etcd.io/bbolt"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// PeerVerb is the command line argument with which a process runs [Peer]; the next
// argument is that of Peer.
const PeerVerb = "bench-peer"

// peers are the processes of the floors.
type peers struct {
	options []peerOptions
	run     []*procs.Process
	callers []*natsConn
	js      jetstream.JetStream
}

// startPeers starts three peers and waits until they have formed a cluster.
func startPeers(t *task, binary string) *peers {
	const n = 3
	a := must.Get(freeport.Addresses(3 * n))
	p := &peers{}
	var urls []string
	for i := range n {
		o := peerOptions{Name: fmt.Sprintf("p%d", i+1), NATS: a[i], Routes: a[n : 2*n], Rafts: a[2*n:], Index: i}
		o.Dir = filepath.Join(t.dir, o.Name)
		must.Do(os.MkdirAll(o.Dir, 0o750))
		p.options, p.run = append(p.options, o), append(p.run, t.start(o.Name, t.dir, nil, o.command(binary)))
		urls = append(urls, "nats://"+o.NATS)
	}
	p.callers = dialAllNATS(t, urls, p.run...)
	p.js = must.Get(jetstream.New(p.callers[0].nc))
	p.await(t, "a peer is the leader", func() error {
		_, err := p.raft(raftTask{Bytes: 1, InFlight: 1})
		return err
	})
	return p
}

// command returns the command line that runs [Peer] with these options.
func (o peerOptions) command(binary string) []string {
	text, _ := json.Marshal(o) // cannot fail
	return []string{binary, PeerVerb, string(text)}
}

// await waits until fact returns nil, while all peers run.
func (p *peers) await(t *task, what string, fact func() error) { t.await(what, fact, p.run...) }

func (p *peers) cpu() time.Duration { return cpuOf(p.run...) }

// raft sends a task to the leader among the peers.
func (p *peers) raft(task raftTask) (a raftAnswer, err error) {
	request, err := json.Marshal(task)
	if err != nil {
		return a, err
	}
	for _, o := range p.options {
		m, err := p.callers[0].nc.Request("bench.raft."+o.Name, request, task.Duration+waitTimeout/10)
		if err == nil {
			err = json.Unmarshal(m.Data, &a)
		}
		if err == nil && a.Error != "" && a.Error != notLeading {
			err = errors.New(a.Error)
		}
		if err != nil || a.Error == "" {
			return a, err
		}
		a = raftAnswer{}
	}
	return a, errors.New("no peer is the leader")
}

// The floors' streams and subjects.
const (
	floorStream  = "BENCH"
	floorSubject = "bench.jobs"
)

// freshStream recreates the stream, with as many replicas as a lane has.
func (p *peers) freshStream(t *task, retention jetstream.RetentionPolicy) jetstream.Stream {
	p.await(t, "the stream is deleted", func() error {
		err := p.js.DeleteStream(t, floorStream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return err
	})
	var s jetstream.Stream
	p.await(t, "the stream is created", func() (err error) {
		s, err = p.js.CreateStream(t, jetstream.StreamConfig{
			Name: floorStream, Subjects: []string{floorSubject}, Storage: jetstream.FileStorage, Replicas: 3,
			Retention: retention, Duplicates: 30 * time.Second,
		})
		return err
	})
	return s
}

// newLoad returns a load over the peers. Its jobs have keys, as a cluster's have:
// publishes can only be repeated if the stream removes duplicates.
func (p *peers) newLoad() *load {
	l := &load{transports: asTransports(p.callers), subject: floorSubject, key: nats.NewInbox() + "-"}
	l.key = strings.TrimPrefix(l.key, "_INBOX.")
	l.begin()
	return l
}

// publish measures the rate of publishes to a stream without consumers.
func (p *peers) publish(t *task, generate generator) round {
	p.freshStream(t, jetstream.LimitsPolicy)
	m := startMeter(p.cpu)
	l := p.newLoad()
	l.run(t, generate)
	return m.end(round{value: l.acceptRate(), jobs: int(l.accepted.Load()), settled: int(l.accepted.Load())})
}

// commit measures Raft alone, with entries of 16 KiB.
func (p *peers) commit(inFlight int, d time.Duration) round {
	m := startMeter(p.cpu)
	a := must.Get(p.raft(raftTask{Bytes: 16 << 10, InFlight: inFlight, Duration: d}))
	return m.end(round{value: float64(a.Entries) / a.Took.Seconds()})
}

// workQueue measures a simple work queue on JetStream: publish, pull, acknowledge.
func (p *peers) workQueue(t *task, latency bool, generate generator) round {
	s := p.freshStream(t, jetstream.WorkQueuePolicy)
	must.Get(s.CreateConsumer(t, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 3 * connections * credits,
	}))
	l := p.newLoad()
	p.pull(t, l)
	r := l.measure(t, p.cpu, latency, generate)
	p.await(t, "all jobs are acknowledged", func() error {
		info, err := s.Info(t)
		if err == nil && info.State.Msgs > 0 {
			return fmt.Errorf("%d jobs are not acknowledged", info.State.Msgs)
		}
		return err
	})
	return r
}

// pull starts as many workers as a cluster has in [benchCluster.overhop].
func (p *peers) pull(t *task, l *load) {
	for i := range connections * len(p.options) {
		nc := must.Get(nats.Connect("nats://" + p.options[i%len(p.options)].NATS))
		t.cleanup(nc.Close)
		js := must.Get(jetstream.New(nc))
		consumer := must.Get(js.Consumer(t, floorStream, "workers"))
		consume := must.Get(consumer.Consume(func(m jetstream.Msg) {
			due := dueOf(m.Data())
			l.started(due)
			if err := m.Ack(); err != nil {
				l.fail(err)
				return
			}
			l.ended(due)
		}, jetstream.PullMaxMessages(credits)))
		t.cleanup(func() {
			consume.Stop()
			<-consume.Closed()
		})
	}
}

// peerOptions configures a process of a floor.
type peerOptions struct {
	Name   string   // name of this peer
	Dir    string   // its directory
	NATS   string   // host:port for NATS clients
	Routes []string // host:port of each peer's NATS routes, in order
	Rafts  []string // host:port of each peer's Raft, in order
	Index  int      // index of this peer in Routes and Rafts
	Echo   string   // if set, only answer pings at this host:port
	Stamps bool     // if set, only run an RRQ runner that reports when its handler began
	Starts string   // with Stamps: a file to write the times to; "" means only as results
	Spawns int      // if set, only start and stop this number of RRQ runners, and report the cost
	Runner []string // with Spawns: command line of the runners
}

// Peer runs a bare NATS server with JetStream and a bare Raft voter until ctx ends,
// configured as in a node. It answers requests to "bench.raft.<name>". With Echo,
// Stamps or Spawns it runs what those options say instead.
func Peer(ctx context.Context, options string) error {
	var o peerOptions
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return fmt.Errorf("options of a peer: %w", err)
	}
	switch {
	case o.Echo != "":
		return echo(ctx, o.Echo)
	case o.Stamps:
		return stampRunner(ctx, o.Starts)
	case o.Spawns > 0:
		return spawnRunners(ctx, o.Spawns, o.Runner)
	}
	if o.Index < 0 || o.Index >= len(o.Routes) || len(o.Routes) != len(o.Rafts) {
		return fmt.Errorf("peer %d of %d routes and %d rafts", o.Index, len(o.Routes), len(o.Rafts))
	}
	srv, err := bareServer(o)
	if err != nil {
		return err
	}
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	r, closeRaft, err := bareRaft(o)
	if err != nil {
		return err
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		return errors.Join(fmt.Errorf("connect to the own server: %w", err), closeRaft())
	}
	_, err = nc.Subscribe("bench.raft."+o.Name, func(m *nats.Msg) {
		answer, err := json.Marshal(measureRaft(ctx, r, m.Data))
		if err == nil {
			err = m.Respond(answer)
		}
		if err != nil {
			fmt.Println("answer:", err) // to the peer's log
		}
	})
	if err == nil {
		<-ctx.Done()
	}
	nc.Close()
	return errors.Join(err, closeRaft())
}

// bareServer starts a NATS server with JetStream, routed to the other peers.
func bareServer(o peerOptions) (*server.Server, error) {
	var routes []string
	for _, r := range o.Routes {
		routes = append(routes, fmt.Sprintf("%q", "nats-route://"+r))
	}
	opts := &server.Options{}
	err := opts.ProcessConfigString(fmt.Sprintf(`
server_name: %q
listen: %q
max_pending: 64MB
jetstream { store_dir: %q, sync_interval: always, max_file_store: 8GB }
cluster { name: bench, listen: %q, pool_size: 3, no_advertise: true, routes: [%s] }
`, o.Name, o.NATS, filepath.Join(o.Dir, "jetstream"), o.Routes[o.Index], strings.Join(routes, ", ")))
	if err != nil {
		return nil, fmt.Errorf("read the server's configuration: %w", err)
	}
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("create the NATS server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(waitTimeout) {
		srv.Shutdown()
		return nil, errors.New("the NATS server has not started")
	}
	return srv, nil
}

// bareRaft starts a Raft voter with an empty state machine. The second result stops
// it.
func bareRaft(o peerOptions) (*raft.Raft, func() error, error) {
	store, err := raftboltdb.New(raftboltdb.Options{
		Path:        filepath.Join(o.Dir, "raft.db"),
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 64 << 20},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the log store: %w", err)
	}
	logs, err := raft.NewLogCache(512, store)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	addr, err := net.ResolveTCPAddr("tcp", o.Rafts[o.Index])
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	trans, err := raft.NewTCPTransport(addr.String(), addr, 3, 5*time.Second, io.Discard)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen for Raft: %w", err), store.Close())
	}
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(o.Rafts[o.Index])
	conf.CommitTimeout = 5 * time.Millisecond
	conf.BatchApplyCh = true
	conf.Logger = hclog.NewNullLogger()
	var all raft.Configuration
	for _, a := range o.Rafts {
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(a), Address: raft.ServerAddress(a)})
	}
	snaps := raft.NewDiscardSnapshotStore()
	err = raft.BootstrapCluster(conf, logs, store, snaps, trans, all)
	var r *raft.Raft
	if err == nil {
		r, err = raft.NewRaft(conf, noopFSM{}, logs, store, snaps, trans)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start Raft: %w", err), trans.Close(), store.Close())
	}
	return r, func() error { return errors.Join(r.Shutdown().Error(), trans.Close(), store.Close()) }, nil
}

// noopFSM is an empty state machine.
type noopFSM struct{}

func (noopFSM) Apply(*raft.Log) any                 { return nil }
func (noopFSM) Snapshot() (raft.FSMSnapshot, error) { return noopFSM{}, nil }
func (noopFSM) Restore(r io.ReadCloser) error       { return r.Close() }
func (noopFSM) Persist(s raft.SnapshotSink) error   { return s.Close() }
func (noopFSM) Release()                            {}

// raftTask is a request to a peer, and raftAnswer the answer.
type raftTask struct {
	Bytes    int           `json:"bytes"`  // size of an entry
	InFlight int           `json:"flight"` // concurrent entries
	Duration time.Duration `json:"duration"`
}

type raftAnswer struct {
	Entries int           `json:"entries"` // committed
	Took    time.Duration `json:"took"`
	Error   string        `json:"error,omitempty"`
}

// measureRaft commits entries for the duration of a task. It fails unless r is the
// leader.
func measureRaft(ctx context.Context, r *raft.Raft, request []byte) raftAnswer {
	var task raftTask
	if err := json.Unmarshal(request, &task); err != nil {
		return raftAnswer{Error: err.Error()}
	}
	if r.State() != raft.Leader {
		return raftAnswer{Error: notLeading}
	}
	entry := make([]byte, task.Bytes)
	began := time.Now()
	futures := make(chan raft.ApplyFuture, task.InFlight)
	slots := make(chan struct{}, task.InFlight)
	var failed atomic.Pointer[error]
	go func() { // closes futures; the loop below waits for that
		defer close(futures)
		for time.Since(began) < task.Duration && ctx.Err() == nil && failed.Load() == nil {
			slots <- struct{}{}
			futures <- r.Apply(entry, waitTimeout)
		}
	}()
	n := 0
	for f := range futures {
		if err := f.Error(); err != nil {
			failed.Store(&err)
		} else {
			n++
		}
		<-slots
	}
	answer := raftAnswer{Entries: n, Took: time.Since(began)}
	if err := failed.Load(); err != nil {
		answer.Error = (*err).Error()
	}
	return answer
}

const notLeading = "this peer is not the leader"
