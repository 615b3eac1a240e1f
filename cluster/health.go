package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Health returns nil if JetStream is enabled, knows its meta leader, is current
// and can write.
func (s *Server) Health(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// A server that runs alone has no meta group. For it the full check compares the
	// loaded streams with those on disk. A stream that is being created is on disk
	// before it is loaded, so only streams that failed to load at start count.
	status := s.local.srv.Healthz(&server.HealthzOptions{JSMetaOnly: s.local.cfg.clustered(), Details: true})
	for i := range status.Errors {
		if e := &status.Errors[i]; !isUnrecovered(e) || s.local.unrecovered[e.Stream] {
			return fmt.Errorf("JetStream is not healthy: %s", e.Error)
		}
	}
	return nil
}

// WriteFailure returns why this node's JetStream has stopped writing until the
// node restarts, "" if it writes. A full disk causes that: the server disables
// JetStream, or a stream refuses everything after the failed write.
func (s *Server) WriteFailure() string {
	if !s.local.srv.JetStreamEnabled() {
		return "JetStream has stopped, as it does when its disk is full or fails"
	}
	for _, e := range s.local.srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// unrecoveredStreams returns the names of the streams that the server found on
// disk and could not recover. It has tried all of them when it accepts
// connections.
func unrecoveredStreams(srv *server.Server) map[string]bool {
	lost := map[string]bool{}
	for _, e := range srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if isUnrecovered(&e) {
			lost[e.Stream] = true
		}
	}
	return lost
}

// isUnrecovered reports whether e is about a stream that could not be recovered.
// It checks the text, because the server has no code for this.
func isUnrecovered(e *server.HealthzError) bool {
	return e.Type == server.HealthzErrorStream && strings.HasSuffix(e.Error, "could not be recovered")
}

// Storage is the state of JetStream on this node.
type Storage struct {
	Messages, Bytes uint64 // in this node's streams
	Used, Limit     uint64 // bytes of its files, and their maximum
	Streams         []StreamHealth
}

// StreamHealth is the state of a stream of which this node has a replica.
type StreamHealth struct {
	Name            string
	Messages, Bytes uint64
	Leader          string // member name; "" if unknown
	// Lag is the number of operations by which the slowest replica is behind, and
	// Offline the number of replicas without recent contact. Both are only known on
	// the leader's node.
	Lag     uint64
	Offline int
}

// offlineAfter is how long a replica may be out of contact with its leader, which
// it normally contacts every second. JetStream itself reports a replica as offline
// only minutes after its server was killed.
const offlineAfter = 20 * time.Second

// Storage returns the state of JetStream on this node, without any network
// request.
func (s *Server) Storage() (Storage, error) {
	info, err := s.local.srv.Jsz(&server.JSzOptions{Account: accountYard, Streams: true, Config: true})
	if err != nil {
		return Storage{}, fmt.Errorf("read the state of JetStream: %w", err)
	}
	storage := Storage{Messages: info.Messages, Bytes: info.Bytes, Used: info.Store, Limit: uint64(max(info.Config.MaxStore, 0))}
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			storage.Streams = append(storage.Streams, s.healthOf(&a.Streams[i]))
		}
	}
	return storage, nil
}

// healthOf converts the server's description of a stream.
func (s *Server) healthOf(d *server.StreamDetail) StreamHealth {
	h := StreamHealth{Name: d.Name, Messages: d.State.Msgs, Bytes: d.State.Bytes}
	switch {
	case !s.local.cfg.clustered():
		h.Leader = s.local.cfg.Node
		return h
	case d.Cluster == nil, d.Config != nil && d.Config.Replicas > 1 && len(d.Cluster.Replicas) == 0:
		return h // still recovering: the server reports itself as the leader
	}
	h.Leader = NodeOf(d.Cluster.Leader)
	if h.Leader != s.local.cfg.Node {
		return h
	}
	for _, r := range d.Cluster.Replicas {
		h.Lag = max(h.Lag, r.Lag)
		if r.Offline || r.Active == 0 || r.Active > offlineAfter { // 0: no contact since this leader was elected
			h.Offline++
		}
	}
	return h
}
