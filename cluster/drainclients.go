package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Intervals while clients are drained.
const (
	idleClientAfter    = 150 * time.Millisecond // without traffic in either direction: no reply is outstanding
	clientPollInterval = 30 * time.Millisecond
)

// DrainClients notifies this node's clients that it is going away, with NATS's
// lame duck mode, and closes the remaining connections as soon as they are idle, so
// that they reconnect to another node. It returns when there are none left or ctx
// ends. A client that is never idle is served until the node stops.
func (s *Server) DrainClients(ctx context.Context) error {
	seen := make(map[uint64]clientActivity)
	for {
		left, err := s.closeIdleClients(seen, time.Now())
		if err != nil || left == 0 {
			return err
		}
		if backoff.Sleep(ctx, clientPollInterval) != nil {
			return nil
		}
	}
}

// clientActivity holds a client's message counts and when they last changed.
type clientActivity struct {
	received, sent int64
	since          time.Time
}

// closeIdleClients notifies the clients that are not in seen that this node goes away,
// closes those that have sent and received nothing for idleClientAfter, and returns how
// many clients were connected before that. It records in seen, by client id, what each
// client has sent and received, and when that last changed.
func (s *Server) closeIdleClients(seen map[uint64]clientActivity, now time.Time) (left int, err error) {
	internal := make(map[uint64]bool) // the node's own connections
	for _, nc := range s.local.Conns {
		id, err := nc.GetClientID()
		if err != nil {
			return 0, fmt.Errorf("identify the node's own connections: %w", err)
		}
		internal[id] = true
	}
	list, err := s.local.NATS.Connz(&server.ConnzOptions{Limit: embedded.MaxClients})
	if err != nil {
		return 0, fmt.Errorf("list clients: %w", err)
	}
	for _, client := range list.Conns {
		if internal[client.Cid] {
			continue
		}
		left++
		last, notified := seen[client.Cid]
		if !notified {
			// It fails for old client libraries; those are closed as well.
			_ = s.local.NATS.LDMClientByID(client.Cid)
		}
		if !notified || last.received != client.InMsgs || last.sent != client.OutMsgs {
			seen[client.Cid] = clientActivity{client.InMsgs, client.OutMsgs, now}
			continue
		}
		if client.Pending == 0 && now.Sub(last.since) >= idleClientAfter {
			_ = s.local.NATS.DisconnectClientByID(client.Cid) // it may have disconnected already
		}
	}
	return left, nil
}
