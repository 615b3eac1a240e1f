package cluster

import (
	"context"
	"fmt"
	"strings"

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
	status := s.local.NATS.Healthz(&server.HealthzOptions{JSMetaOnly: s.local.Config.Clustered(), Details: true})
	for i := range status.Errors {
		if e := &status.Errors[i]; !isUnrecovered(e) || s.unrecovered[e.Stream] {
			return fmt.Errorf("JetStream is not healthy: %s", e.Error)
		}
	}
	return nil
}

// WriteFailure returns why this node's JetStream has stopped writing until the
// node restarts, "" if it writes. A full disk causes that: the server disables
// JetStream, or a stream refuses everything after the failed write.
func (s *Server) WriteFailure() string {
	if !s.local.NATS.JetStreamEnabled() {
		return "JetStream has stopped, as it does when its disk is full or fails"
	}
	for _, e := range s.local.NATS.Healthz(&server.HealthzOptions{Details: true}).Errors {
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
