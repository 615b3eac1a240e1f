package memyard

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// Reader reads the streams as [streams.Reader] does. It needs Config.KeepMessages.
type Reader struct{ *Streams }

// LastSeq returns the last sequence of a lane.
func (r Reader) LastSeq(_ context.Context, lane uint8) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stream(lane).end(), nil
}

// LoadRecord returns the body of the record at a position, which must be of the job with
// the id.
func (r Reader) LoadRecord(_ context.Context, pos job.Position, id job.ID) ([]byte, error) {
	record, err := r.load(pos, id)
	return record.Body, err
}

// LoadRecordBody returns the body of a job, given that of its record.
func (r Reader) LoadRecordBody(_ context.Context, record []byte) ([]byte, error) {
	return r.resolve(record)
}

// LoadBlob returns a large body or result.
func (r Reader) LoadBlob(_ context.Context, store streams.BlobStore, blob job.Blob) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, ok := r.results[blob.Name]
	if store == streams.BodyBlobs {
		var body largeBody
		body, ok = r.bodies[blob.Name]
		data = body.text
	}
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", blob.Name, streams.ErrNotStored)
	}
	return data, nil
}

// LoadBlobRange returns size bytes of a large body or result, from offset on.
func (r Reader) LoadBlobRange(ctx context.Context, store streams.BlobStore, blob job.Blob, offset, size int64) ([]byte, error) {
	data, err := r.LoadBlob(ctx, store, blob)
	if err != nil {
		return nil, err
	}
	offset = min(offset, int64(len(data)))
	return data[offset:min(offset+size, int64(len(data)))], nil
}

// messages returns the messages of a stream of the outbox, by their sequence.
func (r Reader) messages(stream string) []streams.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stream == subjects.StreamDLQ {
		return r.history[outbox.DeadLetters].messages
	}
	return r.history[outbox.Results].messages
}

// ReadBatch returns the message with a sequence.
func (r Reader) ReadBatch(_ context.Context, stream string, seq uint64) (streams.Batch, error) {
	return findMessage(stream, r.messages(stream), seq, func(b streams.Batch) bool { return b.Seq >= seq }, func(b streams.Batch) bool { return b.Seq == seq })
}

// FindBatch returns the message that has the entry with a number.
func (r Reader) FindBatch(_ context.Context, stream string, number uint64) (streams.Batch, error) {
	return findMessage(stream, r.messages(stream), number,
		func(b streams.Batch) bool { return b.Last() >= number }, func(b streams.Batch) bool { return b.First <= number })
}

// findMessage returns the first message for which reached returns true, if matches does, too.
func findMessage(stream string, all []streams.Batch, number uint64, reached, matches func(streams.Batch) bool) (streams.Batch, error) {
	i := sort.Search(len(all), func(i int) bool { return reached(all[i]) })
	if i == len(all) || !matches(all[i]) {
		return streams.Batch{}, fmt.Errorf("%s has no message %d: %w", stream, number, streams.ErrNotStored)
	}
	return all[i], nil
}

// NumberedDeadLetter returns the dead letter with a number.
func (r Reader) NumberedDeadLetter(ctx context.Context, number uint64) (streams.Batch, error) {
	return r.FindBatch(ctx, subjects.StreamDLQ, number)
}

// DeadLetter returns the dead letter with a sequence.
func (r Reader) DeadLetter(ctx context.Context, seq uint64) (streams.Batch, error) {
	return r.ReadBatch(ctx, subjects.StreamDLQ, seq)
}

// LetterState returns which dead letters are stored.
func (r Reader) LetterState(context.Context, bool) (streams.LetterState, error) {
	all := r.messages(subjects.StreamDLQ)
	r.mu.Lock()
	last := r.history[outbox.DeadLetters].seq
	r.mu.Unlock()
	first := last + 1
	if len(all) > 0 {
		first = all[0].Seq
	}
	return streams.NewLetterState(first, last, all), nil
}

// LastDeadLetter returns the sequence of the newest dead letter.
func (r Reader) LastDeadLetter(context.Context) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history[outbox.DeadLetters].seq, nil
}

// DeadLetters calls yield for the dead letters of a queue, or with "" of all, with a sequence
// from from to until, until yield returns false.
func (r Reader) DeadLetters(_ context.Context, queue string, from, until uint64, yield func(streams.Batch) bool) error {
	for _, b := range r.messages(subjects.StreamDLQ) {
		if b.Seq >= from && b.Seq <= until && (queue == "" || b.Subject == queue) && !yield(b) {
			break
		}
	}
	return nil
}

// RemoveDeadLetter removes the dead letter with a sequence.
func (r Reader) RemoveDeadLetter(_ context.Context, seq uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.history[outbox.DeadLetters]
	h.messages = slices.DeleteFunc(slices.Clone(h.messages), func(b streams.Batch) bool { return b.Seq == seq })
	return nil
}

// ReadHistory returns up to limit batches of events, from a sequence on.
func (r Reader) ReadHistory(_ context.Context, seq uint64, limit int) ([]streams.Batch, error) {
	return r.readHistory(limit, func(b streams.Batch) bool { return b.Seq >= seq }), nil
}

// ReadHistorySince returns up to limit batches of events that were stored at a time or later.
func (r Reader) ReadHistorySince(_ context.Context, at time.Time, limit int) ([]streams.Batch, error) {
	return r.readHistory(limit, func(b streams.Batch) bool { return !b.Stored.Before(at) }), nil
}

// readHistory returns up to limit batches of events, from the first on for which reached
// returns true.
func (r Reader) readHistory(limit int, reached func(streams.Batch) bool) []streams.Batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.history[outbox.History].messages
	i := sort.Search(len(all), func(i int) bool { return reached(all[i]) })
	return slices.Clone(all[i:min(i+limit, len(all))])
}
