package nodetest_test

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

	"yardmaster/cluster"
	"yardmaster/internal/nodetest"
)

// askEach hears what every instance answers to a question of the micro service
// protocol, by instance.
func askEach[T any](t *testing.T, m *nodetest.Member, subject string, want int, id func(*T) string) map[string]T {
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
	said := map[string]T{}
	for len(said) < want {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("%s: heard %d of %d: %v", subject, len(said), want, err)
		}
		var v T
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		said[id(&v)] = v
	}
	return said
}

var (
	serviceName    = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	serviceVersion = regexp.MustCompile(`^\d+\.\d+\.\d+$`)
)

// services are the yard's own; every node has one instance of each.
var services = []string{"yard-api", "yard-node", "yard-backup"}

// instances: what a tool for micro services shows of the yard's.
func instances(t *testing.T, y *nodetest.Yard) {
	pings := askEach(t, y.Members[0], "$SRV.PING", len(services)*len(y.Members), func(p *micro.Ping) string { return p.Name + " " + p.ID })
	authorities := 0
	for _, m := range y.Members {
		for _, name := range services {
			p := pings[name+" "+m.Name]
			if p.Type != micro.PingResponseType || !serviceName.MatchString(p.Name) || !serviceVersion.MatchString(p.Version) {
				t.Errorf("%s of %s: %+v", name, m.Name, p)
			}
			if p.Metadata["node"] != m.Name || p.Metadata["raft"] == "" || p.Metadata["version"] == "" {
				t.Errorf("%s of %s says of itself %v", name, m.Name, p.Metadata)
			}
			if p.Metadata["authority"] == "true" {
				authorities++
			}
		}
	}
	if authorities != len(services) {
		t.Errorf("%d services of the authority's node, want its %d", authorities, len(services))
	}
	for name, info := range askEach(t, y.Members[1], "$SRV.INFO.yard-node", 3, func(i *micro.Info) string { return i.ID }) {
		if info.Type != micro.InfoResponseType || len(info.Endpoints) != 7 || info.Description == "" {
			t.Errorf("%+v", info)
		}
		for _, e := range info.Endpoints {
			if e.Subject != "yard.node."+name+"."+e.Name || e.QueueGroup != "" {
				t.Errorf("endpoint %+v of %s", e, name)
			}
		}
	}
	only := askEach(t, y.Members[0], "$SRV.INFO.yard-api.n3", 1, func(i *micro.Info) string { return i.ID })
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
	if err := y.Members[0].Ask("yard.api.v1.openapi", "", &document); err != nil || len(document.Paths) < 20 {
		t.Errorf("%d paths, %v", len(document.Paths), err)
	}
}

// tallied: requests, errors and times are counted where they are answered,
// however long after they came.
func tallied(t *testing.T, y *nodetest.Yard) {
	m := y.Members[1]
	of := func(endpoint string) micro.EndpointStats {
		t.Helper()
		said := askEach(t, y.Members[0], "$SRV.STATS.yard-api."+m.Name, 1, func(s *micro.Stats) string { return s.ID })
		for _, e := range said[m.Name].Endpoints {
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
			t.Fatal("a queue that never was is shown")
		}
	}
	after := of("queue-show")
	if after.NumRequests != before.NumRequests+3 || after.NumErrors != before.NumErrors+3 || !strings.HasPrefix(after.LastError, "404:") {
		t.Errorf("%+v, then %+v", before, after)
	}
	if after.ProcessingTime <= before.ProcessingTime || after.AverageProcessingTime <= 0 {
		t.Errorf("took %s, then %s", before.ProcessingTime, after.ProcessingTime)
	}
	// One that is answered later: a job is waited for.
	waited := of("job-wait").ProcessingTime
	if err := m.API("job.wait", map[string]any{"id": m.Enqueue(t, "tallied", `{"params":{}}`), "timeout_ms": 300}, nil); err == nil {
		t.Fatal("a job that nobody runs has ended")
	}
	if took := of("job-wait").ProcessingTime - waited; took < 250*time.Millisecond {
		t.Errorf("a wait of 300 ms counts as %s", took)
	}
}

// oneNode: a client asks a node by name, wherever it is connected, and what
// nodes say to each other stays closed to it.
func oneNode(t *testing.T, y *nodetest.Yard) {
	a := y.Members[0]
	for _, m := range y.Members {
		var h struct {
			Node    string
			Healthy bool
			Leader  string
		}
		y.Eventually(m.Name+" is healthy", func() error {
			err := a.Ask("yard.node."+m.Name+".health", "", &h)
			if err != nil || h.Node != m.Name || !h.Healthy || h.Leader == "" {
				return fmt.Errorf("%+v, %w", h, err)
			}
			return nil
		})
		var status struct{ Node string }
		if err := a.Ask("yard.node."+m.Name+".status", "", &status); err != nil || status.Node != m.Name {
			t.Errorf("status of %s: %+v, %v", m.Name, status, err)
		}
		for _, verb := range []string{"readiness", "snapshot"} {
			if err := a.Ask("yard.node."+m.Name+"."+verb, "", nil); err != nil {
				t.Errorf("%s of %s: %v", verb, m.Name, err)
			}
		}
	}
	if err := a.Ask("yard.node.n9.health", "", nil); !errors.Is(err, cluster.ErrNobodyAnswers) {
		t.Errorf("a node that is none: %v", err)
	}
	var went struct {
		From, To string
		Epoch    uint64
	}
	y.Eventually("the authority has stepped down", func() error { // on a busy machine it may go unasked just before
		owner := y.WaitAuthority()
		for _, m := range y.Members {
			if m == owner {
				continue
			}
			err := a.Ask("yard.node."+m.Name+".stepdown", "", &went)
			if err == nil {
				return fmt.Errorf("%s had the authority", m.Name)
			}
			wantCode(t, err, "409")
		}
		if err := a.Ask("yard.node."+owner.Name+".stepdown", "", &went); err != nil {
			return err
		}
		if went.From != owner.Name || went.To == "" || went.To == owner.Name || went.Epoch == 0 {
			return fmt.Errorf("%s was asked: %+v", owner.Name, went)
		}
		return nil
	})
	y.WaitReady()
}

// checked looks at every stream as `nats server check stream` does.
func checked(t *testing.T, y *nodetest.Yard) {
	_, js := connect(t, y.Members[2])
	for _, name := range []string{
		"YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_EVENTS", "YARD_RESULTS", "YARD_DLQ", "YARD_BLOBS", "YARD_LOGS",
		"KV_YARD_AUTHORITY", "KV_YARD_NODES", "KV_YARD_QUEUES", "KV_YARD_CRON",
	} {
		y.Eventually(name+" passes the check", func() error {
			stream, err := js.Stream(soon(t), name)
			if err != nil {
				return err
			}
			return streamCheck(stream.CachedInfo())
		})
	}
}

// streamCheck is critical of what the metadata says should be otherwise. Of
// the keys without a place here a stream of ours must have none: two of them
// ask for a mirror, and one for a least number of messages.
func streamCheck(info *jetstream.StreamInfo) error {
	known := map[string]bool{"enabled": true, "peer-expect": true, "peer-lag-critical": true, "peer-seen-critical": true}
	meta := map[string]string{}
	for key, value := range info.Config.Metadata {
		if short, ours := strings.CutPrefix(key, "io.nats.monitor."); ours {
			meta[short] = value
			if !known[short] {
				return fmt.Errorf("what is %s?", key)
			}
		}
	}
	enabled, err := strconv.ParseBool(meta["enabled"])
	if err != nil || !enabled {
		return fmt.Errorf("it is not to be checked: %w", err)
	}
	if meta["peer-expect"] == "" {
		return errors.New("no number of peers is expected")
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
