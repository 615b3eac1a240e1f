package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Health is nil when JetStream is enabled, knows its meta leader, is current
// and can write.
func (c *Cluster) Health(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// A server that runs alone has no meta group: there the full check looks
	// for the streams that lie on disk. One that is just being made lies there
	// before it is known, and only what was lost at start is lost.
	status := c.srv.Healthz(&server.HealthzOptions{JSMetaOnly: c.cfg.clustered(), Details: true})
	for i := range status.Errors {
		if e := &status.Errors[i]; !isUnrecovered(e) || c.lost[e.Stream] {
			return fmt.Errorf("JetStream is not healthy: %s", e.Error)
		}
	}
	return nil
}

// unrecovered names the streams that a server found on disk and could not
// recover. Once it takes connections it has tried them all.
func unrecovered(srv *server.Server) map[string]bool {
	lost := map[string]bool{}
	for _, e := range srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if isUnrecovered(&e) {
			lost[e.Stream] = true
		}
	}
	return lost
}

// isUnrecovered goes by the server's words: it has no code of its own for this.
func isUnrecovered(e *server.HealthzError) bool {
	return e.Type == server.HealthzErrorStream && strings.HasSuffix(e.Error, "could not be recovered")
}

// Storage is how JetStream on this node does.
type Storage struct {
	Messages, Bytes uint64 // in its streams
	Used, Limit     uint64 // bytes of its files, and of how many there may be
	Streams         []StreamHealth
}

// StreamHealth is a stream of which this node has a replica.
type StreamHealth struct {
	Name            string
	Messages, Bytes uint64
	Leader          string // member; "" if this node knows none
	// Behind is how many operations the replica that lags most is behind, and
	// Offline how many were not heard lately: known where the leader is.
	Behind  uint64
	Offline int
}

// offlineAfter is how long a replica may say nothing to its leader, which it
// otherwise does every second. JetStream itself calls a replica offline only
// minutes after its server was killed.
const offlineAfter = 20 * time.Second

// Storage looks at this node's own server and asks nobody.
func (c *Cluster) Storage() (Storage, error) {
	info, err := c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true, Config: true})
	if err != nil {
		return Storage{}, fmt.Errorf("look at JetStream: %w", err)
	}
	s := Storage{Messages: info.Messages, Bytes: info.Bytes, Used: info.Store, Limit: uint64(max(info.Config.MaxStore, 0))}
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			s.Streams = append(s.Streams, c.healthOf(&a.Streams[i]))
		}
	}
	return s, nil
}

func (c *Cluster) healthOf(d *server.StreamDetail) StreamHealth {
	h := StreamHealth{Name: d.Name, Messages: d.State.Msgs, Bytes: d.State.Bytes}
	switch {
	case !c.cfg.clustered():
		h.Leader = c.cfg.Node
		return h
	case d.Cluster == nil, d.Config != nil && d.Config.Replicas > 1 && len(d.Cluster.Replicas) == 0:
		return h // JetStream still recovers it, and takes its own server for the leader
	}
	h.Leader = NodeOf(d.Cluster.Leader)
	if h.Leader != c.cfg.Node {
		return h
	}
	for _, r := range d.Cluster.Replicas {
		h.Behind = max(h.Behind, r.Lag)
		if r.Offline || r.Active == 0 || r.Active > offlineAfter { // 0: never, by this leader
			h.Offline++
		}
	}
	return h
}
