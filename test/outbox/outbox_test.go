package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/outbox"
)

// order is the params of a job.
type order struct {
	Number int     `json:"number"`
	Price  float64 `json:"price,omitempty"`
	Label  []byte  `json:"label,omitempty"`
}

func (order) Kind() string { return "ship" }

// spec returns a job of the test's queue.
func (d *database) spec(o order, options ...client.Option) client.Spec {
	return client.NewSpec(o, append(options, client.Queue(d.queue))...)
}

// A job is enqueued if its transaction commits, and only then. It is the job that would have
// been enqueued directly.
func TestTransaction(t *testing.T) {
	_, c := connect(t)
	onBoth(t, func(t *testing.T, d *database) {
		f := &outbox.Forwarder{DB: d, Client: c, Interval: time.Hour} // so that only Notify makes it read
		forward(t, f)
		ctx := t.Context()
		at := time.Now().Add(time.Hour).Truncate(time.Second)
		options := []client.Option{client.RunAt(at), client.Priority(7), client.MaxAttempts(3), client.Timeout(time.Minute), client.Queue(d.queue)}

		tx, err := d.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		undone, err := outbox.Enqueue(ctx, tx, order{Number: 1}, options...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := outbox.Enqueue(ctx, tx, order{}, client.Queue("no queue")); err == nil {
			t.Error("an invalid queue was accepted")
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}

		if tx, err = d.BeginTx(ctx, nil); err != nil {
			t.Fatal(err)
		}
		var keys []string
		jobs := []order{{Number: 2, Price: 19.99}, {Number: 3, Label: []byte{0, 255}}}
		for _, o := range jobs {
			key, err := outbox.Enqueue(ctx, tx, o, options...)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		f.Notify()
		untilSent(t, d)
		untilJobs(t, c, d.queue, len(jobs))
		if _, err := c.Jobs().Get(ctx, d.queue+":"+undone); err == nil {
			t.Error("the job of a transaction that was rolled back was enqueued")
		}
		for i, o := range jobs {
			direct, err := client.Enqueue(ctx, c, o, options...)
			if err != nil {
				t.Fatal(err)
			}
			want, got := jobOf(t, c, direct), jobOf(t, c, d.queue+":"+keys[i])
			if got != want || !strings.Contains(got, at.UTC().Format("15:04:05")) {
				t.Errorf("the job is\n%s, and one that was enqueued directly\n%s", got, want)
			}
		}
	})
}

// jobOf returns what a job has from the producer, as JSON.
func jobOf(t *testing.T, c *client.Client, id string) string {
	t.Helper()
	j, err := c.Jobs().Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(api.Job{
		Queue: j.Queue, Function: j.Function, Params: j.Params, Payload: j.Payload, RunAt: j.RunAt.UTC(),
		Priority: j.Priority, MaxAttempts: j.MaxAttempts, TimeoutMS: j.TimeoutMS,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Statement is for transactions that are not of database/sql.
func TestStatement(t *testing.T) {
	_, c := connect(t)
	d := openPostgreSQL(t)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	query, job, key, err := outbox.Statement(d.spec(order{Number: 1}, client.Key("first")))
	if err != nil || key != "first" {
		t.Fatal(key, err)
	}
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, query, job)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	forward(t, &outbox.Forwarder{DB: d, Client: c})
	untilSent(t, d)
	untilJobs(t, c, d.queue, 1)
}

// Jobs that are refused stay with the reason, and the others are sent.
func TestRefused(t *testing.T) {
	_, c := connect(t)
	onBoth(t, func(t *testing.T, d *database) {
		ctx := t.Context()
		for _, job := range []string{
			fmt.Sprintf(`{"queue":%q,"id":"misspelt","parms":{}}`, d.queue),
			fmt.Sprintf(`{"queue":%q,"function":"ship"}`, d.queue), // no key
		} {
			if _, err := d.ExecContext(ctx, `INSERT INTO yard_outbox (job) VALUES ($1)`, job); err != nil {
				t.Fatal(err)
			}
		}
		unique := client.Unique(d.queue, time.Hour)
		d.commit(t,
			d.spec(order{Number: 1}, client.Key("holder"), unique),
			d.spec(order{Number: 2}, client.Key("refused"), unique),
			d.spec(order{Number: 3}, unique, client.OnConflict(client.UseExisting)),
			d.spec(order{Number: 4}))
		forward(t, &outbox.Forwarder{DB: d, Client: c, Log: slog.New(slog.DiscardHandler), Interval: 50 * time.Millisecond})
		untilSent(t, d)
		untilJobs(t, c, d.queue, 2)

		refused, err := outbox.Refused(ctx, d)
		if err != nil || len(refused) != 3 {
			t.Fatalf("%d jobs are refused, want 3: %v, %v", len(refused), refused, err)
		}
		for i, want := range []string{"parms", "no key", "enqueue into " + d.queue} {
			if !strings.Contains(refused[i].Error, want) {
				t.Errorf("job %d was refused because %q, want %q", i, refused[i].Error, want)
			}
		}
		var second client.Spec
		if err := json.Unmarshal(refused[2].Job, &second); err != nil || second.Key != "refused" {
			t.Errorf("the job with the key %q was refused, %v", second.Key, err)
		}

		// The answer to a key stays the same, also when the first job is gone: the job gets another key.
		if err := c.Jobs().Remove(ctx, d.queue+":holder"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.ExecContext(ctx, `UPDATE yard_outbox SET error = NULL WHERE id = $1`, refused[2].ID); err != nil {
			t.Fatal(err)
		}
		untilSent(t, d)
		again, err := outbox.Refused(ctx, d)
		if err != nil || len(again) != 3 || again[2].ID != refused[2].ID || !strings.Contains(again[2].Error, "enqueue into "+d.queue) {
			t.Fatalf("refused again: %v, %v", again, err)
		}
		d.commit(t, d.spec(order{Number: 2}, client.Key("once more"), unique))
		untilSent(t, d)
		if _, err := c.Jobs().Get(ctx, d.queue+":once more"); err != nil {
			t.Error(err)
		}
	})
}

// Of two debounced jobs in one outbox, the later one counts.
func TestDebounceOrder(t *testing.T) {
	_, c := connect(t)
	onBoth(t, func(t *testing.T, d *database) {
		const jobs = 20
		var specs []client.Spec
		for n := range jobs {
			specs = append(specs, d.spec(order{Number: n}, client.Debounce(d.queue, time.Hour)))
		}
		d.commit(t, specs...)
		forward(t, &outbox.Forwarder{DB: d, Client: c})
		untilSent(t, d)
		for id := range untilJobs(t, c, d.queue, 1) {
			var got order
			if err := c.Params(t.Context(), d.queue+":"+id, &got); err != nil || got.Number != jobs-1 {
				t.Errorf("the job has the params %+v, %v; want those of number %d", got, err, jobs-1)
			}
		}
	})
}

// meeting makes forwarders send their first batches at the same time.
type meeting struct {
	*client.Client
	others *sync.WaitGroup
	once   sync.Once
	sent   int
}

func (m *meeting) EnqueueMany(ctx context.Context, specs []client.Spec) []client.Enqueued {
	m.once.Do(func() {
		m.others.Done()
		m.others.Wait()
	})
	m.sent += len(specs)
	return m.Client.EnqueueMany(ctx, specs)
}

// Two forwarders that send the same rows at the same time make each job once.
func TestTwoForwarders(t *testing.T) {
	_, c := connect(t)
	onBoth(t, func(t *testing.T, d *database) {
		const jobs = 1000
		var specs []client.Spec
		for n := range jobs {
			specs = append(specs, d.spec(order{Number: n}))
		}
		d.commit(t, specs...)
		ctx, stop := context.WithCancel(t.Context())
		var both, running sync.WaitGroup
		both.Add(2)
		forwarders := []*meeting{{Client: c, others: &both}, {Client: c, others: &both}}
		for _, m := range forwarders {
			running.Go(func() {
				if err := (&outbox.Forwarder{DB: d, Client: m}).Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		untilSent(t, d)
		untilJobs(t, c, d.queue, jobs)
		stop()
		running.Wait()
		t.Logf("the forwarders sent %d and %d rows", forwarders[0].sent, forwarders[1].sent)
		if forwarders[0].sent+forwarders[1].sent <= jobs {
			t.Error("the forwarders did not send the same rows")
		}
	})
}

// logLines counts the messages of a log.
type logLines struct {
	slog.Handler
	mu    sync.Mutex
	count map[string]int
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[r.Message]++
	return nil
}

// Jobs wait in the outbox while the cluster is away, and are sent when it is back.
func TestClusterAway(t *testing.T) {
	t.Parallel()
	cl, err := startNodes(1, t.TempDir())
	if err == errNoBinary {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	c, err := client.Open(t.Context(), client.Options{Nodes: nodesOf(cl), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := openSQLite(t)
	lines := &logLines{Handler: slog.DiscardHandler, count: make(map[string]int)}
	forward(t, &outbox.Forwarder{DB: d, Client: c, Log: slog.New(lines), Interval: 20 * time.Millisecond})
	d.commit(t, d.spec(order{Number: 1}), d.spec(order{Number: 2}))
	untilSent(t, d)

	cl.Nodes[0].Kill()
	d.commit(t, d.spec(order{Number: 3}), d.spec(order{Number: 4}))
	until(t, func() string {
		lines.mu.Lock()
		defer lines.mu.Unlock()
		if lines.count["jobs remain in the outbox, retrying"] == 0 {
			return "the forwarder has not reported that jobs remain"
		}
		return ""
	})
	if n := d.unsent(t); n != 2 {
		t.Errorf("%d jobs are in the outbox while the cluster is away, want 2", n)
	}
	if err := cl.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilSent(t, d)
	untilJobs(t, c, d.queue, 4)
}
