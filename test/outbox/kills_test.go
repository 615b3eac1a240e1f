package outbox

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/outbox"
	"github.com/yardmaster-dev/yardmaster/job"
)

// children are the programs that the test binary can be.
var children = map[string]func(context.Context) error{"forwarder": runForwarder}

// runForwarder is a program that forwards an outbox until it is killed. If
// OUTBOX_TEST_HANG is set, it stops before it deletes the rows that it has sent, and prints
// "sent".
func runForwarder(ctx context.Context) error {
	db, err := sql.Open(os.Getenv("OUTBOX_TEST_DRIVER"), os.Getenv("OUTBOX_TEST_DSN"))
	if err != nil {
		return err
	}
	c, err := client.Connect(ctx, strings.Split(os.Getenv("OUTBOX_TEST_NODES"), ",")...)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	f := &outbox.Forwarder{DB: db, Client: c, Interval: 10 * time.Millisecond}
	if os.Getenv("OUTBOX_TEST_HANG") != "" {
		f.DB = hangingDB{db}
	}
	return f.Run(ctx)
}

// hangingDB never deletes.
type hangingDB struct{ *sql.DB }

func (d hangingDB) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if strings.HasPrefix(query, "DELETE") {
		fmt.Println("sent")
		select {}
	}
	return d.DB.ExecContext(ctx, query, args...)
}

// The forwarder is killed again and again, at random points and between sending and
// deleting, while 1,000 transactions commit, and a node is killed, too. There is exactly one
// job for each transaction.
func TestKills(t *testing.T) {
	cl, c := connect(t)
	const jobs = 1000
	onBoth(t, func(t *testing.T, d *database) {
		var runs [jobs]atomic.Int32
		w := c.Worker()
		client.Handle(w, func(_ context.Context, job *client.Job[order]) (any, error) {
			runs[job.Args.Number].Add(1)
			return nil, nil
		}, client.Queue(d.queue))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})

		// Each kill makes some more transactions commit, so that no forwarder is without work.
		const chunk = 50
		killed := make(chan struct{}, 1000)
		var committed atomic.Int32
		want := make(map[string]bool)
		var writing sync.WaitGroup
		writing.Go(func() {
			for n := range jobs {
				if n > 0 && n%chunk == 0 {
					<-killed
				}
				for _, key := range d.commit(t, d.spec(order{Number: n})) {
					id, err := job.KeyID(d.queue, key)
					if err != nil {
						t.Error(err)
					}
					want[id.String()] = true
				}
				committed.Add(1)
			}
		})
		node := cl.Nodes[rand.IntN(len(cl.Nodes))]
		kills, atWork := 0, 0
		for committed.Load() < jobs || d.unsent(t) > 0 {
			if hangs := kills%4 == 1 && kills < jobs/chunk; hangs {
				f := startForwarder(t, nodesOf(cl), d, "OUTBOX_TEST_HANG=1")
				f.await(t, "sent")
				f.kill()
			} else {
				f := startForwarder(t, nodesOf(cl), d)
				f.await(t, "ready")
				time.Sleep(time.Duration(rand.IntN(80+10*kills)) * time.Millisecond) // the random point; late enough in the end
				f.kill()
			}
			kills++
			killed <- struct{}{}
			if d.unsent(t) > 0 {
				atWork++
			}
			if kills == 3 {
				node.Kill()
			}
		}
		writing.Wait()
		got := untilJobs(t, c, d.queue, jobs)
		for id := range want {
			if !got[id] {
				t.Errorf("job %s is missing", id)
			}
		}
		until(t, func() string {
			for n := range runs {
				if runs[n].Load() == 0 {
					return fmt.Sprint("job ", n, " did not run")
				}
			}
			return ""
		})
		untilJobs(t, c, d.queue, jobs)
		t.Logf("the forwarder was killed %d times, %d times while rows were left", kills, atWork)
		if kills < jobs/chunk-1 || atWork < jobs/chunk/4 {
			t.Error("too few kills, or too few while rows were left")
		}
		if !node.Running() {
			if err := node.Start(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		running.Wait()
	})
}

// forwarder is a process that runs runForwarder.
type forwarder struct {
	*child
	lines *bufio.Scanner
}

func startForwarder(t *testing.T, nodes []string, d *database, env ...string) *forwarder {
	t.Helper()
	env = append(env, "OUTBOX_TEST_NODES="+strings.Join(nodes, ","), "OUTBOX_TEST_DRIVER="+d.driver, "OUTBOX_TEST_DSN="+d.dsn)
	c := startChild(t, "forwarder", env...)
	return &forwarder{c, bufio.NewScanner(c.output)}
}

// await reads the output until a line.
func (f *forwarder) await(t *testing.T, line string) {
	t.Helper()
	for f.lines.Scan() {
		if f.lines.Text() == line {
			return
		}
	}
	t.Fatalf("the forwarder has not printed %q", line)
}
