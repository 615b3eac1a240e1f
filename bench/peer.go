package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.etcd.io/bbolt"
)

// PeerOptions are one process under the floors.
type PeerOptions struct {
	Name   string   // of this peer, one of Peers
	Dir    string   // its directory
	NATS   string   // host:port for clients
	Routes []string // host:port of each peer's NATS routes, in order
	Rafts  []string // host:port of each peer's Raft, in order
	Index  int      // this peer's place in both
	Echo   string   // host:port to answer pings at, and to be nothing else
	Stamps bool     // be an RRQ runner that tells when its handler began, and nothing else
	Starts string   // with Stamps: a file for that; "": only the results
	Spawns int      // start and end so many RRQ runners, say how that went, and be nothing else
	Runner []string // with Spawns: what each of them is
}

// Peer runs a bare NATS server with JetStream and a bare Raft voter until ctx
// ends: the two things under a yard, tuned as a yard tunes them, and nothing
// of a yard. It answers "bench.raft.<name>". With Echo, Stamps or Spawns it is
// what those say instead.
func Peer(ctx context.Context, o PeerOptions) error {
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
			fmt.Println("answer:", err) // goes to the peer's log
		}
	})
	if err == nil {
		<-ctx.Done()
	}
	nc.Close()
	return errors.Join(err, closeRaft())
}

func bareServer(o PeerOptions) (*server.Server, error) {
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
		return nil, fmt.Errorf("make the NATS server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(patience) {
		srv.Shutdown()
		return nil, errors.New("the NATS server does not start")
	}
	return srv, nil
}

// bareRaft starts a voter whose entries mean nothing.
func bareRaft(o PeerOptions) (*raft.Raft, func() error, error) {
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
		r, err = raft.NewRaft(conf, nothing{}, logs, store, snaps, trans)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start Raft: %w", err), trans.Close(), store.Close())
	}
	return r, func() error { return errors.Join(r.Shutdown().Error(), trans.Close(), store.Close()) }, nil
}

// nothing is a state machine without a state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                 { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }
func (nothing) Restore(r io.ReadCloser) error       { return r.Close() }
func (nothing) Persist(s raft.SnapshotSink) error   { return s.Close() }
func (nothing) Release()                            {}

// raftTask is what a peer is asked, raftAnswer what it says.
type raftTask struct {
	Bytes    int           `json:"bytes"`  // of an entry
	Flight   int           `json:"flight"` // entries under way at once
	Duration time.Duration `json:"duration"`
}

type raftAnswer struct {
	Entries int           `json:"entries"` // committed
	Took    time.Duration `json:"took"`
	Error   string        `json:"error,omitempty"`
}

// measureRaft commits entries for a time. Only the leader can.
func measureRaft(ctx context.Context, r *raft.Raft, question []byte) raftAnswer {
	var task raftTask
	if err := json.Unmarshal(question, &task); err != nil {
		return raftAnswer{Error: err.Error()}
	}
	if r.State() != raft.Leader {
		return raftAnswer{Error: notLeading}
	}
	entry := make([]byte, task.Bytes)
	began := time.Now()
	futures := make(chan raft.ApplyFuture, task.Flight)
	slots := make(chan struct{}, task.Flight)
	var failed atomic.Pointer[error]
	go func() { // ends when futures closes, which collects what it read
		defer close(futures)
		for time.Since(began) < task.Duration && ctx.Err() == nil && failed.Load() == nil {
			slots <- struct{}{}
			futures <- r.Apply(entry, patience)
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

const notLeading = "this peer does not lead"
