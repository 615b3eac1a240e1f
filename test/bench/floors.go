package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"

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
	p.await(t, "the peers accept clients", func() (err error) { p.callers, err = dialAllNATS(urls); return err })
	t.cleanup(func() { closeAllNATS(p.callers) })
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
	l := &load{transports: natsTransports(p.callers), subject: floorSubject, key: nats.NewInbox() + "-"}
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
