package replication

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
)

// lagCheckInterval is how often the replicas that follow this node are checked.
const lagCheckInterval = time.Second

// snapshotInterval is the minimum time between two snapshots of one stream. A
// replica that is merely slow lags at every check and gains nothing from another
// one.
const snapshotInterval = 10 * time.Second

// snapshotSender makes snapshots of streams that this node leads if a replica does
// not catch up.
//
// A former leader that was cut off returns with log entries that no other server
// has. Its server drops them one at a time, each after a request and a wait of two
// to four seconds, so that thousands of them keep the replica out of date for
// hours. Meanwhile losing one more member would stop the stream. After a snapshot
// the leader no longer has the entries that the two would compare, and the replica
// gets the snapshot as a whole. The server makes snapshots by itself every two to
// three minutes, unless another replica is catching up.
type snapshotSender struct {
	local   *embedded.Server
	lagging map[string]laggingReplica // by stream and replica, at the last check

	sent map[string]time.Time // time of the last snapshot within snapshotInterval, by stream
}

// laggingReplica is a replica that lacks entries.
type laggingReplica struct {
	index  uint64 // of the last entry that it has, as far as its leader knows
	checks int    // in a row that found it at this index
}

// stuckChecks is how many checks in a row have to find a replica at the same index.
// Under load a healthy one lags at almost every check, because entries are on their way
// to it, but it advances.
const stuckChecks = 3

// metaGroup identifies JetStream's meta group where a stream's name is expected.
const metaGroup = "_meta_"

// run checks all replicas every lagCheckInterval until ctx ends. A slow disk may delay
// it.
func (s *snapshotSender) run(ctx context.Context) {
	for tick := time.NewTicker(lagCheckInterval); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			s.check()
		}
	}
}

// check compares the progress of all replicas with the last check and makes snapshots
// where a replica is stuck.
func (s *snapshotSender) check() {
	info, err := s.local.NATS.Jsz(&server.JSzOptions{Account: embedded.AccountYard, Streams: true, StreamLeaderOnly: true})
	if err != nil {
		return // JetStream does not work; Health reports that
	}
	lagging := make(map[string]laggingReplica)
	groups := s.raftGroups(embedded.AccountYard)
	for _, account := range info.AccountDetails {
		for _, stream := range account.Streams {
			if stream.Cluster != nil && s.anyStuck(lagging, stream.Name, stream.Cluster.Replicas, groups[stream.Cluster.RaftGroup].Peers) {
				s.sendSnapshot(stream.Name, time.Now(), func() error { return s.local.NATS.JetStreamSnapshotStream(embedded.AccountYard, stream.Name) })
			}
		}
	}
	if info.Meta != nil && s.local.NATS.JetStreamIsLeader() && s.anyStuck(lagging, metaGroup, info.Meta.Replicas, s.raftGroups("")[metaGroup].Peers) {
		s.sendSnapshot(metaGroup, time.Now(), s.local.NATS.JetStreamSnapshotMeta)
	}
	s.lagging = lagging
}

// raftGroups returns the state of this server's Raft groups of an account, "" for the
// system account, by the group's name.
func (s *snapshotSender) raftGroups(account string) map[string]server.RaftzGroup {
	status := s.local.NATS.Raftz(&server.RaftzOptions{AccountFilter: account})
	if status == nil {
		return nil
	}
	for _, groups := range *status { // of the one account
		return groups
	}
	return nil
}

// anyStuck records a stream's lagging replicas in lagging, and reports whether one of
// them is in contact and has not advanced for stuckChecks checks. peers are the replicas
// by the same ids, as the stream's Raft group knows them.
func (s *snapshotSender) anyStuck(lagging map[string]laggingReplica, stream string, replicas []*server.PeerInfo, peers map[string]server.RaftzGroupPeer) (stuck bool) {
	for _, r := range replicas {
		inContact := r.Active > 0 && r.Active <= streams.ReplicaContactTimeout
		peer, isKnown := peers[r.Peer]
		if r.Current || r.Lag == 0 || !inContact || !isKnown {
			continue
		}
		key := stream + " " + r.Peer
		now := laggingReplica{index: peer.LastReplicatedIndex, checks: 1}
		if previous, laggedBefore := s.lagging[key]; laggedBefore && previous.index == now.index {
			now.checks = previous.checks + 1
		}
		lagging[key] = now
		stuck = stuck || now.checks >= stuckChecks
	}
	return stuck
}

// sendSnapshot calls snapshot, which makes a snapshot of a stream that its lagging
// replicas receive, unless it has done so for this stream less than snapshotInterval ago.
// snapshot fails while a replica is receiving one; then the next check tries again.
func (s *snapshotSender) sendSnapshot(stream string, now time.Time, snapshot func() error) {
	maps.DeleteFunc(s.sent, func(_ string, at time.Time) bool { return now.Sub(at) >= snapshotInterval })
	if _, recent := s.sent[stream]; recent {
		return
	}
	if err := snapshot(); err != nil {
		s.local.Log.Debug("snapshot for lagging replica failed", "stream", stream, "err", err)
		return
	}
	if s.sent == nil {
		s.sent = make(map[string]time.Time)
	}
	s.sent[stream] = now
	s.local.Log.Info("replica lagging, sending snapshot", "stream", stream)
}
