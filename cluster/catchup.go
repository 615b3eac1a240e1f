package cluster

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// catchUpEvery is between two looks at the replicas that follow this node.
const catchUpEvery = time.Second

// snapshotAgain is between two snapshots of one stream: a replica that is slow
// falls behind at every look, and gains nothing by another one.
const snapshotAgain = 10 * time.Second

// catchUp helps replicas that do not come nearer to their leader, which is this
// node.
//
// A leader that was cut off comes back with entries that nobody else has. Its
// server drops them one at a time, each for a question and a wait of two to four
// seconds, so that thousands of them keep it away for hours; and all the while
// the loss of one more member stops the stream. A snapshot of the leader's
// forgets the entries that the two would compare, and the replica is given it as
// a whole. The server makes one every two to three minutes by itself, if it is
// not in the way of another replica's catching up.
type catchUp struct {
	c    *Cluster
	lags map[string]uint64 // entries, by stream and replica, at the last look

	given map[string]time.Time // when a snapshot was made, by stream; of those that lately had one
}

// metaGroup stands for the group in which JetStream agrees on its streams.
const metaGroup = "_meta_"

// run looks each second until ctx ends. A disk may hold it up.
func (u *catchUp) run(ctx context.Context) {
	for tick := time.NewTicker(catchUpEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			u.look()
		}
	}
}

func (u *catchUp) look() {
	info, err := u.c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true, StreamLeaderOnly: true})
	if err != nil {
		return // JetStream does not work, which its health says
	}
	lags := make(map[string]uint64)
	for _, a := range info.AccountDetails {
		for _, s := range a.Streams {
			if s.Cluster != nil && u.stuck(lags, s.Name, s.Cluster.Replicas) {
				u.help(s.Name, time.Now(), func() error { return u.c.srv.JetStreamSnapshotStream(account, s.Name) })
			}
		}
	}
	if info.Meta != nil && u.c.srv.JetStreamIsLeader() && u.stuck(lags, metaGroup, info.Meta.Replicas) {
		u.help(metaGroup, time.Now(), u.c.srv.JetStreamSnapshotMeta)
	}
	u.lags = lags
}

// stuck notes how far the replicas are behind, and tells whether one that is
// heard has not come nearer since the last look.
func (u *catchUp) stuck(lags map[string]uint64, stream string, replicas []*server.PeerInfo) (stuck bool) {
	for _, r := range replicas {
		if r.Current || r.Lag == 0 || r.Active == 0 || r.Active > quorumQuiet {
			continue
		}
		key := stream + " " + r.Peer
		lags[key] = r.Lag
		was, known := u.lags[key]
		stuck = stuck || known && r.Lag >= was
	}
	return stuck
}

// help makes a snapshot, if there was none lately. While a replica is being caught up
// there can be none, so that it is tried again at the next look.
func (u *catchUp) help(stream string, now time.Time, snapshot func() error) {
	maps.DeleteFunc(u.given, func(_ string, at time.Time) bool { return now.Sub(at) >= snapshotAgain })
	if _, lately := u.given[stream]; lately {
		return
	}
	if err := snapshot(); err != nil {
		u.c.log.Debug("no snapshot for a replica that does not catch up", "stream", stream, "error", err)
		return
	}
	if u.given == nil {
		u.given = make(map[string]time.Time)
	}
	u.given[stream] = now
	u.c.log.Info("a replica does not catch up, and is given a snapshot", "stream", stream)
}
