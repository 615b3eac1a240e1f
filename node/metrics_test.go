package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// docs/reference/metrics.md documents the metrics that a node shows after running jobs, and they pass
// Prometheus' linter.
func TestMetrics(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) {
		c.HTTP.Token = "sesame"
		c.NATS.TLS = testTLS(t)
		c.RRQ.Management = runnerpool.External
		c.RRQ.Runners = map[string]runnerpool.RunnerConfig{"demo": {TCPHost: "127.0.0.1", TCPPort: startRunner(t)}}
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "", bearer).decode(t, 200, nil)
	send(t, n, "PUT", "/v1/schemas/mail", `{"function":"checked","schema":{"required":["to"]}}`, bearer).decode(t, 200, nil)
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"checked"}`, bearer).decode(t, 400, nil)
	send(t, n, "PATCH", "/v1/limits/stripe", `{"total":2,"open_after":9,"within_ms":60000}`, bearer).decode(t, 200, nil)
	send(t, n, "PATCH", "/v1/queues/mail", `{"limits":["stripe"]}`, bearer).decode(t, 200, nil)
	serveQueue(t, n, "mail")
	send(t, n, "POST", "/v1/queues/mail/jobs?wait=30s", `{"function":"echo"}`, bearer).decode(t, 200, nil)
	send(t, n, "POST", "/v1/queues/mail/jobs?wait=30s", `{"function":"demo#echo"}`, bearer).decode(t, 200, nil)
	send(t, n, "POST", "/v1/queues/mail/jobs?wait=30s", `{"function":"fail","max_attempts":1}`, bearer)
	waitUntil(t, "an operation is paused before it is done", func() bool {
		var op api.Operation
		send(t, n, "POST", "/v1/operations", `{"action":"requeue","query":"queue:mail","rate":1}`, bearer).decode(t, 202, &op)
		return send(t, n, "POST", fmt.Sprintf("/v1/operations/%d/pause", op.ID), "", bearer).status == 200
	})
	var said string
	waitUntil(t, "the dispatch is counted", func() bool {
		said = string(send(t, n, "GET", "/metrics", "", bearer).body)
		return strings.Contains(said, `yard_jobs_finished_total{function="fail",kind="worker",queue="mail",runner="",state="failed"} 1`) &&
			strings.Contains(said, `yard_dispatches_settled_total{result="done"} 2`)
	})
	for _, want := range []string{
		`yard_authority 1`, `yard_ready 1`, `yard_queue_jobs{queue="mail",state="completed"} 2`, `yard_jobs_accepted_total 3`,
		`yard_overhop_workers 1`, `yard_dispatch_run_seconds_count{function="echo",kind="worker",queue="mail",runner=""} 1`,
		`yard_dispatch_wait_seconds_count{function="fail",kind="worker",queue="mail",runner=""} 1`,
		`yard_dispatches_ended_total{function="echo",kind="worker",outcome="success",queue="mail",runner=""} 1`,
		`yard_jobs_finished_total{function="demo#echo",kind="runner",queue="mail",runner="demo",state="completed"} 1`,
		`yard_http_requests_total{endpoint="enqueue",status="200"} 3`, `yard_schema_violations_total{function="checked",queue="mail",result="refused"} 1`,
		`yard_jetstream_stream_limit_bytes{stream="YARD_JOBS_0",when_full="refuse"} 6.710886e+07`,
		`yard_lane_lag_records{lane="0"} 0`, `yard_authority_known 1`, `yard_members{state="up"} 1`, `yard_member_clock_offset_seconds{member="local"} 0`, `yard_time_ahead_seconds 0`, `yard_records_ingested_total{result="job"} 3`,
		`yard_runner_processes_up{runner="demo"} 1`, `yard_dispatches_ended_total{function="demo#echo",kind="runner",outcome="success",queue="mail",runner="demo"} 1`,
		`yard_jetstream_streams_leaderless 0`, `yard_raft_leader 1`, `yard_queue_oldest_waiting_seconds{queue="mail"} 0`,
		`yard_limit_slots{limit="stripe"} 2`, `yard_limit_jobs{limit="stripe",state="running"} 0`, `yard_limit_circuit_open{limit="stripe"} 0`,
		`yard_operations{state="paused"} 1`,
		`yard_jetstream_limit_bytes 2.68435456e+08`, `yard_overhop_credits 4`, `yard_jobs_refused_total{code="429"} 0`,
	} {
		if !strings.Contains(said, want+"\n") {
			t.Errorf("missing: %s", want)
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
	t.Run("alerts", func(t *testing.T) { checkAlerts(t, parseMetrics(said)) })
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, parseMetrics(said)) })
	text, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	shown, told := map[string]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (yard_\w+) (\w+)$`).FindAllStringSubmatch(said, -1) {
		shown[m[1]] = m[2]
	}
	histogram := regexp.MustCompile("`yard_(dispatch_run|dispatch_wait|http_request)_seconds`")
	for _, m := range regexp.MustCompile("(?m)^- `(yard_\\w+)`: ").FindAllStringSubmatch(string(text), -1) {
		switch name := m[1]; { // as the page says above its list
		case strings.HasSuffix(name, "_total"):
			told[name] = "counter"
		case histogram.MatchString("`" + name + "`"):
			told[name] = "histogram"
		default:
			told[name] = "gauge"
		}
	}
	for name, kind := range shown {
		if told[name] != kind {
			t.Errorf("%s is a %s, documented as %q", name, kind, told[name])
		}
	}
	for name := range told {
		if shown[name] == "" {
			t.Errorf("%s is documented but not shown", name)
		}
	}
}

// startRunner serves RRQ until the test ends and returns its port.
func startRunner(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- rrq.Serve(ctx, ln, func(context.Context, *rrq.Request) rrq.Outcome { return rrq.Outcome{Status: rrq.Success} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the runner ended with: %v", err)
		}
	})
	return ln.Addr().(*net.TCPAddr).Port
}

const bearer = "Authorization: Bearer sesame"

// serveQueue runs an Overhop worker for a queue until the test ends. Its function "fail"
// fails, any other succeeds.
func serveQueue(t *testing.T, n *Node, queue string) {
	t.Helper()
	serve(t, n, queue, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if q.Function == "fail" {
			return nil, errors.New("failed as asked")
		}
		return nil, nil
	})
}

// serve is serveQueue with a handler.
func serve(t *testing.T, n *Node, queue string, handle func(context.Context, *overhop.Quest) (overhop.Raw, error)) {
	t.Helper()
	w := &overhop.Worker{Nodes: []string{n.Addresses().Overhop}}
	w.Handle(queue, 4, handle)
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

// testTLS returns the files of a new certificate for a listener.
func testTLS(t *testing.T) edge.TLSConfig {
	t.Helper()
	authority, _, err := certs.NewAuthority("test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.Leaf{Name: "local", Hosts: []string{"127.0.0.1"}, Member: true, Lifetime: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := edge.TLSConfig{CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem"}
	if err := pair.WriteFiles(c.CertFile, c.KeyFile, false); err != nil {
		t.Fatal(err)
	}
	return c
}
