package clustertest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// requestEach sends a request of the micro service protocol and returns the answers of
// all instances, by id.
func requestEach[T any](t *testing.T, m *clustertest.Member, subject string, want int, id func(*T) string) map[string]T {
	t.Helper()
	nc, _ := connect(t, m)
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		t.Fatal(err)
	}
	output := map[string]T{}
	for len(output) < want {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("%s: got %d of %d answers: %v", subject, len(output), want, err)
		}
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		output[id(&v)] = v
	}
	return output
}

var (
	serviceName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	serviceVersion = regexp.MustCompile(`^\d+\.\d+\.\d+$`)
)

// services are the micro services of a cluster. Every node has one instance of each.
var services = []string{"yard-api", "yard-node", "yard-backup"}

// serviceInstances checks what tools for micro services show.
func serviceInstances(t *testing.T, cl *clustertest.Cluster) {
	pings := requestEach(t, cl.Members[0], "$SRV.PING", len(services)*len(cl.Members), func(p *micro.Ping) string { return p.Name + " " + p.ID })
	authorities := 0
	for _, m := range cl.Members {
		for _, name := range services {
			p := pings[name+" "+m.Name]
			if p.Type != micro.PingResponseType || !serviceName.MatchString(p.Name) || !serviceVersion.MatchString(p.Version) {
				t.Errorf("%s of %s: %+v", name, m.Name, p)
			}
			if p.Metadata["node"] != m.Name || p.Metadata["raft"] == "" || p.Metadata["version"] == "" {
				t.Errorf("%s of %s has the metadata %v", name, m.Name, p.Metadata)
			}
			if p.Metadata["authority"] == "true" {
				authorities++
			}
		}
	}
	if authorities != len(services) {
		t.Errorf("%d services of the authority's node, want its %d", authorities, len(services))
	}
	for name, info := range requestEach(t, cl.Members[1], "$SRV.INFO.yard-node", 3, func(i *micro.Info) string { return i.ID }) {
		if info.Type != micro.InfoResponseType || len(info.Endpoints) != 7 || info.Description == "" {
			t.Errorf("%+v", info)
		}
		for _, e := range info.Endpoints {
			if e.Subject != "yard.node."+name+"."+e.Name || e.QueueGroup != "" {
				t.Errorf("endpoint %+v of %s", e, name)
			}
		}
	}
	only := requestEach(t, cl.Members[0], "$SRV.INFO.yard-api.n3", 1, func(i *micro.Info) string { return i.ID })
	for _, e := range only["n3"].Endpoints {
		if e.Name != "openapi" && (!strings.HasPrefix(e.Metadata["schema"], "yard.api.v1.openapi#") || !strings.Contains(e.Metadata["http"], " /v1/")) {
			t.Errorf("endpoint %s: %v", e.Name, e.Metadata)
		}
	}
	var document struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := cl.Members[0].Request("yard.api.v1.openapi", "", &document); err != nil || len(document.Paths) < 20 {
		t.Errorf("%d paths, %v", len(document.Paths), err)
	}
}

// serviceStats checks that requests, errors and times are counted, also if the answer is
// sent later.
func serviceStats(t *testing.T, cl *clustertest.Cluster) {
	m := cl.Members[1]
	of := func(endpoint string) micro.EndpointStats {
		t.Helper()
		output := requestEach(t, cl.Members[0], "$SRV.STATS.yard-api."+m.Name, 1, func(s *micro.Stats) string { return s.ID })
		for _, e := range output[m.Name].Endpoints {
			if e.Name == endpoint {
				return *e
			}
		}
		t.Fatalf("no endpoint %s", endpoint)
		return micro.EndpointStats{}
	}
	before := of("queue-show")
	for range 3 {
		if err := m.API("queue.show", map[string]any{"name": "never-there"}, nil); err == nil {
			t.Fatal("an unknown queue is shown")
		}
	}
	after := of("queue-show")
	if after.NumRequests != before.NumRequests+3 || after.NumErrors != before.NumErrors+3 || !strings.HasPrefix(after.LastError, "404:") {
		t.Errorf("%+v, then %+v", before, after)
	}
	if after.ProcessingTime <= before.ProcessingTime || after.AverageProcessingTime <= 0 {
		t.Errorf("took %s, then %s", before.ProcessingTime, after.ProcessingTime)
	}
	// A request that is answered later: job.wait.
	waited := of("job-wait").ProcessingTime
	if err := m.API("job.wait", map[string]any{"id": m.Enqueue(t, "tallied", `{"params":{}}`), "timeout_ms": 300}, nil); err == nil {
		t.Fatal("a job without a worker has ended")
	}
	if took := of("job-wait").ProcessingTime - waited; took < 250*time.Millisecond {
		t.Errorf("a wait of 300 ms counts as %s", took)
	}
}

// nodeEndpoints checks that a client can address a node by name from any connection, but
// not the internal endpoints.
func nodeEndpoints(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	for _, m := range cl.Members {
		var h struct {
			Node    string
			Healthy bool
			Leader  string
		}
		cl.Eventually(m.Name+" is healthy", func() error {
			err := a.Request("yard.node."+m.Name+".health", "", &h)
			if err != nil || h.Node != m.Name || !h.Healthy || h.Leader == "" {
				return fmt.Errorf("%+v, %w", h, err)
			}
			return nil
		})
		var status struct{ Node string }
		if err := a.Request("yard.node."+m.Name+".status", "", &status); err != nil || status.Node != m.Name {
			t.Errorf("status of %s: %+v, %v", m.Name, status, err)
		}
		for _, verb := range []string{"readiness", "snapshot"} {
			if err := a.Request("yard.node."+m.Name+"."+verb, "", nil); err != nil {
				t.Errorf("%s of %s: %v", verb, m.Name, err)
			}
		}
	}
	if err := a.Request("yard.node.n9.health", "", nil); !errors.Is(err, cluster.ErrNoNodes) {
		t.Errorf("an unknown node: %v", err)
	}
	var went struct {
		From, To string
		Epoch    uint64
	}
	cl.Eventually("the authority has stepped down", func() error { // on a busy machine the authority may have moved by itself just before
		owner := cl.WaitAuthority()
		for _, m := range cl.Members {
			if m == owner {
				continue
			}
			err := a.Request("yard.node."+m.Name+".stepdown", "", &went)
			if err == nil {
				return fmt.Errorf("%s was the authority", m.Name)
			}
			wantCode(t, err, "409")
		}
		if err := a.Request("yard.node."+owner.Name+".stepdown", "", &went); err != nil {
			return err
		}
		if went.From != owner.Name || went.To == "" || went.To == owner.Name || went.Epoch == 0 {
			return fmt.Errorf("the request went to %s: %+v", owner.Name, went)
		}
		return nil
	})
	cl.WaitReady()
}

// streamChecks checks every stream as `nats server check stream` does.
func streamChecks(t *testing.T, cl *clustertest.Cluster) {
	_, js := connect(t, cl.Members[2])
	for _, name := range []string{
		"YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_EVENTS", "YARD_RESULTS", "YARD_DLQ", "YARD_BLOBS", "YARD_LOGS",
		"KV_YARD_AUTHORITY", "KV_YARD_NODES", "KV_YARD_QUEUES", "KV_YARD_CRON",
	} {
		cl.Eventually(name+" passes the check", func() error {
			stream, err := js.Stream(shortContext(t), name)
			if err != nil {
				return err
			}
			return streamCheck(stream.CachedInfo())
		})
	}
}

// streamCheck returns an error if a stream violates its metadata. Streams of the cluster
// must not have the keys that are not handled here, two for mirrors and one for a minimum
// of messages.
func streamCheck(info *jetstream.StreamInfo) error {
	known := map[string]bool{"enabled": true, "peer-expect": true, "peer-lag-critical": true, "peer-seen-critical": true}
	meta := map[string]string{}
	for key, value := range info.Config.Metadata {
		if short, ours := strings.CutPrefix(key, "io.nats.monitor."); ours {
			meta[short] = value
			if !known[short] {
				return fmt.Errorf("unknown metadata key %s", key)
			}
		}
	}
	enabled, err := strconv.ParseBool(meta["enabled"])
	if err != nil || !enabled {
		return fmt.Errorf("the checks are not enabled: %w", err)
	}
	if meta["peer-expect"] == "" {
		return errors.New("no expected number of peers")
	}
	peers, err := strconv.Atoi(meta["peer-expect"])
	if err != nil {
		return err
	}
	lag, err := strconv.ParseUint(meta["peer-lag-critical"], 10, 64)
	if err != nil {
		return err
	}
	seen, err := time.ParseDuration(meta["peer-seen-critical"])
	switch {
	case err != nil:
		return err
	case info.Cluster == nil || info.Config.Replicas <= 1:
		return errors.New("stream is not clustered")
	case info.Cluster.Leader == "":
		return errors.New("no leader")
	case len(info.Cluster.Replicas)+1 != peers:
		return fmt.Errorf("expected %d replicas, got %d", peers, len(info.Cluster.Replicas)+1)
	}
	for _, r := range info.Cluster.Replicas {
		if r.Offline || r.Lag > lag || r.Active > seen {
			return fmt.Errorf("replica %+v", *r)
		}
	}
	return nil
}
