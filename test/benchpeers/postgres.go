package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/bench"
	"github.com/yardmaster-dev/yardmaster/test/postgresql"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// riverOnPostgreSQL returns PostgreSQL, used with River.
func riverOnPostgreSQL() (bench.System, error) {
	path, err := postgresql.Find("postgres")
	_, initErr := postgresql.Find("initdb")
	return bench.System{
		Name: "river", Title: "PostgreSQL with River", Version: versionOf(path, "--version") + ", River " + moduleVersion("github.com/riverqueue/river"),
		Durability: "1 server, fsync per commit", Copies: "1",
		Start: func(ctx context.Context, dir string) (bench.Server, error) {
			server, err := postgresql.Start(ctx, dir)
			if err != nil {
				return nil, err
			}
			s := &riverServer{Server: server}
			if err := s.migrate(ctx); err != nil {
				s.Stop()
				return nil, err
			}
			return s, nil
		},
	}, errors.Join(err, initErr)
}

// riverServer is a PostgreSQL server with River's tables.
type riverServer struct {
	*postgresql.Server
	admin *pgxpool.Pool // creates and reads tables
}

// CPU returns the processor time used by the server and all of its children.
func (s *riverServer) CPU() time.Duration { return procstat.PID(s.PID()).TreeCPU() }

// Stop closes the connections and stops the server.
func (s *riverServer) Stop() {
	if s.admin != nil {
		s.admin.Close()
	}
	s.Server.Stop()
}

// pool returns a pool of at most this number of connections.
func (s *riverServer) pool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.URL())
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	return pgxpool.NewWithConfig(ctx, config)
}

// migrate waits until the server is ready and creates River's tables.
func (s *riverServer) migrate(ctx context.Context) (err error) {
	if s.admin, err = s.pool(ctx, 1); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for err := s.admin.Ping(starting); err != nil; err = s.admin.Ping(starting) {
		if backoff.Sleep(starting, 20*time.Millisecond) != nil {
			return fmt.Errorf("connect to PostgreSQL: %w; %s", err, s.OutputTail())
		}
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(s.admin), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return fmt.Errorf("create River's tables: %w", err)
	}
	return nil
}

func (s *riverServer) Unfinished(ctx context.Context) (n int, err error) {
	err = s.admin.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE state <> 'completed'`).Scan(&n)
	return n, err
}

func (s *riverServer) Connect(ctx context.Context, connections int) (bench.Producer, error) {
	pool, err := s.pool(ctx, connections)
	if err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return riverProducer{pool, client}, nil
}

// Work runs River's client with the intervals of River's own benchmark. By default it
// fetches jobs at most every 100 ms, which limits both its rate and its latency.
func (s *riverServer) Work(ctx context.Context, slots int, run func(bench.Job)) (func(), error) {
	pool, err := s.pool(ctx, riverPool)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, j *river.Job[riverArgs]) error {
		run(j.Args.Job)
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}}, Workers: workers,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = client.Start(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		_ = client.StopAndCancel(stopping)
		pool.Close()
	}, nil
}

const riverPool = 16 // connections of the workers

// riverArgs are the arguments of a job in River.
type riverArgs struct{ bench.Job }

// Kind returns the name of the jobs' worker.
func (riverArgs) Kind() string { return "bench" }

// riverProducer inserts each job in its own transaction.
type riverProducer struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func (p riverProducer) Close() { p.pool.Close() }

func (p riverProducer) Enqueue(ctx context.Context, j bench.Job) error {
	_, err := p.client.Insert(ctx, riverArgs{j}, nil)
	return err
}
