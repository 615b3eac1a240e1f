package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	eventhistory "github.com/yardmaster-dev/yardmaster/ledger/history"
)

// history reads the events and dead letters of a cluster while they are written, as any
// consumer would, and reports the ends of jobs to a table.
type history struct {
	table    *jobTable
	expected func(n int) bool // reports whether job n is to fail

	events    atomic.Uint64 // number of the last event
	missing   atomic.Uint64 // events that were removed before they were read
	letters   atomic.Uint64
	lettersIn atomic.Uint64 // sequence of the last dead letter
	eventsIn  atomic.Uint64 // sequence of the last message of events
}

// run reads both streams until ctx ends.
func (h *history) run(ctx context.Context, js jetstream.JetStream, stream string) {
	last := &h.lettersIn
	visit := h.visitLetter
	if stream == subjects.StreamEvents {
		last, visit = &h.eventsIn, h.visitEvents
	}
	for ctx.Err() == nil {
		// An error means that the stream has no leader, or that the connection was lost.
		_ = readFrom(ctx, js, stream, last.Load()+1, func(m jetstream.Msg, seq uint64) {
			visit(m)
			last.Store(seq)
		})
		_ = backoff.Sleep(ctx, 200*time.Millisecond) // the loop checks ctx
	}
}

// readFrom calls visit for each message of a stream from a sequence on, until an error
// occurs or ctx ends.
func readFrom(ctx context.Context, js jetstream.JetStream, stream string, from uint64, visit func(m jetstream.Msg, seq uint64)) error {
	opening, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := js.OrderedConsumer(opening, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullExpiry(5*time.Second), jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		visit(m, meta.Sequence.Stream)
	}
}

// visitEvents reads a message of YARD_EVENTS.
func (h *history) visitEvents(m jetstream.Msg) {
	lines, err := eventhistory.Expand(m.Data())
	if err != nil {
		h.table.flaw("history has a malformed message: %v", err)
	}
	for line := range bytes.Lines(lines) {
		var e struct {
			Event   string
			Request string `json:"request_id"`
			Seq     uint64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			h.table.flaw("history has a malformed line %q", line)
			continue
		}
		switch last := h.events.Load(); {
		case last > 0 && e.Seq <= last:
			h.table.flaw("history has event %d after event %d", e.Seq, last)
		case last > 0:
			h.missing.Add(e.Seq - last - 1)
		}
		h.events.Store(e.Seq)
		if e.Event != "DispatchDelivered" && e.Event != "DispatchFailed" {
			continue
		}
		if id, n, valid := job.ParseRequestID(e.Request); valid {
			h.table.dispatchEnded(id, n, e.Event == "DispatchDelivered")
		}
	}
}

// visitLetter reads a message of YARD_DLQ.
func (h *history) visitLetter(m jetstream.Msg) {
	var letter api.DeadLetterMessage
	if err := json.Unmarshal(m.Data(), &letter); err != nil {
		h.table.flaw("a dead letter is malformed: %v", err)
		return
	}
	h.letters.Add(1)
	id, err := job.ParseID(letter.ID)
	if err != nil {
		h.table.flaw("a dead letter names the job %q", letter.ID)
		return
	}
	h.table.died(id, letter.Reason, h.expected)
}

// connect returns a connection to any of the nodes, which is kept as long as one runs.
func connect(urls string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(urls, nats.Name("soak"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.Timeout(2*time.Second), nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// Stream is the state of a stream at one time.
type Stream struct {
	Name     string        `json:"name"`
	Messages uint64        `json:"messages"`
	Bytes    uint64        `json:"bytes"`
	Last     uint64        `json:"last"` // sequence
	MaxBytes int64         `json:"max_bytes"`
	MaxMsgs  int64         `json:"max_messages"`
	MaxAge   time.Duration `json:"max_age_ns"`
}

// listStreams returns the streams of the cluster by name.
func listStreams(ctx context.Context, js jetstream.JetStream) (map[string]Stream, error) {
	list := js.ListStreams(ctx)
	streams := make(map[string]Stream)
	for info := range list.Info() {
		c, s := &info.Config, &info.State
		streams[c.Name] = Stream{c.Name, s.Msgs, s.Bytes, s.LastSeq, c.MaxBytes, c.MaxMsgs, c.MaxAge}
	}
	return streams, list.Err()
}
