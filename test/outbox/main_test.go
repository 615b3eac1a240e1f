// Package outbox tests the packages client/outbox and client/sqlfence with PostgreSQL and
// SQLite, and with nodes as processes. It is a module of its own because of the drivers.
package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/outbox"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/postgresql"
)

// TestMain runs the test binary as another program if childVariable names one.
func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

// shared are the servers of all tests.
var shared struct {
	dir      string
	cluster  func() (*procs.Cluster, error) // of three nodes
	postgres func() (*postgresql.Server, error)
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "outbox") // the user postgres cannot enter those of tests
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	shared.dir = dir
	shared.cluster = sync.OnceValues(func() (*procs.Cluster, error) {
		c, err := startNodes(3, dir)
		if err == nil {
			stops = append(stops, c.Stop)
		}
		return c, err
	})
	shared.postgres = sync.OnceValues(func() (*postgresql.Server, error) {
		s, err := postgresql.Start(context.Background(), dir)
		if err == nil {
			stops = append(stops, s.Stop)
		}
		return s, err
	})
	return m.Run()
}

var errNoBinary = errors.New("needs the program at YARD_BIN")

func startNodes(n int, dir string) (*procs.Cluster, error) {
	binary := os.Getenv("YARD_BIN")
	if binary == "" {
		return nil, errNoBinary
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return procs.Start(ctx, procs.Options{Nodes: n, Dir: dir, Binary: binary})
}

// nodesOf returns the worker ports of a cluster.
func nodesOf(c *procs.Cluster) (nodes []string) {
	for _, n := range c.Nodes {
		nodes = append(nodes, n.Edge)
	}
	return nodes
}

// connect returns the shared cluster and a client of it.
func connect(t *testing.T) (*procs.Cluster, *client.Client) {
	t.Helper()
	cl, err := shared.cluster()
	if errors.Is(err, errNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Connect(t.Context(), nodesOf(cl)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return cl, c
}

// database is a new database of one test.
type database struct {
	*sql.DB
	dialect     outbox.Dialect
	driver, dsn string
	queue       string // of the test's jobs
}

// onBoth runs a test with a new database of each kind.
func onBoth(t *testing.T, test func(t *testing.T, db *database)) {
	t.Run("SQLite", func(t *testing.T) { test(t, openSQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, openPostgreSQL(t)) })
}

func openSQLite(t *testing.T) *database {
	return open(t, &database{
		dialect: outbox.SQLite, driver: "sqlite",
		dsn: "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate",
	})
}

func openPostgreSQL(t *testing.T) *database {
	t.Helper()
	if _, err := postgresql.Find("initdb"); err != nil {
		t.Skip(err)
	}
	server, err := shared.postgres()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := sql.Open("pgx", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for err = admin.Ping(); err != nil; err = admin.Ping() {
		if backoff.Sleep(t.Context(), 20*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
	name := queueOf(t)
	if _, err := admin.Exec(`CREATE DATABASE "` + name + `"`); err != nil {
		t.Fatal(err)
	}
	return open(t, &database{dialect: outbox.PostgreSQL, driver: "pgx", dsn: strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1)})
}

// open opens a database and creates the outbox in it.
func open(t *testing.T, d *database) *database {
	t.Helper()
	var err error
	if d.DB, err = sql.Open(d.driver, d.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for range 2 { // a migration may be repeated
		if _, err := d.Exec(outbox.Schema(d.dialect)); err != nil {
			t.Fatal(err)
		}
	}
	d.queue = queueOf(t)
	return d
}

// queueOf returns a name for what one test uses.
func queueOf(t *testing.T) string {
	return strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
}

// commit adds jobs to the outbox in one transaction, and returns their keys.
func (d *database) commit(t *testing.T, specs ...client.Spec) (keys []string) {
	t.Helper()
	tx, err := d.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, s := range specs {
		key, err := outbox.EnqueueSpec(t.Context(), tx, s)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// unsent returns how many rows are to be sent.
func (d *database) unsent(t *testing.T) (n int) {
	t.Helper()
	if err := d.QueryRowContext(t.Context(), `SELECT count(*) FROM yard_outbox WHERE error IS NULL`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// forward runs a forwarder until the test ends.
func forward(t *testing.T, f *outbox.Forwarder) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
}

// until polls fact until it returns "" or a minute has passed. What fact returns describes
// what is missing.
func until(t *testing.T, fact func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for missing := fact(); missing != ""; missing = fact() {
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatal("gave up: " + missing)
		}
	}
}

// untilSent waits until the outbox has no rows that are to be sent.
func untilSent(t *testing.T, d *database) {
	t.Helper()
	until(t, func() string {
		if n := d.unsent(t); n > 0 {
			return fmt.Sprint(n, " rows are not sent")
		}
		return ""
	})
}

// untilJobs waits until the queue has n jobs, and fails if it has more.
func untilJobs(t *testing.T, c *client.Client, queue string, n int) (ids map[string]bool) {
	t.Helper()
	until(t, func() string {
		ids = make(map[string]bool)
		for j, err := range c.Jobs().List(t.Context(), api.JobListRequest{Queues: []string{queue}, Limit: 1000, Brief: true}) {
			if err != nil {
				return err.Error()
			}
			ids[j.ID.String()] = true
		}
		if len(ids) > n {
			t.Fatalf("queue %s has %d jobs, want %d", queue, len(ids), n)
		}
		if len(ids) < n {
			return fmt.Sprintf("queue %s has %d jobs, want %d", queue, len(ids), n)
		}
		return ""
	})
	return ids
}

// childVariable names the program that the test binary is.
const childVariable = "OUTBOX_TEST_PROGRAM"

// child is a program of children that runs.
type child struct {
	*exec.Cmd
	output io.Reader
}

// startChild starts a program of children with more environment variables. It is killed
// when the test ends, if not before.
func startChild(t *testing.T, program string, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childVariable+"="+program), env...)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, output}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill() // fails if it has exited
		_ = c.Wait()         // "signal: killed"
	}
}
