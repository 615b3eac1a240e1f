package node

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"yardmaster/edge/overhop"
)

// What docs/metrics.md tells of is what a node shows that has run a job, and
// Prometheus' own rules have nothing to complain of.
func TestMetrics(t *testing.T) {
	n := alone(t, func(c *Config) { c.HTTP.Token = "sesame" })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "", bearer).into(t, 200, nil)
	serve(t, n, "mail")
	send(t, n, "POST", "/v1/queues/mail/jobs?wait=30s", `{"function":"echo"}`, bearer).into(t, 200, nil)
	var said string
	until(t, "the dispatch is counted", func() bool {
		said = string(send(t, n, "GET", "/metrics", "", bearer).body)
		return strings.Contains(said, `yard_dispatches_ended_total{hand="overhop",outcome="success"} 1`)
	})
	for _, want := range []string{
		`yard_authority 1`, `yard_ready 1`, `yard_queue_jobs{queue="mail",state="completed"} 1`, `yard_jobs_accepted_total 1`,
		`yard_overhop_workers 1`, `yard_dispatch_run_seconds_count{hand="overhop"} 1`, `yard_http_requests_total{endpoint="enqueue",status="200"} 1`,
		`yard_lane_lag_records{lane="0"} 0`,
	} {
		if !strings.Contains(said, want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(said)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "yard_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	shown, told := map[string]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (yard_\w+) (\w+)$`).FindAllStringSubmatch(said, -1) {
		shown[m[1]] = m[2]
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(yard_\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(text), -1) {
		told[m[1]] = m[2]
	}
	for name, kind := range shown {
		if told[name] != kind {
			t.Errorf("%s is a %s, and told of as %q", name, kind, told[name])
		}
	}
	for name := range told {
		if shown[name] == "" && !strings.HasPrefix(name, "yard_runner_") { // this node has none
			t.Errorf("%s is told of and not shown", name)
		}
	}
}

const bearer = "Authorization: Bearer sesame"

// serve runs an Overhop worker of a node's queue until the test ends.
func serve(t *testing.T, n *Node, queue string) {
	t.Helper()
	w := &overhop.Worker{Nodes: []string{n.Addresses().Overhop}}
	w.Handle(queue, 4, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("worker ended with: %v", err)
		}
	})
}
