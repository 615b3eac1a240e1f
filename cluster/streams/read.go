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
)

// ErrNotStored means that neither the stream's leader nor any replica has the
// message.
var ErrNotStored = errors.New("message is not stored")

// Reader reads what the cluster's streams hold. Its methods may be called
// concurrently.
type Reader struct{ local *embedded.Server }

// NewReader returns a reader over l's connections.
func NewReader(l *embedded.Server) *Reader { return &Reader{l} }

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
	Seq      uint64 `json:"seq,omitempty"`
	LastFor  string `json:"last_by_subj,omitempty"`
	NextFor  string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`

	Since *time.Time `json:"start_time,omitempty"`
}

// errNotOnReplica means that the replica that answered does not have the message;
// other replicas may have it.
var errNotOnReplica = errors.New("replica has no such message")

// directBatch reads consecutive messages from whichever replica answers. The error
// is ErrNoAnswer, nats.ErrNoResponders, errNotOnReplica or that of the context.
func (r *Reader) directBatch(ctx context.Context, stream string, req getRequest) ([]storedMsg, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	replies := make(replyQueue, req.Batch+1)
	reply, token := r.local.Reads.Expect(replies, time.Time{}, true)
	defer r.local.Reads.Cancel(token)
	if err := r.local.Reads.Conn.PublishMsg(&nats.Msg{Subject: subjects.APIDirectGet + stream, Reply: reply, Data: body}); err != nil {
		return nil, err
	}
	var got []storedMsg
	timer := time.NewTimer(replicaTimeout)
	defer timer.Stop()
	for {
		select {
		case m := <-replies:
			switch embedded.Status(m) {
			case "":
				if s, err := parseStored(m); err == nil {
					got = append(got, s)
				}
			case "204":
				return got, nil
			case "503":
				return nil, nats.ErrNoResponders
			default:
				return nil, errNotOnReplica
			}
			timer.Reset(batchIdleTimeout)
		case <-timer.C:
			if len(got) > 0 { // the replica died half-way; what it sent is valid
				return got, nil
			}
			return nil, embedded.ErrNoAnswer
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// replyQueue passes the messages of one batch to the reader, which must make it
// large enough for all of them.
type replyQueue chan *nats.Msg

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

// getDirect reads one message from whichever replica answers.
func (r *Reader) getDirect(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return storedMsg{}, err
	}
	m, err := r.local.Reads.Request(ctx, &nats.Msg{Subject: subjects.APIDirectGet + stream, Data: body}, replicaTimeout)
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
	body, err := json.Marshal(req)
	if err != nil {
		return storedMsg{}, err
	}
	m, err := r.local.Reads.Request(ctx, &nats.Msg{Subject: subjects.APIMsgGet + stream, Data: body}, leaderTimeout)
	if err != nil {
		return storedMsg{}, err
	}
	var reply struct {
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *embedded.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return storedMsg{}, fmt.Errorf("malformed reply of the leader of %s: %w", stream, err)
	}
	if reply.Error != nil && reply.Error.ErrCode == embedded.CodeNoMessage {
		return storedMsg{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
	}
	if reply.Error != nil && reply.Error.ErrCode == int(jetstream.JSErrCodeStreamNotFound) {
		return storedMsg{}, fmt.Errorf("%s: %w", stream, ErrStreamMissing)
	}
	if reply.Error != nil || reply.Message == nil {
		return storedMsg{}, fmt.Errorf("read from %s: %w", stream, reply.Error)
	}
	s := storedMsg{subject: reply.Message.Subject, seq: reply.Message.Seq, time: reply.Message.Time, data: reply.Message.Data}
	if len(reply.Message.Header) > 0 {
		if s.header, err = nats.DecodeHeadersMsg(reply.Message.Header); err != nil {
			return storedMsg{}, fmt.Errorf("headers of %s %d: %w", stream, s.seq, err)
		}
	}
	return s, nil
}

// getFromAnyReplica reads a message that the leader does not have: if only the
// leader's replica is damaged, another one has it.
func (r *Reader) getFromAnyReplica(ctx context.Context, stream string, req getRequest) (storedMsg, error) {
	for i := 0; i < replicaAttempts && r.local.Config.Clustered() && ctx.Err() == nil; i++ {
		s, err := r.getDirect(ctx, stream, req)
		if err == nil && (req.Seq == 0 || s.seq == req.Seq) {
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
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, loadTimeout)
		defer cancel()
	}
	var lastErr error
	for attempt := 0; ; attempt++ {
		var s storedMsg
		if attempt%3 == 2 {
			s, lastErr = r.getFromLeader(ctx, stream, req)
		} else {
			s, lastErr = r.getDirect(ctx, stream, req)
		}
		if lastErr == nil && (req.Seq == 0 || s.seq == req.Seq) {
			return s, nil
		}
		switch {
		case errors.Is(lastErr, ErrNotStored):
			return r.getFromAnyReplica(ctx, stream, req)
		case errors.Is(lastErr, ErrStreamMissing):
			return storedMsg{}, lastErr
		}
		if attempt%3 == 2 {
			_ = backoff.Sleep(ctx, replicaTimeout)
		}
		if err := ctx.Err(); err != nil {
			return storedMsg{}, fmt.Errorf("read from %s: %w (last error: %v)", stream, err, lastErr)
		}
	}
}

// parseStored converts a message of a direct read or of a lane's tail, which carry
// the stored message's properties in headers.
func parseStored(m *nats.Msg) (storedMsg, error) {
	seq, err := strconv.ParseUint(m.Header.Get(subjects.HeaderSequence), 10, 64)
	if err != nil {
		return storedMsg{}, fmt.Errorf("stored message without a sequence header: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(subjects.HeaderTime))
	if err != nil {
		return storedMsg{}, fmt.Errorf("stored message %d without a time header: %w", seq, err)
	}
	return storedMsg{subject: m.Header.Get(subjects.HeaderSubject), seq: seq, time: at, header: m.Header, data: m.Data}, nil
}
