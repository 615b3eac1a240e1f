package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// relocateTimeout is how long to wait for the acknowledgement of a relocated record.
const relocateTimeout = 5 * time.Second

// StoreRelocated stores copies of records in the stream of relocated records, in their
// order, and returns their sequences there, of as many as were stored before an error. A
// copy that was stored a moment before is not stored again. floor is the stream's floor in
// the ledger: a copy that was stored before the floor was raised may have been purged, so
// that it is stored again. The Owner of each record must be set. The error is
// [ErrStorageFull] if the stream has no space.
func (w *Writer) StoreRelocated(ctx context.Context, floor uint64, records []job.Record) (seqs []uint64, err error) {
	requests := make([]*nats.Msg, len(records))
	for i := range records {
		requests[i] = relocatedMsg(floor, &records[i])
	}
	replies, err := w.local.Ingest.Requests(ctx, requests, relocateTimeout)
	for _, reply := range replies {
		ack, ackErr := embedded.ParsePubAck(reply.Data)
		if apiErr, ok := errors.AsType[*embedded.APIError](ackErr); ok && apiErr.StorageFull() {
			ackErr = fmt.Errorf("%w: %w", ErrStorageFull, apiErr)
		}
		if ackErr != nil {
			err = ackErr
			break
		}
		seqs = append(seqs, ack.Seq)
	}
	if err != nil {
		err = fmt.Errorf("store relocated records: %w", err)
	}
	return seqs, err
}

// relocatedOverhead is what a relocated record takes beside what its producer chose, in
// bytes, and more: its headers and those of its message on disk.
const relocatedOverhead = 512

// RelocatedSize returns how many bytes a copy of r takes at most in the stream of
// relocated records.
func RelocatedSize(r *job.Record) uint64 {
	return uint64(len(r.Body) + len(r.Key) + len(r.Queue) + relocatedOverhead)
}

// relocatedMsg returns the message that stores a copy of r while the stream has this floor.
func relocatedMsg(floor uint64, r *job.Record) *nats.Msg {
	m := nats.NewMsg(subjects.RelocatedSubject(r.Queue))
	m.Header.Set(subjects.HeaderMsgID, fmt.Sprintf("%s/%d@%d.%d/%d", r.Owner, r.Lane, r.Seq, r.Index, floor))
	m.Header.Set(subjects.HeaderJob, r.Owner.String())
	m.Header.Set(subjects.HeaderAt, strconv.FormatInt(r.Stored.UnixNano(), 10))
	if r.Key != "" {
		m.Header.Set(subjects.HeaderKey, r.Key)
	}
	m.Data = r.Body
	return m
}

// toRelocatedRecord converts a message of the stream of relocated records.
func toRelocatedRecord(s *storedMsg) job.Record {
	r := job.Record{
		Position: job.Position{Lane: job.RelocatedLane, Seq: s.seq},
		Queue:    strings.TrimPrefix(s.subject, subjects.Relocated+"."), Key: s.header.Get(subjects.HeaderKey),
		Stored: s.time, Body: s.data,
	}
	if at, err := strconv.ParseInt(s.header.Get(subjects.HeaderAt), 10, 64); err == nil {
		r.Stored = time.Unix(0, at)
	}
	r.Owner, _ = job.ParseID(s.header.Get(subjects.HeaderJob)) // zero: it matches no job
	return r
}
