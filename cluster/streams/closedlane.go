package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

const (
	closeLaneTimeout = 5 * time.Second // for the reply with a closed lane's last sequence
	impossibleSeq    = 1 << 62         // a sequence number that no lane reaches
)

// CloseLane closes the lane with this identity for new records and returns its
// final state. The state is zero if no such lane exists. The error is
// [ErrNoLeader] if the lane could not be closed, and [ErrNoReplica] if the stream
// may not exist at all. [Admin.EnsureStreams] opens the lane again.
func (a *Admin) CloseLane(ctx context.Context, lane uint8, identity string) (StreamState, error) {
	info, err := replicaInfo(ctx, a.local.JS, subjects.LaneStream(lane))
	switch {
	case errors.Is(err, ErrStreamMissing):
		return StreamState{}, nil
	case err != nil:
		return StreamState{}, err
	case info.Config.Metadata[subjects.MetaIdentity] != identity:
		return StreamState{}, nil
	case info.Cluster != nil && info.Cluster.Leader == "":
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, ErrNoLeader)
	}
	closed := info.Config
	setClosedSubject(&closed, lane)
	stream, err := a.local.JS.UpdateStream(ctx, closed)
	if err != nil {
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	final := streamStateOf(&stream.CachedInfo().Config, stream.CachedInfo().State)
	last, err := a.closedLaneLast(ctx, lane)
	if err != nil {
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	final.Last = max(final.Last, last)
	return final, nil
}

// closedLaneLast returns the sequence number of the last record that the leader of
// a closed lane has accepted. The stream's info may be older: records accepted
// just before the lane was closed may be stored, and acknowledged, later. So this
// publishes a record with an impossible expected sequence. The leader handles it
// after all accepted records, refuses it, and names its last sequence in the
// error.
func (a *Admin) closedLaneLast(ctx context.Context, lane uint8) (last uint64, err error) {
	m := nats.NewMsg(subjects.ClosedSubject(lane))
	m.Header.Set(subjects.HeaderExpectLast, strconv.FormatInt(impossibleSeq, 10))
	reply, err := a.requestWithRetry(ctx, m, closeLaneTimeout)
	if err != nil {
		return 0, err
	}
	var apiErr *embedded.APIError
	if _, err = embedded.ParsePubAck(reply.Data); !errors.As(err, &apiErr) || apiErr.ErrCode != embedded.CodeWrongLast {
		return 0, fmt.Errorf("the lane's leader did not return its last sequence: %w", err)
	}
	if _, err := fmt.Sscanf(apiErr.Description, "wrong last sequence: %d", &last); err != nil {
		return 0, fmt.Errorf("unexpected error of the lane's leader %q: %w", apiErr.Description, err)
	}
	return last, nil
}

// setClosedSubject replaces a lane's subjects by the one of ClosedSubject.
func setClosedSubject(cfg *jetstream.StreamConfig, lane uint8) {
	cfg.Subjects, cfg.RePublish = []string{subjects.ClosedSubject(lane)}, nil
}
