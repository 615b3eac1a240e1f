package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/bench"
)

// riverOnPostgreSQL returns PostgreSQL, used with River.
func riverOnPostgreSQL() (bench.System, error) {
	const debianDirs = "/usr/lib/postgresql/*/bin"
	path, err := find("postgres", "postgresql", debianDirs)
	initdb, initErr := find("initdb", "postgresql", debianDirs)
	return bench.System{
		Name: "river", Title: "PostgreSQL with River", Version: versionOf(path, "--version") + ", River " + moduleVersion("github.com/riverqueue/river"),
		Durability: "1 server, fsync per commit", Copies: "1",
		Start: func(ctx context.Context, dir string) (bench.Server, error) {
			return startPostgreSQL(ctx, dir, path, initdb)
		},
	}, errors.Join(err, initErr)
}

// startPostgreSQL creates a database and starts its server. Neither program runs as root,
// so root runs them as the user postgres, which Debian's package creates.
func startPostgreSQL(ctx context.Context, dir, path, initdb string) (bench.Server, error) {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	owner, err := postgresUser()
	if err != nil {
		return nil, err
	}
	if owner != nil {
		if err := os.Chown(data, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	as := func(cmd *exec.Cmd) {
		cmd.Dir = dir
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Credential = owner
	}
	create := exec.CommandContext(ctx, initdb, initdbArgs(data)...)
	as(create)
	if out, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	addr, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	d, err := startDaemon(ctx, &procs.Process{
		Name: "postgres", LogFile: filepath.Join(dir, "postgres.log"), Args: postgresArgs(path, data, port),
		Launch: func(cmd *exec.Cmd) error {
			as(cmd)
			return cmd.Start()
		},
	}, addr)
	if err != nil {
		return nil, err
	}
	s := &riverServer{daemon: d}
	if err := s.migrate(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// postgresUser returns the user that runs PostgreSQL, nil if it is that of this process.
func postgresUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w; create this user, or run the benchmark as another user", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// initdbArgs returns the arguments that create a database without passwords.
func initdbArgs(data string) []string {
	return []string{"--pgdata", data, "--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--no-locale"}
}

// postgresArgs returns the command line of a server with default settings: every commit is
// synced to disk before it is acknowledged, commits at the same time together.
func postgresArgs(path, data, port string) []string {
	args := []string{path, "-D", data}
	for _, setting := range []string{"listen_addresses=127.0.0.1", "port=" + port, "unix_socket_directories=", "fsync=on", "synchronous_commit=on"} {
		args = append(args, "-c", setting)
	}
	return args
}

// riverServer is a PostgreSQL server with River's tables.
type riverServer struct {
	*daemon
	admin *pgxpool.Pool // creates and reads tables
}

// Stop ends PostgreSQL's sessions; after a SIGTERM it would wait for them.
func (s *riverServer) Stop() {
	if s.admin != nil {
		s.admin.Close()
	}
	_ = s.Signal(syscall.SIGINT) // fails if it has exited
	s.daemon.Stop()
}

// pool returns a pool of at most this number of connections.
func (s *riverServer) pool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("postgres://postgres@" + s.addr + "/postgres?sslmode=disable")
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
