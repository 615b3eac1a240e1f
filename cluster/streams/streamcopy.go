package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Parameters of archiving and restoring streams. JetStream aborts an archive whose
// receiver acknowledges nothing for 5 s, and a restore that receives nothing for 5 s.
const (
	archiveChunk           = 512 << 10 // bytes per message while archiving
	archiveWindow          = 4 << 20   // unacknowledged bytes while archiving
	archiveTimeout         = 20 * time.Second
	restoreChunk           = 64 << 10 // bytes per message while restoring
	restoreChunkTimeout    = 30 * time.Second
	restoreRetryFor        = 30 * time.Second // for members to report the space that removed streams have freed
	restoreStartTimeout    = 6 * time.Second  // for the reply to a restore request
	restoreInterestTimeout = 4 * time.Second  // for the leader's subscription to become known here
	restoreEndTimeout      = 10 * time.Minute // for the restored stream to be stored
)

// StreamState is the state of a stream or of its archive.
type StreamState struct {
	Identity    string // of a lane; "" for other streams
	First, Last uint64
	Messages    uint64
	Bytes       uint64
}

// ArchiveStream calls write with one chunk after another of an archive of a stream, in
// JetStream's own format, and returns the archived state. The stream's leader makes the
// archive; publishing continues, and a slow write slows the transfer down. After
// [ErrStreamMissing], [ErrNoLeader] or an interruption the archive may be started
// again.
func (a *Admin) ArchiveStream(ctx context.Context, stream string, write func([]byte) error) (StreamState, error) {
	nc := a.local.Boards.Conn
	inbox := nats.NewInbox()
	chunks := make(chan *nats.Msg, 2*archiveWindow/archiveChunk+8)
	sub, err := nc.ChanSubscribe(inbox, chunks)
	if err != nil {
		return StreamState{}, fmt.Errorf("subscribe to the archive of %s: %w", stream, err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // it only fails if the connection is closed
	request, err := json.Marshal(map[string]any{
		"deliver_subject": inbox, "no_consumers": true, "chunk_size": archiveChunk, "window_size": archiveWindow,
	})
	if err != nil {
		return StreamState{}, err
	}
	var started struct {
		embedded.APIReply
		State  jetstream.StreamState  `json:"state"`
		Config jetstream.StreamConfig `json:"config"`
	}
	err = leaderError(a.local.Boards.RequestAPI(ctx, "$JS.API.STREAM.SNAPSHOT."+stream, request, archiveTimeout, &started))
	if err != nil {
		return StreamState{}, fmt.Errorf("archive stream %s: %w", stream, err)
	}
	return streamStateOf(&started.Config, started.State), receiveArchive(ctx, stream, chunks, write)
}

// leaderError converts an error of a request to a stream's leader: to [ErrNoLeader] if
// there was no answer, and to [ErrStreamMissing] if the stream does not exist. It
// returns any other error, and nil, unchanged.
func leaderError(err error) error {
	if errors.Is(err, embedded.ErrNoAnswer) || errors.Is(err, nats.ErrNoResponders) {
		return ErrNoLeader
	}
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	if refused && apiErr.ErrCode == int(jetstream.JSErrCodeStreamNotFound) {
		return ErrStreamMissing
	}
	return err
}

// receiveArchive passes the archive's chunks to write and acknowledges them, until the
// last one. The error names the stream.
func receiveArchive(ctx context.Context, stream string, chunks <-chan *nats.Msg, write func([]byte) error) error {
	timeout := time.NewTimer(archiveTimeout)
	defer timeout.Stop()
	for {
		select {
		case m := <-chunks:
			if len(m.Data) == 0 { // the end
				if status := embedded.Status(m); status != "" && status != "204" {
					return fmt.Errorf("archive stream %s: the leader aborted: %s %s", stream, status, m.Header.Get("Description"))
				}
				return nil
			}
			if err := write(m.Data); err != nil {
				return err
			}
			if m.Reply != "" { // acknowledges it, so that more are sent
				if err := m.Respond(nil); err != nil {
					return fmt.Errorf("archive stream %s: %w", stream, err)
				}
			}
			timeout.Reset(archiveTimeout)
		case <-timeout.C:
			return fmt.Errorf("archive stream %s: nothing received for %v: the leader may be gone", stream, duration.Format(archiveTimeout))
		case <-ctx.Done():
			return fmt.Errorf("archive stream %s: %w", stream, ctx.Err())
		}
	}
}

// RestoreStream creates a stream that does not exist from an archive made by
// [Admin.ArchiveStream], with the yard's present configuration for it; a lane
// stays closed, see [Layout.Closed]. state is what the archive contains. RestoreStream
// returns when the stream's leader has stored the content; [Admin.Replicated] reports
// on the other replicas.
func (a *Admin) RestoreStream(ctx context.Context, layout Layout, stream string, state StreamState, archive io.Reader) error {
	layout.Closed = true
	cfg, ok := streamConfig(layout.withDefaults(&a.local.Config), stream, state.Identity)
	if !ok {
		return fmt.Errorf("stream %s does not belong to a yard", stream)
	}
	request, err := json.Marshal(map[string]any{
		"config": cfg, "state": jetstream.StreamState{FirstSeq: state.First, LastSeq: state.Last, Msgs: state.Messages, Bytes: state.Bytes},
	})
	if err != nil {
		return err
	}
	subject, err := a.startRestore(ctx, stream, request)
	if err == nil {
		err = a.upload(ctx, subject, archive)
	}
	if err != nil {
		return fmt.Errorf("restore stream %s: %w", stream, err)
	}
	return nil
}

// startRestore sends the request to restore a stream and returns the subject for the
// archive. It repeats the request for restoreRetryFor while the error may pass.
func (a *Admin) startRestore(ctx context.Context, stream string, request []byte) (subject string, err error) {
	for began := time.Now(); ; {
		var started struct {
			embedded.APIReply
			Deliver string `json:"deliver_subject"`
		}
		err := leaderError(a.local.Boards.RequestAPI(ctx, "$JS.API.STREAM.RESTORE."+stream, request, restoreStartTimeout, &started))
		mayRetry := time.Since(began) < restoreRetryFor && ctx.Err() == nil
		switch {
		case errors.Is(err, ErrNoLeader) && mayRetry: // JetStream has chosen a leader that is down: start over
			if err := a.local.JS.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return "", err
			}
		case isTransient(err) && mayRetry:
			_ = backoff.Sleep(ctx, 250*time.Millisecond)
		default:
			return started.Deliver, err
		}
	}
}

// JetStream error codes that occur for a while after a stream was removed.
const (
	codeNoPeers          = 10005 // no peers with enough space
	codeStorage          = 10047
	codeNameTaken        = 10058
	codeRestoreNameTaken = 10130
)

// isTransient reports whether err is caused by a stream that was just removed: its
// name is still taken, or its space is not free yet, which members report every
// ten seconds.
func isTransient(err error) bool {
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	if !refused {
		return false
	}
	switch apiErr.ErrCode {
	case codeNoPeers, embedded.CodeNoResources, codeStorage, codeNameTaken, codeRestoreNameTaken:
		return true
	}
	return false
}

// upload sends an archive to subject chunk by chunk, each after the previous one was
// acknowledged. An empty chunk ends it.
func (a *Admin) upload(ctx context.Context, subject string, archive io.Reader) error {
	buf := make([]byte, restoreChunk)
	for {
		n, err := io.ReadFull(archive, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err // JetStream aborts the restore after a timeout
		}
		if n > 0 {
			if err := a.uploadChunk(ctx, subject, buf[:n], restoreChunkTimeout); err != nil {
				return err
			}
		}
		if ended {
			return a.uploadChunk(ctx, subject, nil, restoreEndTimeout)
		}
	}
}

// requestWithRetry sends a request to a stream's leader. The leader's subscription
// may not be known here yet, so a request without responders is retried for
// restoreInterestTimeout. No request is processed twice.
func (a *Admin) requestWithRetry(ctx context.Context, m *nats.Msg, wait time.Duration) (*nats.Msg, error) {
	reply, err := a.local.Boards.Request(ctx, m, wait)
	for began := time.Now(); errors.Is(err, nats.ErrNoResponders) && time.Since(began) < restoreInterestTimeout; {
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
		reply, err = a.local.Boards.Request(ctx, m, wait)
	}
	return reply, err
}

// uploadChunk sends one chunk of an archive and waits for its acknowledgement.
func (a *Admin) uploadChunk(ctx context.Context, subject string, chunk []byte, wait time.Duration) error {
	m, err := a.requestWithRetry(ctx, &nats.Msg{Subject: subject, Data: chunk}, wait)
	if err != nil || len(m.Data) == 0 {
		return err
	}
	var reply embedded.APIReply
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return err
	}
	if reply.Error != nil {
		return reply.Error
	}
	return nil
}

// streamConfig returns the configuration of the yard's stream with this name, which is
// not a board. identity is that of a lane. ok is false if the yard has no such stream.
func streamConfig(l Layout, stream, identity string) (cfg jetstream.StreamConfig, ok bool) {
	if lane, isLane := subjects.ParseLaneStream(stream); isLane {
		return laneConfig(lane, identity, l), true
	}
	for _, aux := range append(auxStreams(l), auxConfig{logStream(l), 1}) {
		if aux.Name == stream {
			return aux.StreamConfig, true
		}
	}
	return jetstream.StreamConfig{}, false
}

// streamStateOf converts JetStream's description of a stream.
func streamStateOf(cfg *jetstream.StreamConfig, s jetstream.StreamState) StreamState {
	return StreamState{Identity: cfg.Metadata[subjects.MetaIdentity], First: s.FirstSeq, Last: s.LastSeq, Messages: s.Msgs, Bytes: s.Bytes}
}

// StreamState returns the state of a stream, as its leader knows it.
func (a *Admin) StreamState(ctx context.Context, stream string) (StreamState, error) {
	info, err := Info(ctx, a.local.JS, stream)
	if err != nil {
		return StreamState{}, err
	}
	return streamStateOf(&info.Config, info.State), nil
}

// RemoveStream removes a stream of the yard, if it exists, so that a restore can create
// it again. Streams are removed in no other way.
func (a *Admin) RemoveStream(ctx context.Context, stream string) error {
	if err := a.local.JS.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("remove stream %s: %w", stream, err)
	}
	return nil
}

// Replicated returns "" if all replicas of a stream have everything that its
// leader has, and otherwise a text about what is missing.
func (a *Admin) Replicated(ctx context.Context, stream string) (missing string, err error) {
	info, err := Info(ctx, a.local.JS, stream)
	if err != nil || info.Cluster == nil {
		return "", err
	}
	if info.Cluster.Leader == "" || len(info.Cluster.Replicas) < info.Config.Replicas-1 {
		return "not all replicas exist", nil
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline || r.Lag > 0 {
			return fmt.Sprintf("the replica on %s lags by %d", subjects.NodeOf(r.Name), r.Lag), nil
		}
	}
	return "", nil
}
