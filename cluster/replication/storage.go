package replication

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

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
func (r *Replication) Storage() (Storage, error) {
	info, err := r.local.NATS.Jsz(&server.JSzOptions{Account: embedded.AccountYard, Streams: true, Config: true})
	if err != nil {
		return Storage{}, fmt.Errorf("read the state of JetStream: %w", err)
	}
	storage := Storage{Messages: info.Messages, Bytes: info.Bytes, Used: info.Store, Limit: uint64(max(info.Config.MaxStore, 0))}
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			storage.Streams = append(storage.Streams, r.healthOf(&a.Streams[i]))
		}
	}
	return storage, nil
}

// healthOf converts the server's description of a stream.
func (r *Replication) healthOf(d *server.StreamDetail) StreamHealth {
	h := StreamHealth{Name: d.Name, Messages: d.State.Msgs, Bytes: d.State.Bytes}
	switch {
	case !r.local.Config.Clustered():
		h.Leader = r.local.Config.Node
		return h
	case d.Cluster == nil, d.Config != nil && d.Config.Replicas > 1 && len(d.Cluster.Replicas) == 0:
		return h // still recovering: the server reports itself as the leader
	}
	h.Leader = subjects.NodeOf(d.Cluster.Leader)
	if h.Leader != r.local.Config.Node {
		return h
	}
	for _, peer := range d.Cluster.Replicas {
		h.Lag = max(h.Lag, peer.Lag)
		if peer.Offline || peer.Active == 0 || peer.Active > offlineAfter { // 0: no contact since this leader was elected
			h.Offline++
		}
	}
	return h
}
