package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
func startPeers(ctx context.Context, binary, dir string) (p *peers, err error) {
	const n = 3
	a, err := freeport.Addresses(3 * n)
	if err != nil {
		return nil, err
	}
	p = &peers{}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	var urls []string
	for i := range n {
		o := peerOptions{Name: fmt.Sprintf("p%d", i+1), NATS: a[i], Routes: a[n : 2*n], Rafts: a[2*n:], Index: i}
		if o.Dir = filepath.Join(dir, o.Name); os.MkdirAll(o.Dir, 0o750) != nil {
			return p, fmt.Errorf("create the directory of peer %s", o.Name)
		}
		process, err := procs.StartProcess("peer "+o.Name, filepath.Join(dir, o.Name+".log"), nil, binary, o.args()...)
		if err != nil {
			return p, err
		}
		p.options, p.run = append(p.options, o), append(p.run, process)
		urls = append(urls, "nats://"+o.NATS)
	}
	err = p.until(ctx, func() (err error) { p.callers, err = dialAllNATS(urls); return err })
	if err != nil {
		return p, err
	}
	if p.js, err = jetstream.New(p.callers[0].nc); err != nil {
		return p, fmt.Errorf("use JetStream: %w", err)
	}
	return p, p.until(ctx, func() error {
		_, err := p.raft(raftTask{Bytes: 1, InFlight: 1})
		return err
	})
}

// args returns the command line that runs [Peer] with these options.
func (o peerOptions) args() []string {
	text, _ := json.Marshal(o) // cannot fail
	return []string{PeerVerb, string(text)}
}

// until polls fact until it returns nil. It gives up after waitTimeout or when a peer
// has exited.
func (p *peers) until(ctx context.Context, fact func() error) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		err := fact()
		if err == nil {
			return nil
		}
		for _, process := range p.run {
			if ended := process.Ended(); ended != nil {
				return ended
			}
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the peers are not ready: %w", err)
		}
	}
}

func (p *peers) stop() {
	closeAllNATS(p.callers)
	for _, process := range p.run {
		process.Stop(5 * time.Second)
	}
}

func (p *peers) cpu() time.Duration { return cpuOf(p.run...) }

// raft sends a task to the leader among the peers.
func (p *peers) raft(task raftTask) (raftAnswer, error) {
	request, err := json.Marshal(task)
	if err != nil {
		return raftAnswer{}, err
	}
	for _, o := range p.options {
		m, err := p.callers[0].nc.Request("bench.raft."+o.Name, request, task.Duration+waitTimeout/10)
		if err != nil {
			return raftAnswer{}, err
		}
		var a raftAnswer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			return a, err
		}
		if a.Error == notLeading {
			continue
		}
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	}
	return raftAnswer{}, errors.New("no peer is the leader")
}

// The floors' streams and subjects.
const (
	floorStream  = "BENCH"
	floorSubject = "bench.jobs"
)

// freshStream recreates the stream, with as many replicas as a lane has.
func (p *peers) freshStream(ctx context.Context, retention jetstream.RetentionPolicy) (jetstream.Stream, error) {
	err := p.until(ctx, func() error {
		err := p.js.DeleteStream(ctx, floorStream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("delete stream: %w", err)
	}
	var s jetstream.Stream
	err = p.until(ctx, func() (err error) {
		s, err = p.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: floorStream, Subjects: []string{floorSubject}, Storage: jetstream.FileStorage, Replicas: 3,
			Retention: retention, Duplicates: 30 * time.Second,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create stream: %w", err)
	}
	return s, nil
}

// newLoad returns a load over the peers. Its jobs have keys, as a cluster's have:
// publishes can only be repeated if the stream removes duplicates.
func (p *peers) newLoad() *load {
	l := &load{transports: natsTransports(p.callers), subject: floorSubject, key: nats.NewInbox() + "-"}
	l.key = strings.TrimPrefix(l.key, "_INBOX.")
	l.begin()
	return l
}

// publish measures the rate of publishes to a stream without consumers.
func (p *peers) publish(ctx context.Context, generate func(context.Context, *load) error) (round, error) {
	if _, err := p.freshStream(ctx, jetstream.LimitsPolicy); err != nil {
		return round{}, err
	}
	m := startMeter(p.cpu)
	l := p.newLoad()
	if err := l.run(ctx, generate); err != nil {
		return round{}, err
	}
	return m.end(round{value: l.acceptRate(), jobs: int(l.accepted.Load()), settled: int(l.accepted.Load())}), nil
}

// commit measures Raft alone, with entries of 16 KiB.
func (p *peers) commit(inFlight int, d time.Duration) (round, error) {
	m := startMeter(p.cpu)
	a, err := p.raft(raftTask{Bytes: 16 << 10, InFlight: inFlight, Duration: d})
	if err != nil {
		return round{}, err
	}
	return m.end(round{value: float64(a.Entries) / a.Took.Seconds()}), nil
}

// workQueue measures a simple work queue on JetStream: publish, pull, acknowledge.
func (p *peers) workQueue(ctx context.Context, latency bool, generate func(context.Context, *load) error) (round, error) {
	s, err := p.freshStream(ctx, jetstream.WorkQueuePolicy)
	if err != nil {
		return round{}, err
	}
	_, err = s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 3 * connections * credits,
	})
	if err != nil {
		return round{}, fmt.Errorf("create consumer: %w", err)
	}
	l := p.newLoad()
	stop, err := p.pull(ctx, l)
	defer stop()
	if err != nil {
		return round{}, err
	}
	r, err := l.measure(ctx, p.cpu, latency, generate)
	if err != nil {
		return round{}, err
	}
	return r, p.until(ctx, func() error {
		info, err := s.Info(ctx)
		if err == nil && info.State.Msgs > 0 {
			return fmt.Errorf("%d jobs are not acknowledged", info.State.Msgs)
		}
		return err
	})
}

// pull starts as many workers as a cluster has in [benchCluster.overhop].
func (p *peers) pull(ctx context.Context, l *load) (stop func(), err error) {
	var started []jetstream.ConsumeContext
	var conns []*nats.Conn
	stop = func() {
		for _, c := range started {
			c.Stop()
			<-c.Closed()
		}
		for _, nc := range conns {
			nc.Close()
		}
	}
	for _, o := range p.options {
		for range connections {
			nc, err := nats.Connect("nats://" + o.NATS)
			if err != nil {
				return stop, err
			}
			conns = append(conns, nc)
			js, err := jetstream.New(nc)
			if err != nil {
				return stop, err
			}
			c, err := js.Consumer(ctx, floorStream, "workers")
			if err != nil {
				return stop, err
			}
			consume, err := c.Consume(func(m jetstream.Msg) {
				due := dueOf(m.Data())
				l.started(due)
				if err := m.Ack(); err != nil {
					l.fail(err)
					return
				}
				l.ended(due)
			}, jetstream.PullMaxMessages(credits))
			if err != nil {
				return stop, err
			}
			started = append(started, consume)
		}
	}
	return stop, nil
}
