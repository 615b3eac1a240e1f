package streams

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// LogPage is a group of lines of one job's log that were stored together, each a
// JSON object followed by a line feed.
type LogPage struct {
	Seq  uint64
	Body []byte
}

// Limits of the log stream.
const (
	logPagesPerJob = 1000
	logTimeout     = 2 * time.Second
	logReadBytes   = 1 << 20
)

// logStream returns the configuration of the log stream. Logs are not essential,
// so the oldest are discarded, and on a node that runs alone they are not synced.
func logStream(l Layout) jetstream.StreamConfig {
	c := auxStream(l, subjects.StreamLogs, "logs", "Logs of jobs: some lines of one job per message, one JSON object per line; and the errors of their attempts", subjects.Logs+".*")
	c.MaxAge, c.MaxMsgs = job.DefaultRetention.Age(job.KeptLogs), job.DefaultRetention.Get(job.KeptLogs, job.BoundCount)
	c.MaxBytes, c.MaxMsgsPerSubject = l.LogBytes, logPagesPerJob
	if l.Replicas == 1 {
		c.PersistMode = jetstream.AsyncPersistMode
	}
	return c
}

// ensureLogs creates the log stream if it is missing. An existing yard may lack
// it, because it is older than the log stream or because an operator has removed
// it. The yard works without it.
func (a *Admin) ensureLogs(ctx context.Context, l Layout) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	if _, err := ensureStream(ctx, a.local.JS, logStream(l), true); err != nil {
		a.local.Log.Warn("log stream not available, job logs are not stored", "err", err)
	}
}

// AppendLog stores some lines of a job's log as one message. A message with the same
// name is stored once within 30 s. After an error the lines may be stored or not.
func (w *Writer) AppendLog(ctx context.Context, id job.ID, name string, lines []byte) error {
	return w.appendLog(ctx, subjects.LogSubject(id), name, lines)
}

// appendLog stores a message in the log stream.
func (w *Writer) appendLog(ctx context.Context, subject, name string, data []byte) error {
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{
		subjects.HeaderMsgID: []string{name}, subjects.HeaderExpectName: []string{subjects.StreamLogs},
	}}
	reply, err := w.local.History.Request(ctx, m, logTimeout)
	if err == nil {
		_, err = embedded.ParsePubAck(reply.Data)
	}
	if err != nil {
		return fmt.Errorf("append to %s: %w", subjects.StreamLogs, err)
	}
	return nil
}

// ReadLog reads pages of a job's log from a sequence on, oldest first. An empty
// result means that there are no more yet.
func (r *Reader) ReadLog(ctx context.Context, id job.ID, from uint64) ([]LogPage, error) {
	batches, err := r.readBatches(ctx, subjects.StreamLogs, getRequest{
		Seq: max(from, 1), NextFor: subjects.LogSubject(id), Batch: logPagesPerJob, MaxBytes: logReadBytes,
	})
	if err != nil {
		return nil, err
	}
	pages := make([]LogPage, len(batches))
	for i := range batches {
		pages[i] = LogPage{batches[i].Seq, batches[i].Body}
	}
	return pages, nil
}
