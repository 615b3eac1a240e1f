package console

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/client"
)

var pathJobs = flag.Int("path", 0, "number of jobs among which TestPath finds some")

const (
	timedOut     = 12     // jobs that exceed their timeout
	maxUnended   = 20_000 // jobs that have been sent and have not run
	pathQuery    = "queue:invoices state:failed error:timeout since:1h customer:acme"
	slowSearches = 200
)

// TestPath goes the way of a person who finds the jobs that timed out for one customer among all of -path,
// sees why, corrects a param and runs them again, while a node is killed. It takes a picture of each step
// into the directory of -images.
func TestPath(t *testing.T) {
	if *pathJobs == 0 {
		t.Skip("runs only with -path=<number of jobs>")
	}
	for _, r := range []struct {
		method, path string
		body         any
	}{
		{"PUT", "/v1/queues/invoices", map[string]any{}},
		{"PATCH", "/v1/queues/invoices", map[string]any{"index": []string{"params.customer"}}},
		{"PATCH", "/v1/retention", map[string]any{"index": map[string]any{"count": 2 * *pathJobs, "bytes": 8 << 30}}},
	} {
		if _, err := send(r.method, r.path, r.body); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	runJobs(t, *pathJobs)
	t.Logf("%d jobs ended in %s", *pathJobs, time.Since(began).Round(time.Second))
	measureSearches(t)

	b := newTab(t)
	b.signIn(annToken)
	b.open(2, "")
	b.picture("path-1-overview")
	b.run(chromedp.SendKeys(`[data-search]`, pathQuery+kb.Enter), chromedp.WaitVisible(`//h1[text()="Jobs"]`))
	b.await(fmt.Sprintf(`document.querySelectorAll("tbody tr").length === %d`, timedOut))
	b.picture("path-2-found")
	b.tolerate(true)
	shared.yard.Nodes[2].Kill()
	b.await(fmt.Sprintf(`!location.host.endsWith(%q) && document.querySelector("#live")?.innerText === "live" && document.querySelectorAll("tbody tr").length === %d`, shared.yard.Nodes[2].HTTP, timedOut))
	b.tolerate(false)
	b.picture("path-3-on-another-node")
	b.run(chromedp.Click(`tbody tr a`, chromedp.ByQuery), chromedp.WaitVisible(`//h1[starts-with(text(), "Job")]`))
	b.await(`document.querySelector("#content").innerText.includes("has not answered")`)
	b.picture("path-4-why")
	b.open(0, "operations/new?action=requeue&query="+url.QueryEscape(pathQuery)+"&params="+url.QueryEscape(`{"wait_ms": 1}`))
	b.await(fmt.Sprintf(`document.querySelector(".headline .number").innerText === "%d"`, timedOut))
	b.picture("path-5-dry-run")
	b.run(chromedp.SendKeys(`[name=reason]`, "the timeout of acme's server was too long"), chromedp.Click(`.acts .primary`))
	b.await(fmt.Sprintf(`document.querySelector(".headline")?.innerText.includes("done") && document.querySelector(".facts").innerText.match(/Changed\s+%d/)`, timedOut))
	b.picture("path-6-operation")
	b.open(0, "jobs?q="+url.QueryEscape("queue:invoices function:charge state:completed customer:acme"))
	b.await(fmt.Sprintf(`document.querySelectorAll("tbody tr").length === %d`, timedOut))
	b.picture("path-7-completed")
}

// runJobs enqueues jobs of many customers and runs them. Some of one customer exceed their timeout.
func runJobs(t *testing.T, n int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var addresses []string
	for _, node := range shared.yard.Nodes {
		addresses = append(addresses, node.Edge)
	}
	yard, err := client.Connect(ctx, addresses...)
	if err != nil {
		t.Fatal(err)
	}
	defer yard.Close()
	var ended atomic.Int64
	worker := yard.Worker()
	worker.Concurrency = 512
	worker.Handle("invoices", "send", func(context.Context, *client.JobInfo) (any, error) {
		ended.Add(1)
		return nil, nil
	})
	worker.Handle("invoices", "charge", func(ctx context.Context, j *client.JobInfo) (any, error) {
		var params struct {
			Customer string `json:"customer"`
			WaitMS   int    `json:"wait_ms"`
		}
		if err := j.Decode(&params); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the bank of %s has not answered within the timeout of the job: %w", params.Customer, ctx.Err())
		case <-time.After(time.Duration(params.WaitMS) * time.Millisecond):
			return nil, nil
		}
	})
	stopped := make(chan error, 1)
	go func() { stopped <- worker.Run(context.WithoutCancel(ctx)) }()
	t.Cleanup(func() {
		if err := worker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		<-stopped
	})
	nc, err := nats.Connect(shared.yard.Nodes[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	// A job that is refused, or about which no answer comes, is sent again: it may then run twice.
	again := func(js jetstream.JetStream, m *nats.Msg, err error) {
		t.Logf("a job is sent again: %v", err)
		go func() {
			for {
				if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err == nil || ctx.Err() != nil {
					return
				}
			}
		}()
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1024), jetstream.WithPublishAsyncErrHandler(again), jetstream.WithPublishAsyncTimeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	publish := func(function, customer string, params map[string]any, more string) {
		params["customer"] = customer
		text, _ := json.Marshal(params) // cannot fail
		body := fmt.Appendf(nil, `{"function":%q,"params":%s%s}`, function, text, more)
		if _, err := js.PublishAsync("yard.jobs.invoices", body, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		for int64(i)-ended.Load() > maxUnended {
			time.Sleep(time.Millisecond)
		}
		publish("send", fmt.Sprintf("customer-%d", i%1000), map[string]any{"invoice": i}, "")
	}
	for range timedOut {
		publish("charge", "acme", map[string]any{"wait_ms": 600_000}, `,"timeout_ms":500,"max_attempts":1`)
	}
	<-js.PublishAsyncComplete()
	for ended.Load() < int64(n) {
		time.Sleep(10 * time.Millisecond)
	}
}

// measureSearches logs how long pages of searches take.
func measureSearches(t *testing.T) {
	var took []time.Duration
	for i := range slowSearches {
		text := []string{pathQuery, "customer:customer-77 state:completed", "queue:invoices sort:-ended", fmt.Sprintf("customer:customer-%d function:send since:2h", i)}[i%4]
		began := time.Now()
		if _, err := send("GET", "/v1/jobs/find?q="+url.QueryEscape(text), nil); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("of %d searches the median took %s, the 99th percentile %s", len(took), took[len(took)/2], took[len(took)*99/100])
}
