package replication

import (
	"fmt"
	"strings"
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
	Limit           uint64    // the most bytes that it may have; 0: it has no limit of its own
	Refuses         bool      // when it is full it refuses messages, and does not remove the oldest
	InMemory        bool      // it is not in the store
	Oldest          time.Time // when its first message was stored; zero: it has none
	Leader          string    // member name; "" if unknown
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
	for _, account := range info.AccountDetails {
		for i := range account.Streams {
			storage.Streams = append(storage.Streams, r.healthOf(&account.Streams[i]))
		}
	}
	return storage, nil
}

// Warnings returns a warning if streams of users take space that the yard's own streams
// may need: when the store is full, all of them refuse messages, whatever their limits.
func (s *Storage) Warnings() []string {
	var own, users uint64
	var names []string
	for i := range s.Streams {
		switch stream := &s.Streams[i]; {
		case stream.InMemory:
		case subjects.IsOwnStream(stream.Name):
			own += max(stream.Limit, stream.Bytes)
		case stream.Bytes > 0:
			users += stream.Bytes
			names = append(names, stream.Name)
		}
	}
	if s.Limit == 0 || users == 0 || own+users <= s.Limit {
		return nil
	}
	const most = 5
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return []string{fmt.Sprintf(
		"streams of users (%s) take %d of the %d bytes of this node's store, which the yard's own streams may need: a full store refuses jobs. Remove messages or streams, or bound them with max_bytes",
		list, users, s.Limit)}
}

// healthOf converts the server's description of a stream. A stream that is still
// recovering has no leader, although the server reports itself as the leader.
func (r *Replication) healthOf(stream *server.StreamDetail) StreamHealth {
	health := StreamHealth{Name: stream.Name, Messages: stream.State.Msgs, Bytes: stream.State.Bytes}
	if stream.State.Msgs > 0 {
		health.Oldest = stream.State.FirstTime
	}
	if stream.Config != nil {
		health.Limit, health.Refuses = uint64(max(stream.Config.MaxBytes, 0)), stream.Config.Discard == server.DiscardNew
		health.InMemory = stream.Config.Storage == server.MemoryStorage
	}
	if !r.local.Config.Clustered() {
		health.Leader = r.local.Config.Node
		return health
	}
	replicated := stream.Config != nil && stream.Config.Replicas > 1
	recovering := stream.Cluster == nil || replicated && len(stream.Cluster.Replicas) == 0
	if recovering {
		return health
	}
	health.Leader = subjects.NodeOf(stream.Cluster.Leader)
	if health.Leader != r.local.Config.Node {
		return health
	}
	for _, peer := range stream.Cluster.Replicas {
		health.Lag = max(health.Lag, peer.Lag)
		if peer.Offline || peer.Active == 0 || peer.Active > offlineAfter { // 0: no contact since this leader was elected
			health.Offline++
		}
	}
	return health
}
