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
)

// pullOptions are the options of an ordered consumer's pull requests. In rare
// cases, about once in a hundred reads of a growing stream, the server loses a
// pull request. The client detects that after two missed heartbeats, so the
// heartbeat is 1 s instead of the default 5 s.
var pullOptions = []jetstream.PullMessagesOpt{jetstream.PullExpiry(5 * time.Second), jetstream.PullHeartbeat(time.Second)}

// History calls fn for each stored batch of events since a time, oldest first; the
// zero time means all that are kept. It returns at the end of the stream or, with
// follow, when ctx ends, or when fn returns an error. It continues where it was
// after a reconnect.
func (c *Client) History(ctx context.Context, since time.Time, follow bool, fn func(streams.Batch) error) error {
	msgs, pending, err := c.openHistory(ctx, since)
	if err != nil {
		return fmt.Errorf("read %s: %w", subjects.StreamEvents, err)
	}
	defer msgs.Stop()
	for follow || pending > 0 {
		m, err := msgs.Next(jetstream.NextContext(ctx))
		if follow && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", subjects.StreamEvents, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read %s: %w", subjects.StreamEvents, err)
		}
		pending = meta.NumPending
		if err := fn(streams.BatchOf(m, meta)); err != nil {
			return err
		}
	}
	return nil
}

// openHistory opens an ordered consumer, which detects gaps and reads them again.
// pending is the number of messages ahead.
func (c *Client) openHistory(ctx context.Context, since time.Time) (msgs jetstream.MessagesContext, pending uint64, err error) {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, 0, err
	}
	cfg := jetstream.OrderedConsumerConfig{InactiveThreshold: time.Minute}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	openCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	watchCtx, done := c.permissions.watch(openCtx, subjects.APIStreams)
	consumer, err := js.OrderedConsumer(watchCtx, subjects.StreamEvents, cfg)
	err = done(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil, 0, fmt.Errorf("%w: %w", ErrNoNodes, err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := consumer.Info(openCtx)
	if err != nil {
		return nil, 0, err
	}
	msgs, err = consumer.Messages(pullOptions...)
	return msgs, info.NumPending, err
}

// FollowLog calls fn for each page of a job's log from a sequence on, until ctx
// ends or fn returns an error.
func (c *Client) FollowLog(ctx context.Context, id job.ID, from uint64, fn func(streams.LogPage) error) error {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	openCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	watchCtx, done := c.permissions.watch(openCtx, subjects.APIStreams)
	consumer, err := js.OrderedConsumer(watchCtx, subjects.StreamLogs, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjects.LogSubject(id)}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1),
		InactiveThreshold: time.Minute,
	})
	err = done(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: %w", ErrNoNodes, err)
	}
	if err != nil {
		return fmt.Errorf("follow %s: %w", subjects.StreamLogs, err)
	}
	pages, err := consumer.Messages(pullOptions...)
	if err != nil {
		return fmt.Errorf("follow %s: %w", subjects.StreamLogs, err)
	}
	defer pages.Stop()
	for {
		m, err := pages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow %s: %w", subjects.StreamLogs, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("follow %s: %w", subjects.StreamLogs, err)
		}
		if err := fn(streams.LogPage{Seq: meta.Sequence.Stream, Body: m.Data()}); err != nil {
			return err
		}
	}
}
