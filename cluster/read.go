package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Waits of a read.
const (
	replicaAnswer = 50 * time.Millisecond // for the first message; then another replica is asked
	replicaPause  = time.Second           // between two messages of a batch
	leaderAnswer  = time.Second
	loadPatience  = 10 * time.Second // of a read whose context has no deadline
	replicaTries  = 12               // at replicas, each of which answers by chance, for what the leader does not have
	maxRead       = 4096             // messages
	maxReadBytes  = 8 << 20
)

// ErrNotStored: the stream's leader says that there is no such message, and no
// replica has it.
var ErrNotStored = errors.New("message is not stored")

// stored is a message as a stream keeps it.
type stored struct {
	subject string
	seq     uint64
	time    time.Time
	header  nats.Header
	data    []byte
}

// getRequest asks for stored messages, in JetStream's words.
type getRequest struct {
	Seq      uint64 `json:"seq,omitempty"`
	LastFor  string `json:"last_by_subj,omitempty"`
	NextFor  string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`

	Since *time.Time `json:"start_time,omitempty"`
}

// errUnknownHere: the replica that was asked has no such message, which says
// little.
var errUnknownHere = errors.New("replica has no such message")

// directBatch asks one replica, whichever hears it, for a run of messages. The
// error is errNoAnswer, errNoResponders, errUnknownHere or the context's.
func (c *Cluster) directBatch(ctx context.Context, stream string, req getRequest) ([]stored, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	run := make(batchRun, req.Batch+1)
	reply, token := c.reads.expect(run, time.Time{}, true)
	defer c.reads.forget(token)
	if err := c.reads.nc.PublishMsg(&nats.Msg{Subject: apiDirectGet + stream, Reply: reply, Data: body}); err != nil {
		return nil, err
	}
	var got []stored
	timer := time.NewTimer(replicaAnswer)
	defer timer.Stop()
	for {
		select {
		case m := <-run:
			switch status(m) {
			case "":
				if s, err := parseStored(m); err == nil {
					got = append(got, s)
				}
			case "204":
				return got, nil
			case "503":
				return nil, errNoResponders
			default:
				return nil, errUnknownHere
			}
			timer.Reset(replicaPause)
		case <-timer.C:
			if len(got) > 0 { // the replica died half-way: what came is good
				return got, nil
			}
			return nil, errNoAnswer
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// batchRun carries the messages of one batch to the reader, who has made it
// large enough.
type batchRun chan *nats.Msg

func (r batchRun) heard(m *nats.Msg) bool {
	if m == nil {
		return true
	}
	select {
	case r <- m:
	default:
	}
	return status(m) != ""
}

// directOne asks one replica for one message.
func (c *Cluster) directOne(ctx context.Context, stream string, req getRequest) (stored, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return stored{}, err
	}
	m, err := c.reads.ask(ctx, &nats.Msg{Subject: apiDirectGet + stream, Data: body}, replicaAnswer)
	if err != nil {
		return stored{}, err
	}
	if status(m) != "" {
		return stored{}, errUnknownHere
	}
	return parseStored(m)
}

// leaderOne asks the stream's leader. Its [ErrNotStored] is of a message that is gone,
// or that its own disk has spoiled: JetStream does not tell these apart.
func (c *Cluster) leaderOne(ctx context.Context, stream string, req getRequest) (stored, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return stored{}, err
	}
	m, err := c.reads.ask(ctx, &nats.Msg{Subject: apiMsgGet + stream, Data: body}, leaderAnswer)
	if err != nil {
		return stored{}, err
	}
	var answer struct {
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return stored{}, fmt.Errorf("answer of %s's leader is not readable: %w", stream, err)
	}
	if answer.Error != nil && answer.Error.ErrCode == codeNoMessage {
		return stored{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
	}
	if answer.Error != nil && answer.Error.ErrCode == int(jetstream.JSErrCodeStreamNotFound) {
		return stored{}, fmt.Errorf("%s: %w", stream, ErrStreamMissing)
	}
	if answer.Error != nil || answer.Message == nil {
		return stored{}, fmt.Errorf("read from %s: %w", stream, answer.Error)
	}
	s := stored{subject: answer.Message.Subject, seq: answer.Message.Seq, time: answer.Message.Time, data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		if s.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return stored{}, fmt.Errorf("headers of %s %d: %w", stream, s.seq, err)
		}
	}
	return s, nil
}

// anyReplica looks for a message that the leader says is not stored: if only the
// leader's copy is damaged, another has it.
func (c *Cluster) anyReplica(ctx context.Context, stream string, req getRequest) (stored, error) {
	for try := 0; try < replicaTries && c.cfg.clustered() && ctx.Err() == nil; try++ {
		s, err := c.directOne(ctx, stream, req)
		if err == nil && (req.Seq == 0 || s.seq == req.Seq) {
			return s, nil
		}
	}
	if err := ctx.Err(); err != nil { // not all were asked
		return stored{}, fmt.Errorf("read from %s: %w", stream, err)
	}
	return stored{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
}

// load reads one message with patience: two replicas, then the leader, and
// again until the context ends. Only "not stored" stops it earlier, or JetStream's
// word that there is no such stream.
func (c *Cluster) load(ctx context.Context, stream string, req getRequest) (stored, error) {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, loadPatience)
		defer cancel()
	}
	var last error
	for try := 0; ; try++ {
		var s stored
		if try%3 == 2 {
			s, last = c.leaderOne(ctx, stream, req)
		} else {
			s, last = c.directOne(ctx, stream, req)
		}
		if last == nil && (req.Seq == 0 || s.seq == req.Seq) {
			return s, nil
		}
		switch {
		case errors.Is(last, ErrNotStored):
			return c.anyReplica(ctx, stream, req)
		case errors.Is(last, ErrStreamMissing):
			return stored{}, last
		}
		if try%3 == 2 {
			pause(ctx, replicaAnswer)
		}
		if err := ctx.Err(); err != nil {
			return stored{}, fmt.Errorf("read from %s: %w (last: %v)", stream, err, last)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// parseStored reads what direct gets and the tail put into headers.
func parseStored(m *nats.Msg) (stored, error) {
	seq, err := strconv.ParseUint(m.Header.Get(headerSequence), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("stored message names no sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerTime))
	if err != nil {
		return stored{}, fmt.Errorf("stored message %d names no time: %w", seq, err)
	}
	return stored{subject: m.Header.Get(headerSubject), seq: seq, time: at, header: m.Header, data: m.Data}, nil
}
