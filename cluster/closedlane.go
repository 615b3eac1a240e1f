package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	closedAnswer = 5 * time.Second // until a closed lane's leader says where it ends
	unlikelyLast = 1 << 62         // a sequence number that no lane ends at
)

// CloseLane lets nothing more into the lane of this identity and gives what it
// holds, which is final: nothing, if there is no such lane. [ErrNoLeader] says
// that it could not be closed, [ErrSilent] that it may not be there at all.
// [Cluster.EnsureStreams] opens it again.
func (c *Cluster) CloseLane(ctx context.Context, lane uint8, identity string) (StreamPoint, error) {
	info, err := c.replicaInfo(ctx, LaneStream(lane))
	switch {
	case errors.Is(err, ErrStreamMissing):
		return StreamPoint{}, nil
	case err != nil:
		return StreamPoint{}, err
	case info.Config.Metadata[MetaIdentity] != identity:
		return StreamPoint{}, nil
	case info.Cluster != nil && info.Cluster.Leader == "":
		return StreamPoint{}, fmt.Errorf("close lane %d: %w", lane, ErrNoLeader)
	}
	closed := info.Config
	closeLane(&closed, lane)
	stream, err := c.js.UpdateStream(ctx, closed)
	if err != nil {
		return StreamPoint{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	point := pointOf(&stream.CachedInfo().Config, stream.CachedInfo().State)
	end, err := c.endOfClosed(ctx, lane)
	if err != nil {
		return StreamPoint{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	point.Last = max(point.Last, end)
	return point, nil
}

// endOfClosed is the sequence number of the last record that a closed lane's
// leader has taken in. Its state does not tell: what came just before it was
// closed may be stored, and acknowledged, after that. So it is handed a record
// that it has to refuse, behind all those, with the number that would fit.
func (c *Cluster) endOfClosed(ctx context.Context, lane uint8) (last uint64, err error) {
	m := nats.NewMsg(closedSubject(lane))
	m.Header.Set(headerExpectLast, strconv.FormatInt(unlikelyLast, 10))
	answer, err := c.askHeard(ctx, m, closedAnswer)
	if err != nil {
		return 0, err
	}
	var refusal *apiError
	if _, err = parsePubAck(answer.Data); !errors.As(err, &refusal) || refusal.ErrCode != codeWrongLast {
		return 0, fmt.Errorf("the lane's leader does not say where it ends: %w", err)
	}
	if _, err := fmt.Sscanf(refusal.Description, "wrong last sequence: %d", &last); err != nil {
		return 0, fmt.Errorf("the lane's leader says %q: %w", refusal.Description, err)
	}
	return last, nil
}

// closeLane gives a lane a subject that nobody may publish to, in the place of
// its own.
func closeLane(cfg *jetstream.StreamConfig, lane uint8) {
	cfg.Subjects, cfg.RePublish = []string{closedSubject(lane)}, nil
}

func closedSubject(lane uint8) string { return subjectClosed + "." + strconv.Itoa(int(lane)) }
