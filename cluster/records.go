package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// GapError: a lane has no record From although it has later ones. Either what
// was there has been reclaimed (First is beyond it), or it is damage.
type GapError struct {
	Lane              uint8
	From, First, Last uint64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("lane %d has no record %d; it holds %d to %d", e.Lane, e.From, e.First, e.Last)
}

// Reclaimed tells a gap that a purge made from damage.
func (e *GapError) Reclaimed() bool { return e.From < e.First }

// Read returns records of a lane from a sequence number on, at most limit (and
// never more than 4096), without a gap. None and no error: the replica that
// answered has nothing there yet; read again. It never blocks for longer than
// a second or so.
func (c *Cluster) Read(ctx context.Context, lane uint8, from uint64, limit int) ([]job.Record, error) {
	req := getRequest{Seq: from, Batch: min(maxRead, max(limit, 1)), MaxBytes: maxReadBytes}
	stream := LaneStream(lane)
	for range 2 {
		got, err := c.directBatch(ctx, stream, req)
		switch {
		case err == nil && len(got) > 0 && got[0].seq == from:
			return contiguous(lane, from, got), nil
		case err == nil && len(got) > 0:
			return c.readAtGap(ctx, lane, from)
		case err == nil, errors.Is(err, errUnknownHere):
			return nil, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
	s, err := c.leaderOne(ctx, stream, getRequest{Seq: from})
	switch {
	case errors.Is(err, ErrNotStored):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read lane %d from %d: %w", lane, from, err)
	}
	return contiguous(lane, from, []stored{s}), nil
}

// readAtGap asks the leader, and then all, about a record that a replica does not have
// but should: the replica may be damaged, the lane may be purged to there, or the
// record is gone everywhere.
func (c *Cluster) readAtGap(ctx context.Context, lane uint8, from uint64) ([]job.Record, error) {
	s, err := c.leaderOne(ctx, LaneStream(lane), getRequest{Seq: from})
	if errors.Is(err, ErrNotStored) {
		s, err = c.anyReplica(ctx, LaneStream(lane), getRequest{Seq: from})
	}
	if err == nil {
		return contiguous(lane, from, []stored{s}), nil
	}
	if !errors.Is(err, ErrNotStored) {
		return nil, fmt.Errorf("read lane %d from %d: %w", lane, from, err)
	}
	info, err := c.LaneInfo(ctx, lane)
	if err != nil {
		return nil, err
	}
	return nil, &GapError{Lane: lane, From: from, First: info.First, Last: info.Last}
}

// contiguous makes records of the run that begins at from.
func contiguous(lane uint8, from uint64, got []stored) []job.Record {
	records := make([]job.Record, 0, len(got))
	for i := range got {
		if got[i].seq != from+uint64(i) {
			break
		}
		records = append(records, record(lane, &got[i]))
	}
	return records
}

// record reads a stored message. The time a node gives counts only on the
// subjects that nodes alone may use.
func record(lane uint8, s *stored) job.Record {
	_, kind, queue, ok := parseLaneSubject(s.subject)
	if !ok {
		queue = s.subject // fails the queue's own check: it ends as a dead letter
	}
	r := job.Record{
		Position: job.Position{Lane: lane, Seq: s.seq},
		Queue:    queue, Key: s.header.Get(HeaderMsgID), Stored: s.time, Body: s.data,
	}
	if kind == plainPublish {
		r.Body, r.Bad = job.WithHeaders(r.Body, producerHeaders(s.header.Get))
	}
	if kind == nodePublish {
		if at, err := strconv.ParseInt(s.header.Get(HeaderAt), 10, 64); err == nil {
			r.Stored = time.Unix(0, at)
		}
	}
	return r
}

// producerHeaders is what a message says beside its body. Propagators that
// write HTTP's headers spell those of a trace with a capital.
func producerHeaders(get func(string) string) job.Headers {
	return job.Headers{
		Delay:       get(HeaderDelay),
		Traceparent: cmp.Or(get("traceparent"), get("Traceparent")),
		Tracestate:  cmp.Or(get("tracestate"), get("Tracestate")),
	}
}

// LoadRecord reads one record, with patience. [ErrNotStored] is the leader's
// word that it is gone.
func (c *Cluster) LoadRecord(ctx context.Context, at job.Position) (job.Record, error) {
	s, err := c.load(ctx, LaneStream(at.Lane), getRequest{Seq: at.Seq})
	if err != nil {
		return job.Record{}, fmt.Errorf("load record %d@%d: %w", at.Lane, at.Seq, err)
	}
	return record(at.Lane, &s), nil
}

// Load reads a job's body: that of its own record, or of the blob it points to. See
// [Cluster.LoadOwn].
func (c *Cluster) Load(ctx context.Context, at job.Position, id job.ID, identity string) ([]byte, error) {
	r, err := c.LoadOwn(ctx, at, id, identity)
	if err != nil {
		return nil, err
	}
	return c.resolve(ctx, r.Body)
}

// resolve follows a body to its blob. Few have one, so the word is looked for
// first.
func (c *Cluster) resolve(ctx context.Context, body []byte) ([]byte, error) {
	if !bytes.Contains(body, []byte(`"blob"`)) {
		return body, nil
	}
	var outer struct {
		Blob *job.Blob `json:"blob"`
	}
	if json.Unmarshal(body, &outer) != nil || outer.Blob == nil {
		return body, nil
	}
	return c.LoadBlob(ctx, *outer.Blob)
}

// Tail calls fn for each record that plain publishers store, as it is stored
// and as far as it is heard: some may be missing and have to be read. It
// returns when ctx ends and the last call of fn has returned.
func (c *Cluster) Tail(ctx context.Context, fn func(job.Record)) error {
	return c.listen(ctx, c.reads.nc, subjectTail+".>", func(m *nats.Msg) {
		lane, _, _, ok := parseLaneSubject(m.Subject)
		s, err := parseStored(m)
		if !ok || err != nil {
			return
		}
		s.subject = m.Subject
		fn(record(lane, &s))
	})
}

// listen subscribes until ctx ends and waits for the last call.
func (c *Cluster) listen(ctx context.Context, nc *nats.Conn, subject string, fn nats.MsgHandler) error {
	sub, err := nc.Subscribe(subject, fn)
	if err != nil {
		return fmt.Errorf("listen to %s: %w", subject, err)
	}
	<-ctx.Done()
	return settle(sub)
}

// settle ends a subscription and waits until its last call has returned.
func settle(subs ...*nats.Subscription) error {
	for _, sub := range subs {
		ended := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(ended) })
		if err := sub.Unsubscribe(); err != nil {
			if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
				continue // it has ended with its connection
			}
			return err
		}
		<-ended
	}
	return nil
}

// Purge frees the lane's records below seq. It never frees the last record:
// beyond the lane's end a purge would move the lane's numbering forward.
func (c *Cluster) Purge(ctx context.Context, lane uint8, seq uint64) error {
	name := LaneStream(lane)
	info, err := c.streamInfo(ctx, name)
	if err != nil {
		return err
	}
	seq = min(seq, info.State.LastSeq)
	if seq <= info.State.FirstSeq {
		return nil
	}
	return c.purge(ctx, name, jetstream.WithPurgeSequence(seq))
}

func (c *Cluster) purge(ctx context.Context, name string, opts ...jetstream.StreamPurgeOpt) error {
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", name, err)
	}
	if err := stream.Purge(ctx, opts...); err != nil {
		return fmt.Errorf("purge stream %s: %w", name, err)
	}
	return nil
}
