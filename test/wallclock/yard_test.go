package wallclock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/program"
)

const (
	factTimeout = 30 * time.Second // until a fact is seen
	early       = 500 * time.Millisecond
	late        = 15 * time.Second // of a busy machine; clocks are wrong by an hour at least
)

// yard is a yard of processes with a wall clock each, and a worker with the right time.
type yard struct {
	*procs.Cluster
	t   *testing.T
	ctx context.Context

	clocks map[string]*Clock        // of the nodes that run
	ahead  map[string]time.Duration // of each node's clock, also of the next start

	mu     sync.Mutex
	starts map[string][]time.Time // of the attempts of each job, by its id
}

// newYard lays out a yard. The test is skipped where clocks cannot be set.
func newYard(t *testing.T, nodes int) *yard {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	dir := t.TempDir()
	binary, err := program.Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	y := &yard{t: t, ctx: ctx, clocks: map[string]*Clock{}, ahead: map[string]time.Duration{}, starts: map[string][]time.Time{}}
	if y.Cluster, err = procs.LayOut(procs.Options{Nodes: nodes, Dir: dir, Binary: binary}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range y.Nodes {
				t.Logf("log of %s:\n%s", n.Name, n.Log())
			}
		}
		y.halt()
		cancel()
	})
	return y
}

// launch starts the nodes, each with its clock, and waits until the yard is ready.
func (y *yard) launch() {
	y.t.Helper()
	for _, n := range y.Nodes {
		if err := n.Start(); err != nil {
			y.t.Fatal(err)
		}
		c, err := Of(n.PID())
		if errors.Is(err, ErrUnsupported) {
			y.t.Skip(err)
		} else if err != nil {
			y.t.Fatal(err)
		}
		y.clocks[n.Name] = c
		y.set(y.ahead[n.Name], n)
	}
	if err := y.AwaitReady(y.ctx); err != nil {
		y.t.Fatal(err)
	}
}

// halt stops all nodes.
func (y *yard) halt() {
	y.Cluster.Stop()
	for _, c := range y.clocks {
		c.Close()
	}
	clear(y.clocks)
}

// set sets the clocks of nodes, of all if none is given.
func (y *yard) set(ahead time.Duration, nodes ...*procs.Node) {
	y.t.Helper()
	if len(nodes) == 0 {
		nodes = y.Nodes
	}
	for _, n := range nodes {
		y.ahead[n.Name] = ahead
		if c := y.clocks[n.Name]; c != nil {
			if err := c.Set(ahead); err != nil {
				y.t.Fatal(err)
			}
		}
	}
}

// await waits until a fact holds.
func (y *yard) await(what string, fact func() error) {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(y.ctx, factTimeout)
	defer cancel()
	if err := y.Until(ctx, what, fact); err != nil {
		y.t.Fatal(err)
	}
}

// work starts a worker of queue "q". Its function "run" completes, "fail" does not at the first attempt.
func (y *yard) work() {
	y.t.Helper()
	var edges []string
	for _, n := range y.Nodes {
		edges = append(edges, n.Edge)
	}
	c, err := client.Open(y.ctx, client.Options{Nodes: edges, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		y.t.Fatal(err)
	}
	w := c.Worker()
	note := func(job *client.JobInfo) {
		y.mu.Lock()
		defer y.mu.Unlock()
		_, id, _ := strings.Cut(job.ID, ":")
		y.starts[id] = append(y.starts[id], time.Now())
	}
	w.Handle("q", "run", func(ctx context.Context, job *client.JobInfo) (any, error) {
		note(job)
		return nil, nil
	})
	w.Handle("q", "fail", func(ctx context.Context, job *client.JobInfo) (any, error) {
		note(job)
		if job.Attempt == 1 {
			return nil, errors.New("tried once")
		}
		return nil, nil
	})
	ctx, cancel := context.WithCancel(y.ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	y.t.Cleanup(func() {
		cancel()
		<-done
		c.Close()
	})
}

// ask sends a request to the first node, as JSON, and repeats it while the yard is not available.
func (y *yard) ask(subject, request string, answer any) {
	y.t.Helper()
	y.await(subject+" "+request, func() error {
		raw, err := y.Nodes[0].Request(y.ctx, subject, []byte(request))
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeInvalid {
			y.t.Fatal(err)
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, answer)
	})
}

func (y *yard) enqueue(spec string) (id string) {
	y.t.Helper()
	var accepted struct{ ID string }
	y.ask(api.SubjectEnqueue+".q", spec, &accepted)
	return accepted.ID
}

// attempts returns when the attempts of a job have started.
func (y *yard) attempts(id string) []time.Time {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.starts[id])
}

// promise is the time after which an attempt of a job must start, neither earlier nor much later.
type promise struct {
	name  string
	id    string
	n     int       // the attempt
	from  time.Time // of the first attempt's start, if n is 2
	after time.Duration
	slack time.Duration // by which it may be early
}

// promises enqueues jobs with each kind of time that passes.
func (y *yard) promises(d time.Duration) (promises []promise) {
	y.t.Helper()
	ms := d.Milliseconds()
	for _, j := range []struct {
		name, spec string
		n          int
		after      time.Duration
	}{
		{"delay", fmt.Sprintf(`{"function":"run","delay_ms":%d}`, ms), 1, d},
		{"retry", fmt.Sprintf(`{"function":"fail","retry_interval_ms":%d}`, ms), 2, d},
		{"debounce", fmt.Sprintf(`{"function":"run","debounce_key":"d%d","debounce_ms":%d}`, time.Now().UnixNano(), ms), 1, d},
		{"expiry of a minute", fmt.Sprintf(`{"function":"run","expires_in_ms":60000,"delay_ms":%d}`, ms/2), 1, d / 2},
		{"expiry of a minute at once", `{"function":"run","expires_in_ms":60000}`, 1, 0},
	} {
		from := time.Now()
		promises = append(promises, promise{name: j.name, id: y.enqueue(j.spec), n: j.n, from: from, after: j.after, slack: early})
	}
	return promises
}

// runAt enqueues a job that is to start in d, by the right time.
func (y *yard) runAt(d time.Duration) promise {
	y.t.Helper()
	from := time.Now()
	id := y.enqueue(fmt.Sprintf(`{"function":"run","run_at":%q}`, from.Add(d).UTC().Format(time.RFC3339Nano)))
	return promise{name: "run_at", id: id, n: 1, from: from, after: d, slack: 2 * time.Second} // members' clocks may differ by as much
}

// check waits for promises.
func (y *yard) check(what string, promises ...promise) {
	y.t.Helper()
	for _, p := range promises {
		var got []time.Time
		for got = y.attempts(p.id); len(got) < p.n && time.Since(p.from) < p.after+late; got = y.attempts(p.id) {
			time.Sleep(20 * time.Millisecond)
		}
		if len(got) < p.n {
			var j json.RawMessage
			y.ask(api.SubjectAPI+".job.show", fmt.Sprintf(`{"id":%q}`, p.id), &j)
			y.t.Errorf("%s: %s: not after %s: %s", what, p.name, time.Since(p.from), j)
			continue
		}
		from := p.from
		if p.n == 2 {
			from = got[0]
		}
		took := got[p.n-1].Sub(from)
		y.t.Logf("%s: %s of %s: after %s", what, p.name, p.after, took.Round(time.Millisecond))
		if took < p.after-p.slack || took > p.after+late {
			y.t.Errorf("%s: %s of %s: after %s", what, p.name, p.after, took)
		}
	}
}

// hour enqueues a job with a delay of an hour. The function that it returns checks that it still waits.
func (y *yard) hour() (check func(what string)) {
	y.t.Helper()
	id := y.enqueue(`{"function":"run","delay_ms":3600000}`)
	return func(what string) {
		y.t.Helper()
		var j api.Job
		y.ask(api.SubjectAPI+".job.show", fmt.Sprintf(`{"id":%q}`, id), &j)
		if j.State != "delayed" || len(y.attempts(id)) > 0 {
			y.t.Errorf("%s: a job with a delay of an hour is %s", what, j.State)
		}
	}
}

// warned waits until all nodes are ready with a warning that contains text.
func (y *yard) warned(text string) {
	y.t.Helper()
	for _, n := range y.Nodes {
		y.await(fmt.Sprintf("%s is ready and warns: %s", n.Name, text), func() error {
			s, err := n.Status(y.ctx)
			if err != nil {
				return err
			}
			if !s.Readiness.Ready || !strings.Contains(strings.Join(s.Readiness.Warnings, "\n"), text) {
				return fmt.Errorf("ready: %t %q, warnings: %q", s.Readiness.Ready, s.Readiness.Reasons, s.Readiness.Warnings)
			}
			return nil
		})
	}
}

// addCron adds an entry that ticks each second.
func (y *yard) addCron() {
	y.t.Helper()
	var c api.Cron
	y.ask(api.SubjectAPI+".cron.add", `{"name":"tick","schedule":"* * * * * *","queue":"cron","job":{"function":"x"},"missed":"skip"}`, &c)
}

// ticking waits until the entry of [yard.addCron] ticks, and its next tick is about to come by clocks
// that are ahead by ahead.
func (y *yard) ticking(what string, ahead time.Duration) {
	y.t.Helper()
	show := func() (c api.Cron) {
		y.ask(api.SubjectAPI+".cron.show", `{"name":"tick"}`, &c)
		return c
	}
	from := time.Now()
	before := show().Fired
	y.await(what+": cron ticks", func() error {
		c := show()
		if c.Next == nil {
			return fmt.Errorf("the entry is %s", c.State)
		}
		if wait := c.Next.Sub(time.Now().Add(ahead)); c.Fired < before+2 || wait.Abs() > 5*time.Second {
			return fmt.Errorf("%d ticks, the next in %s", c.Fired-before, wait)
		}
		return nil
	})
	y.t.Logf("%s: cron ticked twice in %s", what, time.Since(from).Round(10*time.Millisecond))
}

// metric waits until a metric of the first node shows about want.
func (y *yard) metric(series string, want, tolerance time.Duration) {
	y.t.Helper()
	y.await(fmt.Sprintf("%s is about %s", series, want), func() error {
		answer, err := http.Get("http://" + y.Nodes[0].HTTP + "/metrics")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, series+" "); ok {
				got, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err == nil && math.Abs(got-want.Seconds()) > tolerance.Seconds() {
					err = fmt.Errorf("it is %.3f", got)
				}
				return err
			}
		}
		return errors.New("it is not shown")
	})
}
