package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/hibiken/asynq"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/bench"
)

const asynqTask = "bench"

// asynqOnRedis returns Redis, used with asynq.
func asynqOnRedis() (bench.System, error) {
	path, err := find("redis-server", "redis-server")
	return bench.System{
		Name: "asynq", Title: "Redis with asynq", Version: versionOf(path, "--version") + ", asynq " + moduleVersion("github.com/hibiken/asynq"),
		Durability: "1 server, AOF fsync always", Copies: "1",
		Start: func(ctx context.Context, dir string) (bench.Server, error) {
			addr, port, err := freeAddress()
			if err != nil {
				return nil, err
			}
			d, err := startDaemon(ctx, &procs.Process{
				Name: "redis-server", LogFile: filepath.Join(dir, "redis.log"), Args: redisArgs(path, dir, port),
			}, addr)
			if err != nil {
				return nil, err
			}
			return &asynqServer{d, asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})}, nil
		},
	}, err
}

// redisArgs returns the command line of a Redis server that syncs its append-only file
// before it replies. It takes no snapshots, which would only use the disk.
func redisArgs(path, dir, port string) []string {
	return []string{path, "--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", ""}
}

// asynqServer is a Redis server that runs.
type asynqServer struct {
	*daemon
	inspector *asynq.Inspector
}

func (s *asynqServer) Stop() {
	_ = s.inspector.Close()
	s.daemon.Stop()
}

func (s *asynqServer) Unfinished(context.Context) (int, error) {
	info, err := s.inspector.GetQueueInfo("default")
	if err != nil {
		return 0, err
	}
	return info.Size, nil
}

func (s *asynqServer) Connect(_ context.Context, connections int) (bench.Producer, error) {
	return asynqProducer{asynq.NewClient(asynq.RedisClientOpt{Addr: s.addr, PoolSize: connections})}, nil
}

// Work runs several of asynq's servers, as users do on several machines: each takes one
// task after the other, and Redis syncs its file for every one. While the queue is empty, a
// server polls it at intervals of TaskCheckInterval, by default 1 s.
func (s *asynqServer) Work(_ context.Context, slots int, run func(bench.Job)) (func(), error) {
	handler := asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var j bench.Job
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		run(j)
		return nil
	})
	var servers []*asynq.Server
	stop := func() {
		for _, server := range servers {
			server.Shutdown()
		}
	}
	for range bench.WorkerConns {
		server := asynq.NewServer(asynq.RedisClientOpt{Addr: s.addr, PoolSize: asynqPool}, asynq.Config{
			Concurrency: max(1, slots/bench.WorkerConns), TaskCheckInterval: 2 * time.Millisecond, LogLevel: asynq.FatalLevel,
		})
		if err := server.Start(handler); err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, server)
	}
	return stop, nil
}

const asynqPool = 20 // connections of each of these servers

// asynqProducer enqueues tasks over a pool of connections.
type asynqProducer struct{ client *asynq.Client }

func (p asynqProducer) Close() { _ = p.client.Close() }

func (p asynqProducer) Enqueue(ctx context.Context, j bench.Job) error {
	body, err := json.Marshal(j)
	if err != nil {
		return err
	}
	_, err = p.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, body))
	return err
}
