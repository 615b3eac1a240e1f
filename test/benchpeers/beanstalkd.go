package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/beanstalkd/go-beanstalk"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/bench"
)

// beanstalkd returns beanstalkd.
func beanstalkd() (bench.System, error) {
	path, err := find("beanstalkd", "beanstalkd", "/usr/sbin")
	return bench.System{
		Name: "beanstalkd", Title: "beanstalkd", Version: versionOf(path, "-v") + ", go-beanstalk " + moduleVersion("github.com/beanstalkd/go-beanstalk"),
		Durability: "1 server, binlog fsync always", Copies: "1",
		Start: func(ctx context.Context, dir string) (bench.Server, error) {
			binlog := filepath.Join(dir, "binlog")
			if err := os.Mkdir(binlog, 0o700); err != nil {
				return nil, err
			}
			addr, port, err := freeAddress()
			if err != nil {
				return nil, err
			}
			d, err := startDaemon(ctx, &procs.Process{
				Name: "beanstalkd", LogFile: filepath.Join(dir, "beanstalkd.log"), Args: beanstalkdArgs(path, binlog, port),
			}, addr)
			if err != nil {
				return nil, err
			}
			return &beanstalkServer{d}, nil
		},
	}, err
}

// beanstalkdArgs returns the command line of a server that syncs its binlog before it
// replies.
func beanstalkdArgs(path, binlog, port string) []string {
	return []string{path, "-l", "127.0.0.1", "-p", port, "-b", binlog, "-f", "0"}
}

// beanstalkServer is a beanstalkd that runs.
type beanstalkServer struct{ *daemon }

// connect opens connections. After an error none is open.
func (s *beanstalkServer) connect(n int) (beanstalkConns, error) {
	var conns beanstalkConns
	for range n {
		c, err := beanstalk.Dial("tcp", s.addr)
		if err != nil {
			conns.close()
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

type beanstalkConns []*beanstalk.Conn

func (conns beanstalkConns) close() {
	for _, c := range conns {
		_ = c.Close()
	}
}

func (s *beanstalkServer) Unfinished(context.Context) (sum int, err error) {
	c, err := beanstalk.Dial("tcp", s.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stats, err := c.Stats()
	if err != nil {
		return 0, err
	}
	for _, state := range []string{"ready", "reserved", "delayed", "buried"} {
		n, err := strconv.Atoi(stats["current-jobs-"+state])
		if err != nil {
			return 0, fmt.Errorf("statistics of beanstalkd: %w", err)
		}
		sum += n
	}
	return sum, nil
}

func (s *beanstalkServer) Connect(_ context.Context, connections int) (bench.Producer, error) {
	conns, err := s.connect(connections)
	if err != nil {
		return nil, err
	}
	return &beanstalkProducer{conns: conns}, nil
}

// Work reserves jobs over one connection for each slot, because a connection that waits
// for a job accepts no other command.
func (s *beanstalkServer) Work(_ context.Context, slots int, run func(bench.Job)) (func(), error) {
	conns, err := s.connect(slots)
	if err != nil {
		return nil, err
	}
	var workers sync.WaitGroup
	for _, c := range conns {
		workers.Go(func() {
			for runNext(c, run) == nil { // until the connection is closed
			}
		})
	}
	return func() {
		conns.close()
		workers.Wait()
	}, nil
}

// runNext waits for a job, runs it and deletes it.
func runNext(c *beanstalk.Conn, run func(bench.Job)) error {
	id, body, err := c.Reserve(reserveTimeout)
	if err != nil {
		return err
	}
	var j bench.Job
	if err := json.Unmarshal(body, &j); err != nil {
		return err
	}
	run(j)
	return c.Delete(id)
}

const reserveTimeout = time.Hour // longer than a round

// beanstalkProducer puts jobs over its connections in turn.
type beanstalkProducer struct {
	conns beanstalkConns
	next  atomic.Uint64
}

func (p *beanstalkProducer) Close() { p.conns.close() }

// Priority and time to run of a job, beanstalkd's customary values.
const (
	priority  = 1024
	timeToRun = 2 * time.Minute
)

func (p *beanstalkProducer) Enqueue(_ context.Context, j bench.Job) error {
	body, err := json.Marshal(j)
	if err != nil {
		return err
	}
	_, err = p.conns[p.next.Add(1)%uint64(len(p.conns))].Put(body, priority, 0, timeToRun)
	return err
}
