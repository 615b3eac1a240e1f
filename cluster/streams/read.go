package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Limits of a read.
const (
	replicaTimeout   = 50 * time.Millisecond // for the first message; then another replica is asked
	batchIdleTimeout = time.Second           // between two messages of a batch
	leaderTimeout    = time.Second
	loadTimeout      = 10 * time.Second // if the context has no deadline
	replicaAttempts  = 12               // direct reads, each answered by a random replica, of a message that the leader lacks
	maxRead          = 4096             // messages
	maxReadBytes     = 8 << 20
	maxLaneReadBytes = 1 << 20 // the same of lanes, whose messages may hold hundreds of records
)

// ErrNotStored means that neither the stream's leader nor any replica has the
// message.
var ErrNotStored = errors.New("message is not stored")

// Reader reads what the cluster's streams hold. Its methods may be called
// concurrently.
type Reader struct {
	local  *embedded.Server
	packed *packedCache
}

// NewReader returns a reader over l's connections.
func NewReader(l *embedded.Server) *Reader { return &Reader{l, newPackedCache()} }

// storedMsg is a message as it is stored in a stream.
type storedMsg struct {
	subject string
	seq     uint64
	time    time.Time
	header  nats.Header
	data    []byte
}

// getRequest is the JetStream request for stored messages.
type getRequest struct {
	Seq      uint64     `json:"seq,omitempty"`          // the message's sequence, or with NextFor or Batch the lowest one
	LastFor  string     `json:"last_by_subj,omitempty"` // the last message of this subject
	NextFor  string     `json:"next_by_subj,omitempty"` // only messages of this subject
	Batch    int        `json:"batch,omitempty"`        // maximum number of messages
	MaxBytes int        `json:"max_bytes,omitempty"`    // of all messages of the batch
	Since    *time.Time `json:"start_time,omitempty"`   // only messages stored at that time or later
}

// body returns the request as JSON.
func (req getRequest) body() []byte {
	body, _ := json.Marshal(req) // fails for no time before the year 10000
	return body
}

// selects reports whether the request is for the message s.
func (req getRequest) selects(s *storedMsg) bool { return req.Seq == 0 || s.seq == req.Seq }

// errNotOnReplica means that the replica that answered does not have the message;
// other replicas may have it.
var errNotOnReplica = errors.New("replica has no such message")

// directBatch reads messages that req selects, in the order of their sequences, from the
// replica that answers first. It returns fewer than req.Batch messages if the replica has
// no more of them or has died. The error is embedded.ErrNoAnswer, nats.ErrNoResponders,
// errNotOnReplica or that of the context.
func (r *Reader) directBatch(ctx context.Context, stream string, req getRequest) ([]storedMsg, error) {
	replies := make(replyQueue, req.Batch+1)
	reply, token := r.local.Reads.Expect(replies, time.Time{}, true)
	defer r.local.Reads.Cancel(token)
	if err := r.local.Reads.Conn.PublishRequest(subjects.APIDirectGet+stream, reply, req.body()); err != nil {
		return nil, err
	}
	var batch []storedMsg
	timer := time.NewTimer(replicaTimeout)
	defer timer.Stop()
	for {
		select {
		case m := <-replies:
			switch embedded.Status(m) {
			case "":
				if s, err := parseStored(m); err == nil {
					batch = append(batch, s)
				}
			case "204": // the end of the batch
				return batch, nil
			case "503":
				return nil, nats.ErrNoResponders
			default:
				return nil, errNotOnReplica
			}
			timer.Reset(batchIdleTimeout)
		case <-timer.C:
			if len(batch) > 0 { // the replica died half-way; what it sent is valid
				return batch, nil
			}
			return nil, embedded.ErrNoAnswer
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Served reports whether any replica of a lane serves reads. One that does not answer within
// replicaTimeout counts: the network may hide it.
func (r *Reader) Served(ctx context.Context, lane uint8) bool {
	_, err := r.directBatch(ctx, subjects.LaneStream(lane), getRequest{Seq: 1, Batch: 1, MaxBytes: maxLaneReadBytes})
	return !errors.Is(err, nats.ErrNoResponders)
}

// replyQueue passes the messages of one batch to the reader, which must make it
// large enough for all of them.
type replyQueue chan *nats.Msg

// Receive implements [embedded.ReplyHandler]. The last reply of a batch has a status.
func (q replyQueue) Receive(m *nats.Msg) bool {
	if m == nil {
		return true
	}
	select {
	case q <- m:
	default:
	}
	return embedded.Status(m) != ""
}

// getDirect reads one message from whichever replica answers. The error is
// errNotOnReplica if that replica does not have the message.
func (r *Reader) getDirect(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	m, err := r.local.Reads.Request(ctx, &nats.Msg{Subject: subjects.APIDirectGet + stream, Data: req.body()}, replicaTimeout)
	if err != nil {
		return storedMsg{}, err
	}
	if embedded.Status(m) != "" {
		return storedMsg{}, errNotOnReplica
	}
	return parseStored(m)
}

// getFromLeader reads one message from the stream's leader. [ErrNotStored] means
// that the message is gone or damaged on the leader's disk; JetStream does not
// distinguish these.
func (r *Reader) getFromLeader(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	var reply struct {
		embedded.APIReply
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := r.local.Reads.RequestAPI(ctx, subjects.APIMsgGet+stream, req.body(), leaderTimeout, &reply)
	if apiErr, ok := errors.AsType[*embedded.APIError](err); ok {
		switch apiErr.ErrCode {
		case embedded.CodeNoMessage:
			return storedMsg{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
		case int(jetstream.JSErrCodeStreamNotFound):
			return storedMsg{}, fmt.Errorf("%s: %w", stream, ErrStreamMissing)
		}
		return storedMsg{}, fmt.Errorf("read from %s: %w", stream, err)
	}
	if err != nil {
		return storedMsg{}, err
	}
	stored := &reply.Message
	s := storedMsg{subject: stored.Subject, seq: stored.Seq, time: stored.Time, data: stored.Data}
	if len(stored.Header) > 0 {
		if s.header, err = nats.DecodeHeadersMsg(stored.Header); err != nil {
			return storedMsg{}, fmt.Errorf("headers of %s %d: %w", stream, s.seq, err)
		}
	}
	return s, nil
}

// getFromAnyReplica reads a message that the leader does not have: if only the
// leader's replica is damaged, another one has it. It asks several times, because a
// random replica answers. The error is [ErrNotStored] if none had it.
func (r *Reader) getFromAnyReplica(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	for i := 0; i < replicaAttempts && r.local.Config.Clustered() && ctx.Err() == nil; i++ {
		s, err := r.getDirect(ctx, stream, req)
		if err == nil && req.selects(&s) {
			return s, nil
		}
	}
	if err := ctx.Err(); err != nil { // the attempts were cut short
		return storedMsg{}, fmt.Errorf("read from %s: %w", stream, err)
	}
	return storedMsg{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
}

// load reads one message and retries until ctx ends: twice from a replica, then
// from the leader, and so on. It stops early only for [ErrNotStored] and
// [ErrStreamMissing].
func (r *Reader) load(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	ctx, cancel := withTimeout(ctx, loadTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		get, fromLeader := r.getDirect, attempt%3 == 2
		if fromLeader {
			get = r.getFromLeader
		}
		s, err := get(ctx, stream, req)
		switch {
		case err == nil && req.selects(&s):
			return s, nil
		case errors.Is(err, ErrNotStored):
			return r.getFromAnyReplica(ctx, stream, req)
		case errors.Is(err, ErrStreamMissing):
			return storedMsg{}, err
		}
		if fromLeader {
			_ = backoff.Sleep(ctx, replicaTimeout)
		}
		if ctx.Err() != nil {
			return storedMsg{}, fmt.Errorf("read from %s: %w (last error: %v)", stream, ctx.Err(), err)
		}
	}
}

// parseStored converts a message of a direct read or of a lane's tail, which carry
// the stored message's properties in headers.
func parseStored(m *nats.Msg) (storedMsg, error) {
	seq, err := strconv.ParseUint(serverHeader(m, subjects.HeaderSequence), 10, 64)
	if err != nil {
		return storedMsg{}, fmt.Errorf("stored message without a sequence header: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, serverHeader(m, subjects.HeaderTime))
	if err != nil {
		return storedMsg{}, fmt.Errorf("stored message %d without a time header: %w", seq, err)
	}
	return storedMsg{subject: serverHeader(m, subjects.HeaderSubject), seq: seq, time: at, header: m.Header, data: m.Data}, nil
}

// serverHeader returns the value that the server has given a header: the last one,
// because it appends to the headers with which a client stored the message. It returns ""
// without the header.
func serverHeader(m *nats.Msg, name string) string {
	values := m.Header[name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
