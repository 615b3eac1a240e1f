package cluster

import (
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

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

// Storage looks at this node's own server and asks nobody.
func (c *Cluster) Storage() (Storage, error) {
	info, err := c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true})
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
	if d.Cluster == nil || !c.cfg.clustered() {
		h.Leader = c.cfg.Node
		return h
	}
	h.Leader = NodeOf(d.Cluster.Leader)
	if h.Leader != c.cfg.Node {
		return h
	}
	for _, r := range d.Cluster.Replicas {
		h.Behind = max(h.Behind, r.Lag)
		if r.Offline {
			h.Offline++
		}
	}
	return h
}
