package streams

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// GapError means that a lane has no record From although it has later ones. Either
// the record was reclaimed, if From is less than First, or the lane is damaged.
type GapError struct {
	Lane              uint8
	From, First, Last uint64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("lane %d has no record %d; it holds %d to %d", e.Lane, e.From, e.First, e.Last)
}

// ErrStreamMismatch means that a lane's stream is not the one recorded in the
// ledger.
var ErrStreamMismatch = errors.New("the lane's stream is not the one recorded in the ledger")

// Read returns the records of consecutive messages of a lane that begin with the sequence
// from, of at most limit messages and at most 4096. It returns none, and no error, if the
// replica that answered has no such message yet; read again then. It blocks for about a second
// at most.
func (r *Reader) Read(ctx context.Context, lane uint8, from uint64, limit int) ([]job.Record, error) {
	req := getRequest{Seq: from, Batch: min(maxRead, max(limit, 1)), MaxBytes: maxLaneReadBytes}
	stream := subjects.LaneStream(lane)
	for range 2 {
		messages, err := r.directBatch(ctx, stream, req)
		switch {
		case err == nil && len(messages) > 0 && messages[0].seq == from:
			return contiguous(lane, from, messages), nil
		case err == nil && len(messages) > 0:
			return r.readAtGap(ctx, lane, from)
		case err == nil, errors.Is(err, errNotOnReplica):
			return nil, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
	s, err := r.getFromLeader(ctx, stream, getRequest{Seq: from})
	switch {
	case errors.Is(err, ErrNotStored):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read lane %d from %d: %w", lane, from, err)
	}
	return contiguous(lane, from, []storedMsg{s}), nil
}

// readAtGap reads a record that one replica should have but lacks, from the leader
// and then from all replicas. The replica may be damaged, the lane may have been
// purged beyond the record, or the record may be lost.
func (r *Reader) readAtGap(ctx context.Context, lane uint8, from uint64) ([]job.Record, error) {
	s, err := r.getFromLeader(ctx, subjects.LaneStream(lane), getRequest{Seq: from})
	if errors.Is(err, ErrNotStored) {
		s, err = r.getFromAnyReplica(ctx, subjects.LaneStream(lane), getRequest{Seq: from})
	}
	if err == nil {
		return contiguous(lane, from, []storedMsg{s}), nil
	}
	if !errors.Is(err, ErrNotStored) {
		return nil, fmt.Errorf("read lane %d from %d: %w", lane, from, err)
	}
	info, err := r.LaneInfo(ctx, lane)
	if err != nil {
		return nil, err
	}
	return nil, &GapError{Lane: lane, From: from, First: info.First, Last: info.Last}
}

// contiguous converts messages of a lane to records, up to the first gap in their
// sequences. The first message must have the sequence from.
func contiguous(lane uint8, from uint64, messages []storedMsg) []job.Record {
	records := make([]job.Record, 0, len(messages))
	for i := range messages {
		if messages[i].seq != from+uint64(i) {
			break
		}
		records = append(records, toRecords(lane, &messages[i])...)
	}
	return records
}

// toRecords converts a stored message of a lane to its records.
func toRecords(lane uint8, s *storedMsg) []job.Record {
	if _, kind, queue, ok := subjects.ParseLaneSubject(s.subject); ok && kind == subjects.NodePublish && queue == subjects.PackedQueue {
		return job.Unpack(s.data, lane, s.seq, s.time)
	}
	return []job.Record{toRecord(lane, s)}
}

// toRecord converts a stored message of a lane that holds one record. A job that a client has
// published straight to the lane is checked here, because no node has checked it; see
// [job.ReadDirect]. A job that a node has published has in a header the time at which that node
// accepted it, which replaces the time at which the stream stored it; clients, which may not
// publish to such a subject, cannot set it.
func toRecord(lane uint8, s *storedMsg) job.Record {
	if lane == job.RelocatedLane {
		return toRelocatedRecord(s)
	}
	_, kind, queue, ok := subjects.ParseLaneSubject(s.subject)
	if !ok {
		queue = s.subject // an invalid queue name: the job becomes a dead letter
	}
	r := job.Record{
		Position: job.Position{Lane: lane, Seq: s.seq},
		Queue:    queue, Key: s.header.Get(subjects.HeaderMsgID), Stored: s.time, Body: s.data, Last: true,
	}
	if kind == subjects.DirectPublish {
		r.Body, r.Key, r.Invalid = job.ReadDirect(r.Queue, r.Key, r.Body, ProducerHeaders(s.header.Get))
	}
	if kind == subjects.NodePublish {
		if at, err := strconv.ParseInt(s.header.Get(subjects.HeaderAt), 10, 64); err == nil {
			r.Stored = time.Unix(0, at)
		}
	}
	return r
}

// ProducerHeaderNames are the names of the headers that [ProducerHeaders] reads.
var ProducerHeaderNames = []string{subjects.HeaderDelay, "traceparent", "Traceparent", "tracestate", "Tracestate"}

// ProducerHeaders returns the headers that belong to a job; get returns a header by its
// name, "" if it is missing. Trace propagators that write HTTP headers capitalize
// theirs.
func ProducerHeaders(get func(string) string) job.Headers {
	return job.Headers{
		Delay:       get(subjects.HeaderDelay),
		Traceparent: cmp.Or(get("traceparent"), get("Traceparent")),
		Tracestate:  cmp.Or(get("tracestate"), get("Tracestate")),
	}
}

// LoadRecord reads one record and retries until ctx ends. The body has the producer's key,
// see [job.KeyOf]: a client that publishes straight to a lane gives it in a header. The error
// is [ErrNotStored] if the record is gone, or if the position is not known: its sequence is 0.
func (r *Reader) LoadRecord(ctx context.Context, at job.Position) (job.Record, error) {
	if at.Seq == 0 {
		return job.Record{}, fmt.Errorf("load a record whose position is not known: %w", ErrNotStored)
	}
	records, err := r.loadMessage(ctx, at)
	if err == nil && int(at.Index) >= len(records) {
		err = ErrNotStored
	}
	if err != nil {
		return job.Record{}, fmt.Errorf("load the record at %s: %w", at, err)
	}
	return records[at.Index], nil
}

// ReloadRecord is [Reader.LoadRecord], but reads the record although it may have been read before.
func (r *Reader) ReloadRecord(ctx context.Context, at job.Position) (job.Record, error) {
	r.packed.forget(at)
	return r.LoadRecord(ctx, at)
}

// loadMessage reads the message that holds the record at a position, and returns its records.
func (r *Reader) loadMessage(ctx context.Context, at job.Position) ([]job.Record, error) {
	at.Index = 0
	return r.packed.load(ctx, at, func() ([]job.Record, error) {
		s, err := r.load(ctx, subjects.LaneStream(at.Lane), getRequest{Seq: at.Seq})
		if err != nil {
			return nil, err
		}
		records := toRecords(at.Lane, &s)
		if _, kind, _, ok := subjects.ParseLaneSubject(s.subject); ok && kind == subjects.DirectPublish && json.Valid(records[0].Body) {
			records[0].Body = job.WithKey(records[0].Body, records[0].Key)
		}
		return records, nil
	})
}

// Load reads the body of a job, from its own record or from the blob that the
// record refers to. See [Reader.LoadVerified].
func (r *Reader) Load(ctx context.Context, at job.Position, id job.ID, identity string) ([]byte, error) {
	record, err := r.LoadVerified(ctx, at, id, identity)
	if err != nil {
		return nil, err
	}
	return r.LoadRecordBody(ctx, record.Body)
}

// LoadVerified reads the record of a job and verifies that it is the one the job
// was created from, given the identity of its lane. The error is [ErrNotStored] if
// the lane has no such record, and [ErrStreamMismatch] if the lane's stream is
// another one. See also [Reader.LoadRecord].
func (r *Reader) LoadVerified(ctx context.Context, at job.Position, id job.ID, identity string) (job.Record, error) {
	record, err := r.LoadRecord(ctx, at)
	if (errors.Is(err, ErrNotStored) || err == nil && !record.Matches(id, identity)) && r.packed.forget(at) {
		record, err = r.LoadRecord(ctx, at) // the message was kept before the stream was replaced
	}
	if err == nil && record.Matches(id, identity) {
		return record, nil
	}
	if err != nil && !errors.Is(err, ErrNotStored) {
		return record, err
	}
	// The record is missing or does not match. It may also be a later record that
	// debounced the job: that one counts if the lane is the same.
	if at.Relocated() {
		return job.Record{}, fmt.Errorf("record of job %s, %s: %w", id, at, cmp.Or(err, ErrNotStored))
	}
	lane, laneErr := r.awaitLaneInfo(ctx, at.Lane)
	if laneErr == nil && lane.Identity != identity {
		laneErr = ErrStreamMismatch
	}
	if laneErr != nil {
		return job.Record{}, fmt.Errorf("load the record of job %s at %s: %w", id, at, laneErr)
	}
	return record, err
}

// awaitLaneInfo is [Reader.LaneInfo], but it waits for a leader until ctx ends: the
// replicas have none for a moment whenever leadership moves.
func (r *Reader) awaitLaneInfo(ctx context.Context, lane uint8) (LaneInfo, error) {
	ctx, cancel := withTimeout(ctx, loadTimeout)
	defer cancel()
	for {
		info, err := r.LaneInfo(ctx, lane)
		if !errors.Is(err, ErrNoLeader) || backoff.Sleep(ctx, replicaTimeout) != nil {
			return info, err
		}
	}
}

// LoadRecordBody returns the body of a job, given the body of its record: the content
// of the blob that body refers to, or body itself. It returns [ErrNotStored] if the
// blob was reclaimed. Few bodies refer to a blob, so it searches for the key before it
// parses the JSON.
func (r *Reader) LoadRecordBody(ctx context.Context, body []byte) ([]byte, error) {
	if !bytes.Contains(body, []byte(`"blob"`)) {
		return body, nil
	}
	var reference struct {
		Blob *job.Blob `json:"blob"`
	}
	if json.Unmarshal(body, &reference) != nil || reference.Blob == nil {
		return body, nil
	}
	return r.LoadBlob(ctx, BodyBlobs, *reference.Blob)
}

// Tail calls fn for each directly published record when it is stored. Records may
// be missed, and must then be read from their lane. Tail returns when ctx has
// ended and fn's last call has returned.
//
// A client cannot publish to the tail, but it can name it as the subject for the reply
// to a request, and JetStream then sends what the client has stored in a stream of its
// own. Such messages are ignored: see isRepublished.
func (r *Reader) Tail(ctx context.Context, fn func(job.Record)) error {
	sub, err := r.local.Reads.Conn.Subscribe(subjects.Tail+".>", func(m *nats.Msg) {
		lane, kind, queue, ok := subjects.ParseLaneSubject(m.Subject)
		if !ok || !isRepublished(m, lane, kind, queue) {
			return
		}
		s, err := parseStored(m)
		if err != nil {
			return
		}
		s.subject = m.Subject
		fn(toRecord(lane, &s))
	})
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subjects.Tail+".>", err)
	}
	<-ctx.Done()
	return embedded.EndSubscriptions((*nats.Subscription).Unsubscribe, sub)
}

// isRepublished reports whether m is a message of the lane's stream with the subject of
// this kind and queue. Only the server sets the headers that say so, except in what a
// consumer delivers, which has a reply subject.
func isRepublished(m *nats.Msg, lane uint8, kind, queue string) bool {
	return m.Reply == "" && serverHeader(m, subjects.HeaderStream) == subjects.LaneStream(lane) &&
		serverHeader(m, subjects.HeaderSubject) == subjects.LaneSubject(lane, kind, queue)
}

// Purge removes the lane's records below seq. It never removes the last record: a
// purge beyond a stream's end would advance its sequence.
func (a *Admin) Purge(ctx context.Context, lane uint8, seq uint64) error {
	name := subjects.LaneStream(lane)
	info, err := Info(ctx, a.local.JS, name)
	if err != nil {
		return err
	}
	seq = min(seq, info.State.LastSeq)
	if seq <= info.State.FirstSeq {
		return nil
	}
	return purge(ctx, a.local.JS, name, jetstream.WithPurgeSequence(seq))
}

// purge removes messages of a stream, selected by opts.
func purge(ctx context.Context, js jetstream.JetStream, name string, opts ...jetstream.StreamPurgeOpt) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", name, err)
	}
	if err := stream.Purge(ctx, opts...); err != nil {
		return fmt.Errorf("purge stream %s: %w", name, err)
	}
	return nil
}
