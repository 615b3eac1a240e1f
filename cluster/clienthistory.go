package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// pullOptions are the options of an ordered consumer's pull requests. In rare
// cases, about once in a hundred reads of a growing stream, the server loses a
// pull request. The client detects that after two missed heartbeats, so the
// heartbeat is 1 s instead of the default 5 s.
var pullOptions = []jetstream.PullMessagesOpt{jetstream.PullExpiry(5 * time.Second), jetstream.PullHeartbeat(time.Second)}

// maxIdle is after what time without requests the server removes an ordered consumer.
const maxIdle = time.Minute

// History calls visit for each stored batch of events since a time, oldest first; the
// zero time means all that are kept. It returns at the end of the stream or, with
// follow, when ctx ends, or when visit returns an error. After a reconnect it continues
// where it was. The bodies of the batches have the contract's form of the events, one per line.
func (c *Client) History(ctx context.Context, since time.Time, follow bool, visit func(streams.Batch) error) error {
	return c.history(ctx, since, follow, func([]byte) bool { return true }, visit)
}

// JobHistory is [Client.History] of the batches that may have events about a job.
func (c *Client) JobHistory(ctx context.Context, id job.ID, since time.Time, follow bool, visit func(streams.Batch) error) error {
	return c.history(ctx, since, follow, func(body []byte) bool { return history.Mentions(body, id) }, visit)
}

// history is [Client.History] of the batches whose stored bodies are selected.
func (c *Client) history(ctx context.Context, since time.Time, follow bool, selects func(body []byte) bool, visit func(streams.Batch) error) error {
	cfg := jetstream.OrderedConsumerConfig{InactiveThreshold: maxIdle}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	return c.readStream(ctx, subjects.StreamEvents, cfg, follow, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (err error) {
		batch := streams.BatchOf(m, meta)
		if !selects(batch.Body) {
			return nil
		}
		if batch.Body, err = history.Expand(batch.Body); err != nil {
			return fmt.Errorf("message %d of %s: %w", batch.Seq, subjects.StreamEvents, err)
		}
		return visit(batch)
	})
}

// FollowLog calls visit for each page of a job's log from a sequence on, until ctx
// ends or visit returns an error.
func (c *Client) FollowLog(ctx context.Context, id job.ID, from uint64, visit func(streams.LogPage) error) error {
	cfg := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjects.LogSubject(id)}, InactiveThreshold: maxIdle,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1),
	}
	return c.readStream(ctx, subjects.StreamLogs, cfg, true, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		return visit(streams.LogPage{Seq: meta.Sequence.Stream, Body: m.Data()})
	})
}

// readStream calls visit for each message of a stream that cfg selects, until visit
// returns an error. With follow it waits for further messages until ctx ends, and then
// returns nil; otherwise it returns at the end of the stream.
func (c *Client) readStream(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig, follow bool,
	visit func(jetstream.Msg, *jetstream.MsgMetadata) error,
) error {
	messages, pending, err := c.openConsumer(ctx, stream, cfg, follow)
	if err != nil {
		return fmt.Errorf("read %s: %w", stream, err)
	}
	defer messages.Stop()
	for follow || pending > 0 {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if follow && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		pending = meta.NumPending
		if err := visit(m, meta); err != nil {
			return err
		}
	}
	return nil
}

// openConsumer opens an ordered consumer of a stream, which detects gaps and reads them
// again. pending is the number of messages ahead, 0 with follow, where it does not
// matter.
func (c *Client) openConsumer(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig, follow bool) (
	messages jetstream.MessagesContext, pending uint64, err error,
) {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	watchCtx, done := c.permissions.watch(ctx, subjects.APIStreams)
	consumer, err := js.OrderedConsumer(watchCtx, stream, cfg)
	err = done(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil, 0, fmt.Errorf("%w: %w", ErrNoNodes, err)
	}
	if err != nil {
		return nil, 0, err
	}
	if !follow {
		info, err := consumer.Info(ctx)
		if err != nil {
			return nil, 0, err
		}
		pending = info.NumPending
	}
	messages, err = consumer.Messages(pullOptions...)
	return messages, pending, err
}
