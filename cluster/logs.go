package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/job"
)

// LogPage is some lines of one job's log that were stored together, each a
// JSON object and a line feed.
type LogPage struct {
	Seq  uint64
	Body []byte
}

// LogSubject is where the log of a job is kept.
func LogSubject(id job.ID) string { return subjectLogs + "." + id.String() }

// Bounds of the stream of logs.
const (
	logAge         = 24 * time.Hour
	logPagesPerJob = 1000
	logPages       = 250_000 // so that the index of their subjects stays small
	logAnswer      = 2 * time.Second
	logReadBytes   = 1 << 20
)

// logStream is the stream of the jobs' logs. Nothing that matters to the yard
// is in it, so it pushes out what is old, and alone it need not be synced.
func logStream(l Layout) jetstream.StreamConfig {
	c := historyStream(l, StreamLogs, "logs", "What jobs say: some lines of one job in a message, one JSON object per line", subjectLogs+".*")
	c.MaxAge, c.MaxBytes, c.MaxMsgs, c.MaxMsgsPerSubject = logAge, l.LogBytes, logPages, logPagesPerJob
	if l.Replicas == 1 {
		c.PersistMode = jetstream.AsyncPersistMode
	}
	return c
}

// ensureLogs makes the stream of logs where it is missing, also in a yard that
// has all others: it was made before there were logs, or by an operator's
// hand. A yard works without it.
func (c *Cluster) ensureLogs(ctx context.Context, l Layout) {
	ctx, cancel := context.WithTimeout(ctx, logAnswer)
	defer cancel()
	if _, err := c.ensureStream(ctx, logStream(l), true); err != nil {
		c.log.Warn("jobs' logs are not kept for now", "error", err)
	}
}

// AppendLog stores some lines of a job's log. The same name within 30 s is
// stored once. The error says that they may not be stored.
func (c *Cluster) AppendLog(ctx context.Context, id job.ID, name string, lines []byte) error {
	m := &nats.Msg{Subject: LogSubject(id), Data: lines, Header: nats.Header{
		HeaderMsgID: []string{name}, headerExpectName: []string{StreamLogs},
	}}
	answer, err := c.history.ask(ctx, m, logAnswer)
	if err == nil {
		_, err = parsePubAck(answer.Data)
	}
	if err != nil {
		return fmt.Errorf("append to %s: %w", StreamLogs, err)
	}
	return nil
}

// ReadLog reads some pages of a job's log from a sequence on, oldest first;
// none: there are no more yet.
func (c *Cluster) ReadLog(ctx context.Context, id job.ID, from uint64) ([]LogPage, error) {
	tales, err := c.readTales(ctx, StreamLogs, getRequest{Seq: max(from, 1), NextFor: LogSubject(id), Batch: logPagesPerJob, MaxBytes: logReadBytes})
	if err != nil {
		return nil, err
	}
	pages := make([]LogPage, len(tales))
	for i := range tales {
		pages[i] = LogPage{tales[i].Seq, tales[i].Body}
	}
	return pages, nil
}

// FollowLog calls fn for each page of a job's log from a sequence on, until ctx
// ends.
func (c *Client) FollowLog(ctx context.Context, id job.ID, from uint64, fn func(LogPage) error) error {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	watched, done := c.forbidden.watch(opening, apiStreams)
	consumer, err := js.OrderedConsumer(watched, StreamLogs, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{LogSubject(id)}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1),
		InactiveThreshold: time.Minute,
	})
	err = done(err)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: %w", ErrNobodyAnswers, err)
	}
	if err != nil {
		return fmt.Errorf("follow %s: %w", StreamLogs, err)
	}
	pages, err := consumer.Messages(asking...)
	if err != nil {
		return fmt.Errorf("follow %s: %w", StreamLogs, err)
	}
	defer pages.Stop()
	for {
		m, err := pages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow %s: %w", StreamLogs, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("follow %s: %w", StreamLogs, err)
		}
		if err := fn(LogPage{meta.Sequence.Stream, m.Data()}); err != nil {
			return err
		}
	}
}
