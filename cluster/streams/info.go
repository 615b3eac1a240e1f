package streams

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Errors about streams.
var (
	ErrStreamMissing = errors.New("stream does not exist")
	ErrNoLeader      = errors.New("stream has no leader that answers")
	// ErrNoReplica is [ErrNoLeader] if no replica answered either. The stream may not
	// exist: replicas without a leader answer after ten seconds.
	ErrNoReplica = fmt.Errorf("%w, and no replica", ErrNoLeader)
)

// infoTimeout is how long to wait for the info of a stream.
const infoTimeout = 2 * time.Second

// Info returns a stream's info from its leader only. Without a leader it
// returns [ErrNoLeader], because another replica may be far behind what has been
// ingested.
func Info(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	info, err := replicaInfo(ctx, js, name)
	if err == nil && info.Cluster != nil && info.Cluster.Leader == "" {
		return nil, fmt.Errorf("%s: %w", name, ErrNoLeader)
	}
	return info, err
}

// replicaInfo returns a stream's info from its leader or, after ten seconds
// without a leader, from any replica.
func replicaInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("%s: %w", name, ErrStreamMissing)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders), isUnavailable(err):
		return nil, fmt.Errorf("%s: %w", name, ErrNoReplica)
	case err != nil:
		return nil, fmt.Errorf("read info of stream %s: %w", name, err)
	}
	return stream.CachedInfo(), nil
}

// isUnavailable reports whether JetStream is still starting on the server that was asked.
func isUnavailable(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.Code == http.StatusServiceUnavailable
}

// LaneInfo is the state of a lane, as its leader knows it.
type LaneInfo struct {
	Identity    string
	Leader      string // member name
	Quorum      bool   // the leader is in contact with a majority and can store records
	First, Last uint64
	Bytes       uint64
	MaxBytes    int64
}

// LaneInfo returns the state of a lane from its leader. The error is
// [ErrStreamMissing] if the lane does not exist and [ErrNoLeader] if its leader
// does not answer.
func (r *Reader) LaneInfo(ctx context.Context, lane uint8) (LaneInfo, error) {
	info, err := Info(ctx, r.local.JS, subjects.LaneStream(lane))
	if err != nil {
		return LaneInfo{}, err
	}
	leader := r.local.Config.Node
	if info.Cluster != nil {
		leader = subjects.NodeOf(info.Cluster.Leader)
	}
	return LaneInfo{
		Identity: info.Config.Metadata[subjects.MetaIdentity], Leader: leader, Quorum: hasQuorum(info.Cluster),
		First: info.State.FirstSeq, Last: info.State.LastSeq, Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes,
	}, nil
}

// ReplicaContactTimeout is how long a replica may be out of contact before its
// leader must not count on it. Replicas are in contact each second; a leader that
// was cut off steps down only after 10 to 20 s.
const ReplicaContactTimeout = 4 * time.Second

// hasQuorum reports whether a stream's leader can store messages: together with
// the replicas that are in contact and current it must be a majority. A replica
// that still catches up does not acknowledge new messages. replication is nil for a
// server that runs alone, which needs no replicas.
func hasQuorum(replication *jetstream.ClusterInfo) bool {
	if replication == nil {
		return true
	}
	if replication.Leader == "" {
		return false
	}
	connected := 1 // the leader
	for _, r := range replication.Replicas {
		if r.Current && r.Active <= ReplicaContactTimeout {
			connected++
		}
	}
	return connected > (len(replication.Replicas)+1)/2
}

// LastSeq returns the sequence of a lane's last record, as its leader knows it.
func (r *Reader) LastSeq(ctx context.Context, lane uint8) (uint64, error) {
	return r.lastSeq(ctx, subjects.LaneStream(lane))
}

// lastSeq returns the last sequence of a stream, as its leader knows it.
func (r *Reader) lastSeq(ctx context.Context, stream string) (uint64, error) {
	info, err := Info(ctx, r.local.JS, stream)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}
