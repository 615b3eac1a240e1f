package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How streams are copied out and in. JetStream gives a copy up when its
// receiver says nothing for 5 s, and a restore when nothing comes for so long.
const (
	copyChunk   = 512 << 10 // bytes of a message on the way out
	copyWindow  = 4 << 20   // bytes on their way
	copySilence = 20 * time.Second
	bringChunk  = 64 << 10 // bytes of a message on the way in
	bringAnswer = 30 * time.Second
	bringRoom   = 30 * time.Second // until members have told that removed streams left room
	bringBegin  = 6 * time.Second  // until a stream's leader says that it listens
	bringKnown  = 4 * time.Second  // until its leader is known to listen
	bringEnd    = 10 * time.Minute // for a restored stream to be made durable
)

// StreamPoint is the state of a stream that a copy holds.
type StreamPoint struct {
	Identity    string // of a lane
	First, Last uint64
	Messages    uint64
	Bytes       uint64
}

// CopyStream copies a stream as it is now, in JetStream's own form, and calls
// chunk with piece after piece; while that waits, the copy does. The leader
// makes it; publishing goes on. [ErrStreamMissing], [ErrNoLeader] and whatever
// else interrupts it are errors after which a copy may be begun again.
func (c *Cluster) CopyStream(ctx context.Context, stream string, chunk func([]byte) error) (StreamPoint, error) {
	nc := c.boards.nc
	inbox := nats.NewInbox()
	pieces := make(chan *nats.Msg, 2*copyWindow/copyChunk+8)
	sub, err := nc.ChanSubscribe(inbox, pieces)
	if err != nil {
		return StreamPoint{}, fmt.Errorf("listen to the copy of %s: %w", stream, err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone, and so is the subscription
	request, err := json.Marshal(map[string]any{
		"deliver_subject": inbox, "no_consumers": true, "chunk_size": copyChunk, "window_size": copyWindow,
	})
	if err != nil {
		return StreamPoint{}, err
	}
	var begun struct {
		Error  *apiError               `json:"error"`
		State  jetstream.StreamState   `json:"state"`
		Config *jetstream.StreamConfig `json:"config"`
	}
	if err := c.askAPI(ctx, "$JS.API.STREAM.SNAPSHOT."+stream, request, copySilence, &begun); err != nil {
		return StreamPoint{}, fmt.Errorf("copy stream %s: %w", stream, err)
	}
	if begun.Error != nil || begun.Config == nil {
		return StreamPoint{}, fmt.Errorf("copy stream %s: %w", stream, missingOr(begun.Error))
	}
	return pointOf(begun.Config, begun.State), drainCopy(ctx, stream, pieces, chunk)
}

// missingOr gives JetStream's error our name for a stream that is not there.
func missingOr(e *apiError) error {
	switch {
	case e == nil:
		return errors.New("the stream's leader does not say what it copies")
	case e.ErrCode == int(jetstream.JSErrCodeStreamNotFound):
		return ErrStreamMissing
	}
	return e
}

func drainCopy(ctx context.Context, stream string, pieces <-chan *nats.Msg, chunk func([]byte) error) error {
	silence := time.NewTimer(copySilence)
	defer silence.Stop()
	for {
		select {
		case m := <-pieces:
			if len(m.Data) == 0 {
				if s := status(m); s != "" && s != "204" {
					return fmt.Errorf("copy stream %s: its leader gave up: %s %s", stream, s, m.Header.Get("Description"))
				}
				return nil
			}
			if err := chunk(m.Data); err != nil {
				return err
			}
			if m.Reply != "" { // lets the next one come
				if err := m.Respond(nil); err != nil {
					return fmt.Errorf("copy stream %s: %w", stream, err)
				}
			}
			silence.Reset(copySilence)
		case <-silence.C:
			return fmt.Errorf("copy stream %s: nothing came for %v: its leader may be gone", stream, copySilence)
		case <-ctx.Done():
			return fmt.Errorf("copy stream %s: %w", stream, ctx.Err())
		}
	}
}

// askAPI asks JetStream and reads its JSON.
func (c *Cluster) askAPI(ctx context.Context, subject string, request []byte, wait time.Duration, answer any) error {
	m, err := c.boards.ask(ctx, &nats.Msg{Subject: subject, Data: request}, wait)
	switch {
	case errors.Is(err, errNoAnswer), errors.Is(err, errNoResponders):
		return ErrNoLeader
	case err != nil:
		return err
	}
	return json.Unmarshal(m.Data, answer)
}

// BringStream makes a stream that does not exist out of a copy that
// [Cluster.CopyStream] has made, with the yard's own configuration; a lane is
// closed, see [Layout.Closed]. point is what is in the copy. It
// returns when the stream's leader has it; [Cluster.Replicated] tells the rest.
func (c *Cluster) BringStream(ctx context.Context, layout Layout, stream string, point StreamPoint, copied io.Reader) error {
	layout.Closed = true
	cfg, ok := streamConfig(layout.withDefaults(&c.cfg), stream, point.Identity)
	if !ok {
		return fmt.Errorf("stream %s is none of a yard's", stream)
	}
	request, err := json.Marshal(map[string]any{
		"config": cfg, "state": jetstream.StreamState{FirstSeq: point.First, LastSeq: point.Last, Msgs: point.Messages, Bytes: point.Bytes},
	})
	if err != nil {
		return err
	}
	var begun struct {
		Error   *apiError `json:"error"`
		Deliver string    `json:"deliver_subject"`
	}
	for tried := time.Now(); ; {
		err := c.askAPI(ctx, "$JS.API.STREAM.RESTORE."+stream, request, bringBegin, &begun)
		if errors.Is(err, ErrNoLeader) && time.Since(tried) < bringRoom && ctx.Err() == nil {
			// Its copies wait for a member that was chosen to lead, and is away.
			if err := c.js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return fmt.Errorf("bring stream %s back: %w", stream, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("bring stream %s back: %w", stream, err)
		}
		if begun.Error == nil || !begun.Error.passes() || time.Since(tried) > bringRoom || ctx.Err() != nil {
			break
		}
		begun.Error = nil
		pause(ctx, 250*time.Millisecond)
	}
	if begun.Error != nil {
		return fmt.Errorf("bring stream %s back: %w", stream, begun.Error)
	}
	if err := c.pour(ctx, begun.Deliver, copied); err != nil {
		return fmt.Errorf("bring stream %s back: %w", stream, err)
	}
	return nil
}

// JetStream's error codes that a removed stream leaves behind for a while.
const (
	codeNoPeers          = 10005 // with room
	codeStorage          = 10047
	codeNameTaken        = 10058
	codeRestoreNameTaken = 10130
)

// passes tells that a stream which was removed is still in the way: its name is
// taken, or its room, which members tell of every ten seconds.
func (e *apiError) passes() bool {
	switch e.ErrCode {
	case codeNoPeers, codeNoResources, codeStorage, codeNameTaken, codeRestoreNameTaken:
		return true
	}
	return false
}

// pour sends a copy piece by piece, each when the one before was taken. An
// empty piece ends it.
func (c *Cluster) pour(ctx context.Context, subject string, copied io.Reader) error {
	buf := make([]byte, bringChunk)
	for {
		n, err := io.ReadFull(copied, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err // the silence ends the restore
		}
		if n > 0 {
			if err := c.pourPiece(ctx, subject, buf[:n], bringAnswer); err != nil {
				return err
			}
		}
		if ended {
			return c.pourPiece(ctx, subject, nil, bringEnd)
		}
	}
}

// askHeard asks a stream's leader. That it listens may not be known here yet:
// what nobody heard is sent again.
func (c *Cluster) askHeard(ctx context.Context, m *nats.Msg, wait time.Duration) (*nats.Msg, error) {
	answer, err := c.boards.ask(ctx, m, wait)
	for unheard := time.Now(); errors.Is(err, errNoResponders) && time.Since(unheard) < bringKnown; {
		pause(ctx, 20*time.Millisecond)
		answer, err = c.boards.ask(ctx, m, wait)
	}
	return answer, err
}

func (c *Cluster) pourPiece(ctx context.Context, subject string, piece []byte, wait time.Duration) error {
	m, err := c.askHeard(ctx, &nats.Msg{Subject: subject, Data: piece}, wait)
	if err != nil {
		return err
	}
	var taken struct {
		Error *apiError `json:"error"`
	}
	if len(m.Data) == 0 {
		return nil
	}
	if err := json.Unmarshal(m.Data, &taken); err != nil {
		return err
	}
	if taken.Error != nil {
		return taken.Error
	}
	return nil
}

// streamConfig is what a yard's stream of this name is to be.
func streamConfig(l Layout, stream, identity string) (jetstream.StreamConfig, bool) {
	for lane := range uint8(MaxLanes) {
		if LaneStream(lane) == stream {
			return laneConfig(lane, identity, l), true
		}
	}
	for _, cfg := range append(historyStreams(l), logStream(l)) {
		if cfg.Name == stream {
			return cfg, true
		}
	}
	return jetstream.StreamConfig{}, false
}

func pointOf(cfg *jetstream.StreamConfig, s jetstream.StreamState) StreamPoint {
	return StreamPoint{Identity: cfg.Metadata[MetaIdentity], First: s.FirstSeq, Last: s.LastSeq, Messages: s.Msgs, Bytes: s.Bytes}
}

// StreamPoint is what a stream holds, as its leader says.
func (c *Cluster) StreamPoint(ctx context.Context, stream string) (StreamPoint, error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return StreamPoint{}, err
	}
	return pointOf(&info.Config, info.State), nil
}

// RemoveStreams removes every stream of the yard, for a restore to make them
// anew. It is the only road by which one goes.
func (c *Cluster) RemoveStreams(ctx context.Context) error {
	names := []string{StreamBlobs, StreamEvents, StreamResults, StreamDLQ, StreamLogs}
	for lane := range uint8(MaxLanes) {
		names = append(names, LaneStream(lane))
	}
	for _, name := range names {
		if err := c.js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("remove stream %s: %w", name, err)
		}
	}
	return nil
}

// Replicated tells whether every replica of a stream has all that its leader
// has, and if not, what is left.
func (c *Cluster) Replicated(ctx context.Context, stream string) (left string, err error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil || info.Cluster == nil {
		return "", err
	}
	if info.Cluster.Leader == "" || len(info.Cluster.Replicas) < info.Config.Replicas-1 {
		return "not all replicas are there", nil
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline || r.Lag > 0 {
			return fmt.Sprintf("the replica on %s lags by %d", NodeOf(r.Name), r.Lag), nil
		}
	}
	return "", nil
}
