package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// asking is how an ordered consumer is asked for more. Once in some hundred
// readings of a growing stream the server loses a request without a word; it is
// missed after two heartbeats, which the client would take 5 s each for.
var asking = []jetstream.PullMessagesOpt{jetstream.PullExpiry(5 * time.Second), jetstream.PullHeartbeat(time.Second)}

// History calls fn for each tale of the yard's events stored since a moment,
// oldest first; the zero time means all that are kept. It returns at the end
// of what is stored, or, with follow, when ctx ends. An error of fn ends it.
// It goes on where it was when the connection has to be made anew.
func (c *Client) History(ctx context.Context, since time.Time, follow bool, fn func(Tale) error) error {
	tales, pending, err := c.openHistory(ctx, since)
	if err != nil {
		return fmt.Errorf("read %s: %w", StreamEvents, err)
	}
	defer tales.Stop()
	for follow || pending > 0 {
		m, err := tales.Next(jetstream.NextContext(ctx))
		if follow && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", StreamEvents, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read %s: %w", StreamEvents, err)
		}
		pending = meta.NumPending
		told := tale(&stored{
			subject: m.Subject(), seq: meta.Sequence.Stream, time: meta.Timestamp, header: m.Headers(), data: m.Data(),
		})
		if err := fn(told); err != nil {
			return err
		}
	}
	return nil
}

// openHistory begins a reading that JetStream numbers, so that a gap is
// noticed and read again; pending is how much lies ahead.
func (c *Client) openHistory(ctx context.Context, since time.Time) (tales jetstream.MessagesContext, pending uint64, err error) {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, 0, err
	}
	cfg := jetstream.OrderedConsumerConfig{InactiveThreshold: time.Minute}
	if !since.IsZero() {
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	opening, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	watched, done := c.forbidden.watch(opening, apiStreams)
	consumer, err := js.OrderedConsumer(watched, StreamEvents, cfg)
	err = done(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return nil, 0, fmt.Errorf("%w: %w", ErrNobodyAnswers, err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := consumer.Info(opening)
	if err != nil {
		return nil, 0, err
	}
	tales, err = consumer.Messages(asking...)
	return tales, info.NumPending, err
}
